"""Passes that fold BatchNormalization and constants added per channel into the weights of a neighboring layer.

At inference y = (x - mean) / sqrt(var + epsilon) * gamma + beta, which is x * scale + shift per channel
(https://onnx.ai/onnx/operators/onnx__BatchNormalization.html). After a Conv, ConvTranspose or Gemm it scales that
layer's output channels. Before a Conv or Gemm it scales the input channels, and the shift is added to the bias. A Conv
that pads with zeros allows no shift before it, since zeros around the shifted image are not shifted.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgert.graph.draft import Draft, rewrite
from edgert.graph.fold_constants import MIN_OPSET
from edgert.graph.ir import Node
from edgert.graph.model import Array

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of a layer in float64.

    Attributes:
        kernel: weights as stored: (M, C/g, …) for a Conv, (C, M/g, …) for a ConvTranspose, a matrix for a Gemm.
        bias: bias, (output channels,).
    """

    kernel: F64
    bias: F64


def _weights_of(layer: Node, draft: Draft) -> _Weights | None:
    """Return a layer's weights, with zeros for a missing bias.

    None if they are computed, not float, or cannot be scaled per channel.
    """
    if layer.op not in ("Conv", "ConvTranspose", "Gemm") or layer.domain or len(layer.inputs) < 2:
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
    channels = _channel_count(layer, kernel, _output_axis(layer))
    values = np.zeros(channels) if bias is None else bias.astype(np.float64)
    last = values.shape[-1] if values.ndim > 1 else values.size
    if last not in (1, channels) or last != values.size:
        return None  # the bias of a Gemm may have any shape that broadcasts; only one value per channel can be scaled
    return _Weights(kernel, np.broadcast_to(values.reshape(-1), (channels,)) * layer.attributes.get("beta", 1.0))


def _output_axis(layer: Node) -> int:
    """Return the axis of output channels in the kernel, 0 or 1; the other one holds the input channels."""
    is_transposed = layer.op == "Gemm" and not layer.attributes.get("transB", 0)
    return int(layer.op == "ConvTranspose" or is_transposed)


def _channel_count(layer: Node, kernel: F64, axis: int) -> int:
    """Return the channels along axis 0 or 1 of the kernel, of all groups together."""
    return int(kernel.shape[axis]) * (int(layer.attributes.get("group", 1)) if axis else 1)


def _for_kernel(layer: Node, kernel: F64, values: F64, axis: int) -> F64:
    """Return values per channel along axis 0 or 1, in a shape that broadcasts over the kernel."""
    if axis:
        groups = int(layer.attributes.get("group", 1))
        values = np.repeat(values.reshape(groups, -1), kernel.shape[0] // groups, axis=0)
    return values.reshape(*values.shape, *[1] * (kernel.ndim - values.ndim))


def _with_weights(draft: Draft, layer: Node, kernel: F64 | None, bias: F64) -> Node | None:
    """Return the layer with new weights in its kernel's element type; None when they overflow that type.

    With a ``kernel`` of None the layer keeps its own.
    """
    stored = draft.value(layer.inputs[1])
    with np.errstate(all="ignore"):
        cast: list[Array | None] = [
            None if values is None else values.astype(np.float64 if stored is None else stored.dtype)
            for values in (kernel, bias)
        ]
    if any(array is not None and not np.isfinite(array).all() for array in cast):
        return None
    inputs = [*layer.inputs, *[""] * (3 - len(layer.inputs))]
    for slot, array in enumerate(cast, 1):
        if array is not None:
            wanted = f"{inputs[slot]}_folded" if inputs[slot] else f"{layer.inputs[1]}_bias"
            inputs[slot] = draft.replace_constant(layer, inputs[slot], array, wanted)
    has_factor = layer.op == "Gemm" and "beta" in layer.attributes
    given = {**layer.attributes, "beta": 1.0} if has_factor else layer.attributes  # the new bias includes it
    return replace(layer, inputs=tuple(inputs), attributes=given)


@dataclass(frozen=True, slots=True)
class _Affine:
    """Factor and summand per channel, as in x * scale + shift; both (channels,)."""

    scale: F64
    shift: F64


def _fold_batchnorm(draft: Draft, norm: Node) -> None:
    affine = _affine(draft, norm)
    if affine is None:
        return
    before = draft.producer(norm.inputs[0])
    made = None if before is None else _scale_outputs(draft, before, norm, affine)
    if before is not None and made is not None:
        draft.update(before, replace(made, outputs=norm.outputs[:1]))
        draft.replace(norm, (), f"folded into {before.name!r} before it")
        return
    after = next(iter(draft.graph.consumers.get(norm.outputs[0], ())), None)
    made = None if after is None or not draft.is_free(after) else _scale_inputs(draft, after, norm, affine)
    if after is not None and made is not None:
        draft.update(after, replace(made, inputs=(norm.inputs[0], *made.inputs[1:])))
        draft.replace(norm, (), f"folded into {after.name!r} behind it")


def _affine(draft: Draft, node: Node) -> _Affine | None:
    """Return the scale and shift of a BatchNormalization; None in training, and for parameters that are computed."""
    given, opset = node.attributes, draft.graph.opset
    per_element = opset < 9 and not given.get("spatial", 1)
    training = given.get("training_mode", 0) or (opset < 7 and not given.get("is_test", 0))
    found = [draft.value(name) for name in node.inputs[1:5]]
    stored = [item.astype(np.float64) for item in found if item is not None]
    if any(node.outputs[1:]) or per_element or training or len(stored) != 4:
        return None
    gamma, beta, mean, variance = stored
    if any(item.shape != (gamma.size,) for item in stored):
        return None
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + given.get("epsilon", 1e-5))
        shift = beta - mean * scale
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):  # a broken variance: the backend decides
        return None
    return _Affine(scale, shift)


