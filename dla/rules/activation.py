"""Rules for activations, Softmax, and reduction to the maximum."""

from math import prod

from dla.limit import GUIDE, HEADER, LIMITS, MATRIX, REDUCE, UNARY
from dla.node import Node, Verdict, axis_of, input_at, int_attribute, no, note, stored_integers, verify
from dla.rule import Target, rule
from dla.rules.elementwise import SINCE
from dla.rules.general import fp16_only

# Activations.

_SLOPE_FIX = "store the slope with as many dimensions as the input, 1×C×1×1"
_ABS_IN_DOUBT = (10,)
_SINCE_TRIGONOMETRY = (8, 6, 12)


@rule("activation.precision", GUIDE)
def promoted(node: Node, target: Target) -> Verdict | None:
    """Compute Sigmoid and TanH in FP16, whatever the types of input and output."""
    return note("it is computed in FP16 inside", "lookup") if target.is_int8 else None


@rule("clip.ceiling")
def clip(node: Node, target: Target) -> Verdict | None:
    """Require a Clip to be a ReLU with a ceiling: from 0 to a number in bounds."""
    low, high = _clip_bound(node, "min", 1), _clip_bound(node, "max", 2)
    if low is None or high is None:
        return no("its bounds are computed at run time", "store the bounds")
    allowed = LIMITS["clip.ceiling"]
    if low == 0 and high == float("inf"):
        return no("it has no upper bound", "write it as Relu, which computes the same")
    if low == 0 and allowed.low <= high <= allowed.high:
        return None
    return no(f"it must clip from 0 to a number in {allowed}, got {low:g} to {high:g}",
              "shift and scale its input and output, or leave it to the GPU")  # fmt: skip


def _clip_bound(node: Node, name: str, position: int) -> float | None:
    """Return a bound of a Clip; infinite if it is omitted, None if it is unknown."""
    if name in node.attributes:
        return float(node.attributes[name])
    tensor = input_at(node, position)
    if tensor is None:
        return float("inf") if name == "max" else float("-inf")
    return tensor.values[0] if tensor.values else None


@rule("prelu.slope", GUIDE)
def slope(node: Node, target: Target) -> Verdict | None:
    """Require a stored slope with the rank of the input."""
    values, image = input_at(node, 1), input_at(node, 0)
    if values is None or not values.is_constant:
        return no("its slope is computed at run time", "store the slope")
    if image is None or values.rank == image.rank:
        return None
    return verify(f"its slope has {values.rank} dimensions and the input {image.rank}; they must agree", _SLOPE_FIX)


@rule("unary.abs", UNARY)
def absolute(node: Node, target: Target) -> Verdict | None:
    """Question Abs: headers list it for a DLA, but the operator page of 10.x has no section about one."""
    return verify("NVIDIA's headers and operator page disagree on Abs") if target.version >= _ABS_IN_DOUBT else None


@rule("unary.trigonometry", MATRIX)
def trigonometry(node: Node, target: Target) -> Verdict | None:
    """Question Sin, Cos, Atan and Atanh, on which the sources disagree; older releases support none of them."""
    if target.version < _SINCE_TRIGONOMETRY:
        return no(f"TensorRT {target.tensorrt} supports {node.op} on no DLA", "use TensorRT 10.3 (JetPack 6)")
    return verify(f"NVIDIA's guide and operator matrix disagree on {node.op}")


_ONE_AXIS = 13  # opset from which a softmax runs along one axis
_GENERAL_SOFTMAX = (8, 5)
_LEAVE = "leave it to post-processing on the CPU or GPU"


@rule("softmax.generation", HEADER)
def generation(node: Node, target: Target) -> Verdict | None:
    """Refuse Softmax on Xavier; Orin supports it."""
    return fp16_only("softmax", target) if target.is_orin else no("Xavier's DLA has no softmax", _LEAVE)


@rule("softmax.axis", HEADER)
def axis(node: Node, target: Target) -> Verdict | None:
    """Require the axis to be channels, height or width; it may be longer where all other sizes are 1."""
    image = input_at(node, 0)
    if image is None or image.shape is None or image.rank != 4:
        return None
    place = axis_of(node, 4, -1 if node.opset >= _ONE_AXIS else 1)
    if not 0 <= place < 4:
        return no(f"its input has no axis {node.attributes['axis']}", "export the model again: the axis is -4 to 3")
    if place == 0:
        return no("it runs along the batch", _LEAVE)
    behind = [dim for dim in image.shape[place + 1 :] if dim != 1]
    if node.opset < _ONE_AXIS and behind:
        return no("before opset 13 a softmax also runs over all axes behind its own", _LEAVE)
    length = image.shape[place]
    others = [dim for at, dim in enumerate(image.shape) if at not in (0, place)]
    if length is None or None in others:
        return None
    return _check_length(length, prod(filter(None, others)), image.shape[0], target)


def _check_length(length: int, others: int, batch: int | None, target: Target) -> Verdict | None:
    allowed = LIMITS["softmax.exact" if others == 1 else "softmax.approximate"]
    if length not in allowed:
        return no(f"its axis must be {allowed} long{'' if others == 1 else ' here'}, got {length}", _LEAVE)
    if target.version < _GENERAL_SOFTMAX and (others != 1 or batch != 1):
        return no(f"TensorRT {target.tensorrt} supports it for a batch of 1 and one axis only", _LEAVE)
    return None


SOFTMAX = (generation, axis)


@rule("reduce.release", MATRIX)
def release(node: Node, target: Target) -> Verdict | None:
    """Require a release that reduces to the maximum; as far as is known only Orin supports it."""
    if target.version < SINCE:
        return no(f"TensorRT {target.tensorrt} supports {node.op} on no DLA", "use MaxPool with windows of up to 8")
    return None if target.is_orin else verify("as far as is known only Orin supports it")


@rule("reduce.axes", REDUCE)
def axes(node: Node, target: Target) -> Verdict | None:
    """Require stored axes out of channels, height and width."""
    if node.op == "GlobalMaxPool":
        return None
    image, chosen = input_at(node, 0), stored_integers(node, "axes", 1)
    if chosen is None:
        return no("its axes are computed at run time", "store them")
    rank = image.rank if image is not None and image.rank is not None else 4
    if not chosen or 0 in chosen or -rank in chosen:
        return no("it reduces over the batch", "reduce after the network")
    if int_attribute(node, "keepdims", 1):
        return None
    return verify("it removes the axes it reduces; as far as is known they must stay, as 1", "set keepdims=1")


REDUCTION = (release, axes)
