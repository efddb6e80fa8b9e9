"""The pass that multiplies BatchNormalization into the weights beside it.

At inference y = (x - mean) / sqrt(var + epsilon) * gamma + beta, which is x * scale + shift per channel
(https://onnx.ai/onnx/operators/onnx__BatchNormalization.html). Behind a Conv, ConvTranspose or Gemm it scales that
layer's output channels; before a Conv or Gemm it scales its input channels, and the shift joins the bias, unless zeros
are padded in between: those would have been shifted, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgert.graph.index import Index
from edgert.graph.layer import (
    F64,
    Weights,
    alpha,
    input_channels,
    per_input,
    per_output,
    reduced_axes,
    store_weights,
    to_f64,
    weights_of,
)
from edgert.graph.proto import attributes, default_opset, is_standard, label
from edgert.graph.rewrite import Pass, Workspace, drop_nodes

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class _Affine:
    """A BatchNormalization as x * scale + shift; both (channels,)."""

    scale: F64
    shift: F64


def _fold_batchnorm(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph, opset = proto.graph, default_opset(proto)
    if not any(node.op_type == "BatchNormalization" for node in graph.node):
        return
    work = Workspace.of(proto)
    producers, gone = dict(work.index.producers), set()
    for position, node in enumerate(graph.node):
        affine = _affine(node, work.index, opset)
        if affine is None:
            continue
        name = label(node, position)
        before = producers.get(node.input[0])
        if before is not None and _fold_back(work, graph.node[before], node, affine):
            graph.node[before].output[0] = node.output[0]
            producers[node.output[0]] = before
            gone.add(position)
            yield name, f"folded into {label(graph.node[before], before)!r} before it"
            continue
        after = next(iter(work.index.consumers.get(node.output[0], ())), None)
        if after is not None and _fold_forward(work, graph.node[after], node, affine):
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
    gamma, beta, mean, variance = (None if item is None else to_f64(item) for item in stored)
    if gamma is None or beta is None or mean is None or variance is None:
        return None
    if not gamma.shape == beta.shape == mean.shape == variance.shape == (gamma.size,):
        return None
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + given.get("epsilon", 1e-5))
        shift = beta - mean * scale
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):  # a broken variance: left to the backend
        return None
    return _Affine(scale, shift)


def _fold_back(work: Workspace, layer: onnx.NodeProto, norm: onnx.NodeProto, affine: _Affine) -> bool:
    if not work.index.is_private(norm.input[0]):
        return False
    weights = weights_of(layer, work.index)
    if weights is None or len(weights.bias) != len(affine.scale):
        return False
    kernel = weights.kernel * per_output(layer, weights.kernel, affine.scale)
    return store_weights(work, layer, Weights(kernel, weights.bias * affine.scale + affine.shift))


def _fold_forward(work: Workspace, layer: onnx.NodeProto, norm: onnx.NodeProto, affine: _Affine) -> bool:
    if not work.index.is_private(norm.output[0]) or layer.input[0] != norm.output[0] or not _takes_shift(layer, affine):
        return False
    weights = weights_of(layer, work.index)
    if weights is None or input_channels(layer, weights.kernel) != len(affine.scale):
        return False
    scale, shift = (per_input(layer, weights.kernel, values) for values in (affine.scale, affine.shift))
    axes = reduced_axes(layer, weights.kernel)
    bias = weights.bias + alpha(layer) * np.sum(weights.kernel * shift, axis=axes)
    return store_weights(work, layer, Weights(weights.kernel * scale, bias))


def _takes_shift(layer: onnx.NodeProto, affine: _Affine) -> bool:
    """Whether a shift before the layer is the same for every output element."""
    given = attributes(layer)
    if layer.op_type == "Gemm":
        return not given.get("transA", 0)
    if layer.op_type != "Conv":
        return False
    padded = any(given.get("pads", ())) or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    return not padded or not np.any(affine.shift)


FOLD_BATCHNORM = Pass(
    "fold-batchnorm",
    "weights and bias of a Conv, ConvTranspose or Gemm take a neighbouring BatchNormalization in; it goes",
    _fold_batchnorm,
)