def _scale_outputs(draft: Draft, layer: Node, norm: Node, affine: _Affine) -> Node | None:
    weights = _weights_of(layer, draft) if draft.graph.is_private(norm.inputs[0]) else None
    if weights is None or len(weights.bias) != len(affine.scale):
        return None
    scale = _for_kernel(layer, weights.kernel, affine.scale, _output_axis(layer))
    return _with_weights(draft, layer, weights.kernel * scale, weights.bias * affine.scale + affine.shift)


def _scale_inputs(draft: Draft, layer: Node, norm: Node, affine: _Affine) -> Node | None:
    name, output, given = norm.outputs[0], _output_axis(layer), layer.attributes
    padded = any(given.get("pads", ())) or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    is_same_shift = layer.op == "Conv" and (not padded or not np.any(affine.shift))
    if not is_same_shift and (layer.op != "Gemm" or given.get("transA", 0)):
        return None  # a shift before the layer would differ from one output element to another
    weights = _weights_of(layer, draft) if draft.graph.is_private(name) and layer.inputs[0] == name else None
    if weights is None or _channel_count(layer, weights.kernel, 1 - output) != len(affine.scale):
        return None
    scale, shift = (_for_kernel(layer, weights.kernel, values, 1 - output) for values in (affine.scale, affine.shift))
    axes = tuple(axis for axis in range(weights.kernel.ndim) if axis != output)
    added = float(given.get("alpha", 1.0)) * np.sum(weights.kernel * shift, axis=axes)
    return _with_weights(draft, layer, weights.kernel * scale, weights.bias + added)


FOLD_BATCHNORM = rewrite(
    "fold-batchnorm",
    "BatchNormalization is folded into the weights of the layer before or after it",
    {"BatchNormalization": _fold_batchnorm},
    grows=False,
)


def _fold_bias(draft: Draft, node: Node) -> None:
    if draft.graph.opset < MIN_OPSET:
        return
    for computed, stored in (node.inputs, tuple(reversed(node.inputs))):
        layer = draft.producer(computed)
        made = None if layer is None else _add_to_bias(draft, layer, computed, stored)
        if layer is not None and made is not None:
            draft.update(layer, replace(made, outputs=node.outputs))
            draft.replace(node, (), f"added to the bias of {layer.name!r}")
            return


def _add_to_bias(draft: Draft, layer: Node, computed: str, stored: str) -> Node | None:
    constant, weights = draft.value(stored), _weights_of(layer, draft)
    if constant is None or weights is None or not draft.graph.is_private(computed):
        return None
    rank = 2 if layer.op == "Gemm" else weights.kernel.ndim
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if len(shape) != rank or shape[1] not in (1, len(weights.bias)) or constant.size != shape[1]:
        return None  # not one value per channel of (N, channels, …)
    return _with_weights(draft, layer, None, weights.bias + constant.astype(np.float64).reshape(-1))


FOLD_BIAS = rewrite(
    "fold-bias",
    "a constant per channel behind a layer is added to the layer's bias",
    {"Add": _fold_bias},
    grows=False,
)
