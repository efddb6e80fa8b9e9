"""Where a Resize samples its input, for each output pixel along one axis.

Formulas: https://onnx.ai/onnx/operators/onnx__Resize.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def positions(mode: str, size: int, target: int, scale: float) -> Positions | None:
    """Input coordinate of each of ``target`` output pixels; None for a mode that is not known here."""
    at = np.arange(target, dtype=np.float64)
    match mode:
        case "half_pixel":
            return (at + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (at + 0.5) / scale - 0.5 if target > 1 else np.zeros(1)
        case "asymmetric":
            return at / scale
        case "align_corners":
            return at * ((size - 1) / (target - 1)) if target > 1 else np.zeros(1)
        case "tf_half_pixel_for_nn":
            return (at + 0.5) / scale
    return None


def nearest(found: Positions, rounding: str, size: int) -> Indices:
    """The input pixel that each coordinate takes its value from."""
    match rounding:
        case "floor":
            rounded = np.floor(found)
        case "ceil":
            rounded = np.ceil(found)
        case "round_prefer_ceil":
            rounded = np.floor(found + 0.5)
        case _:
            rounded = np.ceil(found - 0.5)
    return np.clip(rounded, 0, size - 1).astype(np.int64)


def modes(given: Mapping[str, Any]) -> tuple[str, str, str]:
    """(mode, coordinate transformation, rounding) of a Resize node."""
    defaults = (("mode", b"nearest"), ("coordinate_transformation_mode", b"half_pixel"),
                ("nearest_mode", b"round_prefer_floor"))  # fmt: skip
    mode, transformation, rounding = (given.get(name, default).decode() for name, default in defaults)
    return mode, transformation, rounding
