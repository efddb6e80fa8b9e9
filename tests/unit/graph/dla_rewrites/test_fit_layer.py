"""Resizes and padding: the same pixels, so equal to the bit where nothing is averaged."""

from typing import Any

import numpy as np
import pytest

from edgert.graph import Model
from tests.helpers.models import make, node, weights
from tests.unit.graph.dla_rewrites.proving import Fitted, fitted, stays

ROUNDING = 1e-6
SAME_PIXELS = [
    ("half_pixel", "round_prefer_floor"),
    ("asymmetric", "floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
]
OTHER_PIXELS = [("pytorch_half_pixel", "floor"), ("half_pixel", "ceil"), ("asymmetric", "round_prefer_ceil"),
                ("align_corners", "round_prefer_floor")]  # fmt: skip


def resize(size: list[int], target: list[int], by: str = "sizes", opset: int = 17, **given: Any) -> Model:
    ratio = [1, 1, target[0] / size[0], target[1] / size[1]]
    stored: dict[str, Any] = (
        {"sizes": np.array([1, 2, *target])} if by == "sizes" else {"k": np.array(ratio, np.float32)}
    )
    inputs = ["x", "", "", "sizes"] if by == "sizes" else ["x", "", "k"]
    return make([node("Resize", inputs, ["y"], "up", **given)], {"x": [1, 2, *size]}, {"y": [1, 2, *target]}, stored,
                opset=opset)  # fmt: skip


def scales(found: Fitted) -> list[list[float]]:
    named = [item.inputs[2] for item in found.graph.nodes if item.op == "Resize"]
    return [found.graph.constants[name].tolist() for name in named]


@pytest.mark.parametrize(("coordinates", "rounding"), SAME_PIXELS)
def test_nearest_by_sizes_gets_whole_scales(coordinates: str, rounding: str) -> None:
    given: Any = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    found = fitted(resize([4, 5], [8, 15], **given), "resize")
    assert scales(found) == [[1, 1, 2, 3]]
    assert found.attributes("Resize")[0]["coordinate_transformation_mode"] == b"asymmetric"


@pytest.mark.parametrize(("coordinates", "rounding"), OTHER_PIXELS)
def test_nearest_that_takes_other_pixels_stays(coordinates: str, rounding: str) -> None:
    given: Any = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    stays(resize([5, 5], [20, 20], **given), "resize")


def test_nearest_by_much() -> None:
    given: Any = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    assert scales(fitted(resize([2, 3], [128, 3], "scales", **given), "resize")) == [[1, 1, 32, 1], [1, 1, 2, 1]]
    stays(resize([2, 3], [2 * 37, 3], "scales", **given), "resize")
    stays(resize([2, 3], [4, 9], "scales", **given), "resize")
    stays(resize([4, 4], [6, 6], **given), "resize")


@pytest.mark.parametrize("coordinates", ["asymmetric", "align_corners", "half_pixel"])
def test_one_pixel_enlarged_is_the_same_in_every_mode(coordinates: str) -> None:
    found = fitted(resize([1, 1], [33, 7], mode="linear", coordinate_transformation_mode=coordinates), "resize")
    assert [given["mode"] for given in found.attributes("Resize")] == [b"nearest", b"nearest"]


def test_linear_by_whole_numbers() -> None:
    found = fitted(
        resize([4, 5], [8, 15], mode="linear", coordinate_transformation_mode="pytorch_half_pixel"), "resize"
    )
    assert found.attributes("Resize") == [{"mode": b"linear", "coordinate_transformation_mode": b"half_pixel"}]
    stays(resize([4, 5], [8, 15], mode="linear", coordinate_transformation_mode="align_corners"), "resize")
    stays(resize([4, 5], [8, 15], "scales", mode="linear", coordinate_transformation_mode="half_pixel"), "resize")
    stays(resize([4, 5], [8, 15], mode="cubic"), "resize")


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel"])
def test_linear_by_one_half_is_a_mean(coordinates: str) -> None:
    model = resize([8, 6], [4, 3], "scales", mode="linear", coordinate_transformation_mode=coordinates)
    assert fitted(model, "resize", error=ROUNDING).ops == ["AveragePool"]
    stays(resize([9, 6], [3, 2], mode="linear", coordinate_transformation_mode=coordinates), "resize")


def test_nearest_by_a_part_leaves_pixels_out() -> None:
    given: Any = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    found = fitted(resize([8, 6], [2, 3], **given), "resize")
    assert found.attributes("MaxPool") == [{"kernel_shape": [1, 1], "strides": [4, 2], "pads": [0, 0, 0, 0]}]


def test_smoothed_and_fitted_resizes_stay() -> None:
    stays(resize([8, 6], [4, 3], mode="linear", antialias=1, opset=18), "resize")
    stays(resize([4, 4], [8, 8], mode="linear", keep_aspect_ratio_policy="not_larger", opset=18), "resize")


def padded(pads: list[int], *more: Any, value: float = 0.0, stored: Any = None, relu: bool = True) -> Model:
    nodes = [node("Relu" if relu else "Abs", ["x"], ["r"]) if relu else node("Neg", ["x"], ["r"])]
    nodes += [node("Pad", ["r", "pads", "v"], ["p"], "pad"), *more]
    constants = {"pads": np.array(pads), "v": np.float32(value), **(stored or {})}
    return make(nodes, {"x": [1, 3, 9, 9]}, {"y": None}, constants)


SAME = [0, 0, 1, 2, 0, 0, 1, 0]


def test_padding_before_a_conv() -> None:
    conv = node("Conv", ["p", "w"], ["y"], pads=[1, 0, 0, 0], strides=[2, 2])
    found = fitted(padded(SAME, conv, stored={"w": weights(4, 3, 3, 3)}), "pad", error=1e-5)
    assert found.ops == ["Relu", "Conv"]
    assert found.attributes("Conv")[0]["pads"] == [2, 2, 1, 0]
    stays(padded(SAME, conv, value=1, stored={"w": weights(4, 3, 3, 3)}), "pad")
    stays(padded([0, 0, 3, 0, 0, 0, 0, 0], conv, stored={"w": weights(4, 3, 3, 3)}), "pad")


def test_padding_before_an_average() -> None:
    plain = node("AveragePool", ["p"], ["y"], kernel_shape=[3, 3], strides=[2, 2])
    found = fitted(padded(SAME, plain), "pad", error=ROUNDING)
    assert found.ops == ["Relu", "AveragePool"]
    assert found.attributes("AveragePool")[0]["count_include_pad"] == 1
    without = node("AveragePool", ["p"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    stays(padded([0] * 8, without), "pad")
    stays(padded(SAME, node("AveragePool", ["p"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)), "pad")


def test_padding_before_a_maximum() -> None:
    pool = node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3], strides=[2, 2])
    assert fitted(padded(SAME, pool), "pad").ops == ["Relu", "MaxPool"]
    stays(padded(SAME, pool, relu=False), "pad")
    assert fitted(padded(SAME, pool, value=-np.inf, relu=False), "pad").ops == ["Neg", "MaxPool"]


def test_other_padding_stays() -> None:
    pool = node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3])
    stays(padded([0, 1, 1, 1, 0, 0, 1, 1], pool), "pad")
    stays(padded([0, 0, -1, 1, 0, 0, 1, 1], pool), "pad")


def test_batchnorm_bias_shapes_and_noops_are_folded() -> None:
    rng = np.random.default_rng(0)
    stored = {"w": weights(4, 3, 3, 3), "k": weights(4, 1, 1), "i": np.array([0, 1])}
    stored |= {name: rng.random(4).astype(np.float32) + 0.5 for name in "gbmv"}
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], "bn"),
        node("Add", ["n", "k"], ["a"], "add"),
        node("Identity", ["a"], ["d"], "id"),
        node("Shape", ["x"], ["s"], "shape"),
        node("Gather", ["s", "i"], ["t"], "gather"),
        node("ReduceMean", ["d"], ["e"], "mean", axes=[2, 3], keepdims=0),
        node("Mul", ["e", "e"], ["y"], "square"),
        node("Cast", ["t"], ["z"], "cast", to=1),
    ]
    found = fitted(make(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4], "z": [2]}, stored), error=1e-5)
    assert found.ops[:2] == ["Conv", "AveragePool"]
    assert {"fold-batchnorm", "fold-bias", "fold-constants", "remove-noops"} <= {item.rule for item in found.changes}
