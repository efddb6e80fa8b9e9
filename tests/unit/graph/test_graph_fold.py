"""Evaluation of single nodes: sizes that are refused, and operands that are left to the backend."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgert.graph import Model, fold_constants as fold_module, to_bytes
from edgert.graph.fold_constants import FOLD_CONSTANTS, evaluate
from edgert.graph.ir import Node
from edgert.graph.model import Array
from edgert.graph.onnx_convert import to_graph
from tests.helpers.models import Typed, applied, assert_same, becomes, choice, make, node, ops, value, weights

AXIS0 = {"zero": np.array([0]), "minus": np.array([-1]), "two": np.array([2]), "four": np.array([4])}


def stored(model: Model) -> dict[str, np.ndarray]:
    return {item.name: numpy_helper.to_array(item) for item in model.proto.graph.initializer}


def chain(shape: list[int | str]) -> Model:
    """Upsampling as PyTorch exports it: the target size from Shape, Slice, Cast, Mul, Cast, Concat."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "two", "four"], ["hw"]),
        node("Cast", ["hw"], ["f"], to=1),
        node("Mul", ["f", "scale"], ["g"]),
        node("Cast", ["g"], ["i"], to=7),
        node("Slice", ["s", "zero", "two"], ["nc"]),
        node("Concat", ["nc", "i"], ["size"], axis=0),
        node("Resize", ["x", "", "", "size"], ["y"], mode="nearest"),
    ]
    return make(nodes, {"x": shape}, {"y": None}, {**AXIS0, "scale": np.float32(2)})


def test_a_shape_chain_becomes_one_constant() -> None:
    model = chain([1, 3, 5, 7])
    before = to_bytes(model)
    folded, changes = becomes(FOLD_CONSTANTS, model, ["Resize"])
    assert stored(folded)["size"].tolist() == [1, 3, 10, 14]
    assert len(changes) == 7
    assert changes[0].rule == "fold-constants"
    assert changes[0].detail == "Shape → constant int64[4]"
    assert to_bytes(model) == before


def test_what_stays_dynamic_is_left() -> None:
    model = chain(["n", 3, "h", "w"])
    folded, changes = applied(FOLD_CONSTANTS, model)
    assert folded is model
    assert changes == ()


def test_static_dimensions_of_a_dynamic_tensor_are_known() -> None:
    model = chain(["n", 3, 5, 7])
    folded, _ = applied(FOLD_CONSTANTS, model)
    assert ops(folded) == ["Shape", "Slice", "Concat", "Resize"]  # only the batch is still asked for
    assert stored(folded)["i"].tolist() == [10, 14]


