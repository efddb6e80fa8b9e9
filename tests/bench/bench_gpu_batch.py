"""One engine for every size of a batch, on one GPU: how fast each size is, what memory it takes, how soon it is ready.

    python tests/bench/bench_gpu_batch.py [--json FILE]

ResNet-50 at 224 × 224 and a detector of YOLOX-s's size at 640 × 640, FP16, random weights, ONNX Runtime. The engine of
a model whose batch is left open, as a pipeline with ``batch: {max: 8}`` has it, beside one engine for each size, whose
model is fixed to it. Times are of the CUDA graph alone, replayed; memory is what the driver reports; the start is from
the model in memory to a recorded graph of every size, in a process that has run another model before.
Needs a GPU, PyCUDA, PyTorch and ONNX Runtime with CUDA; says so and passes where one is missing.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from edgert.backend import EngineOptions
from edgert.backend.gpu import GpuEngine, GpuSession
from edgert.backend.ort.cuda import OrtCudaBackend, why_not
from edgert.benchmark.measure import Figure
from edgert.graph import Model, load, with_shapes
from edgert.memory.cuda import CudaDevice, open_device
from edgert.policy import run_sizes
from tests.bench.report import main

MOST, ROUNDS, LAUNCHES = 8, 15, 20
SIDES = {"resnet50": 224, "detector": 640}
SIZES = run_sizes(MOST, dynamic=True)


@dataclass(frozen=True)
class Found:
    """Of one engine.

    Attributes:
        us: rows → microseconds of a run.
        ready_s: until graphs of all its sizes were recorded.
        nbytes: of the GPU's memory, that one of its sessions is bound to left out.
    """

    us: dict[int, float]
    ready_s: float
    nbytes: int


def measured(device: CudaDevice, model: Model, name: str, rows: int, sizes: tuple[int, ...]) -> Found:
    """Compiles an engine for up to ``rows``, and runs it with each of the sizes."""
    gc.collect()
    device.settle()
    before, started = device.free_bytes()[0], time.perf_counter()
    engine = OrtCudaBackend(device).compile(model, EngineOptions(profiles={"default": {name: shape_of(model, rows)}}))
    session = engine.session()
    fill(session)
    graphs = {}
    for size in sizes:
        session.enqueue(size)
        session.stream.synchronize()
        graphs[size] = device.capture(session.stream, lambda size=size: session.enqueue(size))  # type: ignore[misc]
    ready_s = time.perf_counter() - started
    device.settle()
    bound = sum(one.block.nbytes for one in (*session.inputs_on_gpu.values(), *session.outputs_on_gpu))
    nbytes = before - device.free_bytes()[0] - bound
    us = {size: replayed_us(device, session, graph) for size, graph in graphs.items()}
    graphs.clear()
    close(engine)
    return Found(us, ready_s, nbytes)


def shape_of(model: Model, rows: int) -> tuple[int, ...]:
    """Of the input, for so many images."""
    (value,) = model.proto.graph.input
    return (rows, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))


def fill(session: GpuSession) -> None:
    """Random numbers for the input: on zeros, GPUs are faster."""
    (tensor,) = session.inputs_on_gpu.values()
    tensor.host[...] = np.random.default_rng(0).standard_normal(tensor.shape, np.float32)
    tensor.block.upload(session.stream)
    session.stream.synchronize()


def replayed_us(device: CudaDevice, session: GpuSession, graph: Any) -> float:
    """Microseconds of a launch, of many in a row."""
    start, end, taken = device.event(timed=True), device.event(timed=True), []
    for _ in range(ROUNDS + 3):
        start.record(session.stream)
        for _ in range(LAUNCHES):
            graph()
        end.record(session.stream).synchronize()
        taken.append(end.since_ms(start) / LAUNCHES * 1e3)
    return statistics.median(taken[3:])


def close(engine: GpuEngine) -> None:
    """And what it had of the GPU."""
    engine.close()
    gc.collect()


def measure() -> Iterator[Figure]:
    """All of it."""
    if missing := why_not():
        print(f"skipped: {missing}")
        return
    from tests.bench import gpu_peer

    device = open_device()
    with tempfile.TemporaryDirectory() as folder:
        for name, side in SIDES.items():
            net = gpu_peer.network(name).cuda().half()
            model = load(gpu_peer.export(net, side, True, Path(folder) / f"{name}.onnx"))
            if name == next(iter(SIDES)):  # libraries are loaded once for all
                measured(device, model, gpu_peer.INPUT, 1, (1,))
            yield from figures(f"{name} FP16", device, model, gpu_peer.INPUT)


def figures(title: str, device: CudaDevice, model: Model, name: str) -> Iterator[Figure]:
    """Of one network."""
    of_all = measured(device, model, name, MOST, SIZES)
    fixed = {
        size: measured(device, with_shapes(model, {name: shape_of(model, size)}), name, size, (size,)) for size in SIZES
    }
    for size in SIZES:
        detail = {"us": of_all.us[size], "fixed_us": fixed[size].us[size]}
        yield Figure(
            f"{title}, batch of {size}: engine of all sizes / of this one",
            of_all.us[size] / fixed[size].us[size],
            "x",
            1.05,
            n=ROUNDS * LAUNCHES,
            detail=detail,
        )
    weights = sum(len(one.raw_data) for one in model.proto.graph.initializer)
    largest = fixed[MOST].nbytes
    told = {"bytes": of_all.nbytes, "largest_alone": largest, "weights": weights, "n_sizes": len(SIZES)}
    more = of_all.nbytes - largest
    yield Figure(
        f"{title}: memory of {len(SIZES)} sizes beyond the largest / weights", more / weights, "x", 1, detail=told
    )
    told = {f"alone_{size}_s": fixed[size].ready_s for size in SIZES}
    yield Figure(f"{title}: until {len(SIZES)} sizes are ready", of_all.ready_s, "s", None, detail=told)


if __name__ == "__main__":
    main(__doc__ or "", measure)
