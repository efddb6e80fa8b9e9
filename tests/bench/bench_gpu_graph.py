"""One CUDA graph from the engine to boxes against two, decoding beside the next frame's engine; 1080p NV12, one GPU.

    python tests/bench/bench_gpu_graph.py [--json FILE]

Both ways take turns: a file as fast as it goes, the engine's host time per frame, one live camera of 30 fps, and single
frames that are waited for, as crops are.
Needs a GPU, PyCUDA, PyTorch and ONNX Runtime with CUDA; says so and passes where one is missing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.assemble.gpu_models import gpu_inference
from edgert.backend.ort.cuda import OrtCudaEngine, why_not
from edgert.benchmark.measure import Figure
from edgert.memory.cuda import CudaDevice, open_device
from edgert.stages.gpu.infer_gpu import GpuInference
from edgert.stages.gpu.upload import Uploader
from tests.bench.bench_gpu_end_to_end import SIDES, Subject, cameras, files, host_us, refined
from tests.bench.gpu_run import frame_of, frames
from tests.bench.report import main

WAYS = {"one": False, "two": True}
ROUNDS, COUNT, SECONDS = 3, 1500, 4


def inference_of(subject: Subject, engine: OrtCudaEngine, beside: bool) -> GpuInference:
    """An inference slot that decodes in the engine's graph, or beside it."""
    made = gpu_inference(engine, None, subject.config, lambda _: subject.decoder, subject.name, beside=beside)
    assert made is not None
    made.warm_up()
    refined(engine)
    return made


def both(subject: Subject) -> dict[str, float]:
    """Medians over the rounds, by way and figure."""
    engine = subject.engine(1)
    taken: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for way, beside in WAYS.items():
            inference = inference_of(subject, engine, beside)
            host, fast = host_us(subject, inference), files(subject, inference, COUNT)
            live = cameras(subject, inference, 1, SECONDS)
            told = {"fps": fast.fps, "host_us": host["on_gpu_us"], "p50_ms": live.p50_ms, "p99_ms": live.p99_ms}
            told["waited_us"] = waited_us(subject, inference)
            for name, value in told.items():
                taken.setdefault(f"{way}_{name}", []).append(value)
            inference.close()
    engine.close()
    return {name: statistics.median(values) for name, values in taken.items()}


def waited_us(subject: Subject, inference: GpuInference) -> float:
    """From a frame on the GPU to its record, one at a time; the median of 300."""
    uploader = Uploader(subject.device, subject.device.stream(), subject.device.counter)
    there, taken = uploader.upload(frame_of(subject.pixels[0])), []
    for _ in range(300):
        started = time.perf_counter_ns()
        inference.run(inference.fill(there))
        taken.append((time.perf_counter_ns() - started) / 1e3)
    there.lease.release()
    uploader.close()
    return statistics.median(taken)


def measure() -> Iterator[Figure]:
    """Frames per second of one graph over those of two; the rest beside it."""
    if missing := why_not():
        print(f"skipped: {missing}")
        return
    device, pixels = open_device(), frames(16)
    with tempfile.TemporaryDirectory() as folder:
        for name in SIDES:
            yield figure(name, device, Path(folder), pixels)


def figure(name: str, device: CudaDevice, folder: Path, pixels: list[Any]) -> Figure:
    """Of one network in FP16."""
    found = both(Subject(name, True, folder, device, pixels))
    return Figure(
        f"{name} FP16: one graph / two", found["one_fps"] / found["two_fps"], "x", None, "higher", COUNT, found
    )


if __name__ == "__main__":
    main(__doc__ or "", measure)
