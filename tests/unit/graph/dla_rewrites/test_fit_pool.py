"""Pools, means and maxima. Maxima are equal to the bit; means within 1e-6 of the largest value (float32)."""

from typing import Any

import numpy as np
import pytest

from edgert.graph import Model
from edgert.graph.dla_rewrites.pooling import MAX_WINDOW, factors, tiles
from tests.helpers.models import make, node
from tests.unit.graph.dla_rewrites.proving import fitted, stays

ROUNDING = 1e-6


def pool(op: str, shape: list[int], kernel: list[int], ends: list[int] | None = None, **given: Any) -> Model:
    return make([node(op, ["x"], ["y"], "pool", kernel_shape=kernel, **given)], {"x": shape}, {"y": ends})


def windows(found: Any, op: str) -> list[list[int]]:
    return [list(given["kernel_shape"]) for given in found.attributes(op)]


@pytest.mark.parametrize(("side", "expected"), [(9, [[5, 5]] * 2), (13, [[7, 7]] * 2), (16, [[6, 6]] * 3)])
def test_a_large_window_without_stride(side: int, expected: list[list[int]]) -> None:
    pad = (side - 1) // 2
    ends = [1, 2, 20 + 2 * pad - side + 1] * 2
    found = fitted(pool("MaxPool", [1, 2, 20, 20], [side] * 2, [1, 2, ends[2], ends[2]], pads=[pad] * 4), "max-pool")
    assert windows(found, "MaxPool") == expected
    assert all(max(given["pads"]) <= 7 for given in found.attributes("MaxPool"))


