"""The converter's new tensors in the bodies of an If are called like no tensor around it."""

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto, checker, helper

from edgert.graph.opset import opset, raise_opset
from tests.helpers.models import Typed, make, node, value


def sums(source: str, result: str) -> list[NodeProto]:
    """Operators whose settings become tensors in opset 13: their converter adds one to each graph."""
    return [
        node("ReduceSum", [source], [f"{result}_sum"], axes=[0], keepdims=1),
        node("Unsqueeze", [f"{result}_sum"], [f"{result}_deep"], axes=[0]),
        node("Squeeze", [f"{result}_deep"], [result], axes=[0]),
    ]


def nested(depth: int) -> list[NodeProto]:
    """An If of so many levels whose branches sum, too."""
    branches = {}
    for name in ("then_branch", "else_branch"):
        result = f"{name}_{depth}"
        inner = nested(depth - 1) if depth > 1 else []
        branches[name] = helper.make_graph([*sums("x", result), *inner], result, [], [value(result, None)])
    return [node("If", ["flag"], [f"chosen_{depth}"], **branches)]


@pytest.mark.parametrize("depth", [1, 2])
def test_tensors_of_bodies_have_names_of_their_own_after_conversion(depth: int) -> None:
    last = node("Add", ["outer", f"chosen_{depth}"], ["y"])
    model = make([*sums("x", "outer"), *nested(depth), last], {"x": (4, 4), "flag": Typed("bool", ())}, {"y": (1, 4)})
    model.proto.opset_import[0].version = 12
    raised = raise_opset(model, 17)
    assert opset(raised) == 17
    checker.check_model(raised.proto)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    feeds = {"x": x, "flag": np.array(True)}
    before, after = (
        onnxruntime.InferenceSession(one.proto.SerializeToString()).run(None, feeds)[0] for one in (model, raised)
    )
    assert np.array_equal(before, after)
