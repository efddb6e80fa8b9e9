import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from edgert.errors import ModelError
from edgert.graph import PASSES, Change, Graph, Model, Node, Pass, clean, from_proto, inputs, to_bytes
from edgert.graph.clean import REMOVE_DEAD, REMOVE_UNUSED, SORT_NODES, STORE_CONSTANTS
from edgert.graph.ir import MAX_ROUNDS, Result
from tests.helpers.models import Typed, applied, assert_same, choice, make, make_proto, node, ops, value, weights


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))


def messy() -> Model:
    """Everything the passes are for, in one graph of IR 3 with its weights among the inputs."""
    nodes = [
        constant("row", np.array([1])),
        constant("rest", np.array([-1])),
        node("Concat", ["row", "rest"], ["to"], axis=0),
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"]),
        node("Identity", ["n"], ["i"]),
        node("Transpose", ["i"], ["t"], perm=[0, 2, 3, 1]),
        node("Transpose", ["t"], ["u"], perm=[0, 3, 1, 2]),
        node("Shape", ["u"], ["s"]),
        constant("axis", np.array(0)),
        node("Gather", ["s", "axis"], ["dead"]),
        node("Reshape", ["u", "to"], ["y"]),
    ]
    stored = {"w": weights(4, 3, 3, 3), "unused": weights(9)}
    stored |= {name: np.abs(weights(4, seed=2)) for name in "gbmv"}
    return make(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 64]}, stored, opset=14, ir=3, listed=True)


def test_all_passes_together() -> None:
    model = messy()
    before = to_bytes(model)
    cleaned, changes = clean(model)
    assert ops(cleaned) == ["Conv", "Reshape"]
    assert sorted(item.name for item in cleaned.proto.graph.initializer) == ["to", "w", "w_bias"]
    assert [item.name for item in cleaned.proto.graph.input] == ["x"]
    assert cleaned.proto.ir_version == 4
    assert_same(model, cleaned)
    assert to_bytes(model) == before
    assert {change.rule for change in changes} == {
        "drop-initializer-inputs",
        "store-constants",
        "remove-noops",
        "fold-constants",
        "fold-batchnorm",
        "remove-dead",
        "remove-unused",
        "name-nodes",
    }
    assert Change("fold-batchnorm", "BatchNormalization_4", "folded into 'Conv_3' before it") in changes


def test_cleaning_is_deterministic_and_settles() -> None:
    first, _ = clean(messy())
    second, _ = clean(messy())
    assert to_bytes(first) == to_bytes(second)
    assert first.digest == second.digest
    again, changes = clean(first)
    assert again is first
    assert changes == ()


def test_chosen_passes_only() -> None:
    cleaned, changes = clean(messy(), [REMOVE_DEAD])
    assert {change.rule for change in changes} == {"drop-initializer-inputs", "name-nodes", "remove-dead"}
    assert len(cleaned.proto.graph.node) == 9
    assert clean(cleaned, [])[0] is cleaned


def test_every_pass_declares_itself() -> None:
    assert len({step.name for step in PASSES}) == len(PASSES)
    assert all(step.does for step in PASSES)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda it: replace(it, outputs=(replace(it.outputs[0], name="z"),)), "changed the inputs or outputs"),
        (lambda it: replace(it, nodes=it.nodes[::-1]), "read tensors not computed before them: a"),
        (lambda it: replace(it, nodes=(*it.nodes, Node("Neg", ("y",), ("m",)))), "added nodes \\(2 before, 3 after\\)"),
        (lambda it: replace(it, specs={}), "lost or changed the type of 'y'"),
        (lambda it: it, "without reporting it, or reported a change it did not make"),
    ],
)
def test_a_pass_that_breaks_a_promise_is_caught(edit: Callable[[Graph], Graph], words: str) -> None:
    model = make([node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])], {"x": [2]}, {"y": [2]})
    bad = Pass("bad", "names", lambda graph: (edit(graph), (Change("bad", "y", "edited"),)))
    with pytest.raises(RuntimeError, match=f"'bad' .*{words}"):
        clean(model, [bad])


