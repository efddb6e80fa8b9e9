"""The stored weights of a Conv, ConvTranspose or Gemm, whatever their layout: read, scaled per channel, replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgert.graph.index import Index
from edgert.graph.proto import Array, attributes, dtype_name, from_array, is_standard, set_attribute, to_array
from edgert.graph.rewrite import Workspace

if TYPE_CHECKING:
    import onnx

F64 = npt.NDArray[np.float64]
LAYERS = ("Conv", "ConvTranspose", "Gemm")


@dataclass(frozen=True, slots=True)
class Weights:
    """What a layer holds, in float64: ``kernel`` in the layout of its weight input, ``bias`` (output channels,)."""

    kernel: F64
    bias: F64


def weights_of(layer: onnx.NodeProto, index: Index) -> Weights | None:
    """A layer's stored weights, a missing bias as zeros; None if they are not stored, not float, or of an odd shape."""
    if layer.op_type not in LAYERS or not is_standard(layer) or len(layer.input) < 2:
        return None
    stored = index.constant(layer.input[1])
    bias_name = layer.input[2] if len(layer.input) > 2 else ""
    bias = index.constant(bias_name)
    if stored is None or (bias_name and bias is None) or "float" not in dtype_name(stored.data_type):
        return None
    kernel = to_f64(stored)
    groups = attributes(layer).get("group", 1)
    if kernel.ndim < 2 or groups < 1 or kernel.shape[0] % groups:
        return None
    channels = _output_channels(layer, kernel)
    flat = _flat_bias(np.zeros(channels) if bias is None else to_f64(bias), channels)
    return None if flat is None else Weights(kernel, flat * attributes(layer).get("beta", 1.0))


def _flat_bias(bias: F64, channels: int) -> F64 | None:
    """A Gemm's bias may be anything that broadcasts; only one value per channel can be scaled here."""
    if bias.size not in (1, channels) or (bias.ndim > 1 and bias.shape[-1] not in (1, channels)):
        return None
    if bias.ndim > 1 and bias.shape[-1] != bias.size:
        return None  # one value per row, not per channel
    return np.broadcast_to(bias.reshape(-1), (channels,))


def store_weights(work: Workspace, layer: onnx.NodeProto, weights: Weights) -> bool:
    """Puts new weights in place in the old ones' type; False, with nothing changed, when they overflow it."""
    dtype = to_array(work.index.initializers[layer.input[1]]).dtype
    with np.errstate(all="ignore"):
        kernel, bias = weights.kernel.astype(dtype), weights.bias.astype(dtype)
    if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
        return False
    _place(work, layer, 1, kernel)
    _place_bias(work, layer, bias)
    return True


def store_bias(work: Workspace, layer: onnx.NodeProto, bias: F64) -> bool:
    """As :func:`store_weights`, for the bias alone."""
    dtype = to_array(work.index.initializers[layer.input[1]]).dtype
    with np.errstate(all="ignore"):
        cast = bias.astype(dtype)
    if not np.isfinite(cast).all():
        return False
    _place_bias(work, layer, cast)
    return True


def _place_bias(work: Workspace, layer: onnx.NodeProto, bias: Array) -> None:
    _place(work, layer, 2, bias)
    if layer.op_type == "Gemm" and "beta" in attributes(layer):
        set_attribute(layer, "beta", 1.0)  # the new bias has it in


def _place(work: Workspace, layer: onnx.NodeProto, slot: int, array: Array) -> None:
    """Overwrites a stored tensor that only this layer reads; otherwise stores one beside it."""
    name = layer.input[slot] if len(layer.input) > slot else ""
    if name and work.index.is_private(name):
        work.index.initializers[name].CopyFrom(from_array(array, name))
        return
    while len(layer.input) <= slot:
        layer.input.append("")
    layer.input[slot] = work.store(array, f"{name}_folded" if name else f"{layer.input[1]}_bias")


def _output_channels(layer: onnx.NodeProto, kernel: F64) -> int:
    given = attributes(layer)
    match layer.op_type:
        case "Conv":
            return int(kernel.shape[0])
        case "ConvTranspose":
            return int(kernel.shape[1]) * int(given.get("group", 1))
    return int(kernel.shape[0 if given.get("transB", 0) else 1])


def per_output(layer: onnx.NodeProto, kernel: F64, values: F64) -> F64:
    """Values per output channel, shaped to multiply the kernel: Conv (M, C/g, …), ConvTranspose (C, M/g, …)."""
    match layer.op_type:
        case "Conv":
            return values.reshape(-1, *[1] * (kernel.ndim - 1))
        case "ConvTranspose":
            groups = int(attributes(layer).get("group", 1))
            rows = np.repeat(values.reshape(groups, -1), kernel.shape[0] // groups, axis=0)
            return rows.reshape(*rows.shape, *[1] * (kernel.ndim - 2))
    return values.reshape((-1, 1) if attributes(layer).get("transB", 0) else (1, -1))


def input_channels(layer: onnx.NodeProto, kernel: F64) -> int:
    """Channels that a Conv or Gemm reads."""
    if layer.op_type == "Conv":
        return int(kernel.shape[1]) * int(attributes(layer).get("group", 1))
    return int(kernel.shape[1 if attributes(layer).get("transB", 0) else 0])


def per_input(layer: onnx.NodeProto, kernel: F64, values: F64) -> F64:
    """Values per input channel, shaped to multiply the kernel: row m of a Conv belongs to group m // (M/g)."""
    if layer.op_type == "Conv":
        groups = int(attributes(layer).get("group", 1))
        rows = np.repeat(values.reshape(groups, -1), kernel.shape[0] // groups, axis=0)
        return rows.reshape(*rows.shape, *[1] * (kernel.ndim - 2))
    return values.reshape((1, -1) if attributes(layer).get("transB", 0) else (-1, 1))


def reduced_axes(layer: onnx.NodeProto, kernel: F64) -> tuple[int, ...]:
    """Axes of a Conv's or Gemm's kernel to sum over for one value per output channel."""
    if layer.op_type == "Conv":
        return tuple(range(1, kernel.ndim))
    return (1,) if attributes(layer).get("transB", 0) else (0,)


def alpha(layer: onnx.NodeProto) -> float:
    """What a Gemm multiplies its product by; 1 for the others."""
    return float(attributes(layer).get("alpha", 1.0))


def to_f64(tensor: onnx.TensorProto) -> F64:
    """A tensor's values in float64."""
    values: F64 = to_array(tensor).astype(np.float64)
    return values
