"""What cleaning a model leaves and takes: edgert's passes beside onnx-ir's, with onnxscript's folding and rewrites.

    pip install onnx-ir onnxscript   # only for the comparison; without them only edgert is measured
    python tests/bench/bench_clean.py [--rounds 5] [--json FILE]

Each model of the evaluation data is cleaned with its dynamic dimensions fixed and its types recorded, alike for both.
Times are the median over the rounds, message in and message out; memory is what one run adds to the Python heap at
most. Outputs of both results are compared with the model's on one random input in ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from report import DATA, needs

from edgert.graph import Model, clean, from_proto, inputs, load, with_shapes

try:
    import onnx_ir
    from onnx_ir.passes import Sequential, common
    from onnxscript.optimizer import fold_constants
    from onnxscript.rewriter import rewrite
except ImportError:
    onnx_ir = None

SIZES = {"ppocr_mobile_v2_det_ch": (320, 448)}
"""Height and width of models that leave them open; 48 and 320 pixels for the others, a line of text."""


@dataclass(frozen=True)
class Row:
    """One model by one set of passes; ``error`` is the largest difference as a part of the largest output."""

    model: str
    passes: str
    nodes_before: int
    nodes: int
    ms: float
    memory_mib: float
    error: float


def fixed(model: Model) -> Model:
    """The model with every open dimension given a size, and its types recorded."""
    sizes = dict(enumerate(SIZES.get(model.path.stem, (48, 320)), 2))
    shapes = {
        spec.name: [dim if isinstance(dim, int) else sizes.get(at, 1) for at, dim in enumerate(spec.shape)]
        for spec in inputs(model)
    }
    return with_shapes(model, shapes)


def ours(model: Model) -> onnx.ModelProto:
    """Every pass of edgert."""
    return clean(model)[0].proto


def theirs(model: Model) -> onnx.ModelProto:
    """Every pass of onnx-ir that has an equal here, and onnxscript's constant folding."""
    ir = onnx_ir.from_proto(model.proto)
    first = Sequential(
        common.InlinePass(),
        common.TopologicalSortPass(),
        common.RemoveInitializersFromInputsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.IdentityEliminationPass(),
    )
    ir = first(ir).model
    fold_constants(ir, input_size_limit=2**20, output_size_limit=2**20)
    last = Sequential(common.IdentityEliminationPass(), common.LiftConstantsToInitializersPass(size_limit=0),
                      common.RemoveUnusedNodesPass(), common.NameFixPass())  # fmt: skip
    return onnx_ir.to_proto(last(ir).model)


def rewritten(model: Model) -> onnx.ModelProto:
    """As :func:`theirs`, and onnxscript's common rewrites (BatchNormalization into Conv, fused activations) behind."""
    made: onnx.ModelProto = rewrite(theirs(model))
    return made


def outputs_of(proto: onnx.ModelProto, model: Model) -> list[np.ndarray]:
    """What a model computes without ONNX Runtime's own optimization."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {spec.name: rng.random(spec.shape).astype(spec.dtype) for spec in inputs(model)}  # type: ignore[arg-type]
    return [np.asarray(item, np.float64) for item in session.run(None, feeds)]


def error_of(proto: onnx.ModelProto, model: Model) -> float:
    """The largest difference of any output, as a part of the largest value."""
    pairs = zip(outputs_of(model.proto, model), outputs_of(proto, model), strict=True)
    return max(float(np.abs(a - b).max(initial=0) / max(np.abs(a).max(initial=0), 1e-30)) for a, b in pairs)


def row(name: str, passes: str, run: Callable[[Model], onnx.ModelProto], model: Model, rounds: int) -> Row:
    """Measures one set of passes on one model."""
    made = run(model)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run(model)
        times.append((time.perf_counter() - start) * 1e3)
    tracemalloc.start()
    run(model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    before, after = len(model.proto.graph.node), len(made.graph.node)
    return Row(name, passes, before, after, statistics.median(times), peak / 2**20, error_of(made, model))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    needs("models")
    kinds = {"edgert": ours} if onnx_ir is None else {"edgert": ours, "onnx-ir": theirs, "rewriter": rewritten}
    print(f"{'model':28} {'passes':8} {'before':>6} {'after':>6} {'ms':>8} {'MiB':>7} {'error':>8}")
    rows = []
    for path in sorted((DATA / "models").glob("*.onnx")):
        model = fixed(load(path))
        for passes, run in kinds.items():
            found = row(path.stem, passes, run, from_proto(model.copied_proto(), path), given.rounds)
            rows.append(found)
            print(f"{found.model:28} {passes:8} {found.nodes_before:6} {found.nodes:6} {found.ms:8.1f} "
                  f"{found.memory_mib:7.1f} {found.error:8.1e}", flush=True)  # fmt: skip
    for passes in kinds:
        chosen = [item for item in rows if item.passes == passes]
        print(f"{'all':28} {passes:8} {sum(item.nodes_before for item in chosen):6} "
              f"{sum(item.nodes for item in chosen):6} {sum(item.ms for item in chosen):8.1f}")  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps([asdict(item) for item in rows], indent=2))


if __name__ == "__main__":
    main()
