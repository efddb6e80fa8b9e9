"""FP16: operators that have no such form, and types between the two kinds."""

import numpy as np
from onnx import helper

from edgert.graph import read
from edgert.graph.type_inference import dtypes
from edgert.quantization.fp16.to_fp16 import to_fp16
from tests.helpers.models import make, node, value, weights
from tests.unit.quantization.fp16_nets import X, assert_near, half, ops, stored_types


def test_scales_of_a_resize_stay_float32() -> None:
    nodes = [node("Resize", ["x", "roi", "s"], ["y"], "n", mode="linear"), node("Relu", ["y"], ["z"])]
    model = make(nodes, X, {"z": None}, {"roi": np.zeros(0, np.float32), "s": np.float32([1, 1, 2, 2])})
    made, kept = half(model)
    assert not kept
    assert stored_types(made) == dict.fromkeys(("roi", "s"), "float32")
    assert_near(model, made, 2e-3)


def test_operators_without_a_float16_form_stay() -> None:
    nodes = [node("Range", ["zero", "n", "one"], ["r"], "range"), node("Add", ["x", "r"], ["y"], "add")]
    model = make(nodes, {"x": [4], "n": []}, {"y": [4]}, {"zero": np.float32(0), "one": np.float32(1)})
    graph = read(model)  # type inference does not know how long it is
    made, kept = to_fp16(graph)
    assert kept == {"range": "Range has no float16 form in opset 17"}
    assert ops(made) == ["Cast", "Range", "Cast", "Add", "Cast"]


def test_operators_that_onnx_does_not_know_stay_with_what_they_touch() -> None:
    nodes = [
        node("Relu", ["x"], ["a"], "a"),
        node("Own", ["a"], ["b"], "own", domain="acme"),
        node("Relu", ["b"], ["y"], "y"),
    ]
    made, kept = to_fp16(read(make(nodes, X, {"y": [1, 4, 6, 6]})))
    assert kept == {"own": "ONNX has no schema of acme Own in opset 17", "y": "the type of 'b' is not known"}
    assert ops(made) == ["Cast", "Relu", "Cast", "Own", "Relu"]


def test_shape_arithmetic_is_not_touched() -> None:
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        node("Shape", ["r"], ["s"], "shape"),
        node("Gather", ["s", "two"], ["h"], "h"),
        node("Mul", ["h", "k"], ["n"], "n"),
        node("Concat", ["minus", "n"], ["to"], "to", axis=0),
        node("Reshape", ["r", "to"], ["y"], "y"),
    ]
    ints = {"two": np.array([2]), "k": np.array([4]), "minus": np.array([-1])}
    made, kept = half(make(nodes, X, {"y": None}, ints))
    assert not kept
    assert ops(made) == ["Cast", "Relu", "Shape", "Gather", "Mul", "Concat", "Reshape", "Cast"]
    assert set(stored_types(made).values()) == {"int64"}


def test_sizes_that_become_numbers_are_counted_with_in_float32() -> None:
    nodes = [
        node("Size", ["x"], ["n"], "size"),
        node("Cast", ["n"], ["f"], "cast", to=1),
        node("Div", ["f", "k"], ["d"], "div"),
        node("Mul", ["x", "d"], ["y"], "mul"),
    ]
    model = make(nodes, {"x": [1, 3, 40, 40]}, {"y": None}, {"k": np.float32(4800)})
    made, kept = half(model)
    assert "it computes with indices" in kept["div"] or "'f' holds integers" in kept["div"]
    assert_near(model, made, 1e-3)


def test_casts_to_float32_go_straight_to_the_type_that_is_wanted() -> None:
    nodes = [node("Cast", ["m"], ["f"], "cast", to=1), node("Mul", ["x", "f"], ["y"], "mul")]
    feed = {"x": [1, 8], "m": value("m", [1, 8], "bool")}
    made, _ = half(make(nodes, feed, {"y": None}))
    assert [(item.op, item.attributes.get("to")) for item in made.nodes] == [
        ("Cast", 10),  # x
        ("Cast", 10),  # m, which was cast to float32 before
        ("Mul", None),
        ("Cast", 1),
    ]
    both, _ = half(make([*nodes, node("Add", ["x", "f"], ["z"], "add")], feed, {"y": None, "z": None}), keep=["add"])
    assert sorted(item.attributes["to"] for item in both.nodes if item.inputs == ("m",)) == [1, 10]


def test_comparisons_and_indices_take_what_is_there() -> None:
    nodes = [
        node("Greater", ["x", "c"], ["g"], "g"),
        node("Relu", ["x"], ["r"], "r"),
        node("ArgMax", ["r"], ["i"], "i", axis=1),
    ]
    outputs = {"g": value("g", [1, 4, 6, 6], "bool"), "i": value("i", [1, 1, 6, 6], "int64")}
    made, _ = half(make(nodes, X, outputs, {"c": np.float32(0.1)}))
    assert ops(made) == ["Cast", "Greater", "Relu", "ArgMax"]
    assert dtypes(made)[made.nodes[1].inputs[0]] == "float32"


def test_bodies_read_outer_tensors_in_float32() -> None:
    branches = {
        name: helper.make_graph([node(op, ["r"], [f"{name}_y"])], name, [], [value(f"{name}_y", [1, 4, 6, 6])])
        for name, op in (("then_branch", "Abs"), ("else_branch", "Neg"))
    }
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        node("If", ["c"], ["z"], "if", **branches),
        node("Tanh", ["z"], ["y"], "y"),
    ]
    model = make(nodes, {**X, "c": value("c", [], "bool")}, {"y": [1, 4, 6, 6]})
    made, kept = half(model)
    assert kept == {"if": "the graphs inside it are not converted"}
    assert dtypes(made)["r"] == "float32"
    assert ops(made) == ["Cast", "Relu", "Cast", "If", "Cast", "Tanh", "Cast"]


def test_values_on_their_way_between_float32_nodes_are_not_rounded() -> None:
    nodes = [
        node("Tanh", ["x"], ["a"], "a"),
        node("Transpose", ["a"], ["t"], "t", perm=[0, 2, 3, 1]),
        node("Sigmoid", ["x"], ["s"], "s"),
        node("Transpose", ["s"], ["u"], "u", perm=[0, 2, 3, 1]),
        node("Concat", ["t", "u"], ["c"], "c", axis=3),
        node("Tanh", ["c"], ["y"], "y"),
    ]
    _, kept = half(make(nodes, X, {"y": None}), keep=["a", "y"])
    assert list(kept) == ["a", "t", "c", "y"]
    assert kept["t"] == "it only moves values between nodes that stay float32"


def test_outputs_that_are_inputs_or_stored() -> None:
    model = make([node("Relu", ["x"], ["y"])], X, {"y": None, "x": X["x"], "c": [4]}, {"c": weights(4)})
    made, _ = half(model)
    assert {spec.dtype for spec in made.outputs} == {"float32"}
