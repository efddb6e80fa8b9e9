"""What quantized graphs are built of: Q and DQ nodes, and weights stored behind a DQ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgert.graph.draft import Builder
from edgert.graph.proto import Array

Scales = npt.NDArray[np.float32]


class Rounding:
    """Q and DQ nodes of one scale each.

    Attributes:
        scale: float32 scalar.
        zero: zero point, a scalar of the stored type.
    """

    def __init__(self, scale: float, zero: np.int8 | np.uint8) -> None:
        self.scale = np.float32(scale)
        self.zero = zero

    def quantize(self, builder: Builder, tensor: str, output: str, label: str) -> str:
        """Adds the Q from a tensor to ``output``."""
        return builder.add("QuantizeLinear", [tensor, *self._parameters(builder, label)], output)

    def dequantize(self, builder: Builder, stored: str, output: str, label: str) -> str:
        """Adds the DQ from a stored tensor to ``output``."""
        return builder.add("DequantizeLinear", [stored, *self._parameters(builder, label)], output)

    def integer(self, value: float) -> Array:
        """The stored form of a value, clipped to what can be stored."""
        bounds = np.iinfo(self.zero.dtype)
        step = np.rint(np.float64(value) / np.float64(self.scale)) + int(self.zero)
        return np.asarray(np.clip(step, bounds.min, bounds.max)).astype(self.zero.dtype)

    def _parameters(self, builder: Builder, label: str) -> list[str]:
        scale = builder.store(np.asarray(self.scale, np.float32), f"{label}_scale")
        return [scale, builder.store(np.asarray(self.zero), f"{label}_zero_point")]


def store_dequantized(builder: Builder, values: Array, scales: Scales, axis: int | None, label: str) -> str:
    """Stores integers behind a DQ, zero point 0, one scale or one per index of ``axis``; returns the DQ's output."""
    stored = builder.store(values, f"{label}_quantized")
    steps = builder.store(scales, f"{label}_scale")
    zeros = builder.store(np.zeros(scales.shape, values.dtype), f"{label}_zero_point")
    attributes = {} if axis is None else {"axis": axis}
    return builder.add("DequantizeLinear", [stored, steps, zeros], builder.name(f"{label}_dequantized"), attributes)
