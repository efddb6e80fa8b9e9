from typing import Any

import numpy as np
import pytest

from edgert.graph import Model
from edgert.graph.clean import REMOVE_NOOPS
from tests.helpers.models import applied, assert_same, becomes, choice, make, node, ops, value, weights

IDLE: list[tuple[Any, dict[str, Any], int]] = [
    (node("Identity", ["a"], ["b"]), {}, 17),
    (node("Dropout", ["a"], ["b"]), {}, 17),
    (node("Dropout", ["a", "ratio"], ["b"]), {"ratio": np.float32(0.5)}, 17),
    (node("Dropout", ["a", "ratio", "off"], ["b"]), {"ratio": np.float32(0.5), "off": np.array(False)}, 17),
    (node("Dropout", ["a"], ["b", "mask"], ratio=0.5), {}, 10),
    (node("Cast", ["a"], ["b"], to=1), {}, 17),
    (node("Concat", ["a"], ["b"], axis=0), {}, 17),
    (node("Transpose", ["a"], ["b"], perm=[0, 1, 2]), {}, 17),
]


@pytest.mark.parametrize(("idle", "stored", "opset"), IDLE, ids=lambda item: getattr(item, "op_type", ""))
def test_nodes_that_do_nothing_go(idle: Any, stored: dict[str, Any], opset: int) -> None:
    nodes = [node("Relu", ["x"], ["a"]), idle, node("Neg", ["b"], ["y"])]
    model = make(nodes, {"x": [2, 3, 4]}, {"y": None}, stored, opset=opset)
    _, changes = becomes(REMOVE_NOOPS, model, ["Relu", "Neg"])
    assert [change.rule for change in changes] == ["remove-noops"]


BUSY: list[tuple[Any, dict[str, Any], int]] = [
    (node("Cast", ["a"], ["b"], to=10), {}, 17),
    (node("Transpose", ["a"], ["b"], perm=[0, 2, 1]), {}, 17),
    (node("Transpose", ["a"], ["b"]), {}, 17),
    (node("Concat", ["a", "a"], ["b"], axis=0), {}, 17),
    (node("Dropout", ["a", "ratio", "on"], ["b"]), {"ratio": np.float32(0.5), "on": np.array(True)}, 17),
    (node("Dropout", ["a"], ["b"]), {}, 6),
    (node("Identity", ["a"], ["b"], domain="acme"), {}, 17),
]


@pytest.mark.parametrize(("busy", "stored", "opset"), BUSY, ids=lambda item: getattr(item, "op_type", ""))
def test_nodes_that_do_something_stay(busy: Any, stored: dict[str, Any], opset: int) -> None:
    nodes = [node("Relu", ["x"], ["a"]), busy, node("Neg", ["b"], ["y"])]
    model = make(nodes, {"x": [2, 3, 4]}, {"y": value("y", None)}, stored, opset=opset)
    assert applied(REMOVE_NOOPS, model)[0] is model


def test_a_dropout_whose_mask_is_read_stays() -> None:
    nodes = [node("Dropout", ["x"], ["b", "mask"]), node("Not", ["mask"], ["z"])]
    model = make(nodes, {"x": [4]}, {"b": None, "z": value("z", [4], "bool")})
    assert applied(REMOVE_NOOPS, model)[0] is model


def test_chains_of_them() -> None:
    nodes = [node("Identity", ["x"], ["a"]), node("Identity", ["a"], ["b"]), node("Dropout", ["b"], ["c"])]
    model = make([*nodes, node("Add", ["c", "a"], ["y"])], {"x": [4]}, {"y": None})
    cleaned, changes = applied(REMOVE_NOOPS, model)
    assert ops(cleaned) == ["Add"]
    assert list(cleaned.proto.graph.node[0].input) == ["x", "x"]
    assert len(changes) == 3


def test_a_graph_output_keeps_its_name_behind_a_chain_too() -> None:
    relu, first = node("Relu", ["x"], ["a"]), node("Identity", ["a"], ["y"])
    one = [relu, node("Neg", ["a"], ["z"]), first, node("Abs", ["a"], ["w"])]
    chain = [relu, node("Identity", ["a"], ["b"]), node("Identity", ["b"], ["y"]), node("Neg", ["b"], ["z"])]
    for nodes, results, left in ((one, "yzw", ["Relu", "Neg", "Abs"]), (chain, "yz", ["Relu", "Neg"])):
        model = make(nodes, {"x": [4]}, dict.fromkeys(results))
        cleaned, _ = becomes(REMOVE_NOOPS, model, left)
        assert [list(item.input) for item in cleaned.proto.graph.node] == [["x"], ["y"], ["y"]][: len(left)]


def test_outputs_that_need_a_node_keep_one() -> None:
    passed_on = make([node("Identity", ["x"], ["y"])], {"x": [4]}, {"y": None})
    stored = make([node("Identity", ["k"], ["y"])], {"x": [4]}, {"y": None}, {"k": weights(4)})
    for model in (passed_on, stored):
        assert applied(REMOVE_NOOPS, model)[0] is model
    nodes = [node("Relu", ["x"], ["a"]), node("Identity", ["a"], ["y"]), node("Identity", ["a"], ["z"])]
    twice = make(nodes, {"x": [4]}, {"y": None, "z": None})
    cleaned, _ = becomes(REMOVE_NOOPS, twice, ["Relu", "Identity"])
    assert_same(twice, cleaned)


def test_names_that_bodies_capture_stay() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Identity", ["a"], ["b"]),
        choice("t", "y", node("Neg", ["b"], ["r"]), shape=[4]),
    ]
    model = make(nodes, {"x": [4]}, {"y": [4]}, {"t": np.array(True)})
    assert applied(REMOVE_NOOPS, model)[0] is model


def transposed(first: list[int] | None, second: list[int] | None, results: tuple[str, ...] = ("y",)) -> Model:
    given: list[dict[str, Any]] = [{} if perm is None else {"perm": perm} for perm in (first, second)]
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Transpose", ["a"], ["b"], **given[0]),
        node("Transpose", ["b"], ["c"], **given[1]),
        node("Neg", ["c"], ["y"]),
    ]
    return make(nodes, {"x": [2, 3, 4, 5]}, dict.fromkeys(results))


@pytest.mark.parametrize(
    ("first", "second"), [([0, 2, 3, 1], [0, 3, 1, 2]), (None, None), ([0, 2, 1, 3], [0, 2, 1, 3])]
)
def test_transposes_that_undo_each_other(first: list[int] | None, second: list[int] | None) -> None:
    model = transposed(first, second)
    cleaned, _ = becomes(REMOVE_NOOPS, model, ["Relu", "Neg"])  # nothing reads the first any more
    assert cleaned.proto.graph.node[1].input[0] == "a"


@pytest.mark.parametrize(
    ("first", "second"), [([0, 2, 3, 1], [0, 2, 3, 1]), (None, [0, 2, 1, 3]), ([1, 0, 3, 2], None)]
)
def test_two_transposes_become_one(first: list[int] | None, second: list[int] | None) -> None:
    model = transposed(first, second, ("y", "b"))
    cleaned, changes = applied(REMOVE_NOOPS, model)
    assert [item.input[0] for item in cleaned.proto.graph.node] == ["x", "a", "a", "c"]
    assert len(changes) == 1
    assert_same(model, cleaned)
    assert applied(REMOVE_NOOPS, cleaned)[1] == ()
