"""FP16: bounds of values; values, constants and sums that leave its range stay in FP32."""

from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.graph import Model, read, write
from edgert.quantization.fp16.rules import largest, magnitudes
from edgert.quantization.fp16.to_fp16 import keep_sums, to_fp16
from tests.helpers.fp16_emulation import rounded
from tests.helpers.models import make, node, weights, with_constants
from tests.unit.quantization.fp16_nets import WEIGHTS, X, assert_near, conv, half


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
    assert why in half(with_constant(op, constant))[1]["n"]


@pytest.mark.parametrize(
    ("op", "constant"), [("Add", 1e-3), ("Mul", 65504), ("Add", -np.inf), ("Mul", 0), ("Mul", 0.1)]
)
def test_constants_that_it_has(op: str, constant: float) -> None:
    assert not half(with_constant(op, constant))[1]


def test_weights_that_vanish_beside_others_do_no_harm() -> None:
    dead = WEIGHTS["w"].copy()
    dead[2] = 1e-20
    model = make([conv("x", "w", "y")], X, {"y": [1, 4, 6, 6]}, {"w": dead})
    made, kept = half(model)
    assert not kept
    assert_near(model, made, 2e-3)


def test_weights_that_all_vanish_stay() -> None:
    tiny = {"w": WEIGHTS["w"] * np.float32(1e-8)}
    assert "float16 would lose" in half(make([conv("x", "w", "y")], X, {"y": None}, tiny))[1]["y"]


def test_a_bias_may_vanish() -> None:
    stored = {"w": WEIGHTS["w"], "b": np.full(4, 1e-9, np.float32)}
    assert not half(make([conv("x", "w", "y", "b")], X, {"y": [1, 4, 6, 6]}, stored))[1]


def test_open_bounds_of_a_clip_become_the_ends_of_float16() -> None:
    top = np.finfo(np.float32).max
    model = make([node("Clip", ["x", "lo", "hi"], ["y"])], X, {"y": None}, {"lo": np.float32(0), "hi": top})
    made, kept = half(model)
    assert not kept
    assert made.constants["hi"] == np.float16(65504)


def test_values_beyond_the_range_stay_float32() -> None:
    nodes = [
        node("Sigmoid", ["x"], ["s"], "s"),
        node("Mul", ["s", "c"], ["m"], "mul"),
        node("Add", ["m", "m"], ["y"], "twice"),
    ]
    model = make(nodes, X, {"y": None}, {"c": np.float32(60000)})
    assert "may reach 1.2e+05; float16 ends at 65504" in half(model)[1]["twice"]


def edges(filters: int, size: int) -> Any:
    """Filters whose weights nearly cancel."""
    rows = 30 * weights(filters, size, seed=3)
    return (rows - rows.mean(axis=1, keepdims=True)).astype(np.float32)


def test_filters_keep_their_sums() -> None:
    rows = edges(32, 72).astype(np.float64)
    values = keep_sums(rows)
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
    assert np.array_equal(keep_sums(rows), rows)


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [("Conv", (4, 4, 3, 3), {}), ("ConvTranspose", (4, 4, 3, 3), {}), ("Conv", (4, 1, 3, 3), {"group": 4})],
)
def test_a_flat_area_stays_what_it_was(op: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    by_filter = (1, 0, 2, 3) if op == "ConvTranspose" else (0, 1, 2, 3)
    stored = edges(4, int(np.prod(shape)) // 4).reshape([shape[axis] for axis in by_filter]).transpose(by_filter)
    model = make([node(op, ["x", "w"], ["y"], "n", **attributes)], X, {"y": None}, {"w": stored})
    made, _ = half(model)
    flat = {"x": np.full((1, 4, 6, 6), 6, np.float32)}
    inner = (..., 3, 3)
    wanted = Function(model)(flat)["y"][inner]
    plain = with_constants(read(model), {"w": stored.astype(np.float16).astype(np.float32)})
    nearest = np.abs(Function(write(plain, model))(flat)["y"][inner] - wanted).max()
    found = Function(write(rounded(made), model))(flat)["y"][inner]
    assert np.abs(found - wanted).max() < 0.5 * nearest


def reduced(op: str, shape: list[int], **attributes: Any) -> Model:
    return make([node(op, ["x"], ["y"], "n", **attributes)], {"x": shape}, {"y": None}, opset=17)


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "why"),
    [
        ("ReduceMean", [1, 3, 512, 512], {"axes": [2, 3]}, "it sums 262144 values"),
        ("GlobalAveragePool", [1, 3, 64, 64], {}, "it sums 4096 values"),
        ("GlobalAveragePool", [1, 3, 40, 40], {}, "the sum of 1600 values up to 64"),
        ("Softmax", [1, 5000], {"axis": -1}, "it sums 5000 values"),
        ("ReduceMean", ["n", 3], {"axes": [0]}, "an unknown number of values"),
        ("LpNormalization", [1, 128], {}, "the sum of 128 squares"),
        ("ReduceL2", [1, 128], {"axes": [1]}, "no bound is known for the values of ReduceL2"),
        ("Exp", [1, 4], {}, "no bound is known for the values of Exp"),
        ("Softplus", [1, 4], {}, "no bound is known for the values of Softplus"),
    ],
)
def test_sums_and_growth_without_ranges(op: str, shape: list[int], attributes: dict[str, Any], why: str) -> None:
    assert why in half(reduced(op, shape, **attributes))[1]["n"]


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("ReduceMean", [1, 3, 7, 7], {"axes": [-1, -2]}),
        ("ReduceMean", ["n", 3, 7, 7], {"axes": [-1, -2]}),  # an open batch is not added up
        ("GlobalAveragePool", ["n", 3, 7, 7], {}),
        ("GlobalAveragePool", [1, 3, 13, 13], {}),
        ("Softmax", [1, 1000], {}),
    ],
)
def test_sums_that_are_small_enough(op: str, shape: list[int], attributes: dict[str, Any]) -> None:
    assert not half(reduced(op, shape, **attributes))[1]


