"""Models that are turned into FP16, and what is looked at afterwards."""

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx

from edgert.backend.ort import Function
from edgert.graph import Graph, Model, infer, read, write
from edgert.quantization.fp16.to_fp16 import to_fp16
from tests.helpers.fp16_emulation import rounded
from tests.helpers.models import make, node, weights

X = {"x": [1, 4, 6, 6]}
WEIGHTS = {"w": weights(4, 4, 3, 3) / 6, "v": weights(4, 4, 3, 3, seed=1) / 6, "b": weights(4, seed=2)}


def conv(x: str, w: str, y: str, *bias: str, **attributes: Any) -> onnx.NodeProto:
    return node("Conv", [x, w, *bias], [y], y, pads=[1, 1, 1, 1], **attributes)


def chain() -> Model:
    """Conv → Relu → Conv."""
    nodes = [conv("x", "w", "a", "b"), node("Relu", ["a"], ["r"], "r"), conv("r", "v", "y")]
    return make(nodes, X, {"y": [1, 4, 6, 6]}, WEIGHTS)


def feeds(model: Model, scale: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        spec.name: (scale * rng.standard_normal(spec.shape)).astype(spec.dtype)  # type: ignore[arg-type]
        for spec in read(model).inputs
    }


def half(model: Model, keep: Collection[str] = ()) -> tuple[Graph, dict[str, str]]:
    """The conversion, after the result was found to be valid in every type, loaded, and free of needless Casts."""
    graph = read(infer(model))
    made, kept = to_fp16(graph, keep=keep)
    converted = write(made, model)
    onnx.checker.check_model(infer(converted).proto, full_check=True)
    Function(converted)
    assert_casts_are_few(made, graph)
    return made, kept


def assert_casts_are_few(graph: Graph, before: Graph) -> None:
    own = {item.name for item in before.nodes}
    added = [item for item in graph.nodes if item.op == "Cast" and item.name not in own]
    assert len({(item.inputs, item.attributes["to"]) for item in added}) == len(added), "a tensor is cast twice"
    behind = [graph.producers[item.inputs[0]].op for item in added if item.inputs[0] in graph.producers]
    assert "Cast" not in behind
    assert all(graph.consumers.get(item.outputs[0]) or item.outputs[0] in graph.output_names for item in added)


def ops(graph: Graph) -> list[str]:
    return [item.op for item in graph.nodes]


def stored_types(graph: Graph) -> dict[str, str]:
    return {name: array.dtype.name for name, array in graph.constants.items()}


def run(model: Model, graph: Graph | None = None, scale: float = 1.0) -> dict[str, Any]:
    """Results of a model, or of a converted graph with each of its tensors really rounded to float16."""
    return Function(model if graph is None else write(rounded(graph), model))(feeds(model, scale))


def assert_near(model: Model, graph: Graph, bound: float, scale: float = 1.0) -> None:
    after = run(model, graph, scale)
    for name, wanted in run(model, scale=scale).items():
        assert after[name].dtype == wanted.dtype
        np.testing.assert_allclose(after[name], wanted, rtol=0, atol=bound * np.abs(wanted).max())
