"""How ONNX Runtime's form stores a tensor."""

import numpy as np
import pytest

from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.lowering.lower import lower, roundings
from edgert.quantization.scheme.scheme import scheme
from tests.unit.quantization.nets import amax_of, feeds_of, graph_of, residual


@pytest.mark.parametrize(
    ("span", "threshold", "low", "high"),
    [
        ((0.0, 5.0), 4.0, 0.0, 4.0),
        ((-1.0, 3.0), 4.0, -1.0, 3.0),
        ((2.0, 3.0), 4.0, 0.0, 3.0),
        ((-9.0, -2.0), 4.0, -4.0, 0.0),
    ],
)
@pytest.mark.parametrize("storage", ["uint8", "int8"])
def test_affine_spends_every_step_on_values_there_are(
    span: tuple[float, float], threshold: float, low: float, high: float, storage: str
) -> None:
    graph = graph_of(residual())
    plan = scheme(graph, "ort")
    found = roundings(graph, plan, lambda _: threshold, storage, "affine", lambda _: span)  # type: ignore[arg-type]
    one = next(rounding for name, rounding in found.items() if not plan.points[name].amax)
    first = int(np.iinfo(one.zero.dtype).min)
    ends = [(first - int(one.zero)) * float(one.scale), (first + 255 - int(one.zero)) * float(one.scale)]
    assert ends == pytest.approx([low, high], abs=float(one.scale))
    assert one.zero.dtype.name == storage


@pytest.mark.parametrize("most", [0.0, 1e-41, 1e-38, 1e-20])
def test_a_tensor_of_zeros_still_has_a_scale(most: float) -> None:
    """Nor does a dead layer's vanish: times a weight's, which biases are stored in, it is a number."""
    graph = graph_of(residual())
    found = roundings(graph, scheme(graph, "ort"), lambda _: 1.0, "uint8", "affine", lambda _: (0.0, most))
    assert all(rounding.scale > 0.001 for rounding in found.values())


def test_affine_needs_the_ends() -> None:
    model = residual()
    graph = graph_of(model)
    with pytest.raises(ValueError, match="span"):
        lower(graph, scheme(graph, "ort"), amax_of(model, feeds_of(model)), activation="affine")


def test_the_table_has_the_ends_of_a_group() -> None:
    first, second = Histogram(), Histogram()
    first.add(np.array([-1, 2], np.float32))
    second.add(np.array([0, 5], np.float32))
    table = RangeTable("m", 1, "mse", {"a": first, "b": second})
    assert table.span("a") == (-1, 2) and table.span(("a", "b")) == (-1, 5)
