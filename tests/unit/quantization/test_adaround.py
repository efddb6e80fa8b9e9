from threading import Event
from typing import Any

import numpy as np
import pytest

from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Model, infer, read
from edgert.quantization import adaround
from edgert.quantization.adaround import errors, round_rows, roundings
from edgert.quantization.calibration.walk import walk
from edgert.quantization.lowering.weights import Moments, kernel_of, patches
from tests.helpers.models import make, node, weights, with_constants
from tests.unit.quantization.fake import lower, peaks, scales_of

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaround, "_STEPS", 60)
    monkeypatch.setattr(adaround, "_LEAST_PATCHES", 256)


def test_two_weights_are_rounded_against_each_other() -> None:
    """Of two inputs that are always equal only the sum of the weights counts: 0.4 + 0.4 is 1, not 0."""
    solved = round_rows(np.array([[[0.4, 0.4]]]), np.ones((1, 2, 2)))
    assert solved.sum() == 1


def test_small_problems_are_solved_nearly_as_well_as_by_trying_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaround, "_STEPS", 100)
    monkeypatch.setattr(adaround, "_DAMPING", 0)
    size, rows = 8, 6
    root = RNG.standard_normal((1, 20, size)) + 1
    gram = root.transpose(0, 2, 1) @ root / 20
    wanted = RNG.uniform(-20, 20, (1, rows, size))
    choices = np.stack(np.meshgrid(*[[0, 1]] * size, indexing="ij"), -1).reshape(-1, size)
    best = np.array([errors((np.floor(row) + choices - row)[None], gram).min() for row in wanted[0]])
    solved = round_rows(wanted, gram)
    found, nearest = (errors(one - wanted, gram)[0] for one in (solved, np.rint(wanted)))
    assert (found <= nearest).all() and (found >= best - 1e-9).all()
    assert found.sum() < best.sum() + 0.2 * (nearest.sum() - best.sum())


def test_integers_stay_within_the_limit() -> None:
    solved = round_rows(np.array([[[127.4, -127.4, 126.9]]]), np.eye(3)[None] + 1)
    assert np.abs(solved).max() <= 127


def test_inputs_that_are_always_zero_leave_the_nearest() -> None:
    wanted = RNG.uniform(-5, 5, (2, 3, 4))
    np.testing.assert_array_equal(round_rows(wanted, np.zeros((2, 4, 4))), np.rint(wanted))


CONVS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((4, 3, 3, 3), {}),
    "strided": ((4, 3, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    "dilated": ((4, 3, 2, 3), {"dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    "grouped": ((6, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    "same_upper": ((4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "same_lower": ((4, 3, 2, 2), {"auto_pad": "SAME_LOWER"}),
}


@pytest.mark.parametrize("name", CONVS)
def test_patches_times_weights_are_the_output(name: str) -> None:
    shape, attributes = CONVS[name]
    model = infer(
        make([node("Conv", ["x", "w"], ["y"], **attributes)], {"x": [1, 3, 8, 9]}, {"y": None}, {"w": weights(*shape)})
    )
    graph = read(model)
    kernel = kernel_of(graph, graph.nodes[0])
    assert kernel is not None
    x = weights(1, 3, 8, 9, seed=1)
    rows = patches(kernel, x, 10**6, RNG)
    groups, outputs = kernel.values.shape[:2]
    found = kernel.values.reshape(groups, outputs, -1) @ rows.transpose(0, 2, 1)
    wanted = Function(model)({"x": x})["y"]
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, atol=1e-4)
    assert patches(kernel, x, 5, RNG).shape == (groups, 5, rows.shape[2])


def test_moments_are_those_of_all_patches() -> None:
    model = infer(make([node("Gemm", ["x", "w"], ["y"])], {"x": [6, 3]}, {"y": None}, {"w": weights(3, 2)}))
    graph = read(model)
    kernel = kernel_of(graph, graph.nodes[0])
    assert kernel is not None
    x = weights(6, 3)
    moments = Moments.empty(kernel)
    for part in (x[:2], x[2:]):
        moments.add(patches(kernel, part, 100, RNG))
    np.testing.assert_allclose(moments.gram(centered=False)[0], x.T @ x / 6, atol=1e-6)
    np.testing.assert_allclose(moments.gram(centered=True)[0], np.cov(x.T, bias=True), atol=1e-6)


def net() -> Model:
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], "first", pads=[1, 1, 1, 1]), node("Relu", ["a"], ["ar"]),
        node("Conv", ["ar", "d"], ["c"], "deep", group=8), node("Conv", ["ar", "d"], ["c2"], "twin", group=8),
        node("Concat", ["c", "c2"], ["both"], axis=1), node("Conv", ["both", "v"], ["e"], "third"),
        node("ConvTranspose", ["e", "p"], ["f"], "up"), node("GlobalAveragePool", ["f"], ["g"]),
        node("Flatten", ["g"], ["h"]), node("Gemm", ["h", "u"], ["y"], "fc"),
    ]  # fmt: skip
    stored = {"w": weights(8, 3, 3, 3), "b": weights(8), "d": weights(8, 1, 3, 3, seed=2), "v": weights(6, 16, 1, 1),
              "p": weights(6, 5, 2, 2), "u": weights(5, 4)}  # fmt: skip
    return infer(make(nodes, {"x": [1, 3, 12, 12]}, {"y": None}, stored))


def problem() -> tuple[Any, ...]:
    model = net()
    graph = read(model)
    smooth = [np.cumsum(weights(1, 3, 12, 12, seed=seed), axis=3) for seed in range(4)]  # neighbors are alike
    feeds = [{"x": x} for x in smooth]
    scales = {name: scales_of(graph, one) for one in graph.nodes if kernel_of(graph, one) for name in [one.inputs[1]]}
    return graph, lower(graph, peaks(graph, feeds, model)), scales, feeds, model


def test_layers_come_closer_to_their_float_outputs() -> None:
    graph, lowered, scales, feeds, model = problem()
    found = roundings(graph, lowered, scales, feeds, model)
    assert list(found) == ["w", "v", "u"]  # d has two readers, p is transposed
    for name, values in found.items():
        assert values.dtype == np.int8 and values.shape == graph.constants[name].shape
        assert np.abs(values - graph.constants[name] / scales[name]).max() <= 1 + 1e-4
    rounded = with_constants(graph, {"w": found["w"] * scales["w"]})
    nearest = with_constants(graph, {"w": np.rint(graph.constants["w"] / scales["w"]) * scales["w"]})
    wanted, plain, better = (next(walk(one, ["a"], feeds, model)) for one in (graph, nearest, rounded))

    def scatter(values: Any) -> float:
        off = np.array(values) - np.array(wanted)
        return float(np.square(off - off.mean(axis=(0, 1, 3, 4), keepdims=True)).mean())

    assert scatter(better) < 0.7 * scatter(plain)


def test_the_same_arguments_give_the_same_values() -> None:
    graph, lowered, scales, feeds, model = problem()
    of_first = {"w": scales["w"]}
    first, second = (roundings(graph, lowered, of_first, feeds, model) for _ in "ab")
    assert list(first) == ["w"]
    np.testing.assert_array_equal(first["w"], second["w"])


def test_it_can_be_stopped() -> None:
    graph, lowered, scales, feeds, model = problem()
    stop = Event()
    stop.set()
    with pytest.raises(CalibrationError, match="stopped"):
        roundings(graph, lowered, scales, feeds, model, stop=stop)


def test_no_images_are_refused() -> None:
    graph, lowered, scales, _, model = problem()
    with pytest.raises(CalibrationError, match="without images"):
        roundings(graph, lowered, scales, [], model)
