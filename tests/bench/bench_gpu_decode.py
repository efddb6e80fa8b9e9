"""A 1080p H.264 file to results on one GPU: decoded by NVDEC, beside decoded by the processor and uploaded.

    python tests/bench/bench_gpu_decode.py [--json FILE]

The same file and networks (ResNet-50 at 224 × 224, a detector of YOLOX-s's size at 640 × 640, FP16, random
weights, run by PyTorch) both ways, in one process. ``source_us`` is processor time of the source's thread per frame,
``all_us`` that of the whole process; waits for the GPU and its decoder spin, and count. ``decode alone`` is the source
with nobody behind it, opening included. What NVDEC itself brings over, the compressed video, is not counted as copies.
EDGERT_GPU_FRAMES is the length of the file. Needs a GPU, PyCUDA, PyTorch, torchvision and PyNvVideoCodec; says so and
passes where one is missing.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.assemble.gpu_models import gpu_inference
from edgert.benchmark.measure import Figure
from edgert.clock import REAL
from edgert.config import InputConfig
from edgert.config.stages import SourceStage
from edgert.errors import EdgertError
from edgert.memory.cuda import CudaDevice, open_device
from edgert.runtime import Frame, SourceStats
from edgert.stages.decode.classify import Classify
from edgert.stages.decode.decoder import Decoder
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.yolo import YoloX
from edgert.stages.gpu.infer_gpu import GpuInference
from edgert.stages.source.files import VideoFile
from edgert.stages.source.kinds import source_for
from edgert.stages.source.nvdec import missing
from tests.bench.gpu_run import HEIGHT, WIDTH, run
from tests.bench.report import main
from tests.helpers.clips import numbered, write_clip

COUNT, IMAGES, ROUNDS = int(os.environ.get("EDGERT_GPU_FRAMES", "1500")), 60, 3
SIDES = {"resnet50": 224, "detector": 640}


@dataclass
class Clip:
    """A file as a camera of the bench, decoded in one of the two ways.

    Attributes:
        device: what frames stay on; None decodes on the processor.
        seconds: of processor time that the source's thread took.
    """

    path: Path
    counted_on: CudaDevice
    device: CudaDevice | None
    name: str = "cam"
    live: bool = False
    seconds: float = 0.0

    def __post_init__(self) -> None:
        config = SourceStage(source=str(self.path))
        self._file = cast("VideoFile", source_for(self.name, config, self.counted_on.counter, REAL, Path()))
        if self.device is not None and (reason := self._file.on_gpu(self.device)):
            raise SystemExit(reason)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """See :class:`~edgert.runtime.Source`; runs in the source's thread, whose time is noted."""
        before = time.thread_time()
        yield from self._file.frames(stop)
        self.seconds = time.thread_time() - before

    def stats(self) -> SourceStats:
        """See :class:`~edgert.runtime.Source`."""
        return self._file.stats()

    def close(self) -> None:
        """See :class:`~edgert.runtime.Source`."""
        self._file.close()


def decode_fps(path: Path, counted_on: CudaDevice, device: CudaDevice | None) -> float:
    """Frames per second with nobody behind the source."""
    clip = Clip(path, counted_on, device)
    started = time.perf_counter()
    count = 0
    for frame in clip.frames(threading.Event()):
        frame.lease.release()
        count += 1
    clip.close()
    return count / (time.perf_counter() - started)


def inference_of(name: str, device: CudaDevice) -> tuple[GpuInference, Any]:
    """An inference slot over the network, and its engine."""
    from tests.bench import gpu_peer
    from tests.bench.torch_session import TorchEngine

    engine = TorchEngine(gpu_peer.network(name).cuda().half(), SIDES[name], device)
    detects = name == "detector"
    config = InputConfig() if detects else InputConfig(resize="stretch", mean=gpu_peer.MEAN, std=gpu_peer.STD)
    decoder: Decoder = Detector(YoloX(), 0.5, 0.45, 300) if detects else Classify("softmax", 5)
    inference = gpu_inference(cast("Any", engine), None, config, lambda _: decoder, name)
    assert inference is not None
    return inference, engine


def compared(name: str, path: Path, device: CudaDevice) -> Iterator[Figure]:
    """Both ways through one network, in turns."""
    inference, engine = inference_of(name, device)
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number in range(ROUNDS + 1):
        for on_gpu in (False, True):
            clip = Clip(path, device, device if on_gpu else None)
            before = time.process_time()
            one = run(inference, device.counter, [clip], COUNT)  # type: ignore[list-item]
            all_us = (time.process_time() - before) / COUNT * 1e6
            told = {"fps": one.fps, "p50_ms": one.p50_ms, "source_us": clip.seconds / COUNT * 1e6, "all_us": all_us}
            if number:  # the first pair records graphs
                found[on_gpu].append({**told, "copies": one.copies, "bytes": one.bytes_copied, "lost": one.lost})
    there, here = (
        {key: statistics.median(one[key] for one in found[way]) for key in found[way][0]} for way in (True, False)
    )
    table = {**{f"nvdec_{k}": v for k, v in there.items()}, **{f"cpu_{k}": v for k, v in here.items()}}
    yield Figure(f"{name}: NVDEC / decoded on the processor, fps", there["fps"] / here["fps"], "x", None, "higher",
                 ROUNDS * COUNT, table)  # fmt: skip
    yield Figure(
        f"{name}: host time to submit a frame from NVDEC",
        submit_us(path, inference, device),
        "µs",
        150,
        "lower",
        COUNT,
        table,
    )
    yield Figure(f"{name}: copies per frame with NVDEC", there["copies"], "", 1, "lower", ROUNDS * COUNT, table)
    inference.close()
    engine.close()


def submit_us(path: Path, inference: GpuInference, device: CudaDevice) -> float:
    """Host microseconds from a decoded frame to all its work being on the stream, the GPU being idle; the median."""
    clip, taken = Clip(path, device, device), []
    for frame in clip.frames(threading.Event()):
        device.synchronize()
        started = time.perf_counter_ns()
        pending = inference.submit_batch((inference.fill(frame),))
        taken.append((time.perf_counter_ns() - started) / 1e3)
        frame.lease.release()
        pending.records()[0]
    clip.close()
    return statistics.median(taken)


def measure() -> Iterator[Figure]:
    """All of it."""
    if reason := missing():
        print(f"skipped: {reason}")
        return
    try:
        device = open_device()
    except EdgertError as error:
        print(f"skipped: {error.what}: {error.why}")
        return
    images = list(numbered(IMAGES, (WIDTH, HEIGHT)))
    options = {"preset": "veryfast", "crf": "23"}
    with tempfile.TemporaryDirectory() as folder:
        path = write_clip(
            Path(folder) / "clip.mp4", islice(cycle(images), COUNT), size=(WIDTH, HEIGHT), options=options
        )
        told = {"megabit_s": path.stat().st_size * 8 / (COUNT / 30) / 1e6, "cores": float(os.cpu_count() or 0)}
        ways = {"NVDEC": device, "the processor": None}
        for name, there in ways.items():
            fps = statistics.median(decode_fps(path, device, there) for _ in range(ROUNDS))
            yield Figure(f"decode alone by {name}", fps, "fps", None, "higher", ROUNDS * COUNT, told)
        for name in SIDES:
            yield from compared(name, path, device)
    yield Figure("blocks leaked", device.leaked, "", 0, "lower", COUNT)


if __name__ == "__main__":
    main(__doc__ or "", measure)
