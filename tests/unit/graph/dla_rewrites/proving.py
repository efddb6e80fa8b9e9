"""Small graphs rewritten, and both run by ONNX Runtime without its own optimizations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime

from edgert.graph import Change, Graph, Model, infer, inputs, read, to_bytes, write
from edgert.graph.dla_rewrites.apply import Proof, fit, prove


@dataclass(frozen=True)
class Fitted:
    """A model after rewriting, and how far it is from the one before."""

    model: Model
    graph: Graph
    changes: tuple[Change, ...]
    proof: Proof

    @property
    def ops(self) -> list[str]:
        return [node.op for node in self.graph.nodes]

    def attributes(self, op: str) -> list[Mapping[str, Any]]:
        return [node.attributes for node in self.graph.nodes if node.op == op]


def run(model: Model, feed: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, dict(feed))
    return found


def feeds(model: Model, count: int = 2, scale: float = 4.0) -> list[dict[str, Any]]:
    """Numbers around 0, large enough to reach both ends of a Clip."""
    rng = np.random.default_rng(7)
    return [
        {spec.name: (scale * rng.standard_normal(spec.shape)).astype(spec.dtype) for spec in inputs(model)}  # type: ignore[arg-type]
        for _ in range(count)
    ]


def fitted(model: Model, *names: str, error: float = 0.0, scale: float = 4.0) -> Fitted:
    """The model rewritten by these rewrites, all without names; equal within ``error`` of the largest output."""
    graph = read(model)
    result, changes = fit(graph, names or None)
    assert changes, "nothing was rewritten"
    after = infer(write(result, model))
    onnx.checker.check_model(after.proto, full_check=True)
    proof = prove(model, after, feeds(model, scale=scale), run)
    assert proof.largest > 0
    assert proof.relative <= error, (proof, changes)
    more = fit(read(after), names or None)[1]
    assert more == (), "a second time there is something left to do"
    assert [spec.shape for spec in result.outputs] == [spec.shape for spec in graph.outputs]
    return Fitted(after, result, changes, proof)


def stays(model: Model, *names: str) -> None:
    """None of the rewrites has anything to do, and says so by giving the same graph."""
    graph = read(model)
    result, changes = fit(graph, names or None)
    assert result is graph
    assert changes == ()
