"""Passes that fold what stands beside a layer into its weights: BatchNormalization, and constants added per channel.

At inference y = (x - mean) / sqrt(var + epsilon) * gamma + beta, which is x * scale + shift per channel
(https://onnx.ai/onnx/operators/onnx__BatchNormalization.html). Behind a Conv, ConvTranspose or Gemm it scales that
layer's output channels; before a Conv or Gemm it scales its input channels, and the shift joins the bias, unless zeros
are padded in between: those would have been shifted, too.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgert.graph.draft import Draft, each
from edgert.graph.fold_constants import MIN_OPSET
from edgert.graph.ir import Node, Pass
from edgert.graph.model import Array

# The stored weights of a Conv, ConvTranspose or Gemm, whatever their layout: read, scaled per channel, replaced.

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


# BatchNormalization.


@dataclass(frozen=True, slots=True)
class _Affine:
    """A BatchNormalization as x * scale + shift; both (channels,)."""

    scale: F64
    shift: F64


def _fold_batchnorm(draft: Draft, norm: Node) -> None:
    affine = _affine(draft, norm)
    if affine is None:
        return
    before = draft.before(norm.inputs[0])
    made = None if before is None else _folded_back(draft, before, norm, affine)
    if before is not None and made is not None:
        draft.replace(before, replace(made, outputs=norm.outputs[:1]))
        draft.put(norm, (), f"folded into {before.name!r} before it")
        return
    after = next(iter(draft.graph.consumers.get(norm.outputs[0], ())), None)
    made = None if after is None or not draft.is_free(after) else _folded_forward(draft, after, norm, affine)
    if after is not None and made is not None:
        draft.replace(after, replace(made, inputs=(norm.inputs[0], *made.inputs[1:])))
        draft.put(norm, (), f"folded into {after.name!r} behind it")


def _affine(draft: Draft, node: Node) -> _Affine | None:
    """The node as scale and shift; None unless it is a BatchNormalization at inference with stored parameters."""
    if any(node.outputs[1:]):
        return None
    given, opset = node.attributes, draft.graph.opset
    per_element = opset < 9 and not given.get("spatial", 1)
    training = given.get("training_mode", 0) or (opset < 7 and not given.get("is_test", 0))
    stored = [draft.value(name) for name in node.inputs[1:5]]
    if per_element or training or len(stored) != 4:
        return None
    gamma, beta, mean, variance = (None if item is None else item.astype(np.float64) for item in stored)
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


def _folded_back(draft: Draft, layer: Node, norm: Node, affine: _Affine) -> Node | None:
    if not draft.graph.is_private(norm.inputs[0]):
        return None
    weights = weights_of(layer, draft)
    if weights is None or len(weights.bias) != len(affine.scale):
        return None
    kernel = weights.kernel * per_output(layer, weights.kernel, affine.scale)
    return with_weights(draft, layer, Weights(kernel, weights.bias * affine.scale + affine.shift))


def _folded_forward(draft: Draft, layer: Node, norm: Node, affine: _Affine) -> Node | None:
    name = norm.outputs[0]
    if not draft.graph.is_private(name) or layer.inputs[0] != name or not _takes_shift(layer, affine):
        return None
    weights = weights_of(layer, draft)
    if weights is None or input_channels(layer, weights.kernel) != len(affine.scale):
        return None
    scale, shift = (per_input(layer, weights.kernel, values) for values in (affine.scale, affine.shift))
    axes = reduced_axes(layer, weights.kernel)
    bias = weights.bias + alpha(layer) * np.sum(weights.kernel * shift, axis=axes)
    return with_weights(draft, layer, Weights(weights.kernel * scale, bias))


def _takes_shift(layer: Node, affine: _Affine) -> bool:
    """Whether a shift before the layer is the same for every output element."""
    given = layer.attributes
    if layer.op == "Gemm":
        return not given.get("transA", 0)
    if layer.op != "Conv":
        return False
    padded = any(given.get("pads", ())) or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    return not padded or not np.any(affine.shift)


FOLD_BATCHNORM = Pass(
    "fold-batchnorm",
    "BatchNormalization is multiplied into the weights beside it",
    "it is a layer of its own otherwise, with its own memory traffic",
    each("fold-batchnorm", {"BatchNormalization": _fold_batchnorm}),
)


# The pass that adds a constant per channel behind a layer to the layer's bias.


def _fold_bias(draft: Draft, node: Node) -> None:
    if draft.graph.opset < MIN_OPSET:
        return
    for computed, stored in (node.inputs, tuple(reversed(node.inputs))):
        layer = draft.before(computed)
        made = None if layer is None else _with_added(draft, layer, computed, stored)
        if layer is not None and made is not None:
            draft.replace(layer, replace(made, outputs=node.outputs))
            draft.put(node, (), f"added to the bias of {layer.name!r}")
            return


def _with_added(draft: Draft, layer: Node, computed: str, stored: str) -> Node | None:
    constant, weights = draft.value(stored), weights_of(layer, draft)
    if constant is None or weights is None or not draft.graph.is_private(computed):
        return None
    rank = 2 if layer.op == "Gemm" else weights.kernel.ndim
    added = _per_channel(constant.astype(np.float64), rank, len(weights.bias))
    return None if added is None else with_bias(draft, layer, weights.bias + added)


def _per_channel(values: F64, rank: int, channels: int) -> F64 | None:
    """Values that broadcast to (N, channels, …) with one value per channel, as (channels,) or (1,); else None."""
    shape = (1,) * (rank - values.ndim) + values.shape
    fits = len(shape) == rank and shape[1] in (1, channels) and values.size == shape[1]
    return values.reshape(-1) if fits else None


FOLD_BIAS = Pass(
    "fold-bias",
    "a constant per channel behind a layer is added to the layer's bias",
    "it is a layer of its own otherwise",
    each("fold-bias", {"Add": _fold_bias}),
)
