"""The proof that a rewritten model computes what the original does: both are run, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgert.errors import ModelError
from edgert.graph.model import Model
from edgert.graph.proto import Array

Run = Callable[[Model, Mapping[str, Array]], Sequence[Array]]
"""Computes a model's outputs, in order, for one set of inputs; the caller's engine."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How far two models are apart.

    Attributes:
        error: the largest absolute difference between any two outputs.
        largest: the largest absolute output, to judge the error by.
        runs: feeds that were compared.
    """

    error: float
    largest: float
    runs: int

    @property
    def relative(self) -> float:
        """The error as a part of the largest output; the error itself where all outputs are 0."""
        return self.error / self.largest if self.largest else self.error


def prove(before: Model, after: Model, feeds: Iterable[Mapping[str, Array]], run: Run) -> Proof:
    """Runs both models on the same feeds and compares all outputs. Equal infinities and equal NaNs are no difference.

    Raises:
        ModelError: no feed was given; or the outputs differ in number, shape or type.
    """
    error = largest = 0.0
    runs = 0
    for feed in feeds:
        first, second = run(before, feed), run(after, feed)
        _check(before, first, second)
        runs += 1
        for one, other in zip(first, second, strict=True):
            error = max(error, _distance(one, other))
            finite = np.abs(one[np.isfinite(one)].astype(np.float64))
            largest = max(largest, float(finite.max(initial=0.0)))
    if not runs:
        raise ModelError("nothing was compared", why="no inputs were given", fix="give at least one set of inputs")
    return Proof(error, largest, runs)


def _check(model: Model, first: Sequence[Array], second: Sequence[Array]) -> None:
    types = [[(item.shape, item.dtype.name) for item in found] for found in (first, second)]
    if types[0] != types[1]:
        raise ModelError(
            f"the rewritten model {str(model.path)!r} gives other outputs",
            why=f"{types[0]} before, {types[1]} after",
            fix="leave out the rewrite that does it (skip_rewrites), and tell us",
        )


def _distance(one: Array, other: Array) -> float:
    same = (one == other) | ((one != one) & (other != other))
    if np.all(same):
        return 0.0
    with np.errstate(invalid="ignore"):
        gap = np.abs(one[~same].astype(np.float64) - other[~same].astype(np.float64))
    return float(np.nan_to_num(gap, nan=np.inf).max())
