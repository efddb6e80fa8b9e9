"""The pass that multiplies BatchNormalization into the weights beside it.

At inference y = (x - mean) / sqrt(var + epsilon) * gamma + beta, which is x * scale + shift per channel
(https://onnx.ai/onnx/operators/onnx__BatchNormalization.html). Behind a Conv, ConvTranspose or Gemm it scales that
layer's output channels; before a Conv or Gemm it scales its input channels, and the shift joins the bias, unless zeros
are padded in between: those would have been shifted, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgert.graph.index import Index
from edgert.graph.proto import Array, attributes, default_opset, from_array, is_standard, label, set_attribute, to_array
from edgert.graph.rewrite import Pass, allow_plain_initializers, drop_nodes, fresh_name

if TYPE_CHECKING:
    import onnx

F64 = npt.NDArray[np.float64]
_LAYERS = ("Conv", "ConvTranspose", "Gemm")


@dataclass(frozen=True, slots=True)
class _Affine:
    """A BatchNormalization as x * scale + shift; both (channels,)."""

    scale: F64
    shift: F64


@dataclass(frozen=True, slots=True)
class _Weights:
    """New weights of a layer: ``kernel`` in the layout of its weight input, ``bias`` (output channels,)."""

    kernel: F64
    bias: F64


def _fold_batchnorm(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph = proto.graph
    index = Index.of(graph)
    producers, gone = dict(index.producers), set()
    for position, node in enumerate(graph.node):
        affine = _affine(node, index, default_opset(proto))
        if affine is None:
            continue
        name = label(node, position)
        before = producers.get(node.input[0])
        if before is not None and _fold_back(proto, index, graph.node[before], node, affine):
            graph.node[before].output[0] = node.output[0]
            producers[node.output[0]] = before
            gone.add(position)
            yield name, f"folded into {label(graph.node[before], before)!r} before it"
            continue
        after = next(iter(index.consumers.get(node.output[0], ())), None)
        if after is not None and _fold_forward(proto, index, graph.node[after], node, affine):
            graph.node[after].input[0] = node.input[0]
            gone.add(position)
            yield name, f"folded into {label(graph.node[after], after)!r} behind it"
    drop_nodes(graph, gone)


def _affine(node: onnx.NodeProto, index: Index, opset: int) -> _Affine | None:
    """The node as scale and shift; None unless it is a BatchNormalization at inference with stored parameters."""
    if node.op_type != "BatchNormalization" or not is_standard(node) or any(node.output[1:]):
        return None
    given = attributes(node)
    per_element = opset < 9 and not given.get("spatial", 1)
    training = given.get("training_mode", 0) or (opset < 7 and not given.get("is_test", 0))
    stored = [index.constant(name) for name in node.input[1:5]]
    if per_element or training or len(stored) != 4:
        return None
    gamma, beta, mean, variance = (None if item is None else _f64(item) for item in stored)
    if gamma is None or beta is None or mean is None or variance is None:
        return None
    with np.errstate(all="ignore"):  # a broken variance gives infinities, which nothing takes in
        scale = gamma / np.sqrt(variance + given.get("epsilon", 1e-5))
        return _Affine(scale, beta - mean * scale)


def _fold_back(
    proto: onnx.ModelProto, index: Index, layer: onnx.NodeProto, norm: onnx.NodeProto, affine: _Affine
) -> bool:
    if not index.is_private(norm.input[0]):
        return False
    weights = _weights(layer, index)
    if weights is None or len(weights.bias) != len(affine.scale):
        return False
    kernel = weights.kernel * _output_scale(layer, weights.kernel, affine.scale)
    return _store(proto, index, layer, _Weights(kernel, weights.bias * affine.scale + affine.shift))


def _fold_forward(
    proto: onnx.ModelProto, index: Index, layer: onnx.NodeProto, norm: onnx.NodeProto, affine: _Affine
) -> bool:
    if not index.is_private(norm.output[0]) or layer.input[0] != norm.output[0] or not _takes_shift(layer, affine):
        return False
    weights = _weights(layer, index)
    if weights is None or _input_channels(layer, weights.kernel) != len(affine.scale):
        return False
    scale, shift = (_input_factor(layer, weights.kernel, values) for values in (affine.scale, affine.shift))
    axes = _reduced_axes(layer, weights.kernel)
    bias = weights.bias + _alpha(layer) * np.sum(weights.kernel * shift, axis=axes)
    return _store(proto, index, layer, _Weights(weights.kernel * scale, bias))


def _weights(layer: onnx.NodeProto, index: Index) -> _Weights | None:
    """A layer's stored weights, a missing bias as zeros; None when they are not stored or not of a known layout."""
    if layer.op_type not in _LAYERS or not is_standard(layer):
        return None
    stored = index.constant(layer.input[1])
    bias_name = layer.input[2] if len(layer.input) > 2 else ""
    bias = index.constant(bias_name)
    if stored is None or (bias_name and bias is None):
        return None
    kernel = _f64(stored)
    channels = _output_channels(layer, kernel)
    flat = _flat_bias(np.zeros(channels) if bias is None else _f64(bias), channels)
    return None if flat is None else _Weights(kernel, flat * attributes(layer).get("beta", 1.0))


