"""What a profile is made of: kernels given to nodes, and the price of a cut fitted."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from edgert.backend.ort.kernel import Kernel
from edgert.bench.profile import Cut, Run, fit, node_of, spread, unit_times
from edgert.graph.node import Graph, read
from edgert.place.cost.unit import units
from edgert.place.spread import AT
from tests.helpers import models


def graph() -> Graph:
    nodes = [
        helper.make_node("Relu", ["x"], ["t1"], name="Relu_1"),
        helper.make_node("MaxPool", ["t1"], ["t2"], name="Pool_2", kernel_shape=[1, 1]),
        helper.make_node("Sigmoid", ["t2"], ["t3"], name="Sigmoid_20"),
    ]
    kind = TensorProto.FLOAT
    return read(models.make(nodes, {"x": ((1, 3, 4, 4), kind)}, {"t3": ((1, 3, 4, 4), kind)}))


@pytest.mark.parametrize(
    ("kernel", "node"),
    [
        ("Relu_1", "Relu_1"),
        ("t2_nchwc", "Pool_2"),
        ("Sigmoid_20/QuickGeluFusion/", "Sigmoid_20"),
        ("Relu_12", None),
        ("ReorderOutput_token_3", None),
    ],
)
def test_a_kernel_is_known_by_the_node_or_the_tensor_it_is_called_after(kernel: str, node: str | None) -> None:
    assert node_of(kernel, graph()) == node


def test_units_get_the_times_of_their_kernels_scaled_to_the_whole() -> None:
    works = units(graph())
    kernels = [Kernel("Relu_1", 1.0), Kernel("t2_nchwc", 2.0), Kernel("ReorderOutput", 0.5), Kernel("Sigmoid_20", 1.5)]
    found = dict(zip((work.name for work in works), unit_times(works, graph(), kernels, 10.0), strict=True))
    assert found == {"Relu_1": 2.0, "Pool_2": 5.0, "Sigmoid_20": 3.0}


def test_the_price_of_a_cut_is_fitted_per_tensor_and_per_mib() -> None:
    cuts = [Cut(0.2 * tensors + 0.5 * mib, tensors, mib) for tensors, mib in ((1, 0.5), (2, 0.1), (3, 4.0))]
    assert fit(cuts) == pytest.approx((0.2, 0.5))


@pytest.mark.parametrize(
    "cuts",
    [
        [Cut(1.0, 1, 1.0), Cut(0.2, 2, 0.1), Cut(0.1, 3, 0.05)],
        [Cut(-1.0, 1, 1.0), Cut(-0.5, 2, 2.0)],
        [Cut(0.3, 1, 0.0)],
        [],
    ],
)
def test_no_price_is_below_zero(cuts: list[Cut]) -> None:
    assert min(fit(cuts)) >= 0


def runs(*wall_ms: float, taken: float = 0.0) -> list[Run]:
    return [Run(time_ms * (1 - taken), time_ms) for time_ms in wall_ms]


def test_scatter_is_of_the_rounds_in_which_others_left_the_core_alone() -> None:
    calm = [runs(9.0, 10.0, 11.0, 9.0, 10.0, 11.0), runs(18.0, 20.0, 22.0, 18.0, 20.0, 22.0)]  # slower is no scatter
    preempted, slowed = runs(10.0, 10.0, 90.0, taken=0.3), runs(10.0, 10.0, 10.0, 14.5, 14.5, 14.5)
    found = spread([*calm, preempted, slowed])
    assert found[0] == pytest.approx(0.9) and found[AT.index(0.5)] == 1.0 and found[-1] == pytest.approx(1.1)


def test_where_no_round_was_left_alone_the_best_counts() -> None:
    found = spread([runs(10.0, 90.0, 10.0, 10.0, taken=0.5), runs(10.0, 12.0, 10.0, 10.0, taken=0.2)])
    assert found[-1] == pytest.approx(1.2)
