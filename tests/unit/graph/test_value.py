import numpy as np
import pytest

from edgert.graph.operators import clip_bounds, is_copy, is_interpolation, non_negative
from tests.helpers.models import make, node
from tests.unit.quantization.nets import graph_of

STORED = {"one": np.float32(1), "low": np.float32(-1), "kinds": np.float32([1, 2, -1, 3]).reshape(4, 1, 1)}


@pytest.mark.parametrize(
    ("operator", "known"),
    [
        (node("Relu", ["x"], ["y"]), True),
        (node("Sigmoid", ["x"], ["y"]), True),
        (node("Sqrt", ["x"], ["y"]), True),
        (node("Clip", ["x", "one"], ["y"]), True),
        (node("Clip", ["x", "", "one"], ["y"]), False),
        (node("Clip", ["x", "low", "one"], ["y"]), False),
        (node("LeakyRelu", ["x"], ["y"]), False),
        (node("LeakyRelu", ["r"], ["y"]), True),
        (node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2]), True),
        (node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2]), False),
        (node("AveragePool", ["r"], ["y"], kernel_shape=[2, 2], pads=[1, 1, 1, 1]), True),
        (node("Concat", ["r", "r"], ["y"], axis=1), True),
        (node("Concat", ["r", "x"], ["y"], axis=1), False),
        (node("Mul", ["r", "r"], ["y"]), True),
        (node("Mul", ["x", "x"], ["y"]), True),
        (node("Mul", ["r", "x"], ["y"]), False),
        (node("Mul", ["r", "one"], ["y"]), True),
        (node("Add", ["r", "kinds"], ["y"]), False),
        (node("Sub", ["r", "r"], ["y"]), False),
        (node("ReduceSum", ["r"], ["y"]), True),
        (node("Transpose", ["r"], ["y"]), True),
        (node("Relu", ["x"], ["y"], domain="my.ops"), False),
    ],
)
def test_what_cannot_be_negative(operator: object, known: bool) -> None:
    nodes = [node("Relu", ["x"], ["r"]), operator]
    model = make(nodes, {"x": [1, 4, 4, 4]}, {"y": None}, STORED)  # type: ignore[list-item]
    assert ("y" in non_negative(graph_of(model))) == known


def test_stored_tensors_are_looked_at() -> None:
    graph = graph_of(make([node("Add", ["x", "kinds"], ["y"])], {"x": [1, 4, 4, 4]}, {"y": None}, STORED))
    assert non_negative(graph).isdisjoint({"x", "y", "kinds"})


def test_bounds_of_a_clip() -> None:
    nodes = [
        node("Clip", ["x", "low"], ["a"], name="inputs"),
        node("Clip", ["x"], ["b"], name="attributes", min=0.0, max=6.0),
        node("Clip", ["x", "", "x"], ["c"], name="computed"),
        node("Tanh", ["x"], ["d"], name="other"),
    ]
    graph = graph_of(make(nodes, {"x": []}, dict.fromkeys("abcd"), STORED))
    found = {one.name: clip_bounds(graph, one) for one in graph.nodes}
    assert found == {"inputs": (-1, np.inf), "attributes": (0, 6), "computed": None, "other": None}


@pytest.mark.parametrize(
    ("given", "moves", "between"),
    [
        ({"mode": "nearest"}, True, True),
        ({"mode": "linear"}, False, True),
        ({"mode": "cubic"}, False, False),
        ({"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize"}, False, False),
    ],
)
def test_what_a_resize_does_with_values(given: dict[str, str], moves: bool, between: bool) -> None:
    resize = node("Resize", ["x", "", "grow"], ["y"], **given)
    model = make([resize], {"x": [1, 1, 4, 4]}, {"y": None}, {"grow": np.float32([1, 1, 2, 2])})
    graph = graph_of(model)
    (found,) = graph.nodes
    assert (is_copy(graph, found), is_interpolation(found)) == (moves, between)


@pytest.mark.parametrize(("value", "moves"), [("one", False), ("", True)])
def test_a_pad_moves_values_where_it_adds_zeros(value: str, moves: bool) -> None:
    pad = node("Pad", ["x", "around", value], ["y"])
    graph = graph_of(make([pad], {"x": [1, 4]}, {"y": None}, {**STORED, "around": np.int64([0, 1, 0, 1])}))
    assert is_copy(graph, graph.nodes[0]) == moves
