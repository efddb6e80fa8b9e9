"""What holds for every layer."""

from __future__ import annotations

from math import prod

from dla.limit import GUIDE, LIMITS, MATRIX
from dla.node import Node, Shape, data_inputs, data_tensors
from dla.rule import outside, rule
from dla.target import Target
from dla.verdict import Verdict, no, note, verify

COMPARISONS = ("Equal", "Greater", "Less")
"""Their output is a truth value, for a cast behind them."""
_COMPUTED = ("float32", "float16", "int8", "unknown")
_STATIC = "fix the shape: --shape INPUT=1x3x320x320, or export without dynamic axes"
_INNER = 3  # dimensions that are no batch: channels, height, width
_HEAD_FIX = "leave it to the GPU, or keep the tensor as N×C×1×1 until the end"


@rule("general.domain", MATRIX)
def domain(node: Node, target: Target) -> Verdict | None:
    """Only standard operators have a DLA layer; a plugin never has."""
    if node.domain in ("", "ai.onnx"):
        return None
    reason = f"{node.domain}.{node.op} is outside the ONNX standard: TensorRT would need a plugin, which is GPU code"
    return no(reason, "write it in standard operators, or leave it to the GPU")


@rule("general.static", GUIDE)
def static(node: Node, target: Target) -> Verdict | None:
    """Every dimension is fixed; of the leading one a profile may fix it."""
    shapes = [(tensor.name, tensor.shape) for tensor in data_tensors(node)]
    vague = next((name for name, shape in shapes if shape is None or None in shape[1:]), None)
    if vague is not None:
        return no(f"tensor {vague} has open dimensions", _STATIC)
    led = next((name for name, shape in shapes if shape and shape[0] is None), None)
    if led is None:
        return None
    return verify(f"the batch of {led} is open: it must have min = opt = max in the profile", _STATIC)


@rule("general.batch")
def batch(node: Node, target: Target) -> Verdict | None:
    """All dimensions before the last three count as the batch."""
    sizes = [batch_of(tensor.shape) for tensor in data_tensors(node) if tensor.shape is not None]
    return next((found for size in sizes if (found := outside("general.batch", "the batch", [size]))), None)


@rule("general.dimension")
def dimension(node: Node, target: Target) -> Verdict | None:
    """Channels, height and width have a largest size."""
    allowed = LIMITS["general.dimension"]
    for tensor in data_tensors(node):
        inner = [dim for dim in _inner(tensor.shape or ()) if dim is not None]
        if any(dim not in allowed for dim in inner):
            return no(f"{tensor.name} is {'×'.join(map(str, inner))}; a dimension must be {allowed}", _HEAD_FIX)
    return None


@rule("general.type", GUIDE)
def dtype(node: Node, target: Target) -> Verdict | None:
    """The DLA computes in FP16 and INT8 only."""
    tensors = data_inputs(node) if node.op in COMPARISONS else data_tensors(node)
    odd = next((tensor for tensor in tensors if tensor.dtype not in _COMPUTED), None)
    if odd is None:
        return None
    return no(f"{odd.name} is {odd.dtype}; the DLA computes in FP16 and INT8", "compute it before or after the network")


@rule("general.planar", GUIDE)
def planar(node: Node, target: Target) -> Verdict | None:
    """Layers are two-dimensional: batch, channels, height, width."""
    odd = next((tensor for tensor in data_tensors(node) if tensor.rank not in (4, None)), None)
    if odd is None:
        return None
    return no(f"{odd.name} has {odd.rank} dimensions; the layer takes N×C×H×W", _HEAD_FIX)


def only_half(what: str, target: Target) -> Verdict | None:
    """What an FP16-only layer means for a build in this precision."""
    if not target.is_int8:
        return None
    if target.is_typed:
        reason = f"{what} runs in FP16 only, and a typed INT8 region wants one type"
        return verify(reason, "give it FP16 in the graph", "fp16")
    return note(f"{what} runs in FP16 inside an INT8 build", "fp16")


def batch_of(shape: Shape | None) -> int | None:
    """The effective batch: the product of what stands before the last three dimensions; None while it is open."""
    outer = () if not shape else shape[:-_INNER] or shape[:1]
    known = [dim for dim in outer if dim is not None]
    return prod(known) if len(known) == len(outer) and shape is not None else None


def _inner(shape: Shape) -> Shape:
    return shape[-_INNER:] if len(shape) > _INNER else shape[1:]


EVERY = (domain, static, batch, dimension, dtype)
"""Rules for every operator that has a layer."""
