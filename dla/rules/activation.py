"""Activations."""

from __future__ import annotations

from dla.limit import GUIDE, LIMITS, MATRIX
from dla.node import Node, given
from dla.rule import rule
from dla.target import Target
from dla.verdict import Verdict, no, note, verify

_SLOPE_FIX = "store the slope with as many dimensions as the input, 1×C×1×1"
_SINCE_TRIGONOMETRY = (8, 6, 12)


@rule("activation.precision", GUIDE)
def promoted(node: Node, target: Target) -> Verdict | None:
    """Sigmoid and TanH are computed in FP16, whatever goes in and out."""
    return note("it is computed in FP16 inside", "lookup") if target.is_int8 else None


@rule("clip.ceiling")
def clip(node: Node, target: Target) -> Verdict | None:
    """A clip is a ReLU with a ceiling: from 0 to a number in bounds."""
    low, high = _bound(node, "min", 1), _bound(node, "max", 2)
    if low is None or high is None:
        return no("its bounds are computed at run time", "store the bounds")
    allowed = LIMITS["clip.ceiling"]
    if low == 0 and high == float("inf"):
        return no("it has no upper bound", "write it as Relu, which it is")
    if low == 0 and allowed.low <= high <= allowed.high:
        return None
    return no(f"it must clip from 0 to something between {allowed}, got {low:g} to {high:g}",
              "shift and scale what goes in and out, or leave it to the GPU")  # fmt: skip


def _bound(node: Node, name: str, position: int) -> float | None:
    """A bound; infinite if left out, None if not known beforehand."""
    if name in node.attributes:
        return float(node.attributes[name])
    tensor = given(node, position)
    if tensor is None:
        return float("inf") if name == "max" else float("-inf")
    return tensor.values[0] if tensor.values else None


@rule("prelu.slope", GUIDE)
def slope(node: Node, target: Target) -> Verdict | None:
    """The slope is stored, with the rank of the input."""
    values, picture = given(node, 1), given(node, 0)
    if values is None or not values.is_constant:
        return no("its slope is computed at run time", "store the slope")
    if picture is None or values.rank == picture.rank:
        return None
    return verify(f"its slope has {values.rank} dimensions and the input {picture.rank}; they must agree", _SLOPE_FIX)


@rule("unary.trigonometry", MATRIX)
def trigonometry(node: Node, target: Target) -> Verdict | None:
    """The sources disagree on Sin, Cos, Atan and Atanh; older releases have none of them."""
    if target.version < _SINCE_TRIGONOMETRY:
        return no(f"TensorRT {target.tensorrt} has {node.op} on no DLA", "use TensorRT 10.3 (JetPack 6)")
    return verify(f"NVIDIA's guide and operator matrix disagree on {node.op}")