def _flat_bias(bias: F64, channels: int) -> F64 | None:
    """A Gemm's bias may be anything that broadcasts; only one value per channel can be scaled here."""
    if bias.size not in (1, channels) or (bias.ndim > 1 and bias.shape[-1] not in (1, channels)):
        return None
    if bias.ndim > 1 and bias.shape[-1] != bias.size:
        return None  # one value per row, not per channel
    return np.broadcast_to(bias.reshape(-1), (channels,))


def _store(proto: onnx.ModelProto, index: Index, layer: onnx.NodeProto, weights: _Weights) -> bool:
    """Puts new weights in place in the old ones' type; False, with nothing changed, when they overflow it."""
    old = index.initializers[layer.input[1]]
    dtype = to_array(old).dtype
    with np.errstate(all="ignore"):
        kernel, bias = weights.kernel.astype(dtype), weights.bias.astype(dtype)
    if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
        return False
    _place(proto, index, layer, 1, kernel)
    _place(proto, index, layer, 2, bias)
    if layer.op_type == "Gemm" and "beta" in attributes(layer):
        set_attribute(layer, "beta", 1.0)
    return True


def _place(proto: onnx.ModelProto, index: Index, layer: onnx.NodeProto, slot: int, array: Array) -> None:
    """Overwrites a stored tensor that only this layer reads; otherwise stores one beside it."""
    name = layer.input[slot] if len(layer.input) > slot else ""
    if name and index.is_private(name):
        index.initializers[name].CopyFrom(from_array(array, name))
        return
    base = name or layer.input[1]
    fresh = fresh_name(proto.graph, f"{base}_{'folded' if name else 'bias'}")
    proto.graph.initializer.append(from_array(array, fresh))
    allow_plain_initializers(proto)
    while len(layer.input) <= slot:
        layer.input.append("")
    layer.input[slot] = fresh


def _takes_shift(layer: onnx.NodeProto, affine: _Affine) -> bool:
    """Whether a shift before the layer is the same for every output element."""
    given = attributes(layer)
    if layer.op_type == "Gemm":
        return not given.get("transA", 0)
    if layer.op_type != "Conv":
        return False
    padded = any(given.get("pads", ())) or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    return not padded or not np.any(affine.shift)


def _output_channels(layer: onnx.NodeProto, kernel: F64) -> int:
    given = attributes(layer)
    match layer.op_type:
        case "Conv":
            return int(kernel.shape[0])
        case "ConvTranspose":
            return int(kernel.shape[1]) * int(given.get("group", 1))
    return int(kernel.shape[0 if given.get("transB", 0) else 1])


def _output_scale(layer: onnx.NodeProto, kernel: F64, values: F64) -> F64:
    """Values per output channel, shaped to multiply the kernel: Conv (M, C/g, …), ConvTranspose (C, M/g, …)."""
    match layer.op_type:
        case "Conv":
            return values.reshape(-1, *[1] * (kernel.ndim - 1))
        case "ConvTranspose":
            groups = int(attributes(layer).get("group", 1))
            rows = np.repeat(values.reshape(groups, -1), kernel.shape[0] // groups, axis=0)
            return rows.reshape(*rows.shape, *[1] * (kernel.ndim - 2))
    return values.reshape((-1, 1) if attributes(layer).get("transB", 0) else (1, -1))


def _input_channels(layer: onnx.NodeProto, kernel: F64) -> int:
    if layer.op_type == "Conv":
        return int(kernel.shape[1]) * int(attributes(layer).get("group", 1))
    return int(kernel.shape[1 if attributes(layer).get("transB", 0) else 0])


def _input_factor(layer: onnx.NodeProto, kernel: F64, values: F64) -> F64:
    """Values per input channel, shaped to multiply the kernel: row m of a Conv belongs to group m // (M/g)."""
    if layer.op_type == "Conv":
        groups = int(attributes(layer).get("group", 1))
        rows = np.repeat(values.reshape(groups, -1), kernel.shape[0] // groups, axis=0)
        return rows.reshape(*rows.shape, *[1] * (kernel.ndim - 2))
    return values.reshape((1, -1) if attributes(layer).get("transB", 0) else (-1, 1))


def _reduced_axes(layer: onnx.NodeProto, kernel: F64) -> tuple[int, ...]:
    if layer.op_type == "Conv":
        return tuple(range(1, kernel.ndim))
    return (1,) if attributes(layer).get("transB", 0) else (0,)


def _alpha(layer: onnx.NodeProto) -> float:
    return float(attributes(layer).get("alpha", 1.0))


def _f64(tensor: onnx.TensorProto) -> Any:
    return to_array(tensor).astype(np.float64)


FOLD_BATCHNORM = Pass(
    "fold-batchnorm",
    "weights and bias of a Conv, ConvTranspose or Gemm take a neighbouring BatchNormalization in; it goes",
    _fold_batchnorm,
)
