"""Windows of two-dimensional convolutions and poolings, with automatic padding worked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgert.graph.draft import Draft
from edgert.graph.node import Node

Pair = tuple[int, int]
"""One number for rows, one for columns."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a window moves over an image; all in pixels, (rows, columns).

    Attributes:
        kernel, strides, dilations: as in ONNX.
        before, after: padding above and left, below and right.
        ceil: whether a last window that is not full counts.
    """

    kernel: Pair
    strides: Pair
    before: Pair
    after: Pair
    dilations: Pair
    ceil: bool

    @property
    def pads(self) -> list[int]:
        """As ONNX writes it: top, left, bottom, right."""
        return [*self.before, *self.after]

    @property
    def is_padded(self) -> bool:
        """Whether it reaches over the image's edge."""
        return any(self.pads)

    @property
    def is_dense(self) -> bool:
        """Whether its pixels lie side by side."""
        return self.dilations == (1, 1)

    def count(self, size: Pair) -> Pair:
        """Windows down and across an image of that size, when only full ones count."""
        spans = [size[axis] + self.before[axis] + self.after[axis] - self._reach(axis) for axis in (0, 1)]
        return spans[0] // self.strides[0] + 1, spans[1] // self.strides[1] + 1

    def attributes(self) -> dict[str, list[int]]:
        """For a node that counts full windows only."""
        return {"kernel_shape": list(self.kernel), "strides": list(self.strides), "pads": self.pads}

    def _reach(self, axis: int) -> int:
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def window_of(draft: Draft, node: Node, kernel: Pair | None = None) -> Window | None:
    """The window of a Conv or pooling node over a (N, C, H, W) tensor of known size; None where it has none.

    Args:
        kernel: for a Conv, the size of its weights; otherwise the node says it itself.
    """
    shape = draft.image(node.inputs[0])
    given = node.attributes
    size = pair(given.get("kernel_shape")) or kernel
    if shape is None or size is None:
        return None
    strides = pair(given.get("strides")) or (1, 1)
    dilations = pair(given.get("dilations")) or (1, 1)
    ceil = bool(given.get("ceil_mode", 0))
    auto = given.get("auto_pad", b"NOTSET").decode()
    if auto == "NOTSET":
        pads = given.get("pads", [0, 0, 0, 0])
        return Window(size, strides, (pads[0], pads[1]), (pads[2], pads[3]), dilations, ceil)
    if auto == "VALID":
        return Window(size, strides, (0, 0), (0, 0), dilations, False)
    rows, columns = (_same(shape[2 + axis], size[axis], strides[axis], dilations[axis]) for axis in (0, 1))
    small, large = (rows // 2, columns // 2), (rows - rows // 2, columns - columns // 2)
    before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
    return Window(size, strides, before, after, dilations, False)


def pair(values: Any) -> Pair | None:
    """Two numbers of an attribute; None for none or another count."""
    return (int(values[0]), int(values[1])) if values is not None and len(values) == 2 else None


def _same(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Padding on both sides together that gives ceil(size / stride) windows."""
    windows = -(-size // stride)
    return max(0, (windows - 1) * stride + (kernel - 1) * dilation + 1 - size)
