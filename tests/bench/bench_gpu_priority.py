"""Two models on one GPU: how long a live camera's model waits beside a busy one, with and without `priority: high`.

    python tests/bench/bench_gpu_priority.py [--json FILE]

ResNet-50 in FP16 looks at a live 1080p camera of 60 fps. Beside it, the detector of bench_gpu_end_to_end.py in FP16
takes frames of a file as fast as it can, one at a time or in batches of eight; both have threads of their own in one
process. The ways take turns: the camera alone, beside the file, and beside the file with the camera's model going
first. Needs a GPU, PyCUDA, PyTorch and ONNX Runtime with CUDA; says so and passes where one is missing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.assemble.gpu_models import gpu_inference
from edgert.backend.ort.cuda import OrtCudaEngine, why_not
from edgert.benchmark.measure import Figure
from edgert.memory.cuda import CudaDevice, open_device
from edgert.runtime import Frame
from edgert.stages.gpu.infer_gpu import GpuInference
from tests.bench.bench_gpu_end_to_end import Subject, refined
from tests.bench.gpu_run import Camera, Run, frames, run
from tests.bench.report import main

ROUNDS, SECONDS, RATE_HZ = 3, 5, 60.0
COUNT = round(SECONDS * RATE_HZ)
FULL_S = 0.5
"""Until the queues of the busy model are full."""
Taken = dict[str, list[float]]


class Endless(Camera):
    """A file that goes on until it is told to end."""

    def __init__(self, pixels: list[Any], device: CudaDevice, ended: threading.Event) -> None:
        super().__init__("file", pixels, sys.maxsize, device=device, kind="written")
        self._ended = ended

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """See :class:`~edgert.runtime.Source`."""
        for frame in super().frames(stop):
            if self._ended.is_set():
                frame.lease.release()
                return
            yield frame


class Live:
    """The camera's model, with a priority."""

    def __init__(self, subject: Subject, is_urgent: bool) -> None:
        self.subject, self.engine = subject, subject.engine(1)
        self.inference = inference_of(subject, self.engine, is_urgent)

    def seen(self) -> Run:
        """Its camera for some seconds."""
        camera = Camera("cam", self.subject.pixels, COUNT, RATE_HZ, device=self.subject.device, kind="written")
        return run(self.inference, self.subject.device.counter, [camera], COUNT)

    def close(self) -> None:
        """Frees inference slot and engine."""
        self.inference.close()
        self.engine.close()


def inference_of(subject: Subject, engine: OrtCudaEngine, is_urgent: bool = False) -> GpuInference:
    """An inference slot whose kernels go first, or take their turn."""
    made = gpu_inference(engine, None, subject.config, lambda _: subject.decoder, subject.name, is_urgent=is_urgent)
    assert made is not None
    made.warm_up()
    refined(engine)
    return made


@contextmanager
def busy(subject: Subject, inference: GpuInference) -> Iterator[Future[Run]]:
    """The other model works as long as this lasts; what came of it is there afterwards."""
    ended = threading.Event()
    file = Endless(subject.pixels, subject.device, ended)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, inference, subject.device.counter, [file], 0, inference.rows)
        try:
            time.sleep(FULL_S)
            yield future
        finally:
            ended.set()


def rounds(quick: Subject, heavy: Subject, rows: int) -> Taken:
    """Milliseconds from the camera to its record by way, and frames per second of the busy model beside it."""
    engine = heavy.engine(rows)
    inference, ways = inference_of(heavy, engine), {"normal": Live(quick, False), "high": Live(quick, True)}
    taken: Taken = {}
    for _ in range(ROUNDS):
        noted(taken, "alone", ways["normal"].seen())
        for name, live in ways.items():
            with busy(heavy, inference) as other:
                found = live.seen()
            noted(taken, name, found)
            taken.setdefault(f"{name}_other_fps", []).append(other.result().fps)
    for live in ways.values():
        live.close()
    inference.close()
    engine.close()
    return taken


def noted(taken: Taken, way: str, found: Run) -> None:
    """Adds what a round gave."""
    for name, value in (("p50_ms", found.p50_ms), ("p99_ms", found.p99_ms), ("lost", found.lost)):
        taken.setdefault(f"{way}_{name}", []).append(value)


def figure(quick: Subject, heavy: Subject, rows: int) -> Figure:
    """99th percentiles, medians of the rounds, of a model that goes first over one that does not."""
    told: dict[str, Any] = {name: statistics.median(values) for name, values in rounds(quick, heavy, rows).items()}
    beside = f"a detector in batches of {rows}" if rows > 1 else "a detector of single frames"
    ratio = told["high_p99_ms"] / told["normal_p99_ms"]
    return Figure(f"p99 beside {beside}: high / normal", ratio, "x", None, "lower", ROUNDS * COUNT, told)


def measure() -> Iterator[Figure]:
    """Beside single frames and beside batches."""
    if missing := why_not():
        print(f"skipped: {missing}")
        return
    device, pixels = open_device(), frames(16)
    with tempfile.TemporaryDirectory() as folder:
        quick, heavy = (Subject(name, True, Path(folder), device, pixels) for name in ("resnet50", "detector"))
        for rows in (1, 8):
            yield figure(quick, heavy, rows)


if __name__ == "__main__":
    main(__doc__ or "", measure)
