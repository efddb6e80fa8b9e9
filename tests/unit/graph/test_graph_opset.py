"""Models raised to a newer opset; what they compute is compared in tests/integration/test_prepare.py."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, checker, helper, numpy_helper

from edgert.errors import ModelError
from edgert.graph import Model, from_proto, raise_opset, to_bytes
from edgert.graph.opset import opset
from tests.helpers.errors import raises
from tests.helpers.models import Typed, choice, make, make_proto, node, value


def old(single: Any, version: int, **stored: Any) -> Model:
    """A model of one node in an old opset."""
    proto = make_proto([single], {"x": [1, 2, 10, 12]}, {"y": [None] * 4}, stored, opset=version, ir=4)
    proto.metadata_props.add(key="author", value="somebody")
    return from_proto(proto, "old.onnx")


def upsample(**attributes: Any) -> Any:
    return node("Upsample", ["x"], ["y"], name="up", scales=[1.0, 1.0, 2.0, 2.0], **attributes)


def test_a_newer_model_is_left_alone() -> None:
    model = old(node("Relu", ["x"], ["y"]), 18)
    assert raise_opset(model, 17) is model
    assert opset(model) == 18


def test_an_upsample_becomes_a_resize_that_samples_alike() -> None:
    raised = raise_opset(old(upsample(mode="linear"), 7), 17)
    (made,) = raised.proto.graph.node
    assert (made.op_type, made.domain, made.name, list(made.output)) == ("Resize", "", "up", ["y"])
    given = {item.name: helper.get_attribute_value(item) for item in made.attribute}
    assert given == {"mode": b"linear", "coordinate_transformation_mode": b"asymmetric"}
    (scales,) = raised.proto.graph.initializer
    assert numpy_helper.to_array(scales).tolist() == [1, 1, 2, 2]
    onnx.checker.check_model(raised.proto)


def test_what_the_converter_would_lose_is_kept() -> None:
    model = old(upsample(), 7)
    raised = raise_opset(model, 17)
    assert [(item.domain, item.version) for item in raised.proto.opset_import] == [("", 17)]
    assert [(item.key, item.value) for item in raised.proto.metadata_props] == [("author", "somebody")]
    assert raised.proto.ir_version >= 8
    assert raised.path == model.path
    assert to_bytes(raise_opset(model, 17)) == to_bytes(raised)
    assert opset(model) == 7


def test_an_operator_without_an_equal_is_named() -> None:
    with raises(ModelError, why=("ImageScaler", "'scaler'")):
        raise_opset(old(node("ImageScaler", ["x"], ["y"], name="scaler"), 7), 17)


@pytest.mark.parametrize("scales", [[1, 1, 2, 0.5], None])
def test_a_resize_that_cannot_be_said_in_new_words_is_named(scales: list[float] | None) -> None:
    resize = node("Resize", ["x", "s"], ["y"], name="odd")
    model = old(resize, 10, **({} if scales is None else {"s": np.array(scales, np.float32)}))
    if scales is None:
        model.proto.graph.input.append(value("s", [4]))
    with raises(ModelError, why="'odd' (Resize)"):
        raise_opset(model, 17)


def test_an_upsample_inside_a_body_is_named() -> None:
    chosen = choice("c", "y", node("Upsample", ["x", "s"], ["b"], name="inner"))
    with raises(ModelError, why=("'inner'", "opset 9")):
        raise_opset(old(chosen, 9, c=np.array(True), s=np.array([1, 1, 2, 2], np.float32)), 17)


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
