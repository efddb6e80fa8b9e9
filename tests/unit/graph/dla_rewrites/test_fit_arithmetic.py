"""Activations and arithmetic. Errors are parts of the largest output, float32: rounding of one or two operations."""

from typing import Any

import numpy as np
import pytest

from edgert.graph import Model
from tests.helpers.models import make, node, value, weights
from tests.unit.graph.dla_rewrites.proving import fitted, stays

ROUNDING = 1e-6
SHAPE = [1, 4, 5, 6]


def single(op: str, stored: dict[str, Any] | None = None, **given: Any) -> Model:
    operands = [*(stored or {})]
    return make([node(op, ["x", *operands], ["y"], op, **given)], {"x": SHAPE}, {"y": SHAPE}, stored)


def test_hard_swish() -> None:
    found = fitted(single("HardSwish"), "hard-swish", error=ROUNDING)
    assert found.ops == ["Add", "Clip", "Mul", "Mul"]
    assert [float(found.graph.constants[name]) for name in found.graph.nodes[1].inputs[1:]] == [0, 6]


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [(1 / 6, 0.5, ["Add", "Clip", "Mul"]), (0.2, 0.5, ["Add", "Clip", "Mul"]), (2.0, 0.1, ["Mul", "Add", "Clip"]),
     (-0.3, 0.4, ["Mul", "Add", "Clip"])],
)  # fmt: skip
def test_hard_sigmoid(alpha: float, beta: float, expected: list[str]) -> None:
    found = fitted(single("HardSigmoid", alpha=alpha, beta=beta), "hard-sigmoid", error=ROUNDING)
    assert found.ops == expected
    clip = next(item for item in found.graph.nodes if item.op == "Clip")
    low, high = (float(found.graph.constants[name]) for name in clip.inputs[1:])
    assert low == 0
    assert 1 <= high <= 127


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-3, 3), (0, 0.5), (0, 200), (2, 4), (-0.1, 0.1)])
def test_a_clip_between_any_numbers(low: float, high: float) -> None:
    stored = {"low": np.float32(low), "high": np.float32(high)}
    found = fitted(single("Clip", stored), "clip", error=ROUNDING, scale=max(abs(low), abs(high)))
    clips = [item for item in found.graph.nodes if item.op == "Clip"]
    assert [float(found.graph.constants[name]) for name in clips[0].inputs[1:]] in ([0, high - low], [0, 6])


@pytest.mark.parametrize(
    ("ends", "expected"),
    [(["low"], ["Relu"]), (["one"], ["Add", "Relu", "Add"]), (["", "one"], ["Mul", "Add", "Relu", "Mul", "Add"])],
)
def test_a_clip_with_one_end(ends: list[str], expected: list[str]) -> None:
    stored = {"low": np.float32(0), "one": np.float32(1)}
    model = make([node("Clip", ["x", *ends], ["y"])], {"x": SHAPE}, {"y": SHAPE}, stored)
    assert fitted(model, "clip", error=ROUNDING).ops == expected


def test_clips_that_a_dla_takes_stay() -> None:
    stays(single("Clip", {"low": np.float32(0), "high": np.float32(6)}), "clip")
    stays(single("Clip"), "clip")
    flat = make([node("Clip", ["x", "low"], ["y"])], {"x": [4]}, {"y": None}, {"low": np.float32(-1)})
    stays(flat, "clip")


def test_neg_is_exact() -> None:
    assert fitted(single("Neg"), "neg").ops == ["Mul"]
    whole = make([node("Neg", ["x"], ["y"])], {"x": value("x", [3], "int64")}, {"y": value("y", [3], "int64")})
    stays(whole, "neg")


def test_sub_with_a_constant_is_exact_on_either_side() -> None:
    stored = {"c": weights(1, 4, 1, 1)}
    assert fitted(single("Sub", stored), "sub").ops == ["Add"]
    model = make([node("Sub", ["c", "x"], ["y"])], {"x": SHAPE}, {"y": SHAPE}, stored)
    assert fitted(model, "sub").ops == ["Mul", "Add"]
    stays(make([node("Sub", ["x", "x"], ["y"])], {"x": SHAPE}, {"y": SHAPE}), "sub")


def test_div_by_a_constant() -> None:
    assert fitted(single("Div", {"c": np.float32(4)}), "div").ops == ["Mul"]
    assert fitted(single("Div", {"c": weights(4, 1, 1)}), "div", error=ROUNDING).ops == ["Mul"]
    stays(single("Div", {"c": np.array([1, 0, 1, 1], np.float32).reshape(4, 1, 1)}), "div")
    stays(make([node("Div", ["c", "x"], ["y"])], {"x": SHAPE}, {"y": SHAPE}, {"c": np.float32(1)}), "div")


def test_sum_of_three() -> None:
    model = make([node("Sum", ["x", "c", "z"], ["y"])], {"x": SHAPE, "z": SHAPE}, {"y": SHAPE}, {"c": weights(4, 1, 1)})
    assert fitted(model, "sum", error=ROUNDING).ops == ["Add", "Add"]


def test_a_slope_gets_four_dimensions() -> None:
    found = fitted(single("PRelu", {"slope": weights(4, 1, 1)}), "prelu-slope")
    assert found.graph.constants[found.graph.nodes[0].inputs[1]].shape == (1, 4, 1, 1)
    stays(single("PRelu", {"slope": weights(1, 4, 1, 1)}), "prelu-slope")


def test_a_number_per_channel_is_spread_before_it_is_multiplied() -> None:
    for pair in (["x", "s"], ["s", "x"]):
        model = make([node("Mul", pair, ["y"])], {"x": [1, 4, 6, 64], "s": [1, 4, 1, 1]}, {"y": [1, 4, 6, 64]})
        assert fitted(model, "spread").ops == ["Resize", "Resize", "Mul"]
    stays(make([node("Mul", ["x", "s"], ["y"])], {"x": [1, 4, 37, 6], "s": [1, 4, 1, 1]}, {"y": None}), "spread")
    stays(single("Mul", {"s": weights(1, 4, 1, 1)}), "spread")


def test_names_in_use_are_not_taken_and_stored_tensors_no_longer_read_go() -> None:
    nodes = [node("Neg", ["x"], ["y_mul"], "a"), node("Sub", ["y_mul", "c"], ["y"], "a/Mul")]
    model = make(nodes, {"x": SHAPE}, {"y": SHAPE}, {"c": weights(4, 1, 1)})
    found = fitted(model)
    names = [item.name for item in found.graph.nodes]
    assert len(set(names)) == len(names)
    assert "c" not in found.graph.constants
