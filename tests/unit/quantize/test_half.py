from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from edgert.backend.ort import Function
from edgert.errors import ModelError
from edgert.graph import Model, infer
from edgert.graph.dtype import dtypes
from edgert.graph.node import Graph, read, write
from edgert.quantize.half import HalfGraph, rounded, to_half
from edgert.quantize.half.filter import balanced
from tests.unit.graph.graphs import make, node, value, weights

X = {"x": [1, 4, 6, 6]}
WEIGHTS = {"w": weights(4, 4, 3, 3) / 6, "v": weights(4, 4, 3, 3, seed=1) / 6, "b": weights(4, seed=2)}


def conv(x: str, w: str, y: str, *bias: str, **attributes: Any) -> onnx.NodeProto:
    return node("Conv", [x, w, *bias], [y], y, pads=[1, 1, 1, 1], **attributes)


def chain() -> Model:
    """Conv → Relu → Conv."""
    nodes = [conv("x", "w", "a", "b"), node("Relu", ["a"], ["r"], "r"), conv("r", "v", "y")]
    return make(nodes, X, {"y": [1, 4, 6, 6]}, WEIGHTS)


def feeds(model: Model, scale: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        spec.name: (scale * rng.standard_normal(spec.shape)).astype(spec.dtype)  # type: ignore[arg-type]
        for spec in read(model).inputs
    }


def half(model: Model, **options: Any) -> tuple[HalfGraph, Model]:
    """The conversion, after the result was found to be valid in every type, loaded, and free of needless Casts."""
    graph = read(infer(model))
    result = to_half(graph, **options)
    converted = write(result.graph, model)
    onnx.checker.check_model(infer(converted).proto, full_check=True)
    Function(converted)
    assert_casts_are_few(result.graph, graph)
    return result, converted


def assert_casts_are_few(graph: Graph, before: Graph) -> None:
    own = {item.name for item in before.nodes}
    added = [item for item in graph.nodes if item.op == "Cast" and item.name not in own]
    assert len({(item.inputs, item.attributes["to"]) for item in added}) == len(added), "a tensor is cast twice"
    behind = [graph.producers[item.inputs[0]].op for item in added if item.inputs[0] in graph.producers]
    assert "Cast" not in behind
    assert all(graph.consumers.get(item.outputs[0]) or item.outputs[0] in graph.output_names for item in added)


def ops(graph: Graph) -> list[str]:
    return [item.op for item in graph.nodes]


def kept(result: HalfGraph) -> dict[str, str]:
    return {item.node: item.reason for item in result.kept}


def stored_types(model: Model) -> dict[str, str]:
    return {name: array.dtype.name for name, array in read(model).constants.items()}


def run(model: Model, graph: Graph | None = None, scale: float = 1.0) -> dict[str, Any]:
    """Results of a model, or of a converted graph with each of its tensors really rounded to float16."""
    return Function(model if graph is None else write(rounded(graph), model))(feeds(model, scale))


def assert_near(model: Model, graph: Graph, bound: float, scale: float = 1.0) -> None:
    after = run(model, graph, scale)
    for name, wanted in run(model, scale=scale).items():
        assert after[name].dtype == wanted.dtype
        np.testing.assert_allclose(after[name], wanted, rtol=0, atol=bound * np.abs(wanted).max())


def test_everything_between_the_ends_is_float16() -> None:
    model = chain()
    result, converted = half(model)
    assert result.kept == ()
    assert ops(result.graph) == ["Cast", "Conv", "Relu", "Conv", "Cast"]
    assert [spec.dtype for spec in (*result.graph.inputs, *result.graph.outputs)] == ["float32", "float32"]
    assert {name: array.dtype.name for name, array in read(converted).constants.items()} == dict.fromkeys(
        "wvb", "float16"
    )
    assert dtypes(result.graph)["a"] == "float16"  # tensors keep their names where they are computed
    assert_near(model, result.graph, 2e-3)


def test_ends_of_float16_need_no_casts() -> None:
    result, _ = half(chain(), io="float16")
    assert ops(result.graph) == ["Conv", "Relu", "Conv"]
    assert [(spec.name, spec.dtype) for spec in (*result.graph.inputs, *result.graph.outputs)] == [
        ("x", "float16"),
        ("y", "float16"),
    ]


