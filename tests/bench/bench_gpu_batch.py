"""One engine for every size of a batch, on one GPU: how fast each size is, what memory it takes, how soon it is ready.

    python tests/bench/bench_gpu_batch.py [--json FILE]

ResNet-50 at 224 × 224 and a detector of YOLOX-s's size at 640 × 640, FP16, random weights, ONNX Runtime; EDGERT_NETWORK
names one of them, ``resnet50`` or ``detector``. The engine of a model whose batch is left open, as a pipeline with
``batch: {max: 8}`` has it, at first and when its full batches run with fused kernels; beside it engines of one size, of
a model that is fixed to it, with fused kernels from the start (``tuning: {fused: start}``), and for the memory of sizes
an engine whose sizes have one layout. Times are of the CUDA graph alone, replayed; memory is what the driver reports;
the start is from the model in memory, its cleaned form and what was measured of layouts in a cache, to a recorded graph
of every size, in a process that has run another model before.
Needs a GPU, PyCUDA, PyTorch and ONNX Runtime with CUDA; says so and passes where one is missing.
"""

from __future__ import annotations

import gc
import os
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

from edgert.backend import EngineOptions, Tuning
from edgert.backend.gpu import GpuSession
from edgert.backend.ort.cuda import OrtCudaBackend, why_not
from edgert.benchmark.measure import Figure
from edgert.files import FileStore
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
        us: rows → microseconds of a run; ``full_us``: of all rows with fused kernels.
        ready_s: until graphs of all its sizes were recorded; ``full_s``: from then until those kernels were ready.
        nbytes: of the GPU's memory, that one of its sessions is bound to left out; ``full_nbytes``: more for them.
        differs: how far outputs of a full batch are apart with and without those kernels, in parts of the largest.
    """

    us: dict[int, float]
    ready_s: float
    nbytes: int
    full_us: float
    full_s: float
    full_nbytes: int
    differs: float


def measured(device: CudaDevice, model: Model, options: EngineOptions, sizes: tuple[int, ...]) -> Found:
    """Compiles an engine, and runs it with each of the sizes."""
    gc.collect()
    device.settle()
    before, started = device.free_bytes()[0], time.perf_counter()
    engine = OrtCudaBackend(device).compile(model, options)
    session = engine.session()
    fill(session)
    graphs = {size: recorded(device, session, size) for size in sizes}
    ready_s = time.perf_counter() - started
    device.settle()
    bound = sum(one.block.nbytes for one in (*session.inputs_on_gpu.values(), *session.outputs_on_gpu))
    after, full_us, full_s, differs = device.free_bytes()[0], 0.0, 0.0, 0.0
    us = {size: replayed_us(device, session, graph) for size, graph in graphs.items()}
    engine.refine()
    if engine.refinement is not None:
        started = time.perf_counter()
        engine.refinement.wait()
        full_s = time.perf_counter() - started
        before_them = outputs(session, graphs[max(sizes)])
        graphs[max(sizes)] = recorded(device, session, max(sizes))
        full_us = replayed_us(device, session, graphs[max(sizes)])
        pairs = zip(before_them, outputs(session, graphs[max(sizes)]), strict=True)
        differs = max(float(np.abs(one - other).max() / np.abs(one).max()) for one, other in pairs)
    device.settle()
    more = after - device.free_bytes()[0]
    graphs.clear()
    engine.close()
    return Found(us, ready_s, before - after - bound, full_us, full_s, more, differs)


def outputs(session: GpuSession, graph: Any) -> list[Any]:
    """Of a launch, as float32."""
    graph()
    for tensor in session.outputs_on_gpu:
        tensor.block.download(session.stream)
    session.stream.synchronize()
    return [tensor.host.astype(np.float32) for tensor in session.outputs_on_gpu]


def recorded(device: CudaDevice, session: GpuSession, size: int) -> Any:
    """A graph of so many rows."""
    session.enqueue(size)
    session.stream.synchronize()
    return device.capture(session.stream, lambda: session.enqueue(size))


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


def measure() -> Iterator[Figure]:
    """All of it."""
    if missing := why_not():
        print(f"skipped: {missing}")
        return
    from tests.bench import gpu_peer

    device, names = open_device(), [os.environ["EDGERT_NETWORK"]] if "EDGERT_NETWORK" in os.environ else list(SIDES)
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder) / "cache")
        for name in names:
            net = gpu_peer.network(name).cuda().half()
            model = load(gpu_peer.export(net, SIDES[name], True, Path(folder) / f"{name}.onnx"))
            yield from figures(f"{name} FP16", device, model, store)


def figures(title: str, device: CudaDevice, model: Model, store: FileStore) -> Iterator[Figure]:
    """Of one network."""
    (name,) = (value.name for value in model.proto.graph.input)

    def options(rows: int, fused: str, channels_last: bool = True) -> EngineOptions:
        profiles = {"default": {name: shape_of(model, rows)}}
        return EngineOptions(profiles=profiles, store=store, tuning=Tuning(fused=fused, channels_last=channels_last))

    measured(device, model, options(MOST, "off"), SIZES)  # libraries are loaded, and the cleaned model is cached
    of_all = measured(device, model, options(MOST, "later"), SIZES)
    of_one_layout, full_alone = (
        measured(device, one, options(MOST, "off", channels_last=False), sizes)
        for one, sizes in ((model, SIZES), (with_shapes(model, {name: shape_of(model, MOST)}), (MOST,)))
    )
    fixed = {
        size: measured(device, with_shapes(model, {name: shape_of(model, size)}), options(size, "start"), (size,))
        for size in (1, MOST)
    }
    for size, us in ((1, of_all.us[1]), (MOST, of_all.full_us)):
        detail = {"us": of_all.us[size], "fixed_and_fused_us": fixed[size].us[size], "fused_us": us}
        if size == MOST:
            detail["fused_differs"] = of_all.differs
        what = f"{title}, batch of {size}: engine of all sizes / of this one, fused"
        yield Figure(what, us / fixed[size].us[size], "x", 1.05, n=ROUNDS * LAUNCHES, detail=detail)
    weights = sum(len(one.raw_data) for one in model.proto.graph.initializer)
    detail = {"bytes": of_all.nbytes, "weights": weights, "fused": of_all.full_nbytes}
    detail |= {"of_one_layout": of_one_layout.nbytes, "full_alone": full_alone.nbytes}
    more = (of_one_layout.nbytes - full_alone.nbytes) / weights
    yield Figure(
        f"{title}: memory of {len(SIZES)} sizes beyond the full one's / weights", more, "x", 0.5, detail=detail
    )
    detail = {"fused_s": of_all.full_s} | {f"fixed_and_fused_{size}_s": one.ready_s for size, one in fixed.items()}
    yield Figure(f"{title}: until {len(SIZES)} sizes are ready", of_all.ready_s, "s", 2, detail=detail)


if __name__ == "__main__":
    main(__doc__ or "", measure)
