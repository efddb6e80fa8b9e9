"""What a weighted node multiplies its weights with: the patches of its input, and their second moments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.backend.base import Array
from edgert.graph.operators import WEIGHTED, about
from edgert.quantize.kernel import F64, Kernel

F32 = npt.NDArray[np.float32]
SUPPORTED = frozenset(name for name in WEIGHTED if about(name).work != "transposed")
"""Operators whose patches :func:`patches` can cut. Each output of a ConvTranspose sees other taps of its weight."""


@dataclass
class Moments:
    """Sums over patches, per group: their number, Σ x of shape (groups, n) and Σ x·xᵀ of shape (groups, n, n).

    n is inputs per group times taps, in the order of :class:`~edgert.quantize.kernel.Kernel`.
    """

    count: int
    first: F64
    second: F64

    @classmethod
    def empty(cls, kernel: Kernel) -> Moments:
        """Of no patches yet."""
        groups, _, inputs, taps = kernel.values.shape
        size = inputs * taps
        return cls(0, np.zeros((groups, size)), np.zeros((groups, size, size)))

    def add(self, rows: F32) -> None:
        """Counts patches (groups, patches, n). Products are float32, their sums over calls float64."""
        self.count += rows.shape[1]
        self.first += rows.sum(axis=1, dtype=np.float64)
        self.second += rows.transpose(0, 2, 1) @ rows

    def gram(self, *, centred: bool) -> F64:
        """E[x·xᵀ] per group; ``centred``: the covariance, for a mean that a bias takes care of."""
        mean = self.first / self.count
        gram: F64 = self.second / self.count
        return gram - mean[:, :, None] * mean[:, None, :] if centred else gram


def patches(kernel: Kernel, values: Array, limit: int, random: np.random.Generator) -> F32:
    """Up to ``limit`` patches of one input, chosen at random: (groups, patches, n) float32."""
    node = kernel.node
    if about(node.op).work != "conv":
        rows = values.reshape(-1, values.shape[-1])
        return np.asarray(rows[_chosen(len(rows), limit, random)][None], np.float32)
    groups, _, inputs, taps = kernel.values.shape
    windows = _windows(values[0], kernel)
    grid = windows.shape[1 : values.ndim - 1]
    places = np.unravel_index(_chosen(math.prod(grid), limit, random), grid)
    index: Any = (slice(None), *places)
    picked = windows[index].reshape(groups, inputs, len(places[0]), taps)
    return np.ascontiguousarray(picked.swapaxes(1, 2), np.float32).reshape(groups, -1, inputs * taps)


def _chosen(count: int, limit: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    if count <= limit:
        return np.arange(count)
    return np.sort(random.choice(count, limit, replace=False))


def _windows(channels: Array, kernel: Kernel) -> Array:
    """A view (channels, output positions …, taps …) of (channels, …), padded with zeros."""
    sizes = kernel.stored[2:]
    given = kernel.node.attributes
    strides, dilations = (_each(given.get(name), len(sizes)) for name in ("strides", "dilations"))
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    padded = np.pad(channels, [(0, 0), *_pads(kernel, channels.shape[1:], reach, strides)])
    axes = tuple(range(1, channels.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=axes)
    steps = (slice(None), *(slice(None, None, step) for step in (*strides, *dilations)))
    view: Array = windows[steps]
    return view


def _pads(kernel: Kernel, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) per dimension, https://onnx.ai/onnx/operators/onnx__Conv.html."""
    given, rank = kernel.node.attributes, len(sizes)
    how = given.get("auto_pad", b"NOTSET")
    if how in (b"SAME_UPPER", b"SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + r - n) for n, r, s in zip(sizes, reach, strides, strict=True)]
        halves = [(total // 2, total - total // 2) for total in totals]
        return halves if how == b"SAME_UPPER" else [(after, before) for before, after in halves]
    pads = [0] * (2 * rank) if how == b"VALID" else given.get("pads") or [0] * (2 * rank)
    return [(int(pads[i]), int(pads[i + rank])) for i in range(rank)]


def _each(values: Sequence[int] | None, rank: int) -> list[int]:
    return [int(value) for value in values] if values else [1] * rank