def test_the_graph_given_stays_as_it_was() -> None:
    graph = read(infer(chain()))
    first = to_half(graph)
    assert all(array.dtype == np.float32 for array in graph.constants.values())
    assert [item.dtype for item in graph.specs.values()].count("float16") == 0
    assert to_half(graph).graph.nodes is not first.graph.nodes
    assert [(a.op, a.inputs, a.outputs, a.name) for a in to_half(graph).graph.nodes] == [
        (b.op, b.inputs, b.outputs, b.name) for b in first.graph.nodes
    ]


def test_a_float16_graph_stays_as_it_is() -> None:
    first, converted = half(chain(), io="float16")
    again, _ = half(converted)
    assert ops(again.graph) == ops(first.graph)
    assert again.kept == ()


def test_named_nodes_stay_and_the_rest_is_cast_around_them() -> None:
    model = chain()
    result, _ = half(model, keep=["r"])
    assert kept(result) == {"r": "it was named"}
    assert ops(result.graph) == ["Cast", "Conv", "Cast", "Relu", "Cast", "Conv", "Cast"]
    assert ops(half(model, keep=["a", "r", "y"])[0].graph) == ["Conv", "Relu", "Conv"]
    assert_near(model, result.graph, 2e-3)


def test_a_name_that_no_node_has_is_refused_with_the_nearest() -> None:
    nodes = [node("Relu", ["x"], ["y"], "backbone_relu")]
    with pytest.raises(ModelError, match="did you mean 'backbone_relu'"):
        half(make(nodes, X, {"y": None}), keep=["backbone_rely"])


def test_a_stored_tensor_that_both_kinds_read_exists_in_both_types() -> None:
    nodes = [conv("x", "w", "a"), conv("a", "w", "y")]
    result, _ = half(make(nodes, X, {"y": [1, 4, 6, 6]}, WEIGHTS), keep=["y"])
    first, second = (item for item in result.graph.nodes if item.op == "Conv")
    types = dtypes(result.graph)
    assert [types[item.inputs[1]] for item in (first, second)] == ["float16", "float32"]


def test_a_tensor_is_cast_once_for_all_its_readers() -> None:
    nodes = [
        node("Relu", ["x"], ["r"], "r"),
        *(node("Sigmoid", ["r"], [name], name) for name in ("a", "b")),
        *(node("Tanh", ["r"], [name], name) for name in ("c", "d")),
        node("Sum", ["a", "b", "c", "d"], ["y"], "sum"),
    ]
    result, _ = half(make(nodes, X, {"y": None}), keep=["a", "b"])
    assert ops(result.graph).count("Cast") == 5  # x down, r up, a and b down, y up


# values that leave the range


def loud() -> Model:
    """An activation of about 1e5 that a second convolution brings back."""
    stored = {"w": np.full((4, 4, 1, 1), 3e3, np.float32), "v": np.full((4, 4, 1, 1), 1e-5, np.float32)}
    nodes = [
        node("Abs", ["x"], ["a"], "abs"),
        node("Conv", ["a", "w"], ["l"], "loud"),
        node("Relu", ["l"], ["r"], "relu"),
        node("Conv", ["r", "v"], ["q"], "quiet"),
        node("Relu", ["q"], ["y"], "end"),
    ]
    return make(nodes, X, {"y": [1, 4, 6, 6]}, stored)


def amax(model: Model, scale: float) -> dict[str, float]:
    """The largest magnitude of every float32 tensor."""
    graph = read(infer(model))
    names = [name for item in graph.nodes for name in item.outputs if graph.specs[name].dtype == "float32"]
    everything = Graph(
        graph.nodes, graph.constants, graph.inputs, tuple(graph.specs[name] for name in names), graph.specs, graph.opset
    )
    values = {**Function(write(everything, model))(feeds(model, scale)), **feeds(model, scale)}
    return {name: float(np.abs(array).max()) for name, array in values.items()}


def test_an_overflow_is_infinite_without_ranges_and_right_with_them() -> None:
    model = loud()
    found = amax(model, 10)
    assert found["l"] > 1e5
    blind, _ = half(model)
    assert np.isinf(run(model, blind.graph, 10)["y"]).any()
    result, _ = half(model, amax=found)
    assert list(kept(result)) == ["loud", "relu", "quiet"]
    assert kept(result)["loud"].startswith("'l' may reach")
    assert_near(model, result.graph, 2e-3, 10)


