"""Matrix products as convolutions: sums in another order, so equal within 1e-5 of the largest value (float32)."""

from typing import Any

import numpy as np
import pytest

from tests.helpers.models import make, node, weights
from tests.unit.graph.dla_rewrites.proving import fitted, stays

SUMS = 1e-5


@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (), (1,)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_a_gemm(transposed: int, bias: Any) -> None:
    stored = {"w": weights(5, 7) if transposed else weights(7, 5)}
    stored |= {} if bias is None else {"k": weights(*bias, seed=3)}
    gemm = node("Gemm", ["x", *stored], ["y"], "gemm", transB=transposed, alpha=0.5, beta=3.0)
    found = fitted(make([gemm], {"x": [3, 7]}, {"y": [3, 5]}, stored), "dense", error=SUMS)
    assert found.ops == ["Reshape", "Conv", "Reshape"]


@pytest.mark.parametrize(("size", "kernel"), [((1, 1), [1, 1]), ((3, 4), [3, 4]), ((2, 33), [1, 1])])
@pytest.mark.parametrize("view", ["Flatten", "Reshape"])
def test_a_gemm_behind_a_flat_image_convolves_the_image(view: str, size: tuple[int, int], kernel: list[int]) -> None:
    depth = 6 * size[0] * size[1]
    stored = {"s": np.array([0, -1]), "w": weights(depth, 5)}
    flat = node(view, ["r", "s"] if view == "Reshape" else ["r"], ["f"])
    nodes = [node("Relu", ["x"], ["r"]), flat, node("Gemm", ["f", "w"], ["y"], "gemm")]
    found = fitted(make(nodes, {"x": [2, 6, *size]}, {"y": [2, 5]}, stored), "dense", error=SUMS)
    assert [given["kernel_shape"] for given in found.attributes("Conv")] == [kernel]
    assert (found.ops == ["Relu", "Conv", "Reshape"]) == (max(size) <= 32)


def test_a_classifier_stays_in_four_dimensions_to_the_end() -> None:
    stored = {"w": weights(48, 10), "k": weights(10), "v": weights(10, 4), "c": weights(4), "m": weights(4, 3)}
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Flatten", ["r"], ["f"]),
        node("Gemm", ["f", "w", "k"], ["g"], "g1"),
        node("Relu", ["g"], ["h"], "relu"),
        node("MatMul", ["h", "v"], ["p"], "g2"),
        node("Add", ["p", "c"], ["q"], "add"),
        node("Sigmoid", ["q"], ["s"], "sig"),
        node("Gemm", ["s", "m"], ["t"], "g3"),
        node("Softmax", ["t"], ["y"], "soft"),
    ]
    found = fitted(make(nodes, {"x": [2, 3, 4, 4]}, {"y": [2, 3]}, stored), error=SUMS)
    assert found.ops == ["Relu", "Conv", "Relu", "Conv", "Sigmoid", "Conv", "Softmax", "Reshape"]


def test_products_that_are_no_convolutions_stay() -> None:
    stays(make([node("MatMul", ["x", "z"], ["y"])], {"x": [3, 7], "z": [7, 2]}, {"y": None}), "dense")
    stays(make([node("Gemm", ["x", "w"], ["y"], transA=1)], {"x": [7, 3]}, {"y": None}, {"w": weights(7, 2)}), "dense")
    stored = {"w": weights(7, 2), "k": weights(3, 2)}
    stays(make([node("Gemm", ["x", "w", "k"], ["y"])], {"x": [3, 7]}, {"y": None}, stored), "dense")
    stays(make([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 3, 7]}, {"y": None}, stored), "dense")


def test_a_product_over_channels_last() -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        node("MatMul", ["t", "w"], ["m"], "mul"),
        node("Transpose", ["m"], ["y"], perm=[0, 3, 1, 2]),
    ]
    model = make(nodes, {"x": [2, 6, 5, 4]}, {"y": [2, 3, 5, 4]}, {"w": weights(6, 3)})
    assert fitted(model, error=SUMS).ops == ["Conv"]


@pytest.mark.parametrize("op", ["Sigmoid", "Relu", "LeakyRelu"])
@pytest.mark.parametrize("view", ["Reshape", "Transpose"])
def test_a_view_moves_behind_an_activation(op: str, view: str) -> None:
    stored = {"s": np.array([1, 3, -1])}
    moved = node("Reshape", ["a", "s"], ["b"], "v") if view == "Reshape" else node("Transpose", ["a"], ["b"], "v")
    nodes = [node("Abs", ["x"], ["a"]), moved, node(op, ["b"], ["y"], "act")]
    found = fitted(make(nodes, {"x": [1, 3, 4, 5]}, {"y": None}, stored), "view")
    assert found.ops == ["Abs", op, view]


def test_softmax_over_channels_in_front_of_transposes() -> None:
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 3, 2, 1]),
        node("Softmax", ["b"], ["c"], axis=3),
        node("Transpose", ["c"], ["y"], perm=[0, 3, 2, 1]),
    ]
    found = fitted(make(nodes, {"x": [1, 6, 4, 4]}, {"y": [1, 6, 4, 4]}), "view", "remove-noops", error=1e-6)
    assert found.ops == ["Abs", "Softmax"]
    assert found.attributes("Softmax") == [{"axis": 1}]


def test_views_that_others_read_and_views_of_inputs_stay() -> None:
    nodes = [node("Abs", ["x"], ["a"]), node("Flatten", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    stays(make(nodes, {"x": [1, 3, 4, 5]}, {"y": None, "b": None}), "view")
    stays(make([node("Flatten", ["x"], ["b"]), nodes[2]], {"x": [1, 3, 4, 5]}, {"y": None}), "view")
    mixed = [nodes[0], nodes[1], node("Mul", ["b", "c"], ["y"])]
    stays(make(mixed, {"x": [1, 3, 4, 5]}, {"y": None}, {"c": weights(60)}), "view")


def test_two_views_become_one_and_a_view_of_the_same_shape_goes() -> None:
    stored = {"s": np.array([3, 20]), "t": np.array([1, 3, 4, 5])}
    nodes = [node("Abs", ["x"], ["a"]), node("Reshape", ["a", "s"], ["b"]), node("Reshape", ["b", "t"], ["y"])]
    assert fitted(make(nodes, {"x": [1, 3, 4, 5]}, {"y": [1, 3, 4, 5]}, stored), "view").ops == ["Abs"]
    nodes[2] = node("Flatten", ["b"], ["y"], axis=0)
    assert fitted(make(nodes, {"x": [1, 3, 4, 5]}, {"y": [1, 60]}, stored), "view").ops == ["Abs", "Reshape"]
