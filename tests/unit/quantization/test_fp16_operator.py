"""FP16: operators that have no such form, and types between the two kinds."""

from typing import Any

import numpy as np
from onnx import helper

from edgert.graph import Model, read
from edgert.graph.type_inference import dtypes
from edgert.quantization.fp16.to_fp16 import to_fp16
from tests.unit.graph.graphs import make, node, value, weights
from tests.unit.quantization.fp16_nets import X, assert_near, half, kept, ops, stored_types


def test_scales_of_a_resize_stay_float32() -> None:
    nodes = [node("Resize", ["x", "roi", "s"], ["y"], "n", mode="linear"), node("Relu", ["y"], ["z"])]
    stored = {"roi": np.zeros(0, np.float32), "s": np.float32([1, 1, 2, 2])}
    model = make(nodes, X, {"z": None}, stored)
    result, converted = half(model)
    assert not result.kept
    assert stored_types(converted) == dict.fromkeys(("roi", "s"), "float32")
    assert_near(model, result.graph, 2e-3)


def test_operators_without_a_float16_form_stay() -> None:
    nodes = [node("Range", ["zero", "n", "one"], ["r"], "range"), node("Add", ["x", "r"], ["y"], "add")]
    model = make(nodes, {"x": [4], "n": []}, {"y": [4]}, {"zero": np.float32(0), "one": np.float32(1)})
    graph = read(model)  # type inference does not know how long it is
    result = to_fp16(graph)
    assert kept(result) == {"range": "Range has no float16 form in opset 17"}
    assert ops(result.graph) == ["Cast", "Range", "Cast", "Add", "Cast"]


def test_operators_that_onnx_does_not_know_stay_with_what_they_touch() -> None:
    nodes = [
        node("Relu", ["x"], ["a"], "a"),
        node("Own", ["a"], ["b"], "own", domain="acme"),
        node("Relu", ["b"], ["y"], "y"),
    ]
    result = to_fp16(read(make(nodes, X, {"y": [1, 4, 6, 6]})))
    assert kept(result) == {"own": "ONNX has no schema of acme Own in opset 17", "y": "the type of 'b' is not known"}
    assert ops(result.graph) == ["Cast", "Relu", "Cast", "Own", "Relu"]


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
    result, converted = half(make(nodes, X, {"y": None}, ints))
    assert not result.kept
    assert ops(result.graph) == ["Cast", "Relu", "Shape", "Gather", "Mul", "Concat", "Reshape", "Cast"]
    assert set(stored_types(converted).values()) == {"int64"}


def test_sizes_that_become_numbers_are_counted_with_in_float32() -> None:
    nodes = [
        node("Size", ["x"], ["n"], "size"),
        node("Cast", ["n"], ["f"], "cast", to=1),
        node("Div", ["f", "k"], ["d"], "div"),
        node("Mul", ["x", "d"], ["y"], "mul"),
    ]
    model = make(nodes, {"x": [1, 3, 40, 40]}, {"y": None}, {"k": np.float32(4800)})
    result, _ = half(model)
    assert "it computes with indices" in kept(result)["div"] or "'f' holds integers" in kept(result)["div"]
    assert_near(model, result.graph, 1e-3)


def test_casts_to_float32_go_straight_to_the_type_that_is_wanted() -> None:
    nodes = [node("Cast", ["m"], ["f"], "cast", to=1), node("Mul", ["x", "f"], ["y"], "mul")]
    feed = {"x": [1, 8], "m": value("m", [1, 8], "bool")}
    result, _ = half(make(nodes, feed, {"y": None}))
    assert [(item.op, item.attributes.get("to")) for item in result.graph.nodes] == [
        ("Cast", 10),  # x
        ("Cast", 10),  # m, which was cast to float32 before
        ("Mul", None),
        ("Cast", 1),
    ]
    both, _ = half(make([*nodes, node("Add", ["x", "f"], ["z"], "add")], feed, {"y": None, "z": None}), keep=["add"])
    assert sorted(item.attributes["to"] for item in both.graph.nodes if item.inputs == ("m",)) == [1, 10]


def test_comparisons_and_indices_take_what_is_there() -> None:
    nodes = [
        node("Greater", ["x", "c"], ["g"], "g"),
        node("Relu", ["x"], ["r"], "r"),
        node("ArgMax", ["r"], ["i"], "i", axis=1),
    ]
    outputs = {"g": value("g", [1, 4, 6, 6], "bool"), "i": value("i", [1, 1, 6, 6], "int64")}
    result, _ = half(make(nodes, X, outputs, {"c": np.float32(0.1)}))
    assert ops(result.graph) == ["Cast", "Greater", "Relu", "ArgMax"]
    assert dtypes(result.graph)[result.graph.nodes[1].inputs[0]] == "float32"


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
    result, _ = half(model)
    assert kept(result) == {"if": "the graphs inside it are not converted"}
    assert dtypes(result.graph)["r"] == "float32"
    assert ops(result.graph) == ["Cast", "Relu", "Cast", "If", "Cast", "Tanh", "Cast"]


