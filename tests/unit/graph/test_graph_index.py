from __future__ import annotations

import pytest
from onnx import helper

from edgert.errors import ModelError
from edgert.graph import Index
from tests.unit.graph.graphs import make_proto, node, value, weights


def test_producers_consumers_and_constants() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Add", ["a", "a"], ["b"]), node("Relu", ["b"], ["y"])]
    index = Index.of(make_proto(nodes, {"x": [1, 3, 8, 8]}, {"y": None}, {"w": weights(4, 3, 3, 3)}).graph)
    assert index.producers == {"a": 0, "b": 1, "y": 2}
    assert index.consumers == {"x": (0,), "w": (0,), "a": (1, 1), "b": (2,)}
    assert index.constant("w") is not None
    assert index.constant("x") is None
    assert not index.is_private("a")  # read twice
    assert index.is_private("b")
    assert not index.is_private("y")  # nobody reads it here, but it is an output
    assert index.is_visible("y")


def test_a_stored_tensor_that_callers_may_override_is_no_constant() -> None:
    proto = make_proto([node("Add", ["x", "w"], ["y"])], {"x": [2]}, {"y": None}, {"w": weights(2)}, listed=True)
    index = Index.of(proto.graph)
    assert "w" in index.initializers
    assert index.constant("w") is None


def test_names_captured_by_bodies_are_visible() -> None:
    inner = helper.make_graph([node("Relu", ["a"], ["r"])], "inner", [], [value("r", [2])])
    outer = helper.make_graph(
        [node("If", ["c2"], ["q"], then_branch=inner, else_branch=inner)], "o", [], [value("q", [2])]
    )
    nodes = [node("Neg", ["x"], ["a"]), node("If", ["c"], ["y"], then_branch=outer, else_branch=outer)]
    index = Index.of(make_proto(nodes, {"x": [2], "c": value("c", [], "bool")}, {"y": None}).graph)
    assert {"a", "c2"} <= index.captured
    assert not index.is_private("a")


def test_two_makers_of_one_tensor() -> None:
    proto = make_proto([node("Relu", ["x"], ["y"], "r"), node("Neg", ["x"], ["y"])], {"x": [2]}, {"y": None})
    with pytest.raises(ModelError, match="'y' is computed twice") as caught:
        Index.of(proto.graph)
    assert "'r' and 'Neg_1'" in caught.value.why


def test_the_last_of_two_stored_tensors_counts() -> None:
    proto = make_proto([node("Add", ["x", "w"], ["y"])], {"x": [2]}, {"y": None}, {"w": weights(2)})
    proto.graph.initializer.add().CopyFrom(helper.make_tensor("w", 1, [2], [7.0, 8.0]))
    found = Index.of(proto.graph).constant("w")
    assert found is not None
    assert list(found.float_data) == [7.0, 8.0]
