import threading

import numpy as np
import pytest

from edgert.errors import CalibrationError, ModelError
from edgert.graph import Graph, infer, read
from edgert.quantization.calibration.walk import Slice, slice_at_targets, walk
from tests.helpers.models import make, node, weights

MODEL = infer(
    make(
        [
            node("Conv", ["x", "w1"], ["a"], "first"),
            node("Relu", ["a"], ["b"], "act"),
            node("Conv", ["b", "w2"], ["c"], "left"),
            node("Conv", ["b", "w3"], ["d"], "right"),
            node("Add", ["c", "d"], ["e"], "sum"),
            node("Add", ["e", "x"], ["y"], "skip"),
        ],
        {"x": [1, 2, 4, 4]},
        {"y": [1, 2, 4, 4]},
        {"w1": weights(3, 2, 1, 1), "w2": weights(2, 3, 1, 1, seed=1), "w3": weights(2, 3, 1, 1, seed=2)},
    )
)
FEEDS = [{"x": weights(1, 2, 4, 4, seed=seed)} for seed in range(3)]


def graph() -> Graph:
    return read(MODEL)


def fed(piece: Slice) -> list[str]:
    return [spec.name for spec in piece.graph.inputs]


def test_each_node_runs_once_and_only_what_is_needed_stays() -> None:
    targets = ["a", "c", "d", "y"]
    cut = dict(zip(targets, slice_at_targets(graph(), targets), strict=True))
    assert cut["a"].made == ("a",) and cut["a"].dead == ()  # x is added again at the end, a is read by the Relu
    assert set(cut["c"].made) == {"b", "c"} and cut["c"].dead == ("a",)
    assert cut["d"].made == ("d",) and fed(cut["d"]) == ["b"] and cut["d"].dead == ("b",)
    assert fed(cut["y"]) == ["c", "d", "x"] and cut["y"].dead == ("c", "d", "x", "y")


def test_values_are_those_of_the_whole_graph() -> None:
    x = FEEDS[1]["x"]
    w1, w2, w3 = (graph().constants[name][:, :, 0, 0] for name in ("w1", "w2", "w3"))
    a = np.einsum("oi,nihw->nohw", w1, x)
    c, d = (np.einsum("oi,nihw->nohw", w, np.maximum(a, 0)) for w in (w2, w3))
    found = dict(zip(["a", "c", "y"], walk(graph(), ["a", "c", "y"], FEEDS, MODEL), strict=True))
    for name, wanted in (("a", a), ("c", c), ("y", c + d + x)):
        assert len(found[name]) == 3
        np.testing.assert_allclose(found[name][1], wanted, atol=1e-5)


def test_an_array_changed_in_place_is_what_the_next_piece_reads() -> None:
    plain = list(walk(graph(), ["c", "y"], FEEDS, MODEL))[1]
    shifted = walk(graph(), ["c", "y"], FEEDS, MODEL)
    for array in next(shifted):
        array += 1
    np.testing.assert_allclose([y - 1 for y in next(shifted)], plain, atol=1e-6)


def test_an_input_and_a_tensor_that_is_there_already_are_targets_too() -> None:
    found = list(walk(graph(), ["x", "c", "b", "x"], FEEDS, MODEL))
    assert len(found) == 4 and found[0][0] is found[3][0] is FEEDS[0]["x"]
    assert found[2][0].min() == 0


def test_types_that_a_rewrite_left_out_are_inferred() -> None:
    bare = Graph(graph().nodes, graph().constants, graph().inputs, graph().outputs, {}, graph().opset)
    assert [len(one) for one in walk(bare, ["a", "y"], FEEDS, MODEL)] == [3, 3]


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(ModelError, match="'nowhere'"):
        next(walk(graph(), ["nowhere"], FEEDS, MODEL))


def test_feeds_are_left_alone() -> None:
    before = [one["x"].copy() for one in FEEDS]
    list(walk(graph(), ["a", "y"], FEEDS, MODEL))
    assert [set(one) for one in FEEDS] == [{"x"}] * 3
    np.testing.assert_array_equal([one["x"] for one in FEEDS], before)


def test_it_stops_before_the_next_piece() -> None:
    stop = threading.Event()
    values = walk(graph(), ["a", "y"], FEEDS, MODEL, stop=stop)
    assert len(next(values)) == 3
    stop.set()
    with pytest.raises(CalibrationError, match="stopped while INT8 was made") as caught:
        next(values)
    assert caught.value.fix == "run it again"
