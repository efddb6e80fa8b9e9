"""Graphs as plain records: read, cut, written again."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from edgert.errors import ModelError
from edgert.graph import Graph, Model, Names, Node, clean, extract, from_proto, read, write
from tests.helpers import models


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
        value = helper.make_tensor_value_info(f"out_{name}", TensorProto.FLOAT, [4])
        nodes = [
            helper.make_node(op, ["x"], [f"in_{name}"]),
            helper.make_node("Relu", [f"in_{name}"], [f"out_{name}"]),
        ]
        return helper.make_graph(nodes, name, [], [value])

    choice = helper.make_node("If", ["c"], ["y"], then_branch=body("a", "Neg"), else_branch=body("b", "Abs"), name="if")
    ends = [helper.make_tensor_value_info(n, t, s) for n, t, s in (("c", TensorProto.BOOL, []), ("x", 1, [4]))]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])]
    model = from_proto(
        helper.make_model(helper.make_graph([choice], "g", ends, out), opset_imports=[helper.make_opsetid("", 17)])
    )
    graph = read(model)
    assert graph.nodes[0].captured == {"x"}
    part = write(extract(graph, ["y"]), model)
    x = noise(4)
    assert np.array_equal(run(part, c=np.array(True), x=x)[0], np.maximum(-x, 0))
