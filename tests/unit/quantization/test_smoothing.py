from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, infer, read, write
from edgert.quantization.equalization import channel_peaks, smooth_activations
from edgert.quantization.scheme.channels import expand_hard_swish, gates
from tests.helpers.models import make, node, weights

UNEVEN = np.array([0.05, 1, 10, 1], np.float32).reshape(-1, 1, 1, 1)
STORED: dict[str, Any] = {
    "w": weights(4, 2, 1, 1) * UNEVEN,
    "b": np.abs(weights(4, seed=5)) / 50,
    "v": weights(3, 4, 1, 1, seed=2),
    "d": weights(4, 1, 3, 3, seed=6),
    "s": weights(4, 4, 1, 1, seed=7),
    "three": np.float32(3),
    "six": np.float32(6),
    "zero": np.float32(0),
    "half": np.float32(0.5),
    "one": np.float32(1),
    "gain": np.abs(weights(4, 1, 1, seed=4)) + 0.5,
}
GATES = {
    "silu": [node("Sigmoid", ["a"], ["g"]), node("Mul", ["a", "g"], ["m"])],
    "silu, factor first": [node("Sigmoid", ["a"], ["g"]), node("Mul", ["g", "a"], ["m"])],
    "hard swish": [node("HardSigmoid", ["a"], ["g"], alpha=1 / 6), node("Mul", ["a", "g"], ["m"])],
    "hard swish of four": [
        node("Add", ["a", "three"], ["p"]), node("Clip", ["p", "zero", "six"], ["c"]),
        node("Mul", ["a", "c"], ["t"]), node("Div", ["t", "six"], ["m"]),
    ],
    "mish": [node("Softplus", ["a"], ["p"]), node("Tanh", ["p"], ["g"]), node("Mul", ["a", "g"], ["m"])],
    "gelu": [
        node("Erf", ["a"], ["e"]), node("Add", ["e", "one"], ["g"]), node("Mul", ["a", "g"], ["t"]),
        node("Mul", ["t", "half"], ["m"]),
    ],
}  # fmt: skip
RELU = [node("Relu", ["a"], ["m"])]
NONE = {
    "seen elsewhere": [
        node("Sigmoid", ["a"], ["g"]), node("Mul", ["a", "g"], ["t"]), node("Add", ["t", "g"], ["m"]),
    ],
    "a square": [node("Mul", ["a", "a"], ["m"])],
    "a sum": [node("Sigmoid", ["a"], ["g"]), node("Add", ["a", "g"], ["m"])],
}  # fmt: skip


def chain(*between: Any, last: Any = None) -> Model:
    """x → Conv (4 uneven channels) → ``between``, from "a" to "m" → Conv → y."""
    end = last or node("Conv", ["m", "v"], ["y"], "last")
    nodes = [node("Conv", ["x", "w", "b"], ["a"], "first"), *between, end]
    return infer(make(nodes, {"x": [1, 2, 6, 6]}, {"y": None}, STORED))


def feeds(count: int = 3) -> list[dict[str, Any]]:
    return [{"x": weights(1, 2, 6, 6, seed=seed)} for seed in range(20, 20 + count)]


def smoothed(model: Model) -> Graph:
    return smooth_activations(read(model), feeds(), model)


def reach(graph: Graph, model: Model, tensor: str) -> Any:
    """How many times the largest channel of a tensor is as large as the smallest."""
    peak = channel_peaks(graph, [tensor], feeds(), model)[tensor]
    return peak.max() / peak.min()


def assert_bit_for_bit(model: Model, graph: Graph) -> None:
    """No tolerance: scales are powers of two."""
    before, after = Function(model, fused=False), Function(write(graph, model), fused=False)
    for one in feeds():
        np.testing.assert_array_equal(after(one)["y"], before(one)["y"])


@pytest.mark.parametrize("name", GATES)
def test_channels_pass_a_gate_and_nothing_changes(name: str) -> None:
    model = chain(*GATES[name])
    (gate,) = gates(read(model))
    assert gate.tensor == "a"
    graph = smoothed(model)
    assert_bit_for_bit(model, graph)
    assert reach(graph, model, "m") < reach(read(model), model, "m") / 3
    restored = [one for one in graph.nodes if one.outputs[0].endswith("_restored")]
    assert [one.inputs[0] for one in restored] == ["a"]
    readers = [one for one in graph.nodes if "a_restored" in one.inputs]
    assert {one.name for one in readers} == gate.readers


