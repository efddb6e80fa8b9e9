"""FP16: positions of boxes are computed in FP32."""

from __future__ import annotations

import numpy as np

from edgert.graph import Model
from tests.unit.graph.graphs import make, node, value, weights
from tests.unit.quantization.fp16_nets import X, half, kept, run


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
