"""The assignment solver: exact against brute force, whatever the shape, the ties and the zeros."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from edgert.stages.assignment import assign

F64 = npt.NDArray[np.float64]
KINDS = ("smooth", "tied", "sparse", "sparse and tied", "zero")


def _instance(rng: np.random.Generator, kind: str, largest: int) -> F64:
    shape = rng.integers(1, largest + 1, 2)
    weights = rng.integers(0, 4, shape).astype(float) if "tied" in kind else rng.random(shape)
    if "sparse" in kind:
        weights *= rng.random(shape) < 0.35
    return weights * (kind != "zero")


def _brute_force(weights: F64) -> float:
    """The best total by trying every way to give the shorter side partners."""
    short = weights if weights.shape[0] <= weights.shape[1] else weights.T
    rows = np.arange(len(short))
    choices = itertools.permutations(range(short.shape[1]), len(rows))
    return max(float(short[rows, columns].sum()) for columns in choices)


def _total(weights: F64) -> float:
    """The total ``assign`` reaches, once its answer is known to be a matching of pairs above zero with rows rising."""
    rows, columns = assign(weights)
    assert (np.diff(rows) > 0).all()
    assert len(set(columns.tolist())) == len(columns) == len(rows)
    assert (weights[rows, columns] > 0).all()
    return float(weights[rows, columns].sum())


@pytest.mark.parametrize("kind", KINDS)
def test_total_equals_brute_force(kind: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        weights = _instance(rng, kind, largest=5)
        assert _total(weights) == pytest.approx(_brute_force(weights), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_total_equals_scipy(kind: str) -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="scipy, the reference solver, is not installed")
    rng = np.random.default_rng(2)
    for _ in range(600):
        weights = _instance(rng, kind, largest=14)
        best = weights[optimize.linear_sum_assignment(weights, maximize=True)].sum()
        assert _total(weights) == pytest.approx(best, abs=1e-9)


def test_large_dense_instance_equals_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="scipy, the reference solver, is not installed")
    weights = np.random.default_rng(3).random((60, 45))
    best = weights[optimize.linear_sum_assignment(weights, maximize=True)].sum()
    assert _total(weights) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_nothing_to_pair(shape: tuple[int, int]) -> None:
    rows, columns = assign(np.zeros(shape))
    assert len(rows) == len(columns) == 0


def test_input_is_left_alone() -> None:
    weights = np.random.default_rng(4).random((6, 6))
    before = weights.copy()
    assign(weights)
    assert np.array_equal(weights, before)