def test_values_on_their_way_between_float32_nodes_are_not_rounded() -> None:
    nodes = [
        node("Tanh", ["x"], ["a"], "a"),
        node("Transpose", ["a"], ["t"], "t", perm=[0, 2, 3, 1]),
        node("Sigmoid", ["x"], ["s"], "s"),
        node("Transpose", ["s"], ["u"], "u", perm=[0, 2, 3, 1]),
        node("Concat", ["t", "u"], ["c"], "c", axis=3),
        node("Tanh", ["c"], ["y"], "y"),
    ]
    result, _ = half(make(nodes, X, {"y": None}), keep=["a", "y"])
    assert list(kept(result)) == ["a", "t", "c", "y"]
    assert kept(result)["t"] == "it only moves values between nodes that stay float32"


def test_outputs_that_are_inputs_or_stored() -> None:
    model = make([node("Relu", ["x"], ["y"])], X, {"y": None, "x": X["x"], "c": [4]}, {"c": weights(4)})
    result, _ = half(model)
    assert {spec.dtype for spec in result.graph.outputs} == {"float32"}


def quantized(opset: int, weight_scale: Any = None, bias: bool = False) -> Model:
    """Q → DQ → Conv with INT8 weights → Q → DQ → Relu, as strongly typed TensorRT wants it."""
    scale = np.full(4, 0.01, np.float32) if weight_scale is None else np.float32(weight_scale)
    stored = {
        "sx": np.float32(0.02),
        "zero": np.int8(0),
        "w8": np.random.default_rng(1).integers(-127, 128, (4, 4, 1, 1), np.int8),
        "sw": scale,
        "sy": np.float32(0.05),
        "b32": np.array([40000, -9000, 7, 0], np.int32),
        "sb": np.float32(0.02) * scale,
        "z32": np.int32(0),
    }
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zero"], ["xq"], "q"),
        node("DequantizeLinear", ["xq", "sx", "zero"], ["xd"], "dq"),
        node("DequantizeLinear", ["w8", "sw"], ["wd"], "dw", axis=0),
        *([node("DequantizeLinear", ["b32", "sb"], ["bd"], "db", axis=0)] if bias else []),
        node("Conv", ["xd", "wd", *(["bd"] if bias else [])], ["c"], "conv"),
        node("QuantizeLinear", ["c", "sy", "zero"], ["cq"], "qc"),
        node("DequantizeLinear", ["cq", "sy", "zero"], ["cd"], "dc"),
        node("Relu", ["cd"], ["y"], "relu"),
    ]
    return make(nodes, X, {"y": [1, 4, 6, 6]}, stored, opset=opset)


def test_scales_become_float16_where_the_opset_has_it() -> None:
    model = quantized(19)
    result, converted = half(model)
    assert not result.kept
    types = stored_types(converted)
    assert {name: types[name] for name in ("sw", "sy")} == {"sw": "float16", "sy": "float16"}
    assert types["w8"] == "int8"
    assert ops(result.graph) == [
        *("QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "Conv"),  # the input is rounded as it comes
        *("QuantizeLinear", "DequantizeLinear", "Relu", "Cast"),
    ]
    assert_near(model, result.graph, 0.02)  # one step of INT8


def test_before_that_casts_stand_around_them() -> None:
    model = quantized(17)
    result, _ = half(model)
    assert set(kept(result)) == {"dq", "dw", "q", "qc", "dc"}
    assert kept(result)["dw"] == "DequantizeLinear has no float16 form in opset 17"
    assert_near(model, result.graph, 0.02)


def test_the_integer_bias_is_scaled_in_float32() -> None:
    model = quantized(19, weight_scale=[1e-4] * 4, bias=True)
    result, _ = half(model)
    assert list(kept(result)) == ["db"]
    assert "scale 'sb' has values such as 2e-06" in kept(result)["db"]
    assert_near(model, result.graph, 0.02)


def test_scales_of_dead_channels_are_raised() -> None:
    model = quantized(19, weight_scale=[0.01, 1e-30, 3e-6, 0.02])
    result, converted = half(model)
    assert not result.kept
    constants = read(converted).constants
    scale, values = constants["sw_raised"].astype(np.float64), constants["w8_raised"]
    assert scale.min() > 0
    before = read(model).constants
    wanted = before["w8"] * before["sw"].reshape(4, 1, 1, 1).astype(np.float64)
    assert np.abs(values * scale.reshape(4, 1, 1, 1) - wanted).max() < 127 * 0.02 * 2.0**-11
    assert np.abs(values * scale.reshape(4, 1, 1, 1) - wanted)[1:3].max() <= 2.0**-18
    assert_near(model, result.graph, 0.02)


def test_scales_that_are_all_small_stay() -> None:
    assert list(kept(half(quantized(19, weight_scale=[3e-6] * 4))[0])) == ["dw"]


def test_units_that_are_kept_between_q_and_dq_stay_float32() -> None:
    model = quantized(19)
    result, _ = half(model, keep=["conv", "relu"])
    types = dtypes(result.graph)
    assert types["wd"] == types["xd"] == types["c"] == types["cd"] == "float32"
    assert "Cast" not in ops(result.graph)
