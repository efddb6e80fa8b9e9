"""Rules for operations on two tensors of one size, and on a tensor and a stored operand (TensorRT's Scale)."""

from dla.limit import ELEMENTWISE, GUIDE, GUIDE_84, MATRIX
from dla.node import Node, Shape, Tensor, Verdict, constants, data_inputs, int_attribute, no, verify
from dla.rule import Target, rule
from dla.rules.general import INSTEAD

SINCE = (8, 6, 12)
"""First release with Div, Pow, Greater, Less and reduction to the maximum, from NVIDIA's operator matrix."""
_CAST_TO = ("float16", "float32", "int8")
_UPGRADE = "use TensorRT 10.3 (JetPack 6)"
_SPREAD_FIX = "make both operands the same size"


@rule("elementwise.broadcast", GUIDE)
def broadcast(node: Node, target: Target) -> Verdict | None:
    """Question computed operands of different sizes."""
    shapes = [tensor.shape for tensor in data_inputs(node)]
    if len(set(shapes)) < 2 or None in shapes:
        return None
    texts = " and ".join(dict.fromkeys("×".join(map(str, shape or ())) for shape in shapes))
    return verify(f"operands of {texts} are broadcast, which the sources do not mention", _SPREAD_FIX)


@rule("elementwise.min", MATRIX)
def least(node: Node, target: Target) -> Verdict | None:
    """Question Min, which the guide lists and the operator matrix calls a wish."""
    return verify("NVIDIA's guide lists Min, its operator matrix does not", "write it as -Max(-a, -b)")


@rule("elementwise.constant", GUIDE)
def extreme(node: Node, target: Target) -> Verdict | None:
    """Require two computed tensors for Max and Min; a stored one would stay a Constant layer."""
    return (
        verify("one operand is stored: it may stay a Constant layer, which runs on the GPU")
        if constants(node)
        else None
    )


@rule("scale.form", GUIDE_84)
def scale(node: Node, target: Target) -> Verdict | None:
    """Require a stored operand with one value, one per channel, or one per element."""
    stored, computed = constants(node), data_inputs(node)
    if not stored or len(computed) != 1 or _is_scale(stored[0], computed[0].shape):
        return None
    text = "×".join(map(str, stored[0].shape or ()))
    return verify(f"its stored operand {text} is neither one value, nor one per channel, nor one per element",
                  "store it per channel or per element")  # fmt: skip


@rule("scale.order", GUIDE_84)
def order(node: Node, target: Target) -> Verdict | None:
    """Question a stored number minus a tensor, which is no plain shift."""
    first = node.inputs[0]
    if first is None or not first.is_constant:
        return None
    return verify("it subtracts from a stored operand, which is a factor of -1 and a shift", "write it as x·(-1) + c")


@rule("elementwise.release", MATRIX)
def release(node: Node, target: Target) -> Verdict | None:
    """Require a release that supports division, powers and comparisons."""
    if target.version >= SINCE:
        return None
    fix = "multiply by the stored reciprocal" if node.op == "Div" and constants(node) else _UPGRADE
    return no(f"TensorRT {target.tensorrt} supports {node.op} on no DLA", fix)


@rule("div.operands", ELEMENTWISE)
def divided(node: Node, target: Target) -> Verdict | None:
    """Question a stored operand of more than one value; the sources do not settle it."""
    stored = constants(node)
    if all(tensor.size == 1 for tensor in stored):
        return None
    return verify("its stored operand has more than one value", "multiply by the stored reciprocal")


@rule("pow.operands", ELEMENTWISE)
def power(node: Node, target: Target) -> Verdict | None:
    """Require exactly one stored operand: the exponent, one value."""
    exponent = node.inputs[1] if len(node.inputs) > 1 else None
    if not constants(node):
        return no("both operands are computed at run time; one must be stored", "leave it to the GPU")
    if exponent is None or not exponent.is_constant:
        return verify("its base is stored instead of its exponent")
    if exponent.size != 1:
        return verify("its exponent has more than one value")
    return None if target.version >= (10,) else verify(f"Pow is not listed for TensorRT {target.tensorrt}")


@rule("compare.precision", GUIDE)
def compared(node: Node, target: Target) -> Verdict | None:
    """Require INT8 for comparisons."""
    return None if target.is_int8 else no("comparisons run in INT8 only", "build it for INT8")


@rule("compare.broadcast", ELEMENTWISE)
def operand_shapes(node: Node, target: Target) -> Verdict | None:
    """Require operands of N×C×H×W, N×C×1×1 or N×1×1×1."""
    shapes = [tensor.shape for tensor in data_inputs(node) if tensor.shape is not None]
    full = max(shapes, key=lambda shape: (len(shape), tuple(dim or 0 for dim in shape)), default=())
    allowed = [full, (*full[:2], 1, 1), (full[0], 1, 1, 1)] if len(full) == 4 else [full]
    if all(shape in allowed for shape in shapes):
        return None
    return no("an operand must be N×C×H×W, N×C×1×1 or N×1×1×1", _SPREAD_FIX)


@rule("compare.open", ELEMENTWISE)
def doubtful(node: Node, target: Target) -> Verdict | None:
    """Question comparisons: one sentence documents what must follow them."""
    return verify("a comparison needs a cast to FP16 or INT8 right behind it, on the DLA, as its only reader")


@rule("cast.comparison", ELEMENTWISE)
def cast(node: Node, target: Target) -> Verdict | None:
    """Refuse a cast of anything but a comparison's result."""
    source, made = node.inputs[0], node.outputs[0]
    if source is None or made is None or source.dtype != "bool" or made.dtype not in _CAST_TO:
        return no("a cast is no DLA layer", INSTEAD["Cast"])
    return verify("the cast of a comparison runs with it, if that does")


@rule("batchnorm.form", GUIDE_84)
def normalization(node: Node, target: Target) -> Verdict | None:
    """Require stored statistics, so that a batch normalization is a factor and a shift per channel."""
    if int_attribute(node, "training_mode", 0) or not all(
        tensor is None or tensor.is_constant for tensor in node.inputs[1:]
    ):
        return no("its statistics are computed at run time", "export the model for inference")
    return None


def _is_scale(stored: Tensor, shape: Shape | None) -> bool:
    if stored.size == 1 or stored.shape is None or shape is None:
        return stored.size == 1
    inner = stored.shape[-3:]
    wide = (1,) * (3 - len(inner)) + inner
    leading = stored.shape[:-3]
    full = shape[-3:]
    return all(dim == 1 for dim in leading) and (wide == full or wide == (*full[:1], 1, 1))


ARITHMETIC = (broadcast, scale)
SUBTRACTION = (broadcast, scale, order)
COMPARISON = (release, compared, operand_shapes, doubtful)
EQUALITY = (compared, operand_shapes, doubtful)
