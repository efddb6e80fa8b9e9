"""Weights of all weighted operators in one layout, (groups, outputs, inputs, taps), and as integers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edgert.backend.base import Array
from edgert.graph import Graph, Node, draft, operators
from edgert.quantization.scheme.units import Scheme

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Weight of one node.

    Attributes:
        values: (groups, outputs per group, inputs per group, taps), float64. Output channel o is row o % outputs of
            group o // outputs; input channels count in the same way. A Gemm or MatMul is one group of one tap.
    """

    values: F64
    node: Node
    stored: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """Number of output channels of all groups."""
        return int(self.values.shape[0] * self.values.shape[1])

    @property
    def inputs(self) -> int:
        """Number of input channels of all groups."""
        return int(self.values.shape[0] * self.values.shape[2])


def kernel_of(graph: Graph, node: Node) -> Kernel | None:
    """Return the weight of a node; None unless it is a stored float tensor."""
    if node.op not in operators.WEIGHTED or node.domain or len(node.inputs) < 2:
        return None
    stored, work = graph.constants.get(node.inputs[1]), operators.about(node.op).work
    if stored is None or stored.dtype.kind != "f" or stored.ndim < 2 or (work == "matmul" and stored.ndim != 2):
        return None
    if work == "gemm" and node.attributes.get("transA", 0):
        return None
    return Kernel(to_kernel_layout(stored.astype(np.float64), node), node, stored.shape)


