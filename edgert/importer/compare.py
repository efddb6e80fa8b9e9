"""How far a converted model is from its source, output by output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgert.errors import BuildError
from edgert.importer.request import Array

TOLERANCE = 1e-3
"""An output may differ by so much of its largest value: float32 sums in another order differ by some 1e-5 of it, a
conversion that is wrong by far more."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One output.

    Attributes:
        name: in the ONNX model.
        shape: of the example's output.
        largest: absolute value of the source's.
        absolute: the largest difference.
    """

    name: str
    shape: tuple[int, ...]
    largest: float
    absolute: float

    @property
    def relative(self) -> float:
        """Of the largest value; the absolute difference where all are 0."""
        return self.absolute / self.largest if self.largest else self.absolute

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)}: {self.absolute:.2g} at most, {self.relative:.2g} of the largest"


def compare(wanted: Mapping[str, Array], made: Mapping[str, Array], source: str) -> tuple[Difference, ...]:
    """Every output. Raises BuildError for one of another shape, or with other values that are not finite."""
    if len(wanted) != len(made):
        raise BuildError(
            f"the ONNX model of {source} has other outputs", why=f"{', '.join(wanted)} became {', '.join(made)}"
        )
    names = made if wanted.keys() == made.keys() else wanted  # by order, where the converter has renamed them
    pairs = zip(made, (wanted[name] for name in names), strict=True)
    return tuple(_compare(name, array, made[name], source) for name, array in pairs)


def check(found: tuple[Difference, ...], tolerance: float, source: str) -> None:
    """Raises BuildError, with every output that is too far off."""
    far = [one for one in found if not one.relative <= tolerance]
    if far:
        raise BuildError(
            f"the ONNX model does not compute what {source} does",
            why="; ".join(map(str, far)),
            fix=f"at most {tolerance:g} is accepted; a quantised source rounds otherwise: --tolerance NUMBER",
        )


def _compare(name: str, wanted: Array, made: Array, source: str) -> Difference:
    if wanted.shape != made.shape:
        raise BuildError(
            f"output {name!r} of {source} has another shape in ONNX",
            why=f"{list(wanted.shape)} became {list(made.shape)}",
            fix="export it again with another opset: --opset N",
        )
    first, second = wanted.astype(np.float64), made.astype(np.float64)
    finite = np.isfinite(first)
    if not np.array_equal(first[~finite], second[~finite], equal_nan=True):
        raise BuildError(f"output {name!r} of {source} is not finite", why="and ONNX Runtime computes something else")
    largest = float(np.abs(first[finite]).max(initial=0.0))
    return Difference(name, wanted.shape, largest, float(np.abs(first[finite] - second[finite]).max(initial=0.0)))
