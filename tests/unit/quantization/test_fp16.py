"""FP16: what becomes it, what stays, types between the two kinds, and that every graph remains valid."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import helper

from edgert.config import EmbedTask, ModelConfig
from edgert.config.model_section import QuantizeConfig
from edgert.errors import CalibrationError
from edgert.graph import Model, infer, read, write
from edgert.graph.type_inference import dtypes
from edgert.quantization.conversion import fp16_model
from edgert.quantization.fp16.to_fp16 import to_fp16
from tests.helpers.fp16_emulation import rounded
from tests.helpers.models import make, node, value, weights
from tests.unit.quantization.fp16_nets import WEIGHTS, X, assert_near, chain, conv, half, ops, run, stored_types


def test_everything_between_the_ends_is_float16() -> None:
    model = chain()
    made, kept = half(model)
    assert not kept
    assert ops(made) == ["Cast", "Conv", "Relu", "Conv", "Cast"]
    assert [spec.dtype for spec in (*made.inputs, *made.outputs)] == ["float32", "float32"]
    assert stored_types(made) == dict.fromkeys("wvb", "float16")
    assert dtypes(made)["a"] == "float16"  # tensors keep their names where they are computed
    assert_near(model, made, 2e-3)


def test_the_graph_given_stays_as_it_was() -> None:
    graph = read(infer(chain()))
    first, _ = to_fp16(graph)
    assert all(array.dtype == np.float32 for array in graph.constants.values())
    assert [item.dtype for item in graph.specs.values()].count("float16") == 0
    again, _ = to_fp16(graph)
    assert again.nodes is not first.nodes
    assert [(a.op, a.inputs, a.outputs, a.name) for a in again.nodes] == [
        (b.op, b.inputs, b.outputs, b.name) for b in first.nodes
    ]


def test_a_float16_graph_stays_as_it_is() -> None:
    first, _ = half(chain())
    again, kept = half(write(first, chain()))
    assert ops(again) == ops(first)
    assert not kept


def test_named_nodes_stay_and_the_rest_is_cast_around_them() -> None:
    model = chain()
    made, kept = half(model, keep=["r"])
    assert kept == {"r": "it was named"}
    assert ops(made) == ["Cast", "Conv", "Cast", "Relu", "Cast", "Conv", "Cast"]
    assert ops(half(model, keep=["a", "r", "y"])[0]) == ["Conv", "Relu", "Conv"]
    assert_near(model, made, 2e-3)


def test_a_name_that_no_node_has_is_refused_with_the_nearest() -> None:
    model = make([node("Relu", ["x"], ["y"], "backbone_relu")], X, {"y": None})
    keep = QuantizeConfig(keep=("backbone_rely",))
    with pytest.raises(CalibrationError, match="did you mean 'backbone_relu'"):
        fp16_model(model, ModelConfig(onnx=Path("m.onnx"), task=EmbedTask(embed="none"), quantize=keep))


def test_a_stored_tensor_that_both_kinds_read_exists_in_both_types() -> None:
    nodes = [conv("x", "w", "a"), conv("a", "w", "y")]
    made, _ = half(make(nodes, X, {"y": [1, 4, 6, 6]}, WEIGHTS), keep=["y"])
    first, second = (item for item in made.nodes if item.op == "Conv")
    types = dtypes(made)
    assert [types[item.inputs[1]] for item in (first, second)] == ["float16", "float32"]


def test_a_tensor_is_cast_once_for_all_its_readers() -> None:
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        *(node("Sigmoid", ["r"], [name], name) for name in ("a", "b")),
        *(node("Tanh", ["r"], [name], name) for name in ("c", "d")),
        node("Sum", ["a", "b", "c", "d"], ["y"], "sum"),
    ]
    made, _ = half(make(nodes, X, {"y": None}), keep=["a", "b"])
    assert ops(made).count("Cast") == 5  # x down, r up, a and b down, y up


UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "Transpose", "Sqrt", "Exp")
BINARY = ("Add", "Mul", "Sub", "Max", "Concat", "Where")


@st.composite
def networks(draw: st.DrawFn) -> tuple[Model, list[str]]:
    """A graph of any form over (1, 2, 4, 4) tensors, and nodes to keep."""
    tensors, nodes = ["x", "z", "k"], [node("Greater", ["x", "k"], ["mask"], "mask")]
    for position in range(draw(st.integers(1, 9))):
        name = f"n{position}"
        first, second = draw(st.sampled_from(tensors)), draw(st.sampled_from(tensors))
        op = draw(st.sampled_from(UNARY + BINARY))
        if op == "Concat":  # and back, so that every tensor keeps its shape
            nodes += [node(op, [first, second], [f"{name}_c"], f"{name}_c", axis=1)]
            nodes += [node("Slice", [f"{name}_c", "start", "end", "axis"], [name], name)]
        elif op == "Where":
            nodes.append(node(op, ["mask", first, second], [name], name))
        elif op == "Transpose":
            nodes.append(node(op, [first], [name], name, perm=[0, 1, 3, 2]))
        else:
            nodes.append(node(op, [first, second][: 2 if op in BINARY else 1], [name], name))
        tensors.append(name)
    ends = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3, unique=True))
    stored = {"k": weights(1, 2, 4, 4), "start": np.array([1]), "end": np.array([3]), "axis": np.array([1])}
    shape = [1, 2, 4, 4]
    model = make(nodes, {"x": shape, "z": shape}, dict.fromkeys(ends, shape), stored)
    names = draw(st.lists(st.sampled_from([item.name for item in nodes]), max_size=4, unique=True))
    return model, names


@settings(max_examples=60, deadline=None)
@given(networks())
def test_every_graph_becomes_a_valid_one(case: tuple[Model, list[str]]) -> None:
    model, names = case
    made, kept = half(model, keep=names)
    assert set(names) <= set(kept)
    assert {spec.dtype for spec in (*made.inputs, *made.outputs)} == {"float32"}
    types = dtypes(made)
    for item in made.nodes:
        if item.name in names:
            assert "float16" not in {types[name] for name in (*item.inputs, *item.outputs)}
    onnx.checker.check_model(infer(write(rounded(made), model)).proto, full_check=True)


def detector(boxes: int = 900, stride: int = 8) -> Model:
    """(conv + grid) · stride for the center, exp(conv) · stride for the size, sigmoid for the score."""
    side = int(boxes**0.5)
    ys, xs = np.mgrid[:side, :side]
    stored = {
        "w": weights(5, 4, 1, 1) / 8,
        "flat": np.array([1, 5, boxes]),
        "parts": np.array([2, 2, 1]),
        "grid": np.float32(np.stack([xs.ravel(), ys.ravel()])[None]),
        "stride": np.float32(stride),
    }
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("Reshape", ["c", "flat"], ["f"], "flatten"),
        node("Split", ["f", "parts"], ["o", "e", "s"], "split", axis=1),
        node("Add", ["o", "grid"], ["g"], "add"),
        node("Mul", ["g", "stride"], ["xy"], "xy"),
        node("Exp", ["e"], ["h"], "exp"),
        node("Mul", ["h", "stride"], ["wh"], "wh"),
        node("Sigmoid", ["s"], ["p"], "score"),
        node("Concat", ["xy", "wh", "p"], ["y"], "join", axis=1),
    ]
    return make(nodes, {"x": [1, 4, side, side]}, {"y": None}, stored)


def test_positions_are_computed_in_float32_also_before_the_stride() -> None:
    model = detector()
    made, kept = half(model)
    assert kept["add"] == "it computes positions with 'grid'"
    assert set(kept) == {"flatten", "split", "add", "xy", "exp", "join"}
    wanted, found = run(model)["y"][:, :2], run(model, made)["y"][:, :2]
    assert np.abs(found - wanted).max() < 0.02  # px
    assert np.abs(wanted.astype(np.float16) - wanted).max() > 0.05


def test_large_positions_are_known_by_their_values() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("Sigmoid", ["c"], ["s"], "score"),
        node("Mul", ["s", "k"], ["m"], "mul"),
        node("Relu", ["m"], ["y"], "end"),
    ]

    def kept(width: float) -> dict[str, str]:
        return half(make(nodes, X, {"y": None}, {"w": weights(4, 4, 1, 1), "k": np.float32(width)}))[1]

    why = "may reach 3840, where float16 steps by 2"
    assert kept(3840) == {
        "score": "it is part of computing positions or ranks",
        "mul": f"'m' {why}",
        "end": f"'y' {why}",
    }
    assert not kept(640)


def test_gains_and_biases_of_channels_are_no_positions() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "m"),
        node("Reshape", ["m", "to"], ["r"], "r"),
        node("Mul", ["r", "g"], ["n"], "n"),
        node("Add", ["n", "b"], ["y"], "y"),
    ]
    stored = {"w": weights(16, 512), "to": np.array([1, 512]), "g": weights(1, 512), "b": weights(512)}
    assert not half(make(nodes, {"x": [1, 1, 16]}, {"y": None}, stored))[1]


def test_scores_are_ranked_as_they_would_be_in_float32() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("Sigmoid", ["c"], ["s"], "score"),
        node("Reshape", ["s", "flat"], ["f"], "flat"),
        node("TopK", ["f", "k"], ["v", "i"], "top"),
    ]
    stored = {"w": weights(4, 4, 1, 1), "flat": np.array([1, -1]), "k": np.array([5])}
    _, kept = half(make(nodes, X, {"v": None, "i": value("i", [1, 5], "int64")}, stored))
    assert list(kept) == ["score", "flat", "top"]


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
