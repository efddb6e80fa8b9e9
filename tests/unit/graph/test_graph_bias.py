from __future__ import annotations

import numpy as np
import pytest

from edgert.graph import Model
from edgert.graph.batchnorm import FOLD_BIAS
from tests.unit.graph.graphs import applied, assert_same, make, node, ops, weights


def added(shape: tuple[int, ...], *, swapped: bool = False, results: tuple[str, ...] = ("y",)) -> Model:
    operands = ["k", "c"] if swapped else ["c", "k"]
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Add", operands, ["y"])]
    stored = {"w": weights(4, 3, 3, 3), "k": weights(*shape, seed=3)}
    return make(nodes, {"x": [1, 3, 6, 6]}, dict.fromkeys(results), stored)


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (1,), (), (1, 1, 1)])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_constant_per_channel_joins_the_bias(shape: tuple[int, ...], swapped: bool) -> None:
    model = added(shape, swapped=swapped)
    folded, changes = applied(FOLD_BIAS, model)
    assert ops(folded) == ["Conv"]
    assert len(changes) == 1
    assert_same(model, folded)


@pytest.mark.parametrize("shape", [(4,), (4, 4), (4, 1, 4), (1, 1, 4, 4), (2, 4, 1, 1), (1, 1, 4, 1, 1)])
def test_other_constants_stay(shape: tuple[int, ...]) -> None:
    model = added(shape)
    assert applied(FOLD_BIAS, model)[0] is model


def test_a_sum_that_others_see_stays() -> None:
    model = added((4, 1, 1), results=("y", "c"))
    assert applied(FOLD_BIAS, model)[0] is model


def test_one_channel_that_broadcasts_to_many_stays() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Add", ["c", "k"], ["y"])]
    model = make(nodes, {"x": [1, 3, 6, 6]}, {"y": None}, {"w": weights(1, 3, 3, 3), "k": weights(4, 1, 1)})
    assert applied(FOLD_BIAS, model)[0] is model


def test_an_existing_bias_of_transposed_conv_and_gemm() -> None:
    nodes = [
        node("ConvTranspose", ["x", "w", "k"], ["c"]),
        node("Add", ["c", "p"], ["d"]),
        node("Flatten", ["d"], ["f"]),
        node("Gemm", ["f", "u", "q"], ["e"], beta=2.0),
        node("Add", ["r", "e"], ["y"]),
    ]
    stored = {"w": weights(4, 6, 3, 3), "k": weights(6), "p": weights(6, 1, 1), "u": weights(384, 5)}
    model = make(nodes, {"x": [1, 4, 6, 6]}, {"y": None}, {**stored, "q": weights(5), "r": weights(1, 5, seed=8)})
    folded, changes = applied(FOLD_BIAS, model)
    assert ops(folded) == ["ConvTranspose", "Flatten", "Gemm"]
    assert len(changes) == 2
    assert_same(model, folded)


def test_a_residual_sum_stays() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Add", ["c", "x"], ["y"])]
    model = make(nodes, {"x": [1, 3, 6, 6]}, {"y": None}, {"w": weights(3, 3, 1, 1)})
    assert applied(FOLD_BIAS, model)[0] is model


def test_integer_products_stay() -> None:
    nodes = [node("Gemm", ["x", "w"], ["c"]), node("Add", ["c", "k"], ["y"])]
    model = make(nodes, {"x": [2, 3]}, {"y": None}, {"w": np.ones((3, 4), np.int32), "k": np.ones(4, np.int32)})
    assert applied(FOLD_BIAS, model)[0] is model
