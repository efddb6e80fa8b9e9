from __future__ import annotations

import numpy as np
import pytest

from edgert.graph import Node
from edgert.quantization.lowering.weights import (
    along_axis,
    fit_bias,
    quantize_bias,
    quantize_weight,
    scale_axis,
    weight_scales,
)

RNG = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("op", "attributes", "shape", "axis"),
    [
        ("Conv", {}, (8, 4, 3, 3), 0),
        ("Conv", {"group": 8}, (8, 1, 3, 3), 0),
        ("ConvTranspose", {"group": 2}, (4, 3, 2, 2), 1),
        ("Gemm", {}, (5, 7), 1),
        ("Gemm", {"transB": 1}, (7, 5), 0),
        ("MatMul", {}, (5, 7), 1),
        ("MatMul", {}, (2, 5, 7), None),
    ],
)
def test_channels_are_counted_by(op: str, attributes: dict[str, int], shape: tuple[int, ...], axis: int | None) -> None:
    assert scale_axis(Node(op, ("x", "w"), ("y",), attributes), np.zeros(shape)) == axis


@pytest.mark.parametrize("axis", [0, 1, None])
def test_the_largest_of_each_channel_becomes_127(axis: int | None) -> None:
    weight = RNG.standard_normal((6, 5, 3, 3)).astype(np.float32)
    found = quantize_weight(weight, weight_scales(weight, axis), axis)
    others = None if axis is None else tuple({0, 1, 2, 3} - {axis})
    assert np.all(np.abs(found.values.astype(int)).max(axis=others) == 127)
    assert found.values.dtype == np.int8
    assert found.scales.shape == (() if axis is None else (weight.shape[axis],))
    assert np.abs(found.restored - weight).max() <= found.scales.max() * 0.5001


def test_128_below_zero_is_never_used() -> None:
    weight = np.array([[-1.0, 0.5]], np.float32)
    assert quantize_weight(weight, np.array([0.001], np.float32), 0).values.tolist() == [[-127, 127]]


def test_halves_go_to_even() -> None:
    weight = np.array([[0.5, 1.5, 2.5, -0.5, 127.0]], np.float32)
    assert quantize_weight(weight, weight_scales(weight, 0), 0).values.tolist() == [[0, 2, 2, 0, 127]]


def test_a_channel_of_zeros_has_a_scale() -> None:
    weight = np.array([[0.0, 0.0], [1.0, -2.0]], np.float32)
    scales = weight_scales(weight, 0)
    assert scales[0] == np.float32(1) / np.float32(127)
    assert np.all(np.isfinite(quantize_weight(weight, scales, 0).restored))
    assert weight_scales(np.zeros((2, 2), np.float32), None).shape == ()


def test_spread() -> None:
    scales = np.array([1.0, 2.0], np.float32)
    assert along_axis(scales, 1, 4).shape == (1, 2, 1, 1)


def test_a_bias_in_steps_of_both_scales() -> None:
    scales = np.array([0.5, 0.25], np.float32)
    values, steps = quantize_bias(np.array([1.0, -0.3], np.float32), scales, 0.5)
    assert steps.tolist() == [0.25, 0.125]
    assert values.tolist() == [4, -2]
    assert values.dtype == np.int32


def test_a_scale_too_fine_for_its_bias_grows() -> None:
    scales = np.array([1e-12, 0.01], np.float32)
    bias = np.array([3.0, 3.0], np.float32)
    grown = fit_bias(scales, bias, 0.02)
    assert grown[0] > 1e-8
    assert grown[1] == scales[1]
    values, steps = quantize_bias(bias, grown, 0.02)
    assert np.abs(values.astype(np.int64)).max() <= 2**30
    np.testing.assert_allclose(values * steps, bias, rtol=1e-4)


def test_one_scale_grows_for_the_largest_bias() -> None:
    grown = fit_bias(np.asarray(1e-12, np.float32), np.array([1.0, -5.0], np.float32), 0.1)
    assert grown.shape == ()
    assert 5.0 / (0.1 * float(grown)) <= 2**30