def test_ranges_may_come_from_a_function() -> None:
    result, _ = half(loud(), amax=lambda name: 1e5 if name == "r" else None)
    assert list(kept(result)) == ["relu", "quiet"]


def test_a_quarter_of_the_range_is_the_limit_of_what_was_measured() -> None:
    assert not half(loud(), amax={"l": 16000})[0].kept
    assert list(kept(half(loud(), amax={"l": 17000})[0])) == ["loud", "relu", "quiet"]  # a Relu's output is no larger


def test_values_below_the_normal_numbers_stay_float32() -> None:
    result, _ = half(chain(), amax={"a": 1.0, "r": 1e-5, "y": 1.0})
    assert list(kept(result)) == ["r", "y"]
    assert "loses bits" in kept(result)["r"]


# stored tensors


def with_constant(op: str, constant: Any, **attributes: Any) -> Model:
    return make([node(op, ["x", "c"], ["y"], "n", **attributes)], X, {"y": None}, {"c": np.float32(constant)})


@pytest.mark.parametrize(
    ("op", "constant", "why"),
    [
        ("Add", 1e-12, "lose 100% of stored tensor 'c'"),  # a guard of a division
        ("Add", -3.4e38, "holds 3.4e+38"),  # a mask that is added before a Softmax
        ("Div", 3e-8, "lose 99%"),
        ("Mul", 7e4, "holds 7e+04"),
    ],
)
def test_constants_that_float16_has_not(op: str, constant: float, why: str) -> None:
    assert why in kept(half(with_constant(op, constant))[0])["n"]


@pytest.mark.parametrize(
    ("op", "constant"), [("Add", 1e-3), ("Mul", 65504), ("Add", -np.inf), ("Mul", 0), ("Mul", 0.1)]
)
def test_constants_that_it_has(op: str, constant: float) -> None:
    assert not half(with_constant(op, constant))[0].kept


def test_weights_that_vanish_beside_others_do_no_harm() -> None:
    dead = WEIGHTS["w"].copy()
    dead[2] = 1e-20
    model = make([conv("x", "w", "y")], X, {"y": [1, 4, 6, 6]}, {"w": dead})
    result, _ = half(model)
    assert not result.kept
    assert_near(model, result.graph, 2e-3)


def test_weights_that_all_vanish_stay() -> None:
    tiny = {"w": WEIGHTS["w"] * np.float32(1e-8)}
    assert "float16 would lose" in kept(half(make([conv("x", "w", "y")], X, {"y": None}, tiny))[0])["y"]


def test_a_bias_may_vanish() -> None:
    stored = {"w": WEIGHTS["w"], "b": np.full(4, 1e-9, np.float32)}
    assert not half(make([conv("x", "w", "y", "b")], X, {"y": [1, 4, 6, 6]}, stored))[0].kept


def test_open_bounds_of_a_clip_become_the_ends_of_float16() -> None:
    top = np.finfo(np.float32).max
    model = make([node("Clip", ["x", "lo", "hi"], ["y"])], X, {"y": None}, {"lo": np.float32(0), "hi": top})
    result, converted = half(model)
    assert not result.kept
    assert read(converted).constants["hi"] == np.float16(65504)


def edges(filters: int, size: int) -> Any:
    """Filters whose weights nearly cancel."""
    rows = 30 * weights(filters, size, seed=3)
    return (rows - rows.mean(axis=1, keepdims=True)).astype(np.float32)


def test_filters_keep_their_sums() -> None:
    rows = edges(32, 72).astype(np.float64)
    values = balanced(rows)
    nearest = rows.astype(np.float16).astype(np.float64)
    assert np.array_equal(values, values.astype(np.float16))
    off, was = np.abs((values - rows).sum(axis=1)), np.abs((nearest - rows).sum(axis=1))
    assert np.median(off) < 0.05 * np.median(was)
    spacing = np.spacing(np.abs(nearest).astype(np.float16)).astype(np.float64)
    assert np.all(np.abs(values - rows) <= spacing)
    assert np.abs(values - rows).sum() < 1.3 * np.abs(nearest - rows).sum()


