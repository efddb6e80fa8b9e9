"""Bias correction: what quantization adds to the mean of a channel is taken off its bias again.

The empirical form of Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction"
(https://arxiv.org/abs/1906.04721), appendix D: layer after layer, each mean measured with everything upstream already
corrected.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.backend.base import Array
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Names, Node
from edgert.graph.operators import WEIGHTED, about
from edgert.quantization.calibration.walk import THREADS, Feeds, walk
from edgert.quantization.lowering.weights import (
    F64,
    Kernel,
    bias_factor,
    channel_axis,
    channel_means,
    is_per_channel,
    kernel_of,
    weighted,
    with_plain_bias,
)

# What a weighted node multiplies its weights with: the patches of its input, and their second moments.

F32 = npt.NDArray[np.float32]
SUPPORTED = frozenset(name for name in WEIGHTED if about(name).work != "transposed")
"""Operators whose patches :func:`patches` can cut. Each output of a ConvTranspose sees other taps of its weight."""


@dataclass
class Moments:
    """Sums over patches, per group: their number, Σ x of shape (groups, n) and Σ x·xᵀ of shape (groups, n, n).

    n is inputs per group times taps, in the order of :class:`~edgert.quantization.lowering.weights.Kernel`.
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

    def gram(self, *, centered: bool) -> F64:
        """E[x·xᵀ] per group; ``centered``: the covariance, for a mean that a bias takes care of."""
        mean = self.first / self.count
        gram: F64 = self.second / self.count
        return gram - mean[:, :, None] * mean[:, None, :] if centered else gram


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
        sides = [(total // 2, total - total // 2) for total in totals]
        return sides if how == b"SAME_UPPER" else [(after, before) for before, after in sides]
    pads = [0] * (2 * rank) if how == b"VALID" else given.get("pads") or [0] * (2 * rank)
    return [(int(pads[i]), int(pads[i + rank])) for i in range(rank)]


def _each(values: Sequence[int] | None, rank: int) -> list[int]:
    return [int(value) for value in values] if values else [1] * rank


_WORTH = 0.1
"""Part of a channel's squared error that a shift must take off to be made. Smaller ones do more harm by what they get
wrong from a few images than good, most of all where errors are rare and large, as clipping makes them: correcting
their mean moves everything else. With 0.02 the outputs of SqueezeNet on other images were worse than uncorrected, and
YOLOX-nano found nothing any more; with 0.25 MobileNet's had nearly twice the noise that 0.02 left. (Measured on
calibration images that nothing was fitted to.)"""


def correct_biases(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    like: Model,
    *,
    threads: int = THREADS,
    stop: threading.Event | None = None,
) -> Graph:
    """The float graph with the biases that its quantized form needs; lower it again to have them there.

    Args:
        graph: the float graph, clean.
        lowered: its quantized form; outputs of weighted nodes keep their names.
        feeds: images, 16 or more; all of them move through both graphs side by side.
        like: the model that the graph was read from.
        stop: ends it when set.

    Raises:
        CalibrationError: there are no images; stopped.
        BuildError: ONNX Runtime cannot run one of the graphs.
    """
    return shift_biases(graph, mean_shifts(graph, lowered, feeds, like, threads=threads, stop=stop))


def mean_shifts(
    graph: Graph,
    lowered: Graph,
    feeds: Sequence[Feeds],
    like: Model,
    *,
    threads: int = THREADS,
    stop: threading.Event | None = None,
) -> Mapping[str, F64]:
    """Output tensor of a weighted node → (channels,) to add to it so that its means are those of the float graph.

    Channels whose mean is right, as far as these images can measure it, get 0.

    Each shift is measured with those of all nodes before it in force. Nodes whose bias cannot be changed (see
    :func:`can_shift`) are left out. Both graphs run once per image.

    Raises:
        CalibrationError: there are no images; stopped.
        BuildError: ONNX Runtime cannot run one of the graphs.
    """
    if not feeds:
        raise CalibrationError("biases cannot be corrected without images", why="0 given", fix="give 16 or more")
    nodes = [n for n in weighted(graph) if can_shift(graph, n) and n.outputs[0] in lowered.producers]
    names = [node.outputs[0] for node in nodes]
    exact, coarse = (walk(one, names, feeds, like, threads=threads, stop=stop) for one in (graph, lowered))
    walks = zip(nodes, exact, coarse, strict=True)
    return {node.outputs[0]: _level(node, first, second) for node, first, second in walks}


def _level(node: Node, wanted: Sequence[Array], found: Sequence[Array]) -> F64:
    """The mean shift per channel; ``found`` is shifted in place, for what is computed from it next."""
    axis = channel_axis(node, wanted[0].ndim)
    shift = worthwhile(*channel_errors(axis, wanted, found))
    add_to_channels(found, shift, axis)
    return shift


def add_to_channels(arrays: Sequence[Array], shift: F64, axis: int) -> None:
    """Adds (channels,) to arrays in place."""
    for array in arrays:
        array += shift.astype(array.dtype).reshape([-1 if i == axis else 1 for i in range(array.ndim)])


def channel_errors(axis: int, wanted: Sequence[Array], found: Sequence[Array]) -> tuple[F64, F64]:
    """Mean and mean square of the error, (images, channels) each."""
    differences = [x - y for x, y in zip(wanted, found, strict=True)]
    means = np.stack([channel_means(one, axis) for one in differences])
    return means, np.stack([channel_means(np.square(one), axis) for one in differences])


def worthwhile(means: F64, squares: F64) -> F64:
    """Shifts per channel, 0 where one would take off less than :data:`_WORTH` of the error once the part of its square
    that is the luck of the images, its squared standard error, is taken off."""
    shift: F64 = means.mean(axis=0)
    luck = means.var(axis=0, ddof=1) / len(means) if len(means) > 1 else 0.0
    return np.where(shift * shift - luck > _WORTH * squares.mean(axis=0), shift, 0.0)


def can_shift(graph: Graph, node: Node) -> bool:
    """Whether a weighted node has, or may be given, a bias of its own per output channel."""
    kernel = kernel_of(graph, node)
    if kernel is None:
        return False
    place = _place(graph, node)
    if place is None:
        return False
    owner, slot = place
    name = owner.inputs[slot] if len(owner.inputs) > slot else ""
    return not name or is_per_channel(graph.constants.get(name), kernel.outputs)


def shift_biases(graph: Graph, shifts: Mapping[str, F64]) -> Graph:
    """The graph with values added to biases: output tensor of a weighted node → (channels,).

    A node without a bias gets one, and one that shares its bias with others gets its own.

    Raises:
        CalibrationError: a node whose bias cannot be changed; see :func:`can_shift`.
    """
    names, constants, changed = Names(graph), {}, {}
    for tensor, shift in shifts.items():
        node = graph.producers[tensor]
        place = _place(graph, node) if can_shift(graph, node) else None
        if place is None:
            raise CalibrationError(f"node {node.name!r} has no bias that could be shifted", why=f"it is a {node.op}")
        owner, slot = place
        stored = _bias(graph, owner, slot, len(shift))
        name = names.new(f"{owner.inputs[slot] if len(owner.inputs) > slot else node.inputs[1]}_shifted")
        constants[name] = (stored + shift).astype(graph.constants[node.inputs[1]].dtype)
        changed[id(owner)] = _with_bias(owner, slot, name)
    nodes = tuple(changed.get(id(node), node) for node in graph.nodes)
    return replace(graph, nodes=nodes, constants={**graph.constants, **constants})


def _place(graph: Graph, node: Node) -> tuple[Node, int] | None:
    """The node and input slot that hold the bias: of a MatMul, those of the Add behind it."""
    if about(node.op).work != "matmul":
        return node, 2
    readers = graph.consumers.get(node.outputs[0], ())
    if not graph.is_private(node.outputs[0]) or readers[0].op != "Add":
        return None
    return next(((readers[0], slot) for slot, name in enumerate(readers[0].inputs) if name in graph.constants), None)


def _bias(graph: Graph, owner: Node, slot: int, channels: int) -> F64:
    name = owner.inputs[slot] if len(owner.inputs) > slot else ""
    stored = graph.constants[name].astype(np.float64).reshape(-1) if name else np.zeros(1)
    factor = bias_factor(owner)
    return np.broadcast_to(stored * factor, (channels,))


def _with_bias(owner: Node, slot: int, name: str) -> Node:
    """The node reading another bias; a Gemm's factor for it is in the new one."""
    inputs = [*owner.inputs, *[""] * (slot + 1 - len(owner.inputs))]
    inputs[slot] = name
    return replace(owner, inputs=tuple(inputs), attributes=with_plain_bias(owner))
