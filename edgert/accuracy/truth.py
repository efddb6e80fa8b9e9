"""What is true of labelled pictures: plain records, one entry per picture of a dataset, in its order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """The true boxes of one picture.

    Attributes:
        corners: (N, 4) float64 x1, y1, x2, y2 in pixels.
        classes: (N,) int64, the model's class indices.
        areas: (N,) float64 of the objects in square pixels; what COCO sorts small and large by.
        crowds: (N,) whether a box stands for many objects, which may then be found or not.
    """

    corners: F64
    classes: I64
    areas: F64
    crowds: Bool


@dataclass(frozen=True, slots=True, eq=False)
class BoxTruth:
    """Boxes of every picture. Detections of other classes than ``classes`` do not count."""

    pictures: tuple[Boxes, ...]
    classes: tuple[int, ...]
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ClassTruth:
    """The class index of every picture."""

    classes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MaskTruth:
    """Files of every picture's class indices, one per pixel."""

    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True, eq=False)
class IdentityTruth:
    """Who or what every picture shows."""

    identities: tuple[str, ...]


Truth = BoxTruth | ClassTruth | MaskTruth | IdentityTruth
