from typing import Any

import numpy as np
import pytest

from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, infer, read
from edgert.quantization.calibration import ranges, threshold, value_histogram
from edgert.quantization.calibration.walk import walk
from edgert.quantization.quantizer import chosen_methods
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Scheme
from tests.helpers.models import make, node, weights


def net(gain: float = 1.0) -> Model:
    """Channel 0 of "r" holds rare large values; ``gain`` is how much its reader makes of them."""
    v = weights(4, 4, 1, 1, seed=2)
    v[:, 0] = gain * np.array([1, -1, 1, -1], np.float32).reshape(4, 1, 1)
    nodes = [node("Conv", ["x", "w"], ["a"], "first"), node("Relu", ["a"], ["r"], "act"),
             node("Conv", ["r", "v"], ["y"], "last")]  # fmt: skip
    return infer(
        make(nodes, {"x": [1, 4, 32, 32]}, {"y": None}, {"w": np.eye(4, dtype=np.float32)[..., None, None], "v": v})
    )


def feeds(count: int) -> list[dict[str, Any]]:
    found = []
    for seed in range(count):
        x = np.abs(weights(1, 4, 32, 32, seed=seed))
        x[:, 0] = 0
        x[:, 0, ::16, ::16] = 60
        found.append({"x": x})
    return found


def problem(gain: float) -> tuple[Graph, Scheme, ranges.RangeTable, list[dict[str, Any]], Model]:
    model, images = net(gain), feeds(3)
    graph = read(model)
    decided = scheme(graph, "ort")
    histograms = {}
    names = [name for name in ("x", "a", "r", "y") if name in decided.needed]
    for name, values in zip(names, walk(graph, names, images, model), strict=True):
        histograms[name] = value_histogram.Histogram()
        for one in values:
            histograms[name].add(one)
    return graph, decided, ranges.RangeTable(model.digest, 3, "mse", histograms), images, model


def output_errors(gain: float) -> dict[str, float]:
    """Squared error at the reader of "r" by method, from the definition."""
    graph, _, table, images, model = problem(gain)
    v, found = graph.constants["v"][:, :, 0, 0].astype(np.float64), dict.fromkeys(threshold.METHODS, 0.0)
    for (values,) in zip(*walk(graph, ["r"], images, model), strict=True):
        x = values.reshape(4, -1).astype(np.float64)
        for method in found:
            scale = table.with_method(method).amax("r") / 127
            rounded = np.clip(np.rint(x / scale), -127, 127) * scale
            found[method] += np.square(v @ (rounded - x)).sum() / np.square(v @ x).sum()
    return found


@pytest.mark.parametrize("gain", [0.0, 0.3, 1.0])
def test_the_choice_has_the_least_error(gain: float) -> None:
    errors = output_errors(gain)
    assert errors[chosen_methods(*problem(gain))["r"]] == pytest.approx(min(errors.values()), rel=1e-3)


def test_large_values_are_kept_where_the_reader_feels_them() -> None:
    table = problem(1.0)[2]
    heard, deaf = (table.with_method(chosen_methods(*problem(gain))["r"]).amax("r") for gain in (1.0, 0.0))
    assert heard > 40
    assert deaf == min(table.with_method(method).amax("r") for method in threshold.METHODS)


def test_every_tensor_with_a_scale_gets_a_method_and_those_nobody_weighs_the_default() -> None:
    graph, decided, table, images, model = problem(1.0)
    methods = chosen_methods(graph, decided, table, images, model)
    assert set(methods) == set(decided.needed)
    assert all(method == "mse" for name, method in methods.items() if name not in ("x", "r"))
    table.with_chosen(methods)


def test_no_images_are_refused() -> None:
    graph, decided, table, _, model = problem(1.0)
    with pytest.raises(CalibrationError, match="without images"):
        chosen_methods(graph, decided, table, [], model)