def test_weights_that_float16_holds_are_left_as_they_are() -> None:
    rows = edges(4, 9).astype(np.float16).astype(np.float64)
    rows[:, ::2] = 0
    assert np.array_equal(balanced(rows), rows)


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [("Conv", (4, 4, 3, 3), {}), ("ConvTranspose", (4, 4, 3, 3), {}), ("Conv", (4, 1, 3, 3), {"group": 4})],
)
def test_a_flat_area_stays_what_it_was(op: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    by_filter = (1, 0, 2, 3) if op == "ConvTranspose" else (0, 1, 2, 3)
    stored = edges(4, int(np.prod(shape)) // 4).reshape([shape[axis] for axis in by_filter]).transpose(by_filter)
    model = make([node(op, ["x", "w"], ["y"], "n", **attributes)], X, {"y": None}, {"w": stored})
    result, _ = half(model)
    flat = {"x": np.full((1, 4, 6, 6), 6, np.float32)}
    inner = (..., 3, 3)
    wanted = Function(model)(flat)["y"][inner]
    plain = read(model).with_constants({"w": stored.astype(np.float16).astype(np.float32)})
    nearest = np.abs(Function(write(plain, model))(flat)["y"][inner] - wanted).max()
    found = Function(write(rounded(result.graph), model))(flat)["y"][inner]
    assert np.abs(found - wanted).max() < 0.5 * nearest


# sums and growth


def reduced(op: str, shape: list[int], **attributes: Any) -> Model:
    return make([node(op, ["x"], ["y"], "n", **attributes)], {"x": shape}, {"y": None}, opset=17)


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "why"),
    [
        ("ReduceMean", [1, 3, 512, 512], {"axes": [2, 3]}, "adds up 262144 values"),
        ("GlobalAveragePool", [1, 3, 64, 64], {}, "adds up 4096 values"),
        ("GlobalAveragePool", [1, 3, 40, 40], {}, "the sum of 1600 values up to 64"),
        ("Softmax", [1, 5000], {"axis": -1}, "adds up 5000 values"),
        ("ReduceMean", ["n", 3], {"axes": [0]}, "an unknown number of values"),
        ("LpNormalization", [1, 128], {}, "the sum of 128 squares"),
        ("ReduceL2", [1, 128], {"axes": [1]}, "nothing is known of how large ReduceL2"),
        ("Exp", [1, 4], {}, "nothing is known of how large Exp"),
        ("Softplus", [1, 4], {}, "nothing is known of how large Softplus"),
    ],
)
def test_sums_and_growth_without_ranges(op: str, shape: list[int], attributes: dict[str, Any], why: str) -> None:
    assert why in kept(half(reduced(op, shape, **attributes))[0])["n"]


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("ReduceMean", [1, 3, 7, 7], {"axes": [-1, -2]}),
        ("GlobalAveragePool", [1, 3, 13, 13], {}),
        ("Softmax", [1, 1000], {}),
    ],
)
def test_sums_that_are_small_enough(op: str, shape: list[int], attributes: dict[str, Any]) -> None:
    assert not half(reduced(op, shape, **attributes))[0].kept


def test_ranges_settle_growth_and_sums() -> None:
    assert not half(reduced("Exp", [1, 4]), amax={"x": 3.0, "y": 20.0})[0].kept
    assert half(reduced("Exp", [1, 4]), amax={"x": 10.0, "y": 22026.0})[0].kept
    assert not half(reduced("Softplus", [1, 4]), amax={"x": 9.0, "y": 9.0})[0].kept
    assert "e to the power" in kept(half(reduced("Softplus", [1, 4]), amax={"x": 12.0, "y": 12.0})[0])["n"]
    assert not half(reduced("GlobalAveragePool", [1, 3, 40, 40]), amax={"x": 6.0, "y": 1.0})[0].kept
    assert half(reduced("GlobalAveragePool", [1, 3, 40, 40]), amax={"x": 20.0, "y": 1.0})[0].kept


def test_what_is_known_of_an_activation_counts_as_measured() -> None:
    nodes = [node("Sigmoid", ["x"], ["s"], "s"), node("Exp", ["s"], ["e"], "e"), node("Mul", ["e", "e"], ["y"], "m")]
    assert not half(make(nodes, {"x": [1, 9]}, {"y": None}))[0].kept


@pytest.mark.parametrize(("exponent", "stays"), [(2.0, True), (0.5, False), (-1.0, True)])
def test_powers(exponent: float, stays: bool) -> None:
    assert bool(half(with_constant("Pow", exponent))[0].kept) == stays


