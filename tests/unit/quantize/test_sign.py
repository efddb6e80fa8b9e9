from __future__ import annotations

import numpy as np
import pytest

from edgert.quantize.sign import never_negative
from tests.unit.graph.graphs import make, node
from tests.unit.quantize.nets import graph_of


@pytest.mark.parametrize(
    ("operator", "known"),
    [
        (node("Relu", ["x"], ["y"]), True),
        (node("Sigmoid", ["x"], ["y"]), True),
        (node("Clip", ["x", "one"], ["y"]), True),
        (node("Clip", ["x", "", "one"], ["y"]), False),
        (node("LeakyRelu", ["x"], ["y"]), False),
        (node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2]), True),
        (node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2]), False),
        (node("Concat", ["r", "r"], ["y"], axis=1), True),
        (node("Concat", ["r", "x"], ["y"], axis=1), False),
        (node("Mul", ["r", "r"], ["y"]), True),
        (node("Mul", ["r", "one"], ["y"]), False),
        (node("Transpose", ["r"], ["y"]), True),
        (node("Relu", ["x"], ["y"], domain="my.ops"), False),
    ],
)
def test_what_cannot_be_negative(operator: object, known: bool) -> None:
    nodes = [node("Relu", ["x"], ["r"]), operator]
    model = make(nodes, {"x": [1, 2, 4, 4]}, {"y": None}, {"one": np.float32(1)})  # type: ignore[list-item]
    assert ("y" in never_negative(graph_of(model))) == known