@pytest.mark.parametrize("name", NONE)
def test_what_no_channel_can_pass_is_left_alone(name: str) -> None:
    model = chain(*NONE[name])
    graph = smoothed(model)
    assert_bit_for_bit(model, graph)
    assert not [one for one in graph.nodes if one.outputs[0].endswith("_restored")]
    (first,) = (one for one in graph.nodes if one.name == "first")
    assert first.inputs[1] == "w"


def test_attention_is_no_gate_and_lets_channels_pass_as_it_is() -> None:
    weighing = [
        node("Conv", ["a", "s"], ["o"], "other"), node("Sigmoid", ["o"], ["g"]), node("Mul", ["a", "g"], ["m"])
    ]  # fmt: skip
    model = chain(*weighing)
    assert gates(read(model)) == ()
    graph = smoothed(model)
    assert_bit_for_bit(model, graph)
    assert len(graph.nodes) == len(read(model).nodes)
    assert reach(graph, model, "m") < reach(read(model), model, "m")


def test_a_hard_swish_of_one_node_is_opened() -> None:
    model = chain(node("HardSwish", ["a"], ["m"], "swish"))
    assert len(gates(expand_hard_swish(read(model)))) == 1
    graph = smoothed(model)
    assert_bit_for_bit(model, graph)
    assert {"HardSigmoid", "Mul"} <= {one.op for one in graph.nodes}


def test_other_domains_and_graphs_without_hard_swish_stay() -> None:
    graph = read(chain(*GATES["silu"]))
    assert expand_hard_swish(graph).nodes == graph.nodes


def test_a_homogeneous_activation_needs_no_node() -> None:
    model = chain(*RELU)
    graph = smoothed(model)
    assert_bit_for_bit(model, graph)
    assert len(graph.nodes) == len(read(model).nodes)
    assert reach(graph, model, "m") < reach(read(model), model, "m")


def test_a_depthwise_reader_gets_channels_of_one_size() -> None:
    model = chain(*GATES["silu"], last=node("Conv", ["m", "d"], ["y"], "last", group=4))
    graph = smoothed(model)
    assert_bit_for_bit(model, graph)
    assert reach(graph, model, "m") <= 2  # as near as powers of two come


def test_a_residual_ties_channels_and_a_concatenation_does_not() -> None:
    both = [
        *GATES["silu"], node("Conv", ["m", "s"], ["o"], "other"), node("Sigmoid", ["o"], ["h"]),
        node("Mul", ["o", "h"], ["p"]),
    ]  # fmt: skip
    tied = chain(*both, node("Add", ["m", "p"], ["q"]), last=node("Conv", ["q", "v"], ["y"], "last"))
    graph = smoothed(tied)
    assert_bit_for_bit(tied, graph)
    scales = {one.inputs[0]: graph.constants[one.inputs[1]] for one in graph.nodes if "_restored" in one.outputs[0]}
    np.testing.assert_array_equal(scales["a"], scales["o"])


def test_an_output_keeps_its_channels() -> None:
    nodes = [node("Conv", ["x", "w", "b"], ["a"], "first"), *GATES["silu"][:1], node("Mul", ["a", "g"], ["y"])]
    model = infer(make(nodes, {"x": [1, 2, 6, 6]}, {"y": None}, STORED))
    graph = read(model)
    assert smooth_activations(graph, feeds(), model) is graph


def test_a_dead_channel_does_no_harm() -> None:
    dead = {**STORED, "w": STORED["w"] * np.array([0, 1, 1, 1], np.float32).reshape(-1, 1, 1, 1), "b": np.zeros(4)}
    dead["b"] = dead["b"].astype(np.float32)
    nodes = [node("Conv", ["x", "w", "b"], ["a"], "first"), *GATES["silu"], node("Conv", ["m", "v"], ["y"], "last")]
    model = infer(make(nodes, {"x": [1, 2, 6, 6]}, {"y": None}, dead))
    graph = smoothed(model)
    assert_bit_for_bit(model, graph)
    assert all(np.isfinite(array).all() for array in graph.constants.values())


def test_peaks_are_the_largest_magnitudes_of_each_channel() -> None:
    model = chain(*GATES["silu"])
    found = channel_peaks(read(model), ["a", "x", "a"], feeds(), model)
    seen = np.concatenate([one["x"] for one in feeds()])
    np.testing.assert_array_equal(found["x"], np.abs(seen).max(axis=(0, 2, 3)))
    assert found["a"].shape == (4,)


def test_without_images_there_is_nothing_to_see() -> None:
    model = chain(*GATES["silu"])
    with pytest.raises(CalibrationError, match="without images"):
        smooth_activations(read(model), [], model)