def test_the_bound_of_an_activation_is_known() -> None:
    nodes = [node("Sigmoid", ["x"], ["s"], "s"), node("Exp", ["s"], ["e"], "e"), node("Mul", ["e", "e"], ["y"], "m")]
    assert not half(make(nodes, {"x": [1, 9]}, {"y": None}))[1]


@pytest.mark.parametrize(("exponent", "stays"), [(2.0, True), (0.5, False), (-1.0, True)])
def test_powers(exponent: float, stays: bool) -> None:
    assert bool(half(with_constant("Pow", exponent))[1]) == stays


def test_a_layer_normalization_in_pieces_stays_from_square_to_mean() -> None:
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
    made, kept = half(model)
    assert list(kept) == ["square", "variance", "add"]
    assert_near(model, made, 3e-3, 200)


@pytest.mark.parametrize(("stash", "stays"), [(1, False), (10, True)])
def test_a_layer_normalization_that_counts_in_float32_may_be_float16(stash: int, stays: bool) -> None:
    stored = {"g": np.ones(256, np.float32)}
    nodes = [node("LayerNormalization", ["x", "g"], ["y"], "n", stash_type=stash)]
    graph = read(make(nodes, {"x": [1, 8, 256]}, {"y": [1, 8, 256]}, stored))
    assert bool(to_fp16(graph)[1]) == stays


def bound(op: str, known: float | None = 3.0, stored: dict[str, Any] | None = None, **attributes: Any) -> float | None:
    """What is known of an operator's output when its input reaches ``known``."""
    nodes = [node(op, ["k" if known else "x", *(stored or {})], ["y"], **attributes)]
    return magnitudes(read(limited(nodes, [1, 4, 8, 8], known or 1.0, stored))).get("y")


def limited(nodes: list[Any], shape: list[int], most: float, stored: dict[str, Any] | None = None) -> Model:
    """A model whose tensor ``k`` is its input ``x``, limited to ±``most``."""
    ends = {"k_low": np.float32(-most), "k_high": np.float32(most)}
    clip = node("Clip", ["x", *ends], ["k"], "limit")
    return make([clip, *nodes], {"x": shape}, {"y": None}, {**(stored or {}), **ends})


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("Sigmoid", 1),
        ("Softmax", 1),
        ("Relu", 3),
        ("MaxPool", 3),
        ("Transpose", 3),
        ("Neg", 3),
        ("Conv", None),
        ("Exp", np.exp(3)),
    ],
)
def test_bounds_of_one_input(op: str, wanted: float | None) -> None:
    attributes = {"kernel_shape": [2, 2]} if op == "MaxPool" else {}
    assert bound(op, **attributes) == (None if wanted is None else pytest.approx(wanted))


@pytest.mark.parametrize(("op", "wanted"), [("Add", 8), ("Sub", 8), ("Mul", 15), ("Max", 5), ("Div", None)])
def test_bounds_with_a_stored_operand(op: str, wanted: float | None) -> None:
    assert bound(op, stored={"c": np.float32([-5])}) == wanted


def test_nothing_is_known_of_what_comes_from_the_unknown() -> None:
    assert bound("Relu", None) is None
    assert bound("Add", None, {"c": np.float32(1)}) is None
    assert bound("Tanh", None) == 1


def test_a_clip_bounds_whatever_comes() -> None:
    ends = {"lo": np.float32(-2), "hi": np.float32(6)}
    assert bound("Clip", None, ends) == 6
    assert bound("Clip", 4.0, ends) == 4
    assert bound("Clip", None, {"lo": np.float32(0), "hi": np.finfo(np.float32).max}) is None


def test_a_padding_may_be_larger_than_what_it_surrounds() -> None:
    pads = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    assert bound("Pad", 3.0, pads) == 3
    assert bound("Pad", 3.0, {**pads, "v": np.float32(-9)}) == 9


@pytest.mark.parametrize(("mode", "wanted"), [("linear", 3.0), ("cubic", None)])
def test_a_cubic_resize_overshoots(mode: str, wanted: float | None) -> None:
    nodes = [node("Resize", ["k", "", "s"], ["y"], mode=mode)]
    graph = read(limited(nodes, [1, 1, 4, 4], 3.0, {"s": np.float32([1, 1, 2, 2])}))
    assert magnitudes(graph).get("y") == wanted


def test_every_bound_holds() -> None:
    """On values that fill the bound of the input."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (1, 4, 8, 8)).astype(np.float32)
    for op in (
        "Relu",
        "LeakyRelu",
        "HardSwish",
        "Softsign",
        "Erf",
        "Abs",
        "Exp",
        "GlobalAveragePool",
        "Sin",
        "HardSigmoid",
    ):
        model = limited([node(op, ["k"], ["y"])], [1, 4, 8, 8], 3.0)
        known = magnitudes(read(model))["y"]
        assert np.abs(Function(model)({"x": x})["y"]).max() <= known


def test_largest_of_odd_arrays() -> None:
    assert largest(np.float32([-2, np.inf, 1])) == 2
    assert largest(np.zeros(0, np.float32)) == 0
    assert largest(np.int8([-128, 3])) == 128
