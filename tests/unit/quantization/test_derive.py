"""Histograms that follow from others, compared with those of the tensors themselves."""

import numpy as np

from edgert.graph import Graph, read
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import MOST_PARTS, assemble, histogram_parts
from tests.helpers.models import make, node

X = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)


def graph() -> Graph:
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
    found = histogram_parts(graph(), COUNTABLE, COUNTABLE)
    assert found["t"] == found["s"] == ("a",)
    assert found["r"] == ("n",)
    assert found["c"] == found["f"] == ("a", "n", "a")
    assert found["k"] == ("k",)  # a stored tensor is among its inputs
    assert found["part"] == ("part",)
    assert list(found) == list(COUNTABLE)


def test_only_what_is_wanted_is_asked_for() -> None:
    assert histogram_parts(graph(), ["f", "x"], COUNTABLE) == {"f": ("a", "n", "a"), "x": ("x",)}


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