def test_passes_at_odds_come_to_an_end() -> None:
    def turned(graph: Graph) -> Result:
        return replace(graph, nodes=graph.nodes[::-1]), (Change("turn", "graph", "turned"),)

    nodes = [node("Relu", ["x"], ["y"], "one"), node("Neg", ["x"], ["z"], "two")]
    model = make(nodes, {"x": [2]}, {"y": [2], "z": [2]})
    assert len(clean(model, [Pass("turn", "order", turned)])[1]) == MAX_ROUNDS


def test_stored_tensors_leave_the_inputs() -> None:
    model = messy()
    dropped, changes = clean(model, [])
    assert inputs(dropped) == inputs(model)
    assert [change.rule for change in changes].count("drop-initializer-inputs") == 6
    assert dropped.proto.ir_version == 4
    onnx.checker.check_model(dropped.proto)
    newer = make([node("Add", ["x", "w"], ["y"])], {"x": [2]}, {"y": [2]}, {"w": weights(2)}, ir=9, listed=True)
    assert clean(newer, [])[0].proto.ir_version == 9


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"value_float": 1.5}, np.float32(1.5)),
        ({"value_int": 3}, np.array(3)),
        ({"value_ints": [1, 2]}, np.array([1, 2])),
        ({"value_floats": [1.0, 2.0]}, np.array([1, 2], np.float32)),
    ],
)
def test_constants_are_stored(given: dict[str, Any], expected: np.ndarray) -> None:
    nodes = [node("Constant", [], ["k"], **given), node("Add", ["x", "k"], ["y"])]
    info = value("x", [2], str(expected.dtype))
    model = make(nodes, {"x": info}, {"y": value("y", [2], str(expected.dtype))})
    stored, changes = applied(STORE_CONSTANTS, model)
    assert ops(stored) == ["Add"]
    kept = onnx.numpy_helper.to_array(stored.proto.graph.initializer[0])
    assert (kept.dtype, kept.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(kept, expected)
    assert len(changes) == 1


def test_constants_that_stay() -> None:
    output = make([constant("y", weights(2))], {"x": [1]}, {"y": [2]})
    reader = node("Identity", ["k"], ["y"])
    text = make([node("Constant", [], ["k"], value_string="a"), reader], {"x": [1]}, {"y": value("y", [], "object")})
    foreign = make([node("Constant", [], ["k"], domain="acme", value_int=1), reader], {"x": [1]}, {"y": None})
    for model in (output, text, foreign):
        assert applied(STORE_CONSTANTS, model)[0] is model


def test_unsorted_nodes_are_sorted() -> None:
    nodes = [
        node("Neg", ["b"], ["y"]),
        node("Relu", ["a"], ["b"]),
        node("Abs", ["x"], ["a"]),
        node("Exp", ["x"], ["z"]),
    ]
    sorted_, changes = applied(SORT_NODES, make(nodes, {"x": [2]}, {"y": [2], "z": [2]}))
    assert ops(sorted_) == ["Abs", "Relu", "Neg", "Exp"]
    assert len(changes) == 1
    assert applied(SORT_NODES, sorted_)[0] is sorted_


def test_a_node_comes_after_what_its_body_captures() -> None:
    nodes = [choice("t", "y", node("Neg", ["a"], ["r"]), shape=[2]), node("Abs", ["x"], ["a"])]
    sorted_, _ = applied(SORT_NODES, make(nodes, {"x": [2]}, {"y": [2]}, {"t": np.array(True)}))
    assert ops(sorted_) == ["Abs", "If"]


def test_broken_graphs_say_where() -> None:
    cycle = make([node("Add", ["x", "b"], ["a"], "one"), node("Neg", ["a"], ["b"])], {"x": [2]}, {"b": [2]})
    with pytest.raises(ModelError, match="'one' depends on its own result") as caught:
        clean(cycle)
    assert caught.value.where == "test.onnx"
    dangling = make([node("Add", ["x", "bb"], ["b"], "sum")], {"x": [2]}, {"b": [2]})
    with pytest.raises(ModelError, match="'sum' reads 'bb', which nothing computes") as caught:
        clean(dangling)
    assert "did you mean 'b'?" in caught.value.why


def test_dead_nodes_go_and_captured_ones_stay() -> None:
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Exp", ["x"], ["lost"]),
        node("Log", ["lost"], ["also"]),
        *(choice("t", name, node("Neg", ["a"], ["r"]), shape=[2]) for name in ("y", "dead")),
    ]
    cleaned, changes = applied(REMOVE_DEAD, make(nodes, {"x": [2]}, {"y": [2]}, {"t": np.array(True)}))
    assert ops(cleaned) == ["Abs", "If"]
    assert sorted(change.subject for change in changes) == ["Exp_1", "If_4", "Log_2"]


