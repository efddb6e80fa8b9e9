"""Graphs as plain records, and messages: read, cut, written again; who makes and who reads what."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgert.errors import ModelError
from edgert.graph import Graph, Model, Names, Node, clean, extract, from_proto, read, write
from edgert.graph.onnx_convert import to_graph, to_proto
from tests.helpers import models
from tests.helpers.models import Typed, choice, make, make_proto, node, value, weights


def small() -> Model:
    return clean(models.conv())[0]


def run(model: Model, **feeds: np.ndarray) -> list[np.ndarray]:
    return list(ReferenceEvaluator(model.proto).run(None, feeds))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_what_is_read_can_be_written_again() -> None:
    model = small()
    again = write(read(model), model)
    x = noise(1, 3, 8, 8)
    assert all((a == b).all() for a, b in zip(run(model, x=x), run(again, x=x), strict=True))
    assert again.path == model.path and write(read(again), again).digest == again.digest


def test_who_makes_and_who_reads() -> None:
    graph = read(small())
    first = graph.nodes[0]
    assert graph.producers[first.outputs[0]] is first
    assert graph.consumers["x"] == (first,)
    assert graph.output_names == {"y", "mean"} and not graph.is_private("y")
    assert set(first.reads) <= graph.names


def test_stored_tensors_are_read_only() -> None:
    graph = read(small())
    array = next(iter(graph.constants.values()))
    assert not array.flags.writeable


def test_a_part_computes_what_the_whole_does() -> None:
    model = small()
    graph = read(model)
    middle = graph.nodes[0].outputs[0]
    x = noise(1, 3, 8, 8)
    (found,) = run(write(extract(graph, [middle]), model), x=x)
    rest = extract(graph, ["mean"], [middle])
    assert [spec.name for spec in rest.inputs] == [middle]
    assert np.allclose(run(write(rest, model), **{middle: found})[0], run(model, x=x)[1], atol=1e-6)


def test_what_nothing_computes_is_named() -> None:
    with pytest.raises(ModelError, match="nothing computes tensor 'none'"):
        extract(read(small()), ["none"])


def test_a_type_nobody_knows_is_named() -> None:
    node = Node("Mystery", ("x",), ("z",), domain="far.away")
    graph = read(small())
    strange = Graph((*graph.nodes, node), graph.constants, graph.inputs, graph.outputs, graph.specs, graph.opset)
    with pytest.raises(ModelError, match="the type of tensor 'z' is not known"):
        extract(strange, ["z"])
    imported = {item.domain: item.version for item in write(strange, small()).proto.opset_import}
    assert imported["far.away"] == 1


def test_names_are_new_and_the_same_each_time() -> None:
    graph = read(small())
    first, second = Names(graph), Names(graph)
    made = [first.new("x"), first.new("x"), first.new("fresh")]
    assert made == [second.new("x"), second.new("x"), second.new("fresh")]
    assert len(set(made)) == 3 and graph.names.isdisjoint(made)


def test_bodies_keep_their_own_names_to_themselves() -> None:
    def body(name: str, op: str) -> object:
        nodes = [node(op, ["x"], [f"in_{name}"]), node("Relu", [f"in_{name}"], [f"out_{name}"])]
        return helper.make_graph(nodes, name, [], [value(f"out_{name}", [4])])

    chosen = node("If", ["c"], ["y"], then_branch=body("a", "Neg"), else_branch=body("b", "Abs"), name="if")
    model = make([chosen], {"c": Typed("bool", []), "x": [4]}, {"y": [4]})
    graph = read(model)
    assert graph.nodes[0].captured == {"x"}
    part = write(extract(graph, ["y"]), model)
    x = noise(4)
    assert np.array_equal(run(part, c=np.array(True), x=x)[0], np.maximum(-x, 0))


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
    inner = choice("c2", "q", node("Relu", ["a"], ["r"]), shape=[2])
    nodes = [node("Neg", ["x"], ["a"]), choice("c", "y", inner, shape=[2])]
    feeds = {"x": [2], "c": Typed("bool", []), "c2": Typed("bool", [])}
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
