import math

import numpy as np
import pytest

from edgert.errors import CalibrationError
from edgert.graph import Graph, infer, read
from edgert.quantization.quantization_error import decibels, outputs_with_fixed_rows, sqnr
from tests.helpers.models import make, node, weights, with_constants

MODEL = infer(
    make(
        [
            node("Conv", ["x", "w"], ["a"], "one"),
            node("Relu", ["a"], ["b"], "act"),
            node("Conv", ["b", "v"], ["c"], "two"),
            node("Sigmoid", ["c"], ["y"], "end"),
        ],
        {"x": [1, 2, 4, 4]},
        {"y": None},
        {"w": weights(3, 2, 1, 1), "v": weights(2, 3, 1, 1, seed=1)},
    )
)
FEEDS = [{"x": weights(1, 2, 4, 4, seed=seed)} for seed in range(10)]


def other(factor: float) -> Graph:
    graph = read(MODEL)
    return with_constants(graph, {"w": graph.constants["w"] * np.float32(factor)})


def test_noise_of_a_known_size() -> None:
    found = sqnr(read(MODEL), other(1.1), FEEDS, None, MODEL)
    assert list(found) == ["a", "c", "y"]  # weighted nodes and graph outputs, in order
    assert found["a"] == pytest.approx(20, abs=1e-3)  # a tenth of the signal
    assert found["c"] == pytest.approx(20, abs=1e-3)


def test_tensors_may_be_named_in_any_order() -> None:
    assert list(sqnr(read(MODEL), other(1.1), FEEDS[:1], ["y", "b"], MODEL)) == ["b", "y"]


def test_images_on_which_each_graph_finds_rows_of_its_own_are_left_out() -> None:
    """As behind NonZero and suppression, where INT8 leaves other proposals."""

    def selecting(factor: float) -> Graph:
        nodes = [
            node("Mul", ["x", "f"], ["a"], "scale"),
            node("Greater", ["a", "one"], ["large"], "large"),
            node("NonZero", ["large"], ["places"], "places"),
            node("Transpose", ["places"], ["rows"], "turn", perm=[1, 0]),
            node("GatherND", ["x", "rows"], ["y"], "pick"),
        ]
        scale, one = np.array(factor, np.float32), np.array(1, np.float32)
        model = make(nodes, {"x": [4]}, {"y": [None], "a": [4]}, {"f": scale, "one": one})
        return read(model)

    first, second = selecting(1.0), selecting(2.0)
    like = make([node("Relu", ["x"], ["y"], "r")], {"x": [4]}, {"y": [4]}, {})
    other_rows = {"x": np.array([0.6, 2, 3, 4], np.float32)}
    assert sqnr(first, second, [other_rows], ["a", "y"], like) == {"a": pytest.approx(0.0)}
    same_rows = {"x": np.array([0.1, 2, 3, 4], np.float32)}
    assert sqnr(first, second, [other_rows, same_rows], ["y"], like) == {"y": math.inf}
    assert outputs_with_fixed_rows(first) == {"a"}


def test_equal_graphs_have_no_noise() -> None:
    assert sqnr(read(MODEL), read(MODEL), FEEDS[:2], ["y"], MODEL) == {"y": math.inf}


def test_powers_are_summed_over_images() -> None:
    parts = [sqnr(read(MODEL), other(1.1), [one], ["y"], MODEL)["y"] for one in FEEDS]
    assert min(parts) < sqnr(read(MODEL), other(1.1), FEEDS, ["y"], MODEL)["y"] < max(parts)
    assert sqnr(read(MODEL), other(1.1), FEEDS[:1] * 3, ["y"], MODEL)["y"] == pytest.approx(parts[0])


@pytest.mark.parametrize(("signal", "noise", "wanted"), [(0, 0, math.inf), (0, 4, -math.inf), (4, 4, 0), (100, 1, 20)])
def test_ends_of_the_scale(signal: float, noise: float, wanted: float) -> None:
    assert decibels(signal, noise) == pytest.approx(wanted)


def test_no_images_are_refused() -> None:
    with pytest.raises(CalibrationError, match="without images"):
        sqnr(read(MODEL), other(2), [], ["y"], MODEL)
