from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.graph import Model, read
from edgert.quantization.fp16.rules import largest, magnitudes
from tests.helpers.models import make, node


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