def test_a_layer_normalisation_in_pieces_stays_from_square_to_mean() -> None:
    nodes = [
        node("ReduceMean", ["x"], ["m"], "mean", axes=[-1]),
        node("Sub", ["x", "m"], ["d"], "sub"),
        node("Mul", ["d", "d"], ["q"], "square"),
        node("ReduceMean", ["q"], ["v"], "variance", axes=[-1]),
        node("Add", ["v", "eps"], ["e"], "add"),
        node("Sqrt", ["e"], ["s"], "sqrt"),
        node("Div", ["d", "s"], ["y"], "div"),
    ]
    model = make(nodes, {"x": [1, 8, 256]}, {"y": None}, {"eps": np.float32(1e-9)})
    result, _ = half(model)
    assert list(kept(result)) == ["square", "variance", "add"]
    assert_near(model, result.graph, 3e-3, 200)


@pytest.mark.parametrize(("stash", "stays"), [(1, False), (10, True)])
def test_a_layer_normalisation_that_counts_in_float32_may_be_float16(stash: int, stays: bool) -> None:
    stored = {"g": np.ones(256, np.float32)}
    nodes = [node("LayerNormalization", ["x", "g"], ["y"], "n", stash_type=stash)]
    graph = read(make(nodes, {"x": [1, 8, 256]}, {"y": [1, 8, 256]}, stored))
    assert bool(to_half(graph).kept) == stays


# operators and types


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
    graph = read(model)  # type inference cannot tell how long it is
    result = to_half(graph)
    assert kept(result) == {"range": "Range has no float16 form in opset 17"}
    assert ops(result.graph) == ["Cast", "Range", "Cast", "Add", "Cast"]


def test_operators_that_onnx_does_not_know_stay_with_what_they_touch() -> None:
    nodes = [
        node("Relu", ["x"], ["a"], "a"),
        node("Own", ["a"], ["b"], "own", domain="acme"),
        node("Relu", ["b"], ["y"], "y"),
    ]
    result = to_half(read(make(nodes, X, {"y": [1, 4, 6, 6]})))
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
    assert "it computes with indices" in kept(result)["div"] or "'f' counts" in kept(result)["div"]
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


def test_an_input_that_a_body_reads_cannot_become_float16() -> None:
    body = helper.make_graph([node("Abs", ["x"], ["t"])], "then", [], [value("t", [1, 4, 6, 6])])
    nodes = [node("If", ["c"], ["y"], "if", then_branch=body, else_branch=body)]
    graph = read(make(nodes, {**X, "c": value("c", [], "bool")}, {"y": [1, 4, 6, 6]}))
    with pytest.raises(ModelError, match="'x' cannot become float16"):
        to_half(graph, io="float16")


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
    for io in ("float32", "float16"):
        result, _ = half(model, io=io)
        assert {spec.dtype for spec in result.graph.outputs} == {io}


# positions


def detector(boxes: int = 900, stride: int = 8) -> Model:
    """(conv + grid) · stride for the centre, exp(conv) · stride for the size, sigmoid for the score."""
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
    result, _ = half(model)
    assert kept(result)["add"] == "it computes positions with 'grid'"
    assert set(kept(result)) == {"flatten", "split", "add", "xy", "exp", "join"}
    wanted, found = run(model)["y"][:, :2], run(model, result.graph)["y"][:, :2]
    assert np.abs(found - wanted).max() < 0.02  # px
    assert np.abs(wanted.astype(np.float16) - wanted).max() > 0.05


def test_large_positions_are_known_by_their_values() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("Mul", ["c", "k"], ["m"], "mul"),
        node("Relu", ["m"], ["y"], "end"),
    ]
    model = make(nodes, X, {"y": None}, {"w": weights(4, 4, 1, 1), "k": np.float32(32)})
    assert not half(model, amax={"c": 10, "m": 320})[0].kept
    result, _ = half(model, amax={"c": 30, "m": 960})
    assert kept(result) == {
        "mul": "'m' may reach 3840, where float16 steps by 2",
        "end": "'y' may reach 3840, where float16 steps by 2",
    }


