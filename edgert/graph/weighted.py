"""The stored weights of a Conv, ConvTranspose or Gemm, whatever their layout: read, scaled per channel, replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgert.graph.draft import Draft
from edgert.graph.ir import Node
from edgert.graph.proto import Array

F64 = npt.NDArray[np.float64]
LAYERS = ("Conv", "ConvTranspose", "Gemm")


@dataclass(frozen=True, slots=True)
class Weights:
    """What a layer holds, in float64: ``kernel`` in the layout of its weight input, ``bias`` (output channels,)."""

    kernel: F64
    bias: F64


def weights_of(layer: Node, draft: Draft) -> Weights | None:
    """A layer's stored weights, a missing bias as zeros; None if they are not stored, not float, or of an odd shape."""
    if layer.op not in LAYERS or layer.domain or len(layer.inputs) < 2:
        return None
    stored = draft.value(layer.inputs[1])
    bias_name = layer.inputs[2] if len(layer.inputs) > 2 else ""
    bias = draft.value(bias_name)
    if stored is None or (bias_name and bias is None) or "float" not in stored.dtype.name:
        return None
    kernel = stored.astype(np.float64)
    groups = layer.attributes.get("group", 1)
    if kernel.ndim < 2 or groups < 1 or kernel.shape[0] % groups:
        return None
    channels = _output_channels(layer, kernel)
    flat = _flat_bias(np.zeros(channels) if bias is None else bias.astype(np.float64), channels)
    return None if flat is None else Weights(kernel, flat * layer.attributes.get("beta", 1.0))


def _flat_bias(bias: F64, channels: int) -> F64 | None:
    """A Gemm's bias may be anything that broadcasts; only one value per channel can be scaled here."""
    if bias.size not in (1, channels) or (bias.ndim > 1 and bias.shape[-1] not in (1, channels)):
        return None
    if bias.ndim > 1 and bias.shape[-1] != bias.size:
        return None  # one value per row, not per channel
    return np.broadcast_to(bias.reshape(-1), (channels,))


def with_weights(draft: Draft, layer: Node, weights: Weights) -> Node | None:
    """The layer with new weights in the old ones' type; None, with nothing stored, when they overflow it."""
    kernel, bias = (_cast(draft, layer, values) for values in (weights.kernel, weights.bias))
    if kernel is None or bias is None:
        return None
    return _placed(draft, _placed(draft, layer, 1, kernel), 2, bias)


def with_bias(draft: Draft, layer: Node, values: F64) -> Node | None:
    """As :func:`with_weights`, for the bias alone."""
    bias = _cast(draft, layer, values)
    return None if bias is None else _placed(draft, layer, 2, bias)


def _cast(draft: Draft, layer: Node, values: F64) -> Array | None:
    """Values in the type of the layer's kernel; None when they overflow it."""
    stored = draft.value(layer.inputs[1])
    with np.errstate(all="ignore"):
        cast: Array = values.astype(np.float64 if stored is None else stored.dtype)
    return cast if np.isfinite(cast).all() else None


def _placed(draft: Draft, layer: Node, slot: int, array: Array) -> Node:
    """Replaces a stored tensor that only this layer reads; otherwise stores one beside it."""
    inputs = [*layer.inputs, *[""] * (slot + 1 - len(layer.inputs))]
    name = inputs[slot]
    wanted = f"{name}_folded" if name else f"{layer.inputs[1]}_bias"
    inputs[slot] = draft.instead(layer, name, array, wanted)
    has_factor = slot == 2 and layer.op == "Gemm" and "beta" in layer.attributes
    given = {**layer.attributes, "beta": 1.0} if has_factor else layer.attributes  # the new bias has it in
    return replace(layer, inputs=tuple(inputs), attributes=given)


def _output_channels(layer: Node, kernel: F64) -> int:
    given = layer.attributes
    match layer.op:
        case "Conv":
            return int(kernel.shape[0])
        case "ConvTranspose":
            return int(kernel.shape[1]) * int(given.get("group", 1))
    return int(kernel.shape[0 if given.get("transB", 0) else 1])


def per_output(layer: Node, kernel: F64, values: F64) -> F64:
    """Values per output channel, shaped to multiply the kernel: Conv (M, C/g, …), ConvTranspose (C, M/g, …)."""
    match layer.op:
        case "Conv":
            return values.reshape(-1, *[1] * (kernel.ndim - 1))
        case "ConvTranspose":
            groups = int(layer.attributes.get("group", 1))
            rows = np.repeat(values.reshape(groups, -1), kernel.shape[0] // groups, axis=0)
            return rows.reshape(*rows.shape, *[1] * (kernel.ndim - 2))
    return values.reshape((-1, 1) if layer.attributes.get("transB", 0) else (1, -1))


def input_channels(layer: Node, kernel: F64) -> int:
    """Channels that a Conv or Gemm reads."""
    if layer.op == "Conv":
        return int(kernel.shape[1]) * int(layer.attributes.get("group", 1))
    return int(kernel.shape[1 if layer.attributes.get("transB", 0) else 0])


def per_input(layer: Node, kernel: F64, values: F64) -> F64:
    """Values per input channel, shaped to multiply the kernel: row m of a Conv belongs to group m // (M/g)."""
    if layer.op == "Conv":
        groups = int(layer.attributes.get("group", 1))
        rows = np.repeat(values.reshape(groups, -1), kernel.shape[0] // groups, axis=0)
        return rows.reshape(*rows.shape, *[1] * (kernel.ndim - 2))
    return values.reshape((1, -1) if layer.attributes.get("transB", 0) else (-1, 1))


def reduced_axes(layer: Node, kernel: F64) -> tuple[int, ...]:
    """Axes of a Conv's or Gemm's kernel to sum over for one value per output channel."""
    if layer.op == "Conv":
        return tuple(range(1, kernel.ndim))
    return (1,) if layer.attributes.get("transB", 0) else (0,)


def alpha(layer: Node) -> float:
    """What a Gemm multiplies its product by; 1 for the others."""
    return float(layer.attributes.get("alpha", 1.0))
