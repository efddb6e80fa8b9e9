"""Rewrites of large poolings and global reductions into windows that a DLA supports.

The maximum over a window of k pixels equals the maximum over k1 windows of k2 pixels, where k = k1 + k2 - 1. The same
pixels are compared, so the result is bit-exact. Padding counts as minus infinity, and may be divided among the windows
if each gets less than its own size. Every window then holds at least one pixel of the image.

Where the sides are products of numbers up to 8, the mean of means over tiles of equal size is the mean. Elsewhere a
convolution per channel with all weights 1 / (H W) computes it in one step, up to the DLA's kernel of 32. Larger images
are padded with zeros on all sides until they factor, and a last factor corrects for the zeros.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

import dla
from dla import LIMITS, Window
from edgert.graph.dla_node import dla_tensor
from edgert.graph.draft import Chain, Draft, rewrite
from edgert.graph.ir import Node

MAX_WINDOW, MAX_KERNEL = LIMITS["pool.window"].high, LIMITS["conv.kernel"].high
"""Largest side, in pixels, of a pooling window and of a convolution kernel on a DLA."""

Size = tuple[int, int]
"""Numbers for rows and for columns."""
Image = tuple[int, int, int, int]


def window_of(draft: Draft, node: Node) -> Window | None:
    """Return the window of a Conv or pooling node over an image; None where it is not over an image of known size.

    Padding is that of ``ceil_mode`` 0.
    """
    if draft.image(node.inputs[0]) is None:
        return None
    inputs = tuple(dla_tensor(draft.graph, name, name in draft.graph.constants) for name in node.inputs[:2])
    return dla.window(dla.Node(node.op, inputs, (), {**node.attributes, "ceil_mode": 0}))


@dataclass(frozen=True, slots=True)
class _Step:
    """Small window along one axis, with the padding before and after the image."""

    kernel: int = 1
    stride: int = 1
    before: int = 0
    after: int = 0


def factors(size: int) -> list[int] | None:
    """Return factors of the size, largest first, each at most MAX_WINDOW; None where there are none."""
    found = []
    while size > MAX_WINDOW:
        divisor = next((number for number in range(MAX_WINDOW, 1, -1) if size % number == 0), None)
        if divisor is None:
            return None
        found.append(divisor)
        size //= divisor
    return sorted([*found, size], reverse=True)


def _shrink_max_window(draft: Draft, node: Node) -> None:
    window, shape = window_of(draft, node), draft.image(node.inputs[0])
    ends = draft.image(node.outputs[0])
    if window is None or shape is None or ends is None or any(node.outputs[1:]) or window.dilation != (1, 1):
        return
    # padding up to the end of the last window makes all windows full, so that ceil_mode no longer matters
    first, last = window.padding[:2], window.padding[2:]
    reach = [(ends[2 + axis] - 1) * window.stride[axis] + window.kernel[axis] - shape[2 + axis] for axis in (0, 1)]
    window = replace(window, padding=(*first, *(max(last[axis], reach[axis] - first[axis]) for axis in (0, 1))))
    if max(window.kernel) <= MAX_WINDOW or not _touches_image(window):
        return
    source, rest = _reuse_smaller_window(draft, node, window)
    rows, columns = (_split_window(rest, axis, shape[2 + axis], ends[2 + axis]) for axis in (0, 1))
    count = max(len(rows), len(columns))
    rows, columns = ([_Step()] * (count - len(steps)) + steps for steps in (rows, columns))
    chain, size = Chain(draft, node, source), shape[2:]
    for number, pair in enumerate(zip(rows, columns, strict=True), 1):
        grown = [side + step.before + step.after - step.kernel for side, step in zip(size, pair, strict=True)]
        size = grown[0] // pair[0].stride + 1, grown[1] // pair[1].stride + 1
        size = ends[2:] if number == count else size
        pads = (*(step.before for step in pair), *(step.after for step in pair))
        kernel, strides = ([getattr(step, what) for step in pair] for what in ("kernel", "stride"))
        chain.pool("MaxPool", (*shape[:2], *size), kernel, strides, pads)
    sizes = ", ".join(f"{row.kernel}x{column.kernel}" for row, column in zip(rows, columns, strict=True))
    behind = "" if source == node.inputs[0] else f" behind {source!r}, which has the rest"
    chain.end(f"window {window.kernel[0]}x{window.kernel[1]} → {sizes}{behind}")


def _touches_image(window: Window) -> bool:
    return all(pad < size for pad, size in zip(window.padding, window.kernel * 2, strict=True))


def _reuse_smaller_window(draft: Draft, node: Node, window: Window) -> tuple[str, Window]:
    """Return a tensor to pool, and the window: over the result of a smaller pooling of the image where there is one."""
    best, rest = node.inputs[0], window
    for other in draft.graph.consumers.get(node.inputs[0], ()):
        if other is node:
            return best, rest  # the others run later
        part = window_of(draft, other) if other.op == "MaxPool" and not other.domain else None
        left = None if part is None else _remaining_window(window, part)
        if left is not None and left.kernel < rest.kernel:
            best, rest = other.outputs[0], left
    return best, rest


def _remaining_window(window: Window, part: Window) -> Window | None:
    """Return the window which, over the result of ``part``, equals ``window``; None where there is none."""
    if part.stride != (1, 1) or part.dilation != (1, 1) or not _touches_image(part):
        return None
    rows, columns = (full - done for full, done in zip(window.kernel, part.kernel, strict=True))
    padding = tuple(full - done for full, done in zip(window.padding, part.padding, strict=True))
    rest = Window((rows + 1, columns + 1), window.stride, padding=padding)
    is_smaller = min(rows, columns) >= 0 and max(rows, columns) > 0
    return rest if is_smaller and min(padding) >= 0 and _touches_image(rest) else None


def _split_window(window: Window, axis: int, size: int, windows: int) -> list[_Step]:
    """Return successive small windows that together cover one large window along an axis.

    Where large windows do not overlap, small ones do not either. Otherwise each window adds some pixels.
    """
    kernel, stride = window.kernel[axis], window.stride[axis]
    before, after = window.padding[axis], window.padding[axis + 2]
    stride = kernel if windows == 1 and kernel == size else stride
    parts = factors(kernel) if kernel == stride and not (before or after) else None
    if parts is not None:
        return [_Step(part, part) for part in parts]
    count = max(1, math.ceil((kernel - 1) / (MAX_WINDOW - 1)))
    grown = [(kernel - 1) // count + (part < (kernel - 1) % count) for part in range(count)]
    starts, ends = _divide_padding(before, grown), _divide_padding(after, grown)
    steps = [_Step(part + 1, 1, start, end) for part, start, end in zip(grown, starts, ends, strict=True)]
    return [*steps[:-1], replace(steps[-1], stride=1 if windows == 1 else stride)]


def _divide_padding(pad: int, grown: Sequence[int]) -> list[int]:
    """Return the padding of each window, in proportion to the pixels that it adds, and never more than these."""
    total, done, shares = max(1, sum(grown)), 0, []
    for part in grown:
        shares.append(pad * (done + part) // total - pad * done // total)
        done += part
    return shares


def _global_max(draft: Draft, node: Node) -> None:
    shape, ends = draft.image(node.inputs[0]), draft.shape(node.outputs[0])
    if shape is None or ends is None or not _is_over_image(draft, node):
        return
    chain = Chain(draft, node).pool("MaxPool", (*shape[:2], 1, 1), shape[2:], shape[2:])
    chain.reshape(ends).end(f"{node.op} over {shape[2]}x{shape[3]} → MaxPool")


def _is_over_image(draft: Draft, node: Node) -> bool:
    """Return whether a global pooling or reduction of an image is over rows and columns only."""
    return node.op.startswith("Global") or _reduced_axes(draft, node) == {2, 3}


def _reduced_axes(draft: Draft, node: Node) -> set[int]:
    """Return the axes over which an image is reduced; empty where they are not known."""
    axes = draft.integers(node, "axes", 1)
    if axes is None:
        unknown = draft.is_given(node, "axes", 1) or node.attributes.get("noop_with_empty_axes", 0)
        return set() if unknown else set(range(4))
    return {axis % 4 for axis in axes}


GLOBAL_MAX = rewrite(
    "global-max",
    "GlobalMaxPool and ReduceMax over the image become MaxPool",
    {"GlobalMaxPool": _global_max, "ReduceMax": _global_max},
)
MAX_POOL = rewrite(
    "max-pool",
    "a MaxPool with a window above 8 becomes several small ones in a row",
    {"MaxPool": _shrink_max_window},
)

_Tiles = tuple[tuple[int, int], ...]
"""Poolings along one axis, each as (window, padding on each side) in pixels."""


def _global_mean(draft: Draft, node: Node) -> None:
    shape, ends = draft.image(node.inputs[0]), draft.shape(node.outputs[0])
    if shape is None or ends is None:
        return
    chain, is_sum = Chain(draft, node), node.op == "ReduceSum"
    if _is_over_image(draft, node):
        how = f"{shape[2]}x{shape[3]} → {_append_mean(chain, shape, shape[2] * shape[3] if is_sum else 1)}"
    elif _reduced_axes(draft, node) == {1}:  # a convolution with one filter
        chain.conv((shape[0], 1, *shape[2:]), np.full((1, shape[1], 1, 1), 1.0 if is_sum else 1 / shape[1]))
        how = f"{shape[1]} channels → 1x1 Conv"
    else:
        return
    chain.reshape(ends).end(f"{node.op} over {how}")


def _append_mean(chain: Chain, shape: Image, total: int = 1) -> str:
    """Append the mean over rows and columns, times ``total``; return the method as text."""
    rows, columns = (tiles(size, pad=False) for size in shape[2:])
    if rows is not None and columns is not None:
        _append_pools(chain, shape, rows, columns)
        if total > 1:
            chain.scalar("Mul", total)
        return f"{max(len(rows), len(columns))} AveragePool"
    if max(shape[2:]) <= MAX_KERNEL:
        weight = np.full((shape[1], 1, *shape[2:]), total / (shape[2] * shape[3]))
        chain.conv((*shape[:2], 1, 1), weight, group=shape[1])
        return f"Conv {shape[2]}x{shape[3]} per channel"
    rows, columns = (tiles(size, pad=True) or () for size in shape[2:])
    grown = _append_pools(chain, shape, rows, columns)
    chain.scalar("Mul", grown / (shape[2] * shape[3]) * total)
    return f"{max(len(rows), len(columns))} AveragePool with zeros around, and a factor that corrects for them"


@lru_cache(maxsize=256)
def tiles(size: int, *, pad: bool) -> _Tiles | None:
    """Return the fewest poolings, with the least padding, that reduce a side to one pixel.

    None where there are none; ``pad`` allows padding, and then there always are.
    """
    if size <= MAX_WINDOW:
        return ((size, 0),)
    found = []
    for side in range(MAX_WINDOW, 1, -1):
        for padding in range(side if pad else 1):
            grown = size + 2 * padding
            rest = None if grown % side else tiles(grown // side, pad=pad)
            if rest is not None:
                found.append(((side, padding), *rest))
    return min(found, key=lambda pools: (len(pools), sum(padding for _, padding in pools)), default=None)


def _append_pools(chain: Chain, shape: Image, rows: _Tiles, columns: _Tiles) -> int:
    """Append the poolings; return the number of pixels, zeros included, in the mean."""
    count = max(len(rows), len(columns))
    rows, columns = ((*found, *[(1, 0)] * (count - len(found))) for found in (rows, columns))
    height, width = shape[2:]
    pixels = 1
    for (tall, above), (wide, left) in zip(rows, columns, strict=True):
        height, width = (height + 2 * above) // tall, (width + 2 * left) // wide
        pixels *= tall * wide
        side, pads = (tall, wide), (above, left, above, left)
        given = {"count_include_pad": 1} if above or left else {}
        chain.pool("AveragePool", (*shape[:2], height, width), side, side, pads, **given)
    return pixels


def _shrink_average_window(draft: Draft, node: Node) -> None:
    window, shape, ends = window_of(draft, node), draft.image(node.inputs[0]), draft.image(node.outputs[0])
    if window is None or shape is None or ends is None or max(window.kernel) <= MAX_WINDOW:
        return
    is_padded = any(window.padding)
    uncounted = is_padded and not node.attributes.get("count_include_pad", 0)
    if uncounted or window.dilation != (1, 1) or node.attributes.get("ceil_mode", 0):
        return
    chain = Chain(draft, node)
    if window.kernel == shape[2:] and not is_padded:
        how = _append_mean(chain, shape)
    elif max(window.kernel) <= MAX_KERNEL:
        weight = np.full((shape[1], 1, *window.kernel), 1 / math.prod(window.kernel))
        chain.conv(ends, weight, strides=list(window.stride), pads=list(window.padding), group=shape[1])
        how = "Conv per channel"
    else:
        return
    chain.end(f"window {window.kernel[0]}x{window.kernel[1]} → {how}")


GLOBAL_MEAN = rewrite(
    "global-mean",
    "GlobalAveragePool and ReduceMean become AveragePools with windows up to 8, or a Conv per channel",
    {"GlobalAveragePool": _global_mean, "ReduceMean": _global_mean},
)
AVERAGE_POOL = rewrite(
    "average-pool",
    "an AveragePool with a window above 8 becomes several small ones or a Conv per channel",
    {"AveragePool": _shrink_average_window},
)
REDUCE_SUM = rewrite(
    "reduce-sum",
    "ReduceSum becomes AveragePools and a Mul, or a Conv",
    {"ReduceSum": _global_mean},
)
