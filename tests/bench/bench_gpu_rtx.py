"""TensorRT-RTX on one GPU, ResNet-50 in FP16: how long a start takes, and edgert's session against the raw engine.

    python tests/bench/bench_gpu_rtx.py [--json FILE]

A start is a new process, from before Python starts to the first result of a pipeline whose batches have up to eight
frames, all sizes of which are run and recorded before: cold, with nothing cached; with the plan cached, but not the
kernels that TensorRT-RTX compiles of it; and warm, with both. The engine alone is a CUDA graph, replayed between two
events: raw is a plan of one fixed shape, as a script of a few lines runs it; edgert's is a session of an engine for one
to eight rows. Both are in one process, in turn. Needs a GPU, PyCUDA, PyTorch and TensorRT-RTX; says so and passes where
one is missing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import edgert

INPUT, SIDE, ROWS, STARTS, ROUNDS, REPLAYS = "images", 224, 8, 3, 30, 20
WARM_S, AGAINST_RAW = 2.0, 1.05
PIPELINE = f"""
schema: 1
name: start
engines: [tensorrt]
models:
  net: {{onnx: net.onnx, task: {{classify: softmax}}, input: {{size: {SIDE}x{SIDE}, resize: stretch, std: 57}}}}
stages:
  clip: {{source: "synthetic:noise", size: 1920x1080, limit: 64}}
  find: {{infer: net, from: clip, batch: {{max: {ROWS}, wait: 5ms}}}}
  out: {{sink: "null", from: find}}
"""


def start(file: str, began: float) -> dict[str, Any]:
    """Seconds since the process was begun: edgert imported, model compiled, first result. And what ran."""
    taken: dict[str, Any] = {"imported": time.monotonic() - began}
    with edgert.Pipeline(file) as pipeline:
        taken["compiled"] = time.monotonic() - began
        with pipeline.results("find", timeout=300) as results:
            next(results)
        taken["first"] = time.monotonic() - began
        info = json.loads(json.dumps(pipeline.summary().to_json(), default=str))
    return {**taken, "summary": info}


def started(folder: Path) -> dict[str, Any]:
    """:func:`start` in a new process."""
    environment = {**os.environ, "EDGERT_CACHE": str(folder / "cache")}
    command = [sys.executable, __file__, "start", str(folder / "p.yaml"), str(time.monotonic())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def starts(folder: Path) -> Iterator[Any]:
    """Figures of the three kinds of start."""
    from edgert.benchmark.measure import Figure

    def figure(kind: str, taken: list[dict[str, Any]], bar: float | None = None) -> Figure:
        steps = [step for step, value in taken[0].items() if isinstance(value, float)]
        detail = {f"{step}_s": statistics.median(one[step] for one in taken) for step in steps}
        return Figure(f"{kind} start", detail["first_s"], "s to the first result", bar, "lower", len(taken), detail)

    yield figure("cold", [started(folder)])
    for kernels in (folder / "cache/engine").glob("trt-kernels-*"):
        kernels.unlink()
    yield figure("plan cached", [started(folder)])
    yield figure("warm", [started(folder) for _ in range(STARTS)], WARM_S)


class Raw:
    """A plan of one fixed shape, run by TensorRT-RTX alone."""

    def __init__(self, trt: Any, plan: bytes, device: Any) -> None:
        self._trt, self._logger = trt, trt.Logger(trt.Logger.ERROR)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        self._context = self._engine.create_execution_context()
        self.device, self.stream = device, device.stream()
        self._blocks = [self._bound(self._engine.get_tensor_name(at)) for at in range(self._engine.num_io_tensors)]

    def _bound(self, name: str) -> Any:
        item = self._trt.nptype(self._engine.get_tensor_dtype(name))().nbytes
        block = self.device.device_block(self._trt.volume(self._engine.get_tensor_shape(name)) * item)
        self._context.set_tensor_address(name, block.address)
        return block

    def enqueue(self) -> None:
        """Puts one run on the stream."""
        assert self._context.execute_async_v3(self.stream.handle)

    def close(self) -> None:
        """Gives the memory back."""
        self._context = self._engine = None
        for block in self._blocks:
            block.release()


def replayed(device: Any, stream: Any, enqueue: Callable[[], None]) -> Callable[[], float]:
    """Records one run; gives what replays it and returns the microseconds of one."""
    with device:
        enqueue()
        stream.synchronize()
        graph = device.capture(stream, enqueue)
    begin, end = device.event(timed=True), device.event(timed=True)

    def once() -> float:
        begin.record(stream)
        for _ in range(REPLAYS):
            graph()
        end.record(stream).synchronize()
        return float(end.since_ms(begin)) / REPLAYS * 1e3

    return once


def alone(model: Path, backend: Any) -> Iterator[Any]:
    """Figures of batches of one and of eight: edgert's session over the raw engine."""
    from edgert.backend import EngineOptions
    from edgert.backend.tensorrt import request_of
    from edgert.benchmark.measure import Figure
    from edgert.graph import load, with_shapes

    engine = backend.compile(load(model), EngineOptions(profiles={"default": {INPUT: (ROWS, 3, SIDE, SIDE)}}))
    session = engine.session()
    for rows in (1, ROWS):

        def ours(rows: int = rows) -> None:
            session.enqueue(rows)

        fixed = request_of(with_shapes(load(model), {INPUT: (rows, 3, SIDE, SIDE)}))
        raw = Raw(backend.library.trt, backend.built(fixed).result.plan, engine.device)
        taken: dict[str, list[float]] = {"raw_us": [], "edgert_us": []}
        replays = replayed(raw.device, raw.stream, raw.enqueue), replayed(session.device, session.stream, ours)
        for _ in range(ROUNDS):
            for values, once in zip(taken.values(), replays, strict=True):
                values.append(once())
        detail = {way: statistics.median(values) for way, values in taken.items()}
        ratio = detail["edgert_us"] / detail["raw_us"]
        yield Figure(f"engine alone, batch {rows}", ratio, "of raw", AGAINST_RAW, "lower", ROUNDS, detail)
        del replays
        raw.close()
    session.close()
    engine.close()


def measure() -> Iterator[Any]:
    """Starts, and the engine alone."""
    from edgert.backend.tensorrt.trt_backend import TrtBackend

    backend = TrtBackend()
    if missing := backend.why_not() or ("" if backend.library.kind == "rtx" else "TensorRT is here, and comes first"):
        print(f"skipped: {missing}")
        return
    from tests.bench import gpu_peer

    with tempfile.TemporaryDirectory() as name:
        folder, net = Path(name), gpu_peer.network("resnet50")
        (folder / "p.yaml").write_text(PIPELINE)
        gpu_peer.export(net, SIDE, False, folder / "net.onnx")
        yield from starts(folder)
        yield from alone(gpu_peer.export(net.cuda().half(), SIDE, True, folder / "half.onnx"), backend)


if __name__ == "__main__":
    if sys.argv[1:2] == ["start"]:
        print(json.dumps(start(sys.argv[2], float(sys.argv[3]))))
    else:
        from tests.bench.report import main

        main(__doc__ or "", measure)
