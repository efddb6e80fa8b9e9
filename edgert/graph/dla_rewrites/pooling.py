"""Large maximum windows as several small ones in a row, and maxima over a whole image as windows.

The maximum over a window of k pixels is the maximum over windows of k1, of windows of k2, where k = k1 + k2 - 1: the
same pixels are compared, so the result is the same to the bit. Padding counts as minus infinity and may be shared out
among the windows as long as each gets less than its own size: a window that reaches over the edge then always holds
the window at the edge, too, whose pixels are all those that the missing ones could have shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from edgert.graph.draft import Chain, Draft, each
from edgert.graph.ir import Node

# Windows of two-dimensional convolutions and poolings, with automatic padding worked out.

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
        kernel: for a Conv, the size of its weights; otherwise it is an attribute of the node.
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


MAX_WINDOW = 8
"""Pixels on a side of the largest window a DLA pools over:
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/dla-layer-restrictions.html."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One small window along one axis."""

    kernel: int = 1
    stride: int = 1
    before: int = 0
    after: int = 0


def factors(size: int) -> list[int] | None:
    """Numbers of at most MAX_WINDOW whose product is the size, largest first; None where there are none."""
    found = []
    while size > MAX_WINDOW:
        divisor = next((number for number in range(MAX_WINDOW, 1, -1) if size % number == 0), None)
        if divisor is None:
            return None
        found.append(divisor)
        size //= divisor
    return sorted([*found, size], reverse=True)


def _cascade(draft: Draft, node: Node) -> None:
    window, shape = window_of(draft, node), draft.image(node.inputs[0])
    ends = draft.shape(node.outputs[0])
    if window is None or shape is None or ends is None or any(node.outputs[1:]) or not window.is_dense:
        return
    window = _rounded_down(window, (shape[2], shape[3]), (ends[2], ends[3]))
    if max(window.kernel) <= MAX_WINDOW or not _fits(window):
        return
    source, rest = _behind_sibling(draft, node, window)
    steps = _windows(rest, (shape[2], shape[3]), (ends[2], ends[3]))
    chain = Chain(draft, node, source)
    size = (shape[2], shape[3])
    for step in steps:
        size = (ends[2], ends[3]) if step is steps[-1] else step.count(size)
        chain.then("MaxPool", (*shape[:2], *size), **step.attributes())
    sizes = ", ".join(f"{step.kernel[0]}x{step.kernel[1]}" for step in steps)
    behind = "" if source == node.inputs[0] else f" behind {source!r}, which has the rest"
    chain.end(f"window {window.kernel[0]}x{window.kernel[1]} → {sizes}{behind}")


def _rounded_down(window: Window, size: Pair, ends: Pair) -> Window:
    """The same windows when only full ones count: the padding reaches as far as the last one does."""
    reach = [(ends[axis] - 1) * window.strides[axis] + window.kernel[axis] - size[axis] for axis in (0, 1)]
    after = [max(window.after[axis], reach[axis] - window.before[axis]) for axis in (0, 1)]
    return replace(window, after=(after[0], after[1]), ceil=False)


def _fits(window: Window) -> bool:
    """Whether every window holds at least one pixel of the image."""
    return all(pad < size for pad, size in zip(window.pads, (*window.kernel, *window.kernel), strict=True))


def _behind_sibling(draft: Draft, node: Node, window: Window) -> tuple[str, Window]:
    """A smaller pooling of the same image to go on from, and the window over its result that is then left."""
    best, rest = node.inputs[0], window
    for other in draft.graph.consumers.get(node.inputs[0], ()):
        if other is node:
            return best, rest  # those further down come too late
        part = window_of(draft, other) if other.op == "MaxPool" and not other.domain else None
        left = None if part is None else _rest(window, part)
        if left is not None and left.kernel < rest.kernel:
            best, rest = other.outputs[0], left
    return best, rest


def _rest(window: Window, part: Window) -> Window | None:
    """What must follow one window to make another; None where the first is no beginning of it."""
    if part.strides != (1, 1) or not part.is_dense or not _fits(part):
        return None
    kernel, before, after = (
        (whole[0] - begun[0], whole[1] - begun[1])
        for whole, begun in (
            (window.kernel, part.kernel),
            (window.before, part.before),
            (window.after, part.after),
        )
    )
    rest = Window((kernel[0] + 1, kernel[1] + 1), window.strides, before, after, (1, 1), ceil=False)
    return rest if min(kernel) >= 0 and max(kernel) > 0 and min(rest.pads) >= 0 and _fits(rest) else None


