"""Graphs run slice by slice, and histograms that follow from others."""

import threading

import numpy as np
import pytest
from onnx import TensorProto

from edgert.errors import CalibrationError, ModelError
from edgert.graph import Graph, from_proto, infer, read
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import (
    MOST_PARTS,
    Slice,
    assemble,
    histogram_parts,
    slice_at_targets,
    slice_graph,
    walk,
)
from tests.helpers.models import Typed, make, node, weights

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


F32 = TensorProto.FLOAT
SIZE_BYTES = 4 * 4 * 8 * 8
"""Of each of the chain's tensors."""


def chain() -> Graph:
    """Eight steps, the first of which the last one reads again, and one that nobody asks for."""
    nodes = [node("Conv", ["x", "w"], ["t0"], pads=[1, 1, 1, 1])]
    nodes += [node("Relu", [f"t{n}"], [f"t{n + 1}"]) for n in range(6)]
    nodes.append(node("Add", ["t6", "t0"], ["y"]))
    nodes.append(node("Shape", ["y"], ["unwanted"]))
    outputs = {"y": (1, 4, 8, 8), "unwanted": Typed("int64", (4,))}
    return read(make(nodes, {"x": (1, 3, 8, 8)}, outputs, {"w": np.ones((4, 3, 3, 3), np.float32)}))


WANTED = ("t0", "t1", "t2", "t3", "t4", "t5", "t6", "y")


def operations(slices: tuple[Slice, ...]) -> list[list[str]]:
    return [[node.outputs[0] for node in part.graph.nodes] for part in slices]


def test_each_node_runs_once_and_in_order() -> None:
    for limit in (1, SIZE_BYTES, 2 * SIZE_BYTES, 3 * SIZE_BYTES, 2**30):
        found = operations(slice_graph(chain(), WANTED, limit))
        assert [name for part in found for name in part] == list(WANTED)
        assert all(len(part) <= max(1, limit // SIZE_BYTES) for part in found)


def test_what_lives_is_what_is_read_later() -> None:
    slices = slice_graph(chain(), WANTED, 3 * SIZE_BYTES)
    assert [part.made for part in slices] == [("t0", "t1", "t2"), ("t3", "t4", "t5"), ("t6", "y")]
    assert [part.dead for part in slices] == [("t1", "x"), ("t2", "t3", "t4"), ("t0", "t5", "t6", "y")]
    assert [[spec.name for spec in part.graph.inputs] for part in slices] == [["x"], ["t2"], ["t0", "t5"]]


def test_nothing_is_computed_for_nobody() -> None:
    slices = slice_graph(chain(), ("t2",), SIZE_BYTES)
    assert operations(slices) == [["t0"], ["t1"], ["t2"]]
    assert slices[-1].made == ("t2",)


def test_a_tensor_of_unknown_type_stays_within_a_slice() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Mystery", ["a"], ["u"], domain="own"),
        node("Relu", ["a"], ["b"]),
        node("Mystery", ["u"], ["v"], domain="own"),
        node("Relu", ["b"], ["c"]),
    ]
    proto = make(nodes, {"x": (4, 8)}, {"v": (4, 8), "c": (4, 8)}).copied_proto()
    proto.opset_import.add(domain="own", version=1)
    graph = read(from_proto(proto))
    assert "u" not in graph.specs or graph.specs["u"].dtype == "unknown"
    assert operations(slice_graph(graph, ("a", "b", "v", "c"), 1)) == [["a"], ["u", "b", "v"], ["c"]]


def test_an_unknown_tensor_is_said_so() -> None:
    with pytest.raises(ModelError, match="nothing computes tensor 'nobody'"):
        slice_graph(chain(), ("nobody",), SIZE_BYTES)


X = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)


def moving() -> Graph:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Transpose", ["a"], ["t"], perm=[0, 1, 3, 2]),
        node("SpaceToDepth", ["t"], ["s"], blocksize=2),
        node("Neg", ["x"], ["n"]),
        node("Reshape", ["n", "shape"], ["r"]),
        node("Concat", ["s", "r", "s"], ["c"], axis=1),
        node("Flatten", ["c"], ["f"]),
        node("Concat", ["a", "stored"], ["k"], axis=1),
        node("Slice", ["k", "one", "two"], ["part"]),
    ]
    stored = {
        "shape": np.array([1, 16, 3, 3]),
        "stored": np.zeros((1, 1, 6, 6), np.float32),
        "one": np.array([0]),
        "two": np.array([1]),
    }
    return read(make(nodes, {"x": (1, 4, 6, 6)}, {"f": None, "part": None}, stored))


COUNTABLE = ("x", "a", "t", "s", "n", "r", "c", "f", "k", "part")


def test_what_is_counted_for_a_tensor() -> None:
    found = histogram_parts(moving(), COUNTABLE, COUNTABLE)
    assert found["t"] == found["s"] == ("a",)
    assert found["r"] == ("n",)
    assert found["c"] == found["f"] == ("a", "n", "a")
    assert found["k"] == ("k",)  # a stored tensor is among its inputs
    assert found["part"] == ("part",)
    assert list(found) == list(COUNTABLE)


def test_only_what_is_wanted_is_asked_for() -> None:
    assert histogram_parts(moving(), ["f", "x"], COUNTABLE) == {"f": ("a", "n", "a"), "x": ("x",)}


def test_a_tensor_of_very_many_parts_is_counted_itself() -> None:
    nodes = [node("Relu", ["x"], ["y0"])]
    nodes += [node("Concat", [f"y{n}", f"y{n}"], [f"y{n + 1}"], axis=0) for n in range(40)]
    names = [f"y{n}" for n in range(41)]
    found = histogram_parts(read(make(nodes, {"x": (1, 2)}, {"y40": None})), names, names)
    assert found["y6"] == ("y0",) * MOST_PARTS
    assert found["y7"] == ("y7",)
    assert max(map(len, found.values())) == MOST_PARTS


def test_assembled_histograms_are_those_of_the_tensors() -> None:
    counted = {"a": np.maximum(X, 0), "n": -X}
    histograms = {name: Histogram() for name in counted}
    for name, array in counted.items():
        histograms[name].add(array)
    whole = Histogram()
    whole.add(np.concatenate([counted["a"], counted["n"], counted["a"]], axis=1))
    found = assemble(histograms, {"c": ("a", "n", "a"), "t": ("a",)})
    assert found["c"] == whole
    assert found["t"] == histograms["a"]
