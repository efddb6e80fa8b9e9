"""Messages as records: who makes and who reads what, and what reading a message ends."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from edgert.errors import ModelError
from edgert.graph import Graph, clean, from_proto
from edgert.graph.onnx_convert import to_graph, to_proto
from tests.unit.graph.graphs import make_proto, node, value, weights


def graph_of(proto: ModelProto) -> Graph:
    return to_graph(proto)[0]


def test_producers_consumers_and_constants() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Add", ["a", "a"], ["b"]), node("Relu", ["b"], ["y"])]
    graph = graph_of(make_proto(nodes, {"x": [1, 3, 8, 8]}, {"y": None}, {"w": weights(4, 3, 3, 3)}))
    conv, add, relu = graph.nodes
    assert graph.producers == {"a": conv, "b": add, "y": relu}
    assert graph.consumers == {"x": (conv,), "w": (conv,), "a": (add,), "b": (relu,)}
    assert list(graph.constants) == ["w"]
    assert graph.is_private("b")
    assert not graph.is_private("y")  # nobody reads it here, but it is an output
    assert graph.is_visible("y")


def test_names_captured_by_bodies_are_visible() -> None:
    inner = helper.make_graph([node("Relu", ["a"], ["r"])], "inner", [], [value("r", [2])])
    outer = helper.make_graph(
        [node("If", ["c2"], ["q"], then_branch=inner, else_branch=inner)], "o", [], [value("q", [2])]
    )
    nodes = [node("Neg", ["x"], ["a"]), node("If", ["c"], ["y"], then_branch=outer, else_branch=outer)]
    feeds = {"x": [2], "c": value("c", [], "bool"), "c2": value("c2", [], "bool")}
    graph = graph_of(make_proto(nodes, feeds, {"y": None}))
    assert graph.captured == {"a", "c2"}
    assert not graph.is_private("a")


def test_two_makers_of_one_tensor() -> None:
    proto = make_proto([node("Relu", ["x"], ["y"], "r"), node("Neg", ["x"], ["y"])], {"x": [2]}, {"y": None})
    with pytest.raises(ModelError, match="'y' is computed twice") as caught:
        clean(from_proto(proto))
    assert "'r' and 'Neg_1'" in caught.value.why


def test_the_last_of_two_stored_tensors_counts() -> None:
    proto = make_proto([node("Add", ["x", "w"], ["y"])], {"x": [2]}, {"y": None}, {"w": weights(2)})
    proto.graph.initializer.add().CopyFrom(helper.make_tensor("w", 1, [2], [7.0, 8.0]))
    assert graph_of(proto).constants["w"].tolist() == [7.0, 8.0]


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_a_sparse_tensor_is_stored_with_all_its_values(indices: list[object]) -> None:
    proto = make_proto([node("Add", ["x", "w"], ["y"])], {"x": [2, 3]}, {"y": None})
    sparse = proto.graph.sparse_initializer.add(dims=[2, 3])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [2], [7.0, 8.0]))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array(indices)))
    expected = [[0, 7, 0], [0, 0, 8]]
    assert graph_of(proto).constants["w"].tolist() == expected
    cleaned, _ = clean(from_proto(proto))
    assert clean(cleaned)[1] == ()


def test_a_node_is_written_as_it_was_read() -> None:
    odd = node("Relu", ["x"], ["y"], "r", doc_string="from line 7")
    odd.attribute.add(name="axes", type=odd.attribute.add().INTS)  # a list without elements, and an empty attribute
    proto = make_proto([odd], {"x": [2]}, {"y": [2]})
    (written,) = to_proto(graph_of(proto)).graph.node
    assert written.SerializeToString() == odd.SerializeToString()