def _windows(window: Window, size: Pair, ends: Pair) -> list[Window]:
    """Small windows in a row that see what one large window sees."""
    rows, columns = (_steps(window, axis, size[axis], ends[axis]) for axis in (0, 1))
    count = max(len(rows), len(columns))
    rows, columns = ([_Step()] * (count - len(steps)) + steps for steps in (rows, columns))
    return [_window(row, column) for row, column in zip(rows, columns, strict=True)]


def _steps(window: Window, axis: int, size: int, windows: int) -> list[_Step]:
    """The same along one axis: side by side where the windows do not overlap, else grown pixel by pixel."""
    kernel, stride = window.kernel[axis], window.strides[axis]
    before, after = window.before[axis], window.after[axis]
    stride = kernel if windows == 1 and kernel == size else stride
    parts = factors(kernel) if kernel == stride and not (before or after) else None
    if parts is not None:
        return [_Step(part, part) for part in parts]
    grown = _shares(kernel - 1, max(1, math.ceil((kernel - 1) / (MAX_WINDOW - 1))))
    starts, ends = _padding(before, grown), _padding(after, grown)
    steps = [_Step(part + 1, 1, start, end) for part, start, end in zip(grown, starts, ends, strict=True)]
    last = steps[-1]
    return [*steps[:-1], _Step(last.kernel, 1 if windows == 1 else stride, last.before, last.after)]


