"""Static inputs make every tensor static, whatever the exporter left open."""

from __future__ import annotations

import numpy as np
import pytest

from edgert.graph import Model, read
from edgert.graph.dla_rewrites import ready
from tests.unit.graph.graphs import assert_same, make, node, value, weights

SIDE, WINDOW, CHANNELS = 8, 4, 6
END = np.iinfo(np.int64).max


def windows(batch: int | str) -> Model:
    """Rolled by half a window, cut into windows by a shape chain, mixed, put together again; names for all sizes."""
    nodes = [
        node("Slice", ["x", "half", "end", "rows"], ["lower"]),
        node("Slice", ["x", "zero", "half", "rows"], ["upper"]),
        node("Concat", ["lower", "upper"], ["rolled"], axis=1),
        node("Shape", ["rolled"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Gather", ["shape", "rows"], ["height"], axis=0),
        node("Div", ["height", "window"], ["down"]),
        node("Concat", ["batch", "down", "window", "down", "window", "minus"], ["to_windows"], axis=0),
        node("Reshape", ["rolled", "to_windows"], ["cut"]),
        node("Transpose", ["cut"], ["grouped"], perm=[0, 1, 3, 2, 4, 5]),
        node("Mul", ["window", "window"], ["area"]),
        node("Concat", ["minus", "area", "channels"], ["to_rows"], axis=0),
        node("Reshape", ["grouped", "to_rows"], ["tokens"]),
        node("MatMul", ["tokens", "w"], ["mixed"]),
        node("Concat", ["batch", "minus", "channels"], ["to_all"], axis=0),
        node("Reshape", ["mixed", "to_all"], ["together"]),
        node("ReduceMean", ["together"], ["pooled"], axes=[1], keepdims=0),
        node("Gemm", ["pooled", "w"], ["y"]),
    ]
    numbers = {"half": WINDOW // 2, "end": END, "rows": 1, "zero": 0, "window": WINDOW, "minus": -1}
    stored = {name: np.array([number]) for name, number in {**numbers, "channels": CHANNELS}.items()}
    stored["w"] = weights(CHANNELS, CHANNELS)
    model = make(nodes, {"x": [batch, SIDE, SIDE, CHANNELS]}, {"y": ["Gemmy_dim_0", CHANNELS]}, stored)
    guesses = [value("tokens", ["Reshapetokens_dim_0", "a", "b"]), value("pooled", ["c", "d"])]
    model.proto.graph.value_info.extend(guesses)
    return model


@pytest.mark.parametrize("batch", [1, 2, "batch"])
def test_every_tensor_of_static_windows_has_a_size(batch: int | str) -> None:
    graph = read(ready(windows(batch)))
    ends = {spec.name: spec for spec in graph.outputs}
    made = [ends.get(name) or graph.specs[name] for node in graph.nodes for name in node.outputs]
    assert [str(spec) for spec in made if not spec.is_static] == []
    rows = batch if isinstance(batch, int) else 1
    assert graph.outputs[0].shape == (rows, CHANNELS)
    assert graph.specs["tokens"].shape == (rows * (SIDE // WINDOW) ** 2, WINDOW**2, CHANNELS)


def test_the_result_stays() -> None:
    model = windows(2)
    assert_same(model, ready(model))