def to_kernel_layout(stored: Array, node: Node) -> Array:
    """Return a tensor of the shape of a node's weight as (groups, outputs, inputs, taps)."""
    groups = int(node.attributes.get("group", 1))
    if operators.about(node.op).work == "conv":
        return stored.reshape(groups, stored.shape[0] // groups, stored.shape[1], -1)
    if operators.about(node.op).work == "transposed":
        flipped: Array = stored.reshape(groups, stored.shape[0] // groups, stored.shape[1], -1).swapaxes(1, 2)
        return flipped
    rows: Array = stored if node.attributes.get("transB", 0) else stored.T
    return rows[None, :, :, None]


def from_kernel_layout(values: Array, node: Node, shape: tuple[int, ...]) -> Array:
    """Return the tensor of the stored weight's shape from which :func:`to_kernel_layout` makes ``values``."""
    if operators.about(node.op).work == "conv":
        return values.reshape(shape)
    if operators.about(node.op).work == "transposed":
        return np.ascontiguousarray(values.swapaxes(1, 2)).reshape(shape)
    rows: Array = values[0, :, :, 0]
    return np.ascontiguousarray(rows if node.attributes.get("transB", 0) else rows.T)


def bias_factor(node: Node) -> float:
    """Return the factor of a node's bias: the beta of a Gemm, else 1."""
    return float(node.attributes.get("beta", 1.0)) if operators.about(node.op).work == "gemm" else 1.0


def with_plain_bias(node: Node) -> Mapping[str, Any]:
    """Return the node's attributes for a bias that is multiplied by its factor already."""
    return {**node.attributes, "beta": 1.0} if operators.about(node.op).work == "gemm" else node.attributes


def is_per_channel(bias: Array | None, channels: int) -> bool:
    """Return whether a stored bias is one value, or one per channel along the last axis."""
    return bias is not None and bias.size in (1, channels) and (bias.ndim == 0 or bias.shape[-1] == bias.size)


def weighted_nodes(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes with a stored weight, in order."""
    return tuple(node for node in graph.nodes if kernel_of(graph, node) is not None)


def channel_axis(node: Node, rank: int) -> int:
    """Return the axis of the node's output that holds its output channels."""
    return rank - 1 if operators.about(node.op).work == "matmul" else 1


def channel_means(array: Array, axis: int) -> F64:
    """Return the mean over all other axes, (channels,), summed in float64."""
    means: F64 = array.mean(axis=tuple(i for i in range(array.ndim) if i != axis), dtype=np.float64)
    return means


F32 = npt.NDArray[np.float32]
SUPPORTED = frozenset(name for name in operators.WEIGHTED if operators.about(name).work != "transposed")
"""Operators whose input :func:`patches` can divide; each output of a ConvTranspose uses other taps of its weight."""


@dataclass
class Moments:
    """Sums over patches of a weighted node's input, where n is inputs per group times taps as in :class:`Kernel`.

    Attributes:
        count: number of patches.
        first: Σ x, (groups, n).
        second: Σ x·xᵀ, (groups, n, n).
    """

    count: int
    first: F64
    second: F64

    @classmethod
    def empty(cls, kernel: Kernel) -> "Moments":
        """Return moments of no patches yet."""
        groups, _, inputs, taps = kernel.values.shape
        size = inputs * taps
        return cls(0, np.zeros((groups, size)), np.zeros((groups, size, size)))

    def add(self, rows: F32) -> None:
        """Add patches (groups, patches, n); products are float32, their sums over calls float64."""
        self.count += rows.shape[1]
        self.first += rows.sum(axis=1, dtype=np.float64)
        self.second += rows.transpose(0, 2, 1) @ rows

    def gram(self, *, centered: bool) -> F64:
        """Return E[x·xᵀ] per group, or with ``centered`` the covariance, for layers whose bias corrects the mean."""
        mean = self.first / self.count
        gram: F64 = self.second / self.count
        return gram - mean[:, :, None] * mean[:, None, :] if centered else gram


def patches(kernel: Kernel, values: Array, limit: int, random: np.random.Generator) -> F32:
    """Return up to ``limit`` patches of one input, chosen at random: (groups, patches, n) float32."""
    node = kernel.node
    if operators.about(node.op).work != "conv":
        rows = values.reshape(-1, values.shape[-1])
        return np.asarray(rows[_sample(len(rows), limit, random)][None], np.float32)
    groups, _, inputs, taps = kernel.values.shape
    windows = _windows(values[0], kernel)
    grid = windows.shape[1 : values.ndim - 1]
    places = np.unravel_index(_sample(math.prod(grid), limit, random), grid)
    index: Any = (slice(None), *places)
    picked = windows[index].reshape(groups, inputs, len(places[0]), taps)
    return np.ascontiguousarray(picked.swapaxes(1, 2), np.float32).reshape(groups, -1, inputs * taps)


def _sample(count: int, limit: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    if count <= limit:
        return np.arange(count)
    return np.sort(random.choice(count, limit, replace=False))


def _windows(channels: Array, kernel: Kernel) -> Array:
    """Return a view (channels, output positions …, taps …) of (channels, …), padded with zeros."""
    sizes = kernel.stored[2:]
    given = kernel.node.attributes
    strides, dilations = (given.get(name) or [1] * len(sizes) for name in ("strides", "dilations"))
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    padded = np.pad(channels, [(0, 0), *_pads(kernel, channels.shape[1:], reach, strides)])
    axes = tuple(range(1, channels.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=axes)
    steps = (slice(None), *(slice(None, None, step) for step in (*strides, *dilations)))
    view: Array = windows[steps]
    return view


def _pads(kernel: Kernel, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return (before, after) per dimension, https://onnx.ai/onnx/operators/onnx__Conv.html."""
    given, rank = kernel.node.attributes, len(sizes)
    how = given.get("auto_pad", b"NOTSET")
    if how in (b"SAME_UPPER", b"SAME_LOWER"):
        totals = [max(0, (-(-n // s) - 1) * s + r - n) for n, r, s in zip(sizes, reach, strides, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
        return sides if how == b"SAME_UPPER" else [(after, before) for before, after in sides]
    pads = [0] * (2 * rank) if how == b"VALID" else given.get("pads") or [0] * (2 * rank)
    return [(int(pads[i]), int(pads[i + rank])) for i in range(rank)]


Scales = npt.NDArray[np.float32]
T = TypeVar("T", bound=np.generic)

LIMIT = 127
"""Largest magnitude of integers, as in TensorRT: -128 has no positive counterpart."""

_BIAS_LIMIT = 2**30
"""Largest integer bias, half of int32; the other half is for the sum of products to which it is added."""


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A stored weight as integers.

    Attributes:
        values: int8 values in the weight's shape.
        scales: float32 scales, (channels,), or () for one scale.
        axis: dimension of the weight to which the scales belong; None for one scale.
    """

    values: npt.NDArray[np.int8]
    scales: Scales
    axis: int | None

    @property
    def restored(self) -> npt.NDArray[np.float32]:
        """Values of the integers."""
        return self.values.astype(np.float32) * along_axis(self.scales, self.axis, self.values.ndim)


def scale_axis(node: Node, weight: Array) -> int | None:
    """Return the dimension of output channels in a node's weight; None where there is none.

    In a grouped ConvTranspose it has the channels of one group, so that groups share their scales.
    """
    match operators.about(node.op).work:
        case "conv":
            return 0
        case "transposed":
            return 1
        case "gemm":
            return 0 if node.attributes.get("transB", 0) else 1
        case "matmul" if weight.ndim == 2:
            return 1
    return None


def weight_scales(weight: Array, axis: int | None) -> Scales:
    """Return symmetric scales max|w| / 127, one per index of ``axis``, or one of shape () for None.

    No smaller scale is searched for. Down to one half, in steps of 3 %, it lowered the squared error in only 2 of the
    28,217 output channels of five networks. A channel of zeros gets 1/127, which leaves its bias exact to a 16,129th of
    the input's amax.
    """
    others = None if axis is None else tuple(dim for dim in range(weight.ndim) if dim != axis)
    amax = np.abs(weight).max(axis=others, initial=0.0).astype(np.float32)
    return np.asarray(np.where(amax >= _TINY, amax, np.float32(1)) / np.float32(LIMIT), np.float32)


_TINY = np.float32(LIMIT * 2.0**-100)
"""Smallest magnitude whose scale keeps products of scales within float32's full precision."""


def quantize_weight(weight: Array, scales: Scales, axis: int | None) -> Weight:
    """Return the nearest integers, halves to even, clipped to [-127, 127]."""
    steps = np.rint(weight / along_axis(scales, axis, weight.ndim))
    return Weight(np.clip(steps, -LIMIT, LIMIT).astype(np.int8), scales, axis)


def integer_weight(graph: Graph, node: Node, rounded: Mapping[str, Array]) -> Weight:
    """Return a node's weight as integers, with scales of :func:`weight_scales`.

    Weights missing in ``rounded`` are rounded to nearest.
    """
    weight = graph.constants[node.inputs[1]]
    axis = scale_axis(node, weight)
    scales = weight_scales(weight, axis)
    values = rounded.get(node.inputs[1])
    return quantize_weight(weight, scales, axis) if values is None else Weight(values.astype(np.int8), scales, axis)


def along_axis(scales: npt.NDArray[T], axis: int | None, rank: int) -> npt.NDArray[T]:
    """Return values per channel, shaped to broadcast over a weight of this rank."""
    if axis is None:
        return scales
    return scales.reshape([-1 if dim == axis else 1 for dim in range(rank)])


def fit_bias(scales: Scales, bias: Array, input_scale: float) -> Scales:
    """Return scales, increased where the bias in steps of ``input_scale · scale`` would not fit into int32.

    That happens to weights that are tiny beside their bias. They lose precision, but the bias is 2**23 times what they
    can add.
    """
    least = np.abs(bias.astype(np.float64)) / (float(input_scale) * _BIAS_LIMIT)
    needed = least if scales.ndim else least.max(initial=0.0)
    return np.asarray(np.maximum(scales, np.nextafter(np.float32(needed), np.float32(np.inf))), np.float32)


def quantize_bias(bias: Array, scales: Scales, input_scale: float) -> tuple[npt.NDArray[np.int32], Scales]:
    """Return the bias as int32 and its scales ``input_scale · scale``, one per channel where the weight has them."""
    steps = np.asarray(np.float32(input_scale) * scales, np.float32)
    values = np.rint(bias.astype(np.float64) / steps.astype(np.float64))
    return values.astype(np.int32), steps


@dataclass(frozen=True, slots=True)
class Rounding:
    """Scale and zero point of Q and DQ nodes."""

    scale: np.float32
    zero: np.int8 | np.uint8

    def quantize(self, builder: draft.Builder, tensor: str, output: str, label: str) -> str:
        """Add a Q from a tensor to ``output``; return ``output``."""
        return builder.add("QuantizeLinear", [tensor, *self._parameters(builder, label)], output)

    def dequantize(self, builder: draft.Builder, stored: str, output: str, label: str) -> str:
        """Add a DQ from a stored tensor to ``output``; return ``output``."""
        return builder.add("DequantizeLinear", [stored, *self._parameters(builder, label)], output)

    def integer(self, value: float) -> Array:
        """Return the stored integer of a value, clipped to the range of its type."""
        bounds = np.iinfo(self.zero.dtype)
        step = np.rint(np.float64(value) / np.float64(self.scale)) + int(self.zero)
        return np.asarray(np.clip(step, bounds.min, bounds.max)).astype(self.zero.dtype)

    def _parameters(self, builder: draft.Builder, label: str) -> list[str]:
        scale = builder.share_constant(np.asarray(self.scale, np.float32), f"{label}_scale")
        return [scale, builder.share_constant(np.asarray(self.zero), f"{label}_zero_point")]


def raw_output_names(builder: draft.Builder, scheme: Scheme, node: Node) -> tuple[str, ...]:
    """Return the names of a node's outputs; a rounded graph output gives its own name to the rounded form."""
    rounded = {name for name in node.outputs if name in scheme.points and scheme.points[name].is_output}
    return tuple(builder.name(f"{name}_raw") if name in rounded else name for name in node.outputs)


def store_dequantized(builder: draft.Builder, values: Array, scales: Scales, axis: int | None, label: str) -> str:
    """Store integers behind a DQ with zero point 0, with one scale per index of ``axis``; return the DQ's output."""
    stored = builder.share_constant(values, f"{label}_quantized")
    steps = builder.share_constant(scales, f"{label}_scale")
    zeros = builder.share_constant(np.zeros(scales.shape, values.dtype), f"{label}_zero_point")
    attributes = {} if axis is None else {"axis": axis}
    return builder.add("DequantizeLinear", [stored, steps, zeros], builder.name(f"{label}_dequantized"), attributes)
