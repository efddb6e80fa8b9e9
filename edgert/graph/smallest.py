"""The smallest model that makes an engine go through everything: one convolution."""

from __future__ import annotations

from pathlib import Path

from edgert.graph.model import Model, from_proto

_OPSET, _IR = 13, 8  # known to every runtime that edgert supports


def smallest() -> Model:
    """(1, 3, 8, 8) float32 in, (1, 1, 8, 8) out."""
    from onnx import TensorProto, helper

    shapes = {"x": (1, 3, 8, 8), "y": (1, 1, 8, 8)}
    ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    weight = helper.make_tensor("w", TensorProto.FLOAT, (1, 3, 1, 1), [1.0, 1.0, 1.0])
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    graph = helper.make_graph([node], "smallest", [ends["x"]], [ends["y"]], [weight])
    opset = [helper.make_opsetid("", _OPSET)]
    return from_proto(helper.make_model(graph, opset_imports=opset, ir_version=_IR), Path("smallest.onnx"))