def test_unused_and_doubly_stored_tensors_go() -> None:
    nodes = [choice("t", "q", node("Add", ["x", "k"], ["r"]), shape=[2]), node("Add", ["q", "w"], ["y"])]
    stored = {"t": np.array(True), "k": weights(2), "w": weights(2), "unused": weights(3)}
    proto = make_proto(nodes, {"x": [2]}, {"y": [2]}, stored)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    cleaned, changes = clean(from_proto(proto), [REMOVE_UNUSED])
    kept = {item.name: onnx.numpy_helper.to_array(item) for item in cleaned.proto.graph.initializer}
    assert sorted(kept) == ["k", "t", "w"]
    assert kept["w"].tolist() == [1, 1]
    assert sorted(change.detail for change in changes if change.rule == "remove-unused") == [
        "stored twice float32[2] removed",
        "unused float32[3] removed",
    ]


def test_types_of_tensors_that_are_gone_are_forgotten() -> None:
    proto = make_proto([node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])], {"x": [2]}, {"y": [2]})
    proto.graph.value_info.extend([value("a", [2]), value("gone", [2])])
    cleaned, changes = clean(from_proto(proto), [])
    assert [item.name for item in cleaned.proto.graph.value_info] == ["a"]
    assert Change("forget-gone", "gone", "type of a tensor that no longer exists removed") in changes


def test_every_node_gets_a_name_of_its_own() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Relu", ["a"], ["b"], "r"),
        node("Relu", ["b"], ["c"], "r"),
        node("Relu", ["c"], ["d"], "Relu_0"),
        node("Relu", ["d"], ["y"], "r_1"),
    ]
    named, changes = clean(make(nodes, {"x": [2]}, {"y": [2]}), [])
    names = [item.name for item in named.proto.graph.node]
    assert names == ["Relu_0_1", "r", "r_2", "Relu_0", "r_1"]
    assert len(changes) == 2


def test_local_functions_are_inlined() -> None:
    domain = helper.make_opsetid("", 17)
    function = helper.make_function("mine", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [domain])
    proto = make_proto([node("Twice", ["x"], ["y"], domain="mine")], {"x": [2]}, {"y": [2]})
    proto.functions.append(function)
    model = from_proto(proto)
    inlined, changes = clean(model, [])
    assert ops(inlined) == ["Add"]
    assert not inlined.proto.functions
    assert changes[0].subject == "mine::Twice"
    assert_same(model, inlined)


def test_bodies_are_left_alone() -> None:
    inner = [constant("one", np.ones(2, np.float32)), node("Identity", ["x"], ["i"]), node("Add", ["i", "one"], ["r"])]
    model = make([choice("t", "y", *inner, shape=[2])], {"x": [2], "t": Typed("bool", [])}, {"y": [2]})
    cleaned, changes = clean(model)
    assert [item.op_type for item in cleaned.proto.graph.node[0].attribute[0].g.node] == ["Constant", "Identity", "Add"]
    assert {change.rule for change in changes} == {"name-nodes"}


def test_importing_the_door_does_not_import_onnx() -> None:
    code = "import sys, edgert.graph; print('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
