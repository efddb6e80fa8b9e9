"""An engine over tensors in the GPU's own memory, and over memory that it shares with the host.

    python tests/bench/bench_gpu_tensors.py [--json FILE]

ResNet-50 in FP16, random weights, ONNX Runtime, one image and eight; its CUDA graph replayed, nothing around it. What
is shared is forced on a discrete GPU, which reads it over PCI Express; a Jetson's lies in the same chips either way,
and only passes the GPU's caches by: this shows what the choice decides, and not what it is worth there.
EDGERT_GPU_FOLDER keeps the network for the next time. Needs a GPU, PyCUDA, PyTorch with torchvision, and ONNX Runtime
with CUDA; says so and passes where one is missing.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.backend import EngineOptions
from edgert.backend.gpu import GpuEngine, OnHost
from edgert.backend.ort.cuda import OrtCudaBackend, why_not
from edgert.benchmark.measure import Figure
from edgert.graph import load
from edgert.memory.cuda import open_device
from tests.bench.report import main

SIDE, ROUNDS, RUNS = 224, 15, 20
FOLDER = os.environ.get("EDGERT_GPU_FOLDER", "")


def run_us(engine: GpuEngine, on_host: OnHost) -> float:
    """Microseconds of one run of a session for these tensors, the median."""
    session, device = engine.session(None, on_host), engine.device
    session.enqueue()
    session.stream.synchronize()
    graph = device.capture(session.stream, session.enqueue)
    start, end, taken = device.event(timed=True), device.event(timed=True), []
    for _ in range(ROUNDS + 3):
        start.record(session.stream)
        for _ in range(RUNS):
            graph()
        end.record(session.stream).synchronize()
        taken.append(end.since_ms(start) / RUNS * 1e3)
    return statistics.median(taken[3:])


def measure() -> Iterator[Figure]:
    """One image and eight."""
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    from tests.bench import gpu_peer

    device = open_device()
    device.kind = "mapped"  # as if it were a Jetson's
    with ExitStack() as stack:
        path = Path(FOLDER or stack.enter_context(tempfile.TemporaryDirectory())) / "net.onnx"
        if not path.exists():
            gpu_peer.export(gpu_peer.network("resnet50").cuda().half(), SIDE, True, path)
        for rows in (1, 8):
            options = EngineOptions(profiles={"default": {gpu_peer.INPUT: (rows, 3, SIDE, SIDE)}})
            engine = OrtCudaBackend(device).compile(load(path), options)
            own, shared = run_us(engine, "none"), run_us(engine, "all")
            detail = {"own_us": own, "shared_us": shared}
            title = f"ResNet-50, batch {rows}: shared tensors / the GPU's own"
            yield Figure(title, shared / own, "x", None, "lower", ROUNDS * RUNS, detail)
            engine.close()


if __name__ == "__main__":
    main(__doc__ or "", measure)
