"""What a profile is made of: kernels given to nodes, and the price of a cut fitted."""

import pytest

from edgert.backend.ort.cpu import Kernel
from edgert.benchmark.core_profile import Cut, fit, node_of, unit_times
from edgert.graph import Graph, read
from edgert.placement.cost.work import units
from tests.helpers.models import make, node


def graph() -> Graph:
    nodes = [
        node("Relu", ["x"], ["t1"], name="Relu_1"),
        node("MaxPool", ["t1"], ["t2"], name="Pool_2", kernel_shape=[1, 1]),
        node("Sigmoid", ["t2"], ["t3"], name="Sigmoid_20"),
    ]
    return read(make(nodes, {"x": (1, 3, 4, 4)}, {"t3": (1, 3, 4, 4)}))


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
    cuts = [(0.2 * tensors + 0.5 * mib, tensors, mib) for tensors, mib in ((1, 0.5), (2, 0.1), (3, 4.0))]
    assert fit(cuts) == pytest.approx((0.2, 0.5))


@pytest.mark.parametrize(
    "cuts",
    [
        [(1.0, 1, 1.0), (0.2, 2, 0.1), (0.1, 3, 0.05)],
        [(-1.0, 1, 1.0), (-0.5, 2, 2.0)],
        [(0.3, 1, 0.0)],
        [],
    ],
)
def test_no_price_is_below_zero(cuts: list[Cut]) -> None:
    assert min(fit(cuts)) >= 0
