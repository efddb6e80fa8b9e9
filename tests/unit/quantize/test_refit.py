from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgert.errors import CalibrationError
from edgert.graph import Model, infer
from edgert.graph.node import Graph, read
from edgert.quantize.compare import sqnr
from edgert.quantize.correct import correct_biases
from edgert.quantize.refit import Refit, refit
from tests.unit.graph.graphs import make, node, weights
from tests.unit.quantize.fake import lower, peaks


def net() -> Model:
    """The middle layer reads channels of very different sizes, and makes the most of the small ones."""
    sizes = np.array([1, 1, 1, 0.1, 0.1, 0.1, 9, 9], np.float32)
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], "first", pads=[1, 1, 1, 1]), node("Relu", ["a"], ["ar"]),
        node("Conv", ["ar", "v"], ["c"], "middle", pads=[1, 1, 1, 1]), node("Relu", ["c"], ["cr"]),
        node("Conv", ["cr", "u"], ["y"], "last"),
    ]  # fmt: skip
    stored = {
        "w": weights(8, 3, 3, 3) * sizes.reshape(-1, 1, 1, 1) / 5, "b": weights(8, seed=1) * sizes,
        "v": weights(6, 8, 3, 3, seed=2) / sizes.reshape(1, -1, 1, 1), "u": weights(4, 6, 1, 1, seed=3),
    }  # fmt: skip
    return infer(make(nodes, {"x": [1, 3, 20, 20]}, {"y": None}, stored))


def feeds(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((1, 3, 20, 20)).cumsum(axis=2).astype(np.float32)} for _ in range(count)]


def setting() -> tuple[Model, Graph, dict[str, float]]:
    model = net()
    graph = read(model)
    return model, graph, peaks(graph, feeds(8), model)


def test_channels_lost_in_noise_are_made_up_for() -> None:
    model, graph, amax = setting()
    told = list[Refit]()
    fitted = refit(graph, lambda one: lower(one, amax), feeds(16), model, report=told.append)
    shifted = correct_biases(graph, lambda one: lower(one, amax), feeds(16), model)
    before, after = (sqnr(graph, lower(one, amax), feeds(8, 9), ["c", "y"], model) for one in (shifted, fitted))
    assert after["c"] > before["c"] + 2 and after["y"] > before["y"] + 2
    assert [one.node for one in told] == ["first", "middle", "last"]
    middle = told[1]
    assert middle.after < 0.7 * middle.before


def test_the_graph_keeps_its_form_and_the_old_weights_their_values() -> None:
    model, graph, amax = setting()
    old = graph.constants["v"].copy()
    fitted = refit(graph, lambda one: lower(one, amax), feeds(8), model)
    assert [(one.op, one.name, one.outputs) for one in fitted.nodes] == [
        (one.op, one.name, one.outputs) for one in graph.nodes
    ]
    assert fitted.nodes[2].inputs[1] != "v"
    np.testing.assert_array_equal(fitted.constants["v"], old)


def test_a_graph_that_is_not_rounded_at_all_is_left_alone() -> None:
    model, graph, _ = setting()
    told = list[Refit]()
    fitted = refit(graph, lambda one: one, feeds(8), model, report=told.append)
    assert [one.inputs[:2] for one in fitted.nodes] == [one.inputs[:2] for one in graph.nodes]
    assert all(one.shift == 0 and one.before == one.after == 0 for one in told)


def test_what_does_not_hold_on_other_pictures_is_not_taken() -> None:
    """One patch per picture, and far more unknowns than pictures: the fit would be perfect, and worthless."""
    model = infer(make([node("Gemm", ["x", "w", "b"], ["y"], "fc")], {"x": [1, 200]}, {"y": None},
                       {"w": weights(200, 10), "b": weights(10)}))  # fmt: skip
    graph = read(model)
    pictures = [{"x": weights(1, 200, seed=seed)} for seed in range(16)]
    amax = {"x": 2.0}
    told = list[Refit]()
    fitted = refit(graph, lambda one: lower(one, amax), pictures, model, report=told.append)
    assert fitted.nodes[0].inputs[1] == "w" and told[0].after == told[0].before > 0


def test_shared_and_transposed_weights_stay_and_their_biases_are_corrected() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"], "one"), node("Conv", ["a", "w"], ["c"], "two"),
             node("ConvTranspose", ["c", "p"], ["y"], "up")]  # fmt: skip
    model = infer(make(nodes, {"x": [1, 3, 9, 9]}, {"y": None}, {"w": weights(3, 3, 1, 1), "p": weights(3, 2, 2, 2)}))
    graph = read(model)
    pictures = [{"x": np.abs(weights(1, 3, 9, 9, seed=seed))} for seed in range(8)]
    amax = {name: 0.5 * peak for name, peak in peaks(graph, pictures, model).items()}  # clips, so means are off
    fitted = refit(graph, lambda one: lower(one, amax), pictures, model)
    assert [one.inputs[1] for one in fitted.nodes] == ["w", "w", "p"]
    assert all(len(one.inputs) == 3 for one in fitted.nodes)


def test_too_few_pictures_are_refused() -> None:
    with pytest.raises(CalibrationError, match="so few pictures") as caught:
        refit(read(net()), lambda one: one, feeds(3), net())
    assert "3 given" in caught.value.why