def _shares(whole: int, count: int) -> list[int]:
    """A number in parts as equal as can be, the larger ones first."""
    return [whole // count + (part < whole % count) for part in range(count)]


def _padding(pad: int, grown: Sequence[int]) -> list[int]:
    """Padding shared out among windows by what each adds to the first pixel; never more than that."""
    whole, done, shares = max(1, sum(grown)), 0, []
    for part in grown:
        shares.append(pad * (done + part) // whole - pad * done // whole)
        done += part
    return shares


def _window(row: _Step, column: _Step) -> Window:
    return Window(
        (row.kernel, column.kernel),
        (row.stride, column.stride),
        (row.before, column.before),
        (row.after, column.after),
        (1, 1),
        ceil=False,
    )


def _global(draft: Draft, node: Node) -> None:
    shape, ends = draft.image(node.inputs[0]), draft.shape(node.outputs[0])
    if shape is None or ends is None or not is_over_image(draft, node):
        return
    size = [shape[2], shape[3]]
    chain = Chain(draft, node, node.inputs[0])
    chain.then("MaxPool", (*shape[:2], 1, 1), kernel_shape=size, strides=size, pads=[0, 0, 0, 0])
    if len(ends) != 4:
        chain.reshape(ends)
    chain.end(f"{node.op} over {size[0]}x{size[1]} → MaxPool")


def is_over_image(draft: Draft, node: Node) -> bool:
    """Whether a global pooling or a reduction of a (N, C, H, W) tensor is over rows and columns and nothing else."""
    return node.op.startswith("Global") or reduced_axes(draft, node, 4) == {2, 3}


def reduced_axes(draft: Draft, node: Node, rank: int) -> set[int]:
    """The axes that a reduction is over; none where they are not known."""
    axes = draft.integers(node, "axes", 1)
    if axes is None:
        unknown = draft.is_given(node, "axes", 1) or node.attributes.get("noop_with_empty_axes", 0)
        return set() if unknown else set(range(rank))
    return {axis % rank for axis in axes}


split_max_pool = each("max-pool", {"MaxPool": _cascade})
pool_global_max = each("global-max", {"GlobalMaxPool": _global, "ReduceMax": _global})


# Means and sums over whole images and large windows as small average poolings in a row, or as a convolution.
#
# Where the sides are products of numbers up to 8, the mean of means over tiles of equal size is the mean. Where
# they are not, a convolution per channel with all weights 1 / (H W) does it at once, up to the DLA's kernel of 32.
# Larger images are padded with zeros on all sides until they factor; what the zeros took from the mean is given
# back at the end.

MAX_KERNEL = 32
"""Side of the largest kernel a DLA convolves with:
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/dla-layer-restrictions.html."""

_Tiles = tuple[tuple[int, int], ...]
"""(side of a tile, padding on each side) of the poolings along one axis."""


def _mean(draft: Draft, node: Node) -> None:
    shape, ends = draft.image(node.inputs[0]), draft.shape(node.outputs[0])
    if shape is None or ends is None:
        return
    if not is_over_image(draft, node):
        _over_channels(draft, node)
        return
    total = shape[2] * shape[3] if node.op == "ReduceSum" else 1
    chain = Chain(draft, node, node.inputs[0])
    how = _average(chain, shape, total)
    if len(ends) != 4:
        chain.reshape(ends)
    chain.end(f"{node.op} over {shape[2]}x{shape[3]} → {how}")


def _average(chain: Chain, shape: tuple[int, int, int, int], total: int = 1) -> str:
    """Appends the mean over rows and columns, times ``total``; returns how, in words."""
    rows, columns = (tiles(size, pad=False) for size in shape[2:])
    if rows is not None and columns is not None:
        _pool(chain, shape, rows, columns)
        if total > 1:
            chain.scalar("Mul", total)
        return f"{max(len(rows), len(columns))} AveragePool"
    if max(shape[2:]) <= MAX_KERNEL:
        _convolve(chain, shape, total / (shape[2] * shape[3]))
        return f"Conv {shape[2]}x{shape[3]} per channel"
    rows, columns = (tiles(size, pad=True) or () for size in shape[2:])
    grown = _pool(chain, shape, rows, columns)
    chain.scalar("Mul", grown / (shape[2] * shape[3]) * total)
    return f"{max(len(rows), len(columns))} AveragePool with zeros around, and their share given back"


@lru_cache(maxsize=256)
def tiles(size: int, *, pad: bool) -> _Tiles | None:
    """Poolings that bring a side down to one pixel: as few, and as little padded, as can be.

    Args:
        pad: whether zeros may be added; always possible then.
    """
    if size <= MAX_WINDOW:
        return ((size, 0),)
    best: _Tiles | None = None
    for side in range(MAX_WINDOW, 1, -1):
        for padding in range(side if pad else 1):
            if (size + 2 * padding) % side:
                continue
            rest = tiles((size + 2 * padding) // side, pad=pad)
            found = None if rest is None else ((side, padding), *rest)
            if found is not None and (best is None or _cost(found) < _cost(best)):
                best = found
    return best


def _cost(found: _Tiles) -> tuple[int, int]:
    return len(found), sum(padding for _, padding in found)


def _pool(chain: Chain, shape: tuple[int, int, int, int], rows: _Tiles, columns: _Tiles) -> int:
    """Appends the poolings; gives the number of pixels, zeros included, that the result is the mean of."""
    count = max(len(rows), len(columns))
    rows, columns = ((*found, *[(1, 0)] * (count - len(found))) for found in (rows, columns))
    height, width = shape[2:]
    pixels = 1
    for (tall, above), (wide, left) in zip(rows, columns, strict=True):
        height, width = (height + 2 * above) // tall, (width + 2 * left) // wide
        pixels *= tall * wide
        given = {"count_include_pad": 1} if above or left else {}
        side, pads = [tall, wide], [above, left, above, left]
        chain.then("AveragePool", (*shape[:2], height, width), kernel_shape=side, strides=side, pads=pads, **given)
    return pixels


def _convolve(chain: Chain, shape: tuple[int, int, int, int], weight: float) -> None:
    kernel = chain.store(np.full((shape[1], 1, *shape[2:]), weight), "weight")
    side = list(shape[2:])
    chain.then("Conv", (*shape[:2], 1, 1), kernel, kernel_shape=side, group=shape[1])


def _over_channels(draft: Draft, node: Node) -> None:
    """A sum or mean over channels is a convolution with one filter."""
    shape, ends = draft.image(node.inputs[0]), draft.shape(node.outputs[0])
    if shape is None or ends is None or reduced_axes(draft, node, 4) != {1}:
        return
    chain = Chain(draft, node, node.inputs[0])
    weight = 1.0 if node.op == "ReduceSum" else 1 / shape[1]
    kernel = chain.store(np.full((1, shape[1], 1, 1), weight), "weight")
    chain.then("Conv", (shape[0], 1, *shape[2:]), kernel, kernel_shape=[1, 1])
    if len(ends) != 4:
        chain.reshape(ends)
    chain.end(f"{node.op} over {shape[1]} channels → 1x1 Conv")


def _large_window(draft: Draft, node: Node) -> None:
    window, shape, ends = window_of(draft, node), draft.image(node.inputs[0]), draft.image(node.outputs[0])
    if window is None or shape is None or ends is None or max(window.kernel) <= MAX_WINDOW or window.ceil:
        return
    if (window.is_padded and not node.attributes.get("count_include_pad", 0)) or not window.is_dense:
        return
    chain = Chain(draft, node, node.inputs[0])
    if window.kernel == shape[2:] and not window.is_padded:
        how = _average(chain, shape)
    elif max(window.kernel) <= MAX_KERNEL:
        kernel = chain.store(np.full((shape[1], 1, *window.kernel), 1 / math.prod(window.kernel)), "weight")
        chain.then("Conv", ends, kernel, **window.attributes(), group=shape[1])
        how = "Conv per channel"
    else:
        return
    chain.end(f"window {window.kernel[0]}x{window.kernel[1]} → {how}")


pool_mean = each("global-mean", {"GlobalAveragePool": _mean, "ReduceMean": _mean})
pool_sum = each("reduce-sum", {"ReduceSum": _mean})
split_average_pool = each("average-pool", {"AveragePool": _large_window})
