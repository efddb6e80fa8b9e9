"""Means and sums over whole images and large windows as small average poolings in a row, or as a convolution.

Where the sides are products of numbers up to 8, the mean of means over tiles of equal size is the mean. Where they are
not, a convolution per channel with all weights 1 / (H W) does it at once, up to the DLA's kernel of 32. Larger
images are padded with zeros on all sides until they factor; what the zeros took from the mean is given back at the end.
"""

import math
from functools import lru_cache

import numpy as np

from edgert.graph.dla_rewrites.max_pool import MAX_WINDOW, is_over_image, reduced_axes, window_of
from edgert.graph.draft import Chain, Draft, each
from edgert.graph.ir import Node

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
