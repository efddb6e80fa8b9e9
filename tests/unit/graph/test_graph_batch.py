"""A batch of one that is opened: what the nodes compute for several rows."""

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from edgert.graph import Model, infer, inputs, outputs, read
from edgert.graph.batch_size import batch_axes, has_open_batch, with_open_batch
from tests.helpers.models import make, node, weights

SIDE = 4


def sizes(*dims: int) -> Any:
    return np.array(dims, np.int64)


def halves() -> Model:
    """ShuffleNet's two halves: the batch is merged with channels, moved inwards, and freed again."""
    nodes = [
        node("Reshape", ["x", "apart"], ["pairs"]),
        node("Transpose", ["pairs"], ["turned"], perm=[1, 0, 2]),
        node("Reshape", ["turned", "again"], ["both"]),
        node("Gather", ["both", "first"], ["left"], axis=0),
        node("Gather", ["both", "second"], ["right"], axis=0),
        node("Concat", ["right", "left"], ["y"], axis=1),
    ]
    stored = {"apart": sizes(3, 2, 16), "again": sizes(2, -1, 3, 4, 4), "first": sizes(0)[0], "second": sizes(1)[0]}
    return make(nodes, {"x": (1, 6, SIDE, SIDE)}, {"y": (1, 6, SIDE, SIDE)}, stored)


def flat(rows: int = 1) -> Model:
    nodes = [node("Reshape", ["x", "to"], ["wide"]), node("MatMul", ["wide", "w"], ["y"])]
    return make(nodes, {"x": (rows, 6, SIDE, SIDE)}, {"y": (rows, 5)}, {"to": sizes(rows, -1), "w": weights(96, 5)})


def resized(*to: int) -> Model:
    nodes = [node("Resize", ["x", "", "", "to"], ["y"], mode="linear")]
    return make(nodes, {"x": (1, 6, SIDE, SIDE)}, {"y": to}, {"to": sizes(*to)})


def squeezed() -> Model:
    nodes = [
        node("GlobalAveragePool", ["x"], ["mean"]),
        node("Squeeze", ["mean", "last"], ["row"]),
        node("Reshape", ["row", "to"], ["y"]),
    ]
    return make(nodes, {"x": (1, 6, SIDE, SIDE)}, {"y": (1, 2, 3)}, {"last": sizes(2, 3), "to": sizes(1, 2, 3)})


def beside() -> Model:
    """A class token beside images' own, as transformers have it."""
    nodes = [
        node("Reshape", ["x", "to"], ["tokens"]),
        node("Concat", ["token", "tokens", "token"], ["y"], axis=1),
    ]
    return make(
        nodes, {"x": (1, 6, SIDE, SIDE)}, {"y": (1, 8, 16)}, {"to": sizes(1, 6, 16), "token": weights(1, 1, 16)}
    )


@pytest.mark.parametrize(
    "model",
    [halves(), flat(), resized(1, 6, 8, 8), resized(1, 6, 7, 5), squeezed(), beside()],
    ids=lambda m: "-".join(map(str, outputs(m))),
)
def test_rows_are_what_each_is_alone(model: Model) -> None:
    made = with_open_batch(infer(model))
    assert has_open_batch(made) and not has_open_batch(model)
    assert [spec.shape[0] for spec in (*inputs(made), *outputs(made))] == ["batch", "batch"]
    images = np.random.default_rng(0).standard_normal((3, 6, SIDE, SIDE)).astype(np.float32)
    (together,) = ReferenceEvaluator(made.proto).run(None, {"x": images})
    alone = [ReferenceEvaluator(model.proto).run(None, {"x": one[None]})[0] for one in images]
    assert np.allclose(together, np.concatenate(alone), atol=1e-6)


def test_a_dimension_is_followed_through_merging_and_turning() -> None:
    axes = batch_axes(read(infer(halves())))
    assert axes == {"x": 0, "pairs": 0, "turned": 1, "both": 1, "left": 0, "right": 0, "y": 0}


def test_what_has_other_rows_stays() -> None:
    two = infer(flat(2))
    assert inputs(with_open_batch(two)) == inputs(two)
