"""Several models that look at crops of one frame's boxes: launches of the kernel that prepares images, and the host's
work for a frame.

    python tests/bench/bench_gpu_crops.py [--models 3] [--boxes 20] [--frames 300] [--json FILE]

``batch by batch`` are stages of one model each as fallback models have them; ``each by itself`` are stages that would
run several, with one model each; ``together`` is one such stage for all. Boxes differ from frame to
frame, as those of a detector do. Over a stand-in for a GPU that does nothing, at once; a real driver's calls come on
top. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.config import CropConfig
from edgert.runtime import Frame, Result
from edgert.stages.gpu.gpu_crops import InferCropsTogether, Look
from edgert.stages.gpu.infer_gpu import Submitting
from edgert.stages.gpu.upload import Staging
from edgert.stages.infer import InferCrops
from tests.bench.report import main
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.frames import detections, frame_of
from tests.helpers.gpu_inference import Rig

WIDTH, HEIGHT, WARM = 1920, 1080, 20


def found(random: Any, count: int) -> Any:
    """Boxes of 20 to 300 pixels."""
    corner = random.uniform((0, 0), (WIDTH - 300, HEIGHT - 300), (count, 2))
    return detections(*np.hstack([corner, corner + random.uniform(20, 300, (count, 2))]).tolist())


def measured(gpu: CudaDouble, frame: Frame, stages: list[Any], options: argparse.Namespace) -> tuple[float, float]:
    """Processor time of a frame, median microseconds, and launches of the kernel that prepares images."""
    random, taken = np.random.default_rng(0), []
    for number in range(WARM + options.frames):
        if number == WARM:
            before = len(gpu.launches)
        result = Result(frame, {"find": found(random, options.boxes)})
        started = time.thread_time_ns()
        for stage in stages:
            result = stage.process(result)
        taken.append((time.thread_time_ns() - started) / 1e3)
    launches = [launch[0] for launch in gpu.launches[before:]].count("preprocess")
    return statistics.median(taken[WARM:]), launches / options.frames


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """Both."""
    gpu = CudaDouble()
    rigs = [Rig(rows=options.boxes, gpu=gpu, beside=False) for _ in range(options.models)]
    frame, crop = Staging(rigs[0].device).taken(frame_of(WIDTH, HEIGHT, "nv12")), CropConfig(limit=options.boxes)
    looks = [Look(f"look{n}", rig.inference, crop) for n, rig in enumerate(rigs)]
    alone = [InferCrops(look.name, Submitting(look.inference, itself=True), crop) for look in looks]
    each = [InferCropsTogether([look]) for look in looks]
    together = InferCropsTogether(looks)
    for stage in (*each, together):
        stage.open()
    what = f"{options.models} models, {options.boxes} boxes"
    for name, stages, bar in (
        ("batch by batch", alone, None),
        ("each by itself", each, None),
        ("together", [together], 1.0),
    ):
        host_us, launches = measured(gpu, frame, stages, options)
        yield Figure(f"{what}, {name}: launches of a frame", launches, "", bar, "lower", options.frames)
        yield Figure(f"{what}, {name}: host", host_us, "µs", None, "lower", options.frames)
    frame.lease.release()
    for rig in rigs:
        rig.close()


def arguments(parser: argparse.ArgumentParser) -> None:
    """What divides it."""
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--boxes", type=int, default=20, help="of a frame; a model's batch holds as many")
    parser.add_argument("--frames", type=int, default=300)


if __name__ == "__main__":
    main(__doc__ or "", measure, arguments)