@pytest.mark.parametrize("seed", range(12))
def test_any_window_padding_and_stride(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = [int(rng.integers(9, 20)), int(rng.integers(1, 20))]
    pads = [int(rng.integers(0, size)) for size in (*kernel, *kernel)]
    strides = [int(rng.integers(1, 5)) for _ in range(2)]
    found = fitted(pool("MaxPool", [2, 2, 24, 21], kernel, None, pads=pads, strides=strides,
                        ceil_mode=int(rng.integers(0, 2))), "max-pool")  # fmt: skip
    assert max(max(window) for window in windows(found, "MaxPool")) <= MAX_WINDOW


def test_windows_side_by_side_are_pooled_side_by_side() -> None:
    found = fitted(pool("MaxPool", [1, 2, 24, 24], [12, 24], [1, 2, 2, 1], strides=[12, 24]), "max-pool")
    assert [list(given["strides"]) for given in found.attributes("MaxPool")] == [[6, 8], [2, 3]]


def test_pyramid_pooling_goes_on_from_the_smaller_window() -> None:
    nodes = [
        node("MaxPool", ["x"], [f"p{side}"], f"pool{side}", kernel_shape=[side] * 2, pads=[side // 2] * 4)
        for side in (5, 9, 13)
    ]
    nodes.append(node("Concat", ["x", "p5", "p9", "p13"], ["y"], axis=1))
    found = fitted(make(nodes, {"x": [1, 2, 13, 13]}, {"y": [1, 8, 13, 13]}), "max-pool")
    assert found.ops == ["MaxPool", "MaxPool", "MaxPool", "Concat"]
    assert windows(found, "MaxPool") == [[5, 5]] * 3
    assert found.graph.nodes[2].inputs == ("p9",)
    assert found.changes[0].detail == "window 9x9 → 5x5 behind 'p5', which has the rest"


def test_small_dilated_and_indexed_pools_stay() -> None:
    stays(pool("MaxPool", [1, 2, 20, 20], [8, 8]), "max-pool")
    stays(pool("MaxPool", [1, 2, 20, 20], [9, 9], dilations=[2, 2]), "max-pool")
    both = node("MaxPool", ["x"], ["y", "i"], kernel_shape=[9, 9])
    stays(make([both], {"x": [1, 2, 20, 20]}, {"y": None}), "max-pool")
    stays(pool("MaxPool", [1, 2, 20], [9]), "max-pool")


@pytest.mark.parametrize("size", [(1, 1), (7, 7), (13, 37), (64, 5)])
def test_a_global_maximum(size: tuple[int, int]) -> None:
    model = make([node("GlobalMaxPool", ["x"], ["y"], "top")], {"x": [2, 3, *size]}, {"y": [2, 3, 1, 1]})
    found = fitted(model, "global-max", "max-pool")
    assert set(found.ops) == {"MaxPool"}
    assert max(max(window) for window in windows(found, "MaxPool")) <= MAX_WINDOW


def test_a_maximum_by_axes() -> None:
    over = node("ReduceMax", ["x"], ["y"], axes=[-1, 2], keepdims=0)
    found = fitted(make([over], {"x": [2, 3, 6, 5]}, {"y": [2, 3]}), "global-max")
    assert found.ops == ["MaxPool", "Reshape"]
    stays(make([node("ReduceMax", ["x"], ["y"], axes=[1])], {"x": [2, 3, 6, 5]}, {"y": None}), "global-max")


@pytest.mark.parametrize(
    ("size", "expected"),
    [((7, 7), ["AveragePool"]), ((14, 35), ["AveragePool"] * 2), ((13, 13), ["Conv"]), ((1, 8), ["AveragePool"]),
     ((37, 7), ["AveragePool"] * 2 + ["Mul"]),
     ((128, 64), ["AveragePool"] * 3), ((74, 74), ["AveragePool"] * 3 + ["Mul"])],
)  # fmt: skip
@pytest.mark.parametrize("op", ["GlobalAveragePool", "ReduceMean"])
def test_a_mean_over_the_image(op: str, size: tuple[int, int], expected: list[str]) -> None:
    over: Any = {"axes": [2, 3]} if op == "ReduceMean" else {}
    model = make([node(op, ["x"], ["y"], "mean", **over)], {"x": [2, 3, *size]}, {"y": [2, 3, 1, 1]})
    found = fitted(model, "global-mean", error=ROUNDING)
    assert found.ops == expected
    for given in found.attributes("AveragePool"):
        assert max(given["kernel_shape"]) <= MAX_WINDOW
        assert max(given["pads"]) < min(given["kernel_shape"]) or not any(given["pads"])


def test_a_mean_without_kept_dimensions_and_over_other_axes() -> None:
    shape = [2, 3, 6, 5]
    flat = make([node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)], {"x": shape}, {"y": [2, 3]})
    assert fitted(flat, "global-mean", error=ROUNDING).ops == ["AveragePool", "Reshape"]
    channels = make([node("ReduceMean", ["x"], ["y"], axes=[1])], {"x": shape}, {"y": [2, 1, 6, 5]})
    assert fitted(channels, "global-mean", error=ROUNDING).ops == ["Conv"]
    stays(make([node("ReduceMean", ["x"], ["y"], axes=[0, 1])], {"x": shape}, {"y": None}), "global-mean")
    stays(make([node("ReduceMean", ["x"], ["y"], axes=[2])], {"x": shape}, {"y": None}), "global-mean")
    stays(make([node("GlobalAveragePool", ["x"], ["y"])], {"x": [1, 3, "h", 5]}, {"y": None}), "global-mean")


@pytest.mark.parametrize("size", [(4, 6), (13, 11)])
def test_a_sum_over_the_image_and_over_channels(size: tuple[int, int]) -> None:
    stored = {"a": np.array([2, 3])}
    over = make([node("ReduceSum", ["x", "a"], ["y"])], {"x": [1, 3, *size]}, {"y": [1, 3, 1, 1]}, stored)
    assert set(fitted(over, "reduce-sum", error=ROUNDING).ops) <= {"AveragePool", "Mul", "Conv"}
    stored = {"a": np.array([1])}
    channels = node("ReduceSum", ["x", "a"], ["y"], keepdims=0)
    found = fitted(make([channels], {"x": [1, 3, *size]}, {"y": [1, *size]}, stored), "reduce-sum", error=ROUNDING)
    assert found.ops == ["Conv", "Reshape"]


@pytest.mark.parametrize(
    ("kernel", "given", "expected"),
    [([33, 33], {}, ["AveragePool", "AveragePool", "Mul"]), ([32, 16], {"strides": [32, 16]}, ["Conv"]),
     ([9, 9], {"pads": [4, 4, 4, 4], "count_include_pad": 1}, ["Conv"])],
)  # fmt: skip
def test_a_large_average_window(kernel: list[int], given: Any, expected: list[str]) -> None:
    found = fitted(pool("AveragePool", [1, 2, 33, 33], kernel, None, **given), "average-pool", error=ROUNDING)
    assert found.ops == expected


def test_averages_that_leave_padding_out_and_those_too_large_for_a_kernel_stay() -> None:
    stays(pool("AveragePool", [1, 2, 33, 33], [9, 9], pads=[4] * 4), "average-pool")
    stays(pool("AveragePool", [1, 2, 50, 50], [40, 40]), "average-pool")
    stays(pool("AveragePool", [1, 2, 33, 33], [8, 8]), "average-pool")


def test_every_size_has_poolings_that_end_at_one_pixel() -> None:
    for size in range(1, 600):
        found = tiles(size, pad=True)
        assert found is not None
        left = size
        for side, padding in found:
            assert padding < side <= MAX_WINDOW
            assert (left + 2 * padding) % side == 0
            left = (left + 2 * padding) // side
        assert left == 1


def test_factors_multiply_to_the_size() -> None:
    for size in range(1, 200):
        found = factors(size)
        assert found is None or (np.prod(found) == size and max(found) <= MAX_WINDOW)
    assert factors(49) == [7, 7]
    assert factors(11) is None