def test_gains_and_biases_of_channels_are_no_positions() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "m"),
        node("Reshape", ["m", "to"], ["r"], "r"),
        node("Mul", ["r", "g"], ["n"], "n"),
        node("Add", ["n", "b"], ["y"], "y"),
    ]
    stored = {"w": weights(16, 512), "to": np.array([1, 512]), "g": weights(1, 512), "b": weights(512)}
    assert not half(make(nodes, {"x": [1, 1, 16]}, {"y": None}, stored))[0].kept


def test_scores_are_ranked_as_they_would_be_in_float32() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("Sigmoid", ["c"], ["s"], "score"),
        node("Reshape", ["s", "flat"], ["f"], "flat"),
        node("TopK", ["f", "k"], ["v", "i"], "top"),
    ]
    stored = {"w": weights(4, 4, 1, 1), "flat": np.array([1, -1]), "k": np.array([5])}
    result, _ = half(make(nodes, X, {"v": None, "i": value("i", [1, 5], "int64")}, stored))
    assert list(kept(result)) == ["score", "flat", "top"]


# graphs with Q/DQ


def quantised(opset: int, weight_scale: Any = None, bias: bool = False) -> Model:
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
    model = quantised(19)
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
    model = quantised(17)
    result, _ = half(model)
    assert set(kept(result)) == {"dq", "dw", "q", "qc", "dc"}
    assert kept(result)["dw"] == "DequantizeLinear has no float16 form in opset 17"
    assert_near(model, result.graph, 0.02)


def test_the_integer_bias_is_scaled_in_float32() -> None:
    model = quantised(19, weight_scale=[1e-4] * 4, bias=True)
    result, _ = half(model)
    assert list(kept(result)) == ["db"]
    assert "scale 'sb' has values such as 2e-06" in kept(result)["db"]
    assert_near(model, result.graph, 0.02)


def test_scales_of_dead_channels_are_raised() -> None:
    model = quantised(19, weight_scale=[0.01, 1e-30, 3e-6, 0.02])
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
    assert list(kept(half(quantised(19, weight_scale=[3e-6] * 4))[0])) == ["dw"]


def test_units_that_are_kept_between_q_and_dq_stay_float32() -> None:
    model = quantised(19)
    result, _ = half(model, keep=["conv", "relu"])
    types = dtypes(result.graph)
    assert types["wd"] == types["xd"] == types["c"] == types["cd"] == "float32"
    assert "Cast" not in ops(result.graph)


# storage


def test_rounded_keeps_the_ends_and_rounds_everything_between() -> None:
    model = chain()
    result, _ = half(model, io="float16")
    graph = rounded(result.graph)
    assert [spec.dtype for spec in (*graph.inputs, *graph.outputs)] == ["float16", "float16"]
    own = Function(write(graph, model))
    x = feeds(model)["x"].astype(np.float16)
    found = own({"x": x})["y"]
    assert found.dtype == np.float16
    assert Counter(ops(graph))["Conv"] == 2
    exact = Function(model)({"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, exact, rtol=0, atol=2e-3 * np.abs(exact).max())


# any graph

UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "Transpose", "Sqrt", "Exp")
BINARY = ("Add", "Mul", "Sub", "Max", "Concat", "Where")


@st.composite
def networks(draw: st.DrawFn) -> tuple[Model, list[str], dict[str, float], str]:
    """A graph of any form over (1, 2, 4, 4) tensors, nodes to keep, some ranges and the type of its ends."""
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
    ranges = draw(st.dictionaries(st.sampled_from(tensors), st.sampled_from([1e-9, 1.0, 1e5]), max_size=4))
    return model, names, ranges, draw(st.sampled_from(["float32", "float16"]))


@settings(max_examples=60, deadline=None)
@given(networks())
def test_every_graph_becomes_a_valid_one(case: tuple[Model, list[str], dict[str, float], str]) -> None:
    model, names, ranges, io = case
    result, converted = half(model, keep=names, amax=ranges, io=io)
    assert set(names) <= set(kept(result))
    assert {spec.dtype for spec in (*result.graph.inputs, *result.graph.outputs)} == {io}
    types = dtypes(result.graph)
    for item in result.graph.nodes:
        if item.name in names:
            assert "float16" not in {types[name] for name in (*item.inputs, *item.outputs)}
    onnx.checker.check_model(infer(write(rounded(result.graph), converted)).proto, full_check=True)
