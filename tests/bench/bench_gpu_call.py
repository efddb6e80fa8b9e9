"""One frame in, one record out, as a control loop waits for it: a call of the pipeline beside submit and results.

    python tests/bench/bench_gpu_call.py [--json FILE]

ResNet-50 at 224 × 224 in FP16 with random weights, 1080p NV12 frames, on one GPU, in one process and in turns. The
inner loop is GpuInference alone: fill, submit, read, of a frame in pinned memory. A call is ``pipeline(frame)``;
submit and results is ``pipeline.submit(frame)`` and ``next(results)``. Frames are lent buffers that were filled
before, as a camera fills them; ordinary arrays, which are copied to pinned memory; and tensors of PyTorch on the GPU.
EDGERT_CALL_FOLDER is where the network's ONNX file is found or written, EDGERT_CALL_ENGINE the engine in place of
onnxruntime-cuda. Needs a GPU, PyCUDA, PyTorch and that engine; says so and passes where ONNX Runtime lacks CUDA.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from edgert.backend.ort.cuda import why_not
from edgert.benchmark.measure import Figure
from edgert.pipeline import Pipeline
from tests.bench.gpu_run import HEIGHT, WIDTH, Pinned, frames
from tests.bench.report import main

ROUNDS, TURNS = 300, 3
FILE = """
schema: 1
name: call
engines: [ENGINE]
models:
  net:
    onnx: net.onnx
    task: {classify: softmax, top: 5}
    input: {resize: stretch, mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]}
stages:
  cam: {source: api}
  find: {infer: net, from: cam}
"""


def export(folder: Path) -> None:
    """The network as ONNX."""
    import torch

    from tests.bench import gpu_peer

    gpu_peer.export(gpu_peer.network("resnet50").cuda().to(torch.float16), 224, True, folder / "net.onnx")


def on_gpu(pixels: list[Any]) -> list[Any]:
    """The same as tensors of PyTorch."""
    import torch

    tensors = [torch.from_numpy(one).cuda() for one in pixels]
    torch.cuda.synchronize()
    return tensors


class Ways:
    """Ways to take one frame through the same network. The inner loop is that of the pipeline that is called."""

    def __init__(self, called: Pipeline, started: Pipeline, pixels: list[Any], tensors: list[Any]) -> None:
        self._called, self._started, self._pixels, self._tensors = called, started, pixels, tensors
        self._results = started.results("find", timeout=60)
        called(pixels[0], format="nv12")
        (self._inference,) = called._assembly.inferences
        self._pinned = Pinned(self._inference._uploader.device, pixels, 8)
        self._next = 0

    def inner_loop(self) -> float:
        frame = self._pinned.take()
        started = time.perf_counter_ns()
        self._inference.submit_batch((self._inference.fill(frame),), patient=False).records()
        taken = time.perf_counter_ns() - started
        frame.lease.release()
        return taken / 1e6

    def call(self, kind: str) -> float:
        frame = self._taken(self._called, kind)
        started = time.perf_counter_ns()
        self._called(frame, format="nv12")
        return (time.perf_counter_ns() - started) / 1e6

    def submit(self, kind: str) -> float:
        frame = self._taken(self._started, kind)
        started = time.perf_counter_ns()
        self._started.submit(frame, format="nv12")
        next(self._results)
        return (time.perf_counter_ns() - started) / 1e6

    def _taken(self, pipeline: Pipeline, kind: str) -> Any:
        self._next += 1
        if kind == "buffer":
            leased = pipeline.buffer((WIDTH, HEIGHT), format="nv12")
            leased.array[0, 0] += 1  # what was in it stays: writing 3 MB is the camera's work
            return leased
        return (self._pixels if kind == "array" else self._tensors)[self._next % len(self._pixels)]


def raced(ways: Ways) -> dict[str, list[list[float]]]:
    """Milliseconds of each frame, of each turn, of each way."""
    todo: dict[str, Callable[[], float]] = {
        "inner loop": ways.inner_loop,
        "call, lent buffer": lambda: ways.call("buffer"),
        "call, tensor": lambda: ways.call("tensor"),
        "call, array": lambda: ways.call("array"),
        "submit and results, lent buffer": lambda: ways.submit("buffer"),
        "submit and results, tensor": lambda: ways.submit("tensor"),
        "submit and results, array": lambda: ways.submit("array"),
    }
    found: dict[str, list[list[float]]] = {way: [] for way in todo}
    for _ in range(TURNS):
        for way, run in todo.items():
            for _ in range(ROUNDS // 8):
                run()
            found[way].append([run() for _ in range(ROUNDS)])
    return found


def measure() -> Iterator[Figure]:
    """All ways, in turns."""
    if (missing := why_not()) and "EDGERT_CALL_ENGINE" not in os.environ:
        print(f"skipped: {missing}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.environ.get("EDGERT_CALL_FOLDER", name))
        if not (folder / "net.onnx").exists():
            export(folder)
        engine = os.environ.get("EDGERT_CALL_ENGINE", "onnxruntime-cuda")
        (folder / "call.yaml").write_text(FILE.replace("ENGINE", engine))
        with Pipeline(folder / "call.yaml") as called, Pipeline(folder / "call.yaml") as started:
            pixels = frames(8)
            found = raced(Ways(called, started, pixels, on_gpu(pixels)))
        medians = {way: [statistics.median(one) for one in all_of_it] for way, all_of_it in found.items()}
        for way, all_of_it in found.items():
            p50, p99 = np.percentile(np.concatenate(all_of_it), [50, 99]).tolist()
            detail = {"p99_ms": p99, "least_p50_ms": min(medians[way]), "most_p50_ms": max(medians[way])}
            yield Figure(f"{way}: p50", p50, "ms", None, "lower", TURNS * ROUNDS, detail)
        ratio = statistics.median(medians["call, lent buffer"]) / statistics.median(medians["inner loop"])
        yield Figure("call / inner loop", ratio, "x", 1.15, "lower", TURNS * ROUNDS)
        ratio = statistics.median(medians["submit and results, lent buffer"])
        yield Figure("submit and results / call", ratio / statistics.median(medians["call, lent buffer"]), "x", None,
                     "higher", TURNS * ROUNDS)  # fmt: skip


if __name__ == "__main__":
    main(__doc__ or "", measure)