def test_gathers_of_static_dimensions_of_a_dynamic_tensor() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "two"], ["h"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Concat", ["n", "h", "minus"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    folded, _ = applied(FOLD_CONSTANTS, make(nodes, {"x": ["n", 3, 8, 6]}, {"y": None}, AXIS0))
    assert ops(folded) == ["Shape", "Gather", "Concat", "Reshape"]
    assert stored(folded)["h"].tolist() == [8]


def test_a_folded_reshape_lets_the_next_shape_fold() -> None:
    nodes = [
        node("Shape", ["x"], ["s1"]),
        node("ReduceProd", ["s1"], ["p"]),
        node("Reshape", ["x", "p"], ["flat"]),
        node("Shape", ["flat"], ["s2"]),
        node("Cast", ["s2"], ["c"], to=1),
        node("Div", ["flat", "c"], ["y"]),
    ]
    model = make(nodes, {"x": [2, 3, 4]}, {"y": None})
    folded, _ = becomes(FOLD_CONSTANTS, model, ["Reshape", "Div"])
    assert_same(model, folded)


def test_large_results_are_not_stored() -> None:
    nodes = [node("ConstantOfShape", ["big"], ["k"]), node("Add", ["x", "k"], ["y"])]
    model = make(nodes, {"x": [1]}, {"y": None}, {"big": np.array([1024, 1024])})
    assert applied(FOLD_CONSTANTS, model)[0] is model
    small = make(nodes, {"x": [1]}, {"y": None}, {"big": np.array([512, 512])})  # exactly 1 MiB
    assert ops(applied(FOLD_CONSTANTS, small)[0]) == ["Add"]


def test_a_transposed_weight_may_be_as_large_as_the_weight() -> None:
    nodes = [node("Transpose", ["w"], ["wt"]), node("MatMul", ["x", "wt"], ["y"])]
    model = make(nodes, {"x": [1, 600]}, {"y": None}, {"w": weights(700, 600)})
    folded, _ = becomes(FOLD_CONSTANTS, model, ["MatMul"])
    assert_same(model, folded)


def test_a_table_of_position_biases_is_computed_once() -> None:
    """Of Swin v2 and Swin2SR: a small network over a stored grid."""
    nodes = [
        node("MatMul", ["grid", "w1"], ["m"]),
        node("Add", ["m", "b1"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("MatMul", ["r", "w2"], ["t"]),
        node("Sigmoid", ["t"], ["s"]),
        node("Add", ["x", "s"], ["y"]),
    ]
    held = {"grid": weights(1, 7, 7, 2), "w1": weights(2, 32), "b1": weights(32), "w2": weights(32, 4)}
    model = make(nodes, {"x": [1, 7, 7, 4]}, {"y": None}, held)
    folded, _ = becomes(FOLD_CONSTANTS, model, ["Add"])
    assert_same(model, folded)


def test_a_product_larger_than_its_factors_is_not_stored() -> None:
    nodes = [node("MatMul", ["a", "b"], ["k"]), node("Add", ["x", "k"], ["y"])]
    model = make(nodes, {"x": [1]}, {"y": None}, {"a": weights(1024, 1), "b": weights(1, 1024)})
    assert applied(FOLD_CONSTANTS, model)[0] is model


def test_all_results_together_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_module, "TOTAL_CAP_BYTES", 100)
    nodes = [node("ConstantOfShape", ["n"], [name]) for name in "abc"]
    nodes += [node("Sum", ["x", "a", "b", "c"], ["y"])]
    model = make(nodes, {"x": [1]}, {"y": None}, {"n": np.array([10])})  # 40 bytes each
    once, _ = FOLD_CONSTANTS.apply(to_graph(model.proto)[0])
    assert [item.op for item in once.nodes] == ["ConstantOfShape", "Sum"]


def test_graph_outputs_stay() -> None:
    out = make([node("Shape", ["x"], ["y"])], {"x": [1, 2]}, {"y": value("y", [2], "int64")})
    assert applied(FOLD_CONSTANTS, out)[0] is out


def test_a_folded_name_that_a_body_captures_is_stored() -> None:
    nodes = [node("Add", ["k", "k"], ["d"]), choice("c", "y", node("Add", ["x", "d"], ["r"]), shape=[2])]
    model = make(nodes, {"x": [2], "c": Typed("bool", [])}, {"y": [2]}, {"k": weights(2)})
    folded, _ = applied(FOLD_CONSTANTS, model)
    assert ops(folded) == ["If"]
    assert "d" in stored(folded)
    onnx.checker.check_model(folded.proto, full_check=True)


def test_quantized_weights_are_not_dequantized() -> None:
    nodes = [node("DequantizeLinear", ["q", "s"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    stored_ = {"q": np.ones((4, 4), np.int8), "s": np.float32(0.5)}
    model = make(nodes, {"x": [1, 4]}, {"y": None}, stored_)
    assert applied(FOLD_CONSTANTS, model)[0] is model


def test_other_domains_are_not_computed() -> None:
    nodes = [node("Add", ["k", "k"], ["d"], domain="acme"), node("Add", ["x", "d"], ["y"])]
    model = make(nodes, {"x": [2]}, {"y": None}, {"k": weights(2)})
    assert applied(FOLD_CONSTANTS, model)[0] is model


def test_grids_of_anchor_points() -> None:
    nodes = [
        node("Range", ["i0", "i4", "i1"], ["r"]),
        node("Cast", ["r"], ["f"], to=1),
        node("Unsqueeze", ["f", "minus"], ["col"]),
        node("Expand", ["col", "shape"], ["grid"]),
        node("Mul", ["grid", "stride"], ["scaled"]),
        node("Add", ["x", "scaled"], ["y"]),
    ]
    scalars = {"i0": np.array(0), "i4": np.array(4), "i1": np.array(1), "stride": np.float32(8)}
    model = make(nodes, {"x": [4, 3]}, {"y": None}, {**AXIS0, **scalars, "shape": np.array([4, 3])})
    folded, _ = becomes(FOLD_CONSTANTS, model, ["Add"])
    assert_same(model, folded)


@pytest.mark.parametrize("step", [1, 2, -1, -2])
@pytest.mark.parametrize(("start", "end"), [(0, 5), (-2, -9), (1, 99), (9, -99), (4, 0), (-99, 3)])
def test_slices_clamp_as_the_standard_says(start: int, end: int, step: int) -> None:
    stored_values = {
        "all": np.arange(5),
        **{name: np.array([n]) for name, n in zip("bes", (start, end, step), strict=True)},
    }
    nodes = [node("Slice", ["all", "b", "e", "", "s"], ["part"]), node("Cast", ["part"], ["f"], to=1)]
    nodes += [node("ReduceSum", ["f"], ["sum"], keepdims=0), node("Add", ["x", "sum"], ["y"])]
    model = make(nodes, {"x": [1]}, {"y": None}, stored_values)
    folded, _ = becomes(FOLD_CONSTANTS, model, ["Add"])
    assert_same(model, folded)


def test_the_size_of_a_dynamic_tensor_is_left_and_that_of_a_static_one_known() -> None:
    for shape, left in ((["n", 3], ["Size", "Cast", "Add"]), ([2, 3], ["Add"])):
        nodes = [node("Size", ["x"], ["s"]), node("Cast", ["s"], ["f"], to=1), node("Add", ["x", "f"], ["y"])]
        folded, _ = applied(FOLD_CONSTANTS, make(nodes, {"x": shape}, {"y": None}))
        assert ops(folded) == left


def test_a_concatenation_larger_than_the_cap_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operands together are as large as it: only the sum of all that one walk stores ends it."""
    parts = {"a": weights(64, 8), "b": weights(64, 8, seed=1)}
    nodes = [node("Concat", ["a", "b"], ["ab"], axis=0), node("MatMul", ["x", "ab"], ["y"])]
    model = make(nodes, {"x": [1, 128]}, {"y": None}, parts)
    assert ops(applied(FOLD_CONSTANTS, model)[0]) == ["MatMul"]
    monkeypatch.setattr(fold_module, "TOTAL_CAP_BYTES", 4095)
    assert ops(applied(FOLD_CONSTANTS, model)[0]) == ["Concat", "MatMul"]


def test_what_is_up_to_a_mebibyte_is_stored() -> None:
    for rows, left in ((512, ["Add"]), (513, ["Expand", "Add"])):
        nodes = [node("Expand", ["one", "to"], ["many"]), node("Add", ["x", "many"], ["y"])]
        stored_values = {"one": np.float32([[1]]), "to": np.array([rows, 512])}
        model = make(nodes, {"x": [rows, 512]}, {"y": None}, stored_values)
        assert ops(applied(FOLD_CONSTANTS, model)[0]) == left


F = np.array([[-1.5, 0.0, 2.25], [3.5, -4.0, 0.5]], np.float32)
N = np.array([[-7, 3, 5], [2, -9, 4]])


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def evaluated(op: str, inputs: list[Any], given: dict[str, Any], opset: int = 17) -> list[Array] | None:
    feeds = {f"i{place}": np.asarray(array) for place, array in enumerate(inputs)}
    return evaluate(Node(op, tuple(feeds), ("o",), given, "n"), feeds, opset, limit_bytes=2**20)


def test_ranges_are_inputs_or_attributes_by_the_opset() -> None:
    (made,) = evaluated("Slice", [F, ints(2), ints(-(2**62)), ints(1), ints(-1)], {}) or ()
    assert np.array_equal(made, F[:, ::-1])
    (made,) = evaluated("Slice", [F], {"starts": [1], "ends": [9], "axes": [1]}, opset=9) or ()
    assert np.array_equal(made, F[:, 1:])


def test_integers_are_divided_towards_zero() -> None:
    (made,) = evaluated("Div", [N, ints(2, -3, 4)], {}) or ()
    assert made.tolist() == [[-3, -1, 1], [1, 3, 1]] and made.dtype == np.int64


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("ConstantOfShape", [ints(10**6, 10**6)]),
        ("Expand", [np.zeros(1, np.float32), ints(10**5, 10**5)]),
        ("Tile", [np.zeros((1, 1), np.float32), ints(10**5, 10**5)]),
        ("Range", [np.array(0), np.array(10**12), np.array(1)]),
        ("Add", [np.zeros((10**4, 1), np.float32), np.zeros((1, 10**4), np.float32)]),
        ("Gather", [np.zeros((1, 10**4), np.float32), np.zeros(10**4, np.int64)]),
        ("Where", [np.ones((10**4, 1), bool), np.zeros(10**4, np.float32), np.zeros(1, np.float32)]),
        ("NonZero", [np.ones((2**9, 2**9), np.float32)]),
    ],
)
def test_large_results_are_refused_before_they_are_made(op: str, inputs: list[Any]) -> None:
    assert evaluated(op, inputs, {}) is None


@pytest.mark.parametrize(
    ("op", "inputs", "given"),
    [
        ("Conv", [F, F], {}),
        ("RandomNormal", [], {"shape": [2]}),
        ("DequantizeLinear", [np.int8(1), np.float32(1)], {}),
        ("Div", [N, ints(0)], {}),
        ("Mod", [N, ints(0)], {}),
        ("Range", [np.array(0), np.array(3), np.array(0)], {}),
        ("Gather", [F, np.array(9)], {}),
        ("Reshape", [F, ints(7)], {}),
        ("Add", [F], {}),
        ("Concat", [F, F], {}),
        ("Cast", [np.array([1e30, np.nan], np.float32)], {"to": onnx.TensorProto.INT32}),
        ("Cast", [F], {"to": onnx.TensorProto.STRING}),
        ("Slice", [F, ints(0), ints(1), ints(0), ints(0)], {}),
        ("Expand", [F, ints(5, 5)], {}),
    ],
)
def test_what_the_specification_leaves_open_is_not_computed(op: str, inputs: list[Any], given: dict[str, Any]) -> None:
    assert evaluated(op, inputs, given) is None


def test_old_broadcasting_is_not_computed() -> None:
    assert evaluated("Add", [F, F], {}, opset=6) is None
