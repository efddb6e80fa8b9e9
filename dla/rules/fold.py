"""Nodes that are gone before anything runs: stored results, names, scales."""

from __future__ import annotations

from dla.limit import ISSUE_QDQ, TYPED
from dla.node import Node, given, numbers
from dla.rule import rule
from dla.target import Target
from dla.verdict import FOLDED, Verdict, no, verify

_SCALES = ("QuantizeLinear", "DequantizeLinear")
_REQUANTIZE = "quantize the float model with edgert quantize --target dla"


def folded(node: Node) -> Verdict | None:
    """Yes for a node that costs nothing, with the reason; None for one that needs a layer."""
    made = [tensor for tensor in node.outputs if tensor is not None]
    if made and all(tensor.is_constant for tensor in made):
        return Verdict("yes", FOLDED, "its result is known beforehand and stored")
    if node.op in _SCALES:
        return Verdict("yes", FOLDED, "it becomes the scale of a tensor")
    if _is_name(node):
        return Verdict("yes", FOLDED, "it hands its input on: edgert removes it when it builds")
    return None


def _is_name(node: Node) -> bool:
    """Whether the node only gives its input another name."""
    if not node.inputs or not node.outputs or node.inputs[0] is None or node.outputs[0] is None:
        return False
    source, made = node.inputs[0], node.outputs[0]
    match node.op:
        case "Identity":
            return True
        case "Dropout":
            mode = given(node, 2)
            idle = mode is None or mode.is_zero is True
            return idle and not any(node.outputs[1:])
        case "Cast":
            return source.dtype == made.dtype != "unknown"
        case "Concat":
            return len(node.inputs) == 1
        case "Transpose":
            order = numbers(node, "perm", ())
            return bool(order) and order == tuple(range(len(order)))
        case "Reshape":
            return source.shape == made.shape and source.shape is not None and source.shape.count(None) == 0
    return False


@rule("scale.symmetric", ISSUE_QDQ)
def symmetric(node: Node, target: Target) -> Verdict | None:
    """Zero stands at zero: a calibration cache has no place for another."""
    zero = given(node, 2)
    if zero is None or zero.is_zero:
        return None
    if zero.is_zero is None:
        return verify("its zero point is not known beforehand, and has to be 0", _REQUANTIZE)
    if not target.is_typed:
        return no("its zero point is not 0, which calibration caches cannot say", _REQUANTIZE)
    return verify("its zero point is not 0: the parser needs ENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLA", _REQUANTIZE)


@rule("scale.tensor", TYPED)
def per_tensor(node: Node, target: Target) -> Verdict | None:
    """One scale per activation; one per channel only for weights, which no source has seen accepted."""
    scale, source = given(node, 1), given(node, 0)
    if scale is None or scale.size in (1, None):
        return None
    if source is None or not source.is_constant:
        return no("activations have one scale per tensor", _REQUANTIZE)
    if target.is_typed:
        return verify("whether weights may have a scale per channel is not documented", _REQUANTIZE)
    return None  # the builder computes the scales of weights itself


SCALE = (symmetric, per_tensor)
