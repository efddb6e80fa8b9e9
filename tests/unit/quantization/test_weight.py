"""Weights and biases in eight bits, and the layout of kernels."""

import numpy as np
import pytest

from edgert.graph import Graph, Node, infer, read
from edgert.quantization.lowering.weights import (
    channel_means,
    fit_bias,
    from_kernel_layout,
    kernel_of,
    quantize_bias,
    quantize_weight,
    scale_axis,
    weight_scales,
    weighted_nodes,
)
from tests.helpers.models import make, node, weights, with_constants

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


def graph(op: str, shape: tuple[int, ...], image: tuple[int, ...], **attributes: int) -> Graph:
    return read(infer(make([node(op, ["x", "w"], ["y"], "n", **attributes)], {"x": image}, {"y": None},
                           {"w": weights(*shape)})))  # fmt: skip


CASES = {
    "conv": (graph("Conv", (4, 3, 2, 2), (1, 3, 5, 5)), 4, 3),
    "grouped": (graph("Conv", (6, 2, 3, 3), (1, 4, 5, 5), group=2), 6, 4),
    "depthwise": (graph("Conv", (4, 1, 3, 3), (1, 4, 5, 5), group=4), 4, 4),
    "transposed": (graph("ConvTranspose", (4, 3, 2, 2), (1, 4, 5, 5), group=2), 6, 4),
    "gemm": (graph("Gemm", (3, 5), (1, 3)), 5, 3),
    "gemm_b": (graph("Gemm", (5, 3), (1, 3), transB=1), 5, 3),
    "matmul": (graph("MatMul", (3, 5), (1, 3)), 5, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_one_layout_for_all_and_back(name: str) -> None:
    net, outputs, inputs = CASES[name]
    kernel = kernel_of(net, net.nodes[0])
    assert kernel is not None and (kernel.outputs, kernel.inputs) == (outputs, inputs)
    np.testing.assert_array_equal(from_kernel_layout(kernel.values, kernel.node, kernel.stored), net.constants["w"])


@pytest.mark.parametrize("name", CASES)
def test_rows_are_outputs_and_columns_are_inputs(name: str) -> None:
    """Scaling one output row scales that output channel; zeroing one input column cuts that input channel off."""
    from edgert.backend.ort import Function
    from edgert.graph import write

    net, _, _ = CASES[name]
    like = make([], {}, {})
    kernel = kernel_of(net, net.nodes[0])
    assert kernel is not None
    x = np.abs(weights(*(int(d) for d in net.inputs[0].shape if isinstance(d, int)), seed=3)) + 1
    groups, rows, _, _ = kernel.values.shape
    values = kernel.values.copy()
    values[groups - 1, rows - 1] *= 3
    values[0, :, 0] = 0
    changed = with_constants(net, {"w": from_kernel_layout(values, kernel.node, kernel.stored).astype(np.float32)})
    cut = x.copy()
    cut[:, 0] = 0
    wanted = Function(write(net, like))({"x": cut})["y"]
    wanted[:, -1] *= 3
    np.testing.assert_allclose(Function(write(changed, like))({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)


def test_what_has_no_stored_weight_is_no_weighted_node() -> None:
    net = read(infer(make(
        [node("Conv", ["x", "v"], ["a"], "fed"), node("Gemm", ["f", "w"], ["b"], "turned", transA=1),
         node("Conv", ["x", "k"], ["c"], "stored")],
        {"x": [1, 2, 3, 3], "v": [2, 2, 1, 1], "f": [3, 1]}, {"a": None, "b": None, "c": None},
        {"w": weights(3, 4), "k": weights(2, 2, 1, 1)},
    )))  # fmt: skip
    assert [one.name for one in weighted_nodes(net)] == ["stored"]


def test_means_are_summed_in_float64() -> None:
    array = np.full((1, 2, 1024, 1024), 0.1, np.float32)
    assert channel_means(array, 1) == pytest.approx([float(np.float32(0.1))] * 2, rel=1e-12)
