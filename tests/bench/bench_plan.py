"""How long a plan takes: a network of 300 nodes in all modes of one board, and on all boards.

    python tests/bench/bench_plan.py [--json FILE]

From a pipeline file to the rows, reading and rewriting the model included, in a process that has imported what it
needs. The networks are made here: residual blocks of convolutions, sigmoids and additions, and layers for no DLA.
EDGERT_BENCH_ROUNDS tries it quickly.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import report
from onnx import TensorProto, helper
from zoo import ROOT, rounds

sys.path.insert(0, str(ROOT))

from edgert.benchmark.measure import Figure
from edgert.config import load_pipeline
from edgert.graph import to_bytes
from edgert.planner import plan
from tests.helpers.models import make

NODES, CHANNELS = 300, 64
SIZES = {80: "light", 160: "too heavy for slow modes"}
ROUNDS = 5
ONE_BAR_S, ALL_BAR_S = 5.0, 60.0
BOARD = "orin-nx-16gb"
OBJECTIVES = ("throughput", "latency", "energy")


def network(size: int) -> bytes:
    """Blocks of Conv, Sigmoid, Mul, Conv, Add; every tenth ends in a Softplus, which stays on the GPU."""
    random = np.random.default_rng(0)
    nodes, weights = [], {}
    weights["w"] = random.normal(0, 0.05, (CHANNELS, 3, 3, 3)).astype(np.float32)
    nodes.append(helper.make_node("Conv", ["x", "w"], ["t0"], name="stem", pads=[1] * 4))
    last, block = "t0", 0
    while len(nodes) + 6 < NODES:
        block += 1
        a, s, m, c, y = (f"b{block}.{part}" for part in "asmcy")
        weights[f"{a}.w"] = random.normal(0, 0.05, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32)
        weights[f"{c}.w"] = random.normal(0, 0.05, (CHANNELS, CHANNELS, 1, 1)).astype(np.float32)
        nodes += [
            helper.make_node("Conv", [last, f"{a}.w"], [a], name=a, pads=[1] * 4),
            helper.make_node("Sigmoid", [a], [s], name=s),
            helper.make_node("Mul", [a, s], [m], name=m),
            helper.make_node("Conv", [m, f"{c}.w"], [c], name=c),
            helper.make_node("Add", [last, c], [y], name=y),
        ]
        last = y
        if block % 10 == 0:
            nodes.append(helper.make_node("Softplus", [last], [f"{y}.soft"], name=f"{y}.soft"))
            last = f"{y}.soft"
    while len(nodes) < NODES:
        nodes.append(helper.make_node("Relu", [last], [f"r{len(nodes)}"], name=f"r{len(nodes)}"))
        last = nodes[-1].output[0]
    made = make(
        nodes,
        {"x": ((1, 3, size, size), TensorProto.FLOAT)},
        {last: ((1, CHANNELS, size, size), TensorProto.FLOAT)},
        weights,
    )
    return to_bytes(made)


def pipeline(folder: Path, size: int) -> Path:
    """A camera and that network in FP16."""
    (folder / "net.onnx").write_bytes(network(size))
    path = folder / "p.yaml"
    path.write_text(
        f"""
board: {BOARD}
models: {{net: {{onnx: net.onnx, task: {{embed: none}}, precision: fp16}}}}
stages: {{cam: {{source: "usb:0", fps: 30}}, look: {{infer: net, from: cam}}}}
"""
    )
    return path


def measure() -> Iterator[Figure]:
    """One board by every objective, then all boards."""
    for size, words in SIZES.items():
        with tempfile.TemporaryDirectory() as name:
            yield from figures(pipeline(Path(name), size), words)


def figures(path: Path, words: str) -> Iterator[Figure]:
    """Of one network."""
    plan(load_pipeline(path))  # imports, and the boards' files
    for objective in OBJECTIVES:
        taken, made = [], None
        for _ in range(rounds(ROUNDS)):
            started = time.perf_counter()
            made = plan(load_pipeline(path), objective=objective)
            taken.append(time.perf_counter() - started)
        assert made is not None
        detail = {"rows": len(made.boards[0].rows), "slowest_s": max(taken)}
        title = f"{NODES} nodes, {words}, all modes of one board, {objective}"
        yield Figure(title, statistics.median(taken), "s", ONE_BAR_S, n=len(taken), detail=detail)
    started, cpu = time.perf_counter(), time.process_time()
    everything = plan(load_pipeline(path), board="all")
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    rows = sum(len(board.rows) for board in everything.boards)
    detail = {"boards": len(everything.boards), "rows": rows, "cpu_s": cpu_s}
    yield Figure(f"{NODES} nodes, {words}, all boards", seconds, "s", ALL_BAR_S, n=1, detail=detail)


if __name__ == "__main__":
    report.main("Plans", measure)
