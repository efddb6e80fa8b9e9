"""Rules for pooling, local response normalization, and resizing by integer factors."""

from dla.limit import GUIDE_84, HEADER, LRN_WINDOWS
from dla.node import Node, Tensor, Verdict, input_at, int_attribute, no, note, text_attribute, verify, window
from dla.rule import Target, outside, rule, within

# Pooling and local response normalization.

_LEAVE = "leave it to the GPU"


size = within(
    "pool.window",
    "kernel",
    "Limit the window's height and width.",
    "write it as several smaller poolings in a row",
    what="window",
)
stride = within("pool.stride", "stride", "Limit the stride of the window.", "pool twice, with smaller strides")
padding = within(
    "pool.padding",
    "padding",
    "Limit the padding on every side, including what rounding the size up adds.",
    "pad less, or pad in the layer before",
)


@rule("pool.dilation", GUIDE_84)
def dilation(node: Node, target: Target) -> Verdict | None:
    """Refuse a dilated window."""
    at = window(node)
    return None if at is None or at.dilation == (1, 1) else no("a pooling window cannot be dilated", _LEAVE)


@rule("pool.outputs", GUIDE_84)
def outputs(node: Node, target: Target) -> Verdict | None:
    """Refuse an output of indices."""
    given_out = list(filter(None, node.outputs))
    return None if len(given_out) < 2 else no("it also returns the indices of the largest values", _LEAVE)


@rule("pool.count", GUIDE_84)
def count(node: Node, target: Target) -> Verdict | None:
    """Require Xavier's average to count the padding."""
    at = window(node)
    is_open = at is not None and any(at.padding) and not int_attribute(node, "count_include_pad", 0)
    if target.is_orin or node.op != "AveragePool" or not is_open:
        return None
    return no("Xavier counts the padding in the average, and this node does not", "set count_include_pad=1 if the "
              "network was trained with it, or average without padding")  # fmt: skip


POOL = (size, stride, padding, dilation, outputs, count)


@rule("lrn.window", GUIDE_84)
def lrn(node: Node, target: Target) -> Verdict | None:
    """Require a window of 3, 5, 7 or 9 channels."""
    across = int_attribute(node, "size", 0)
    if across in LRN_WINDOWS:
        return note("it is computed in FP16", "fp16") if target.is_int8 else None
    return no(f"its window must be {', '.join(map(str, LRN_WINDOWS))} channels, got {across}", _LEAVE)


_NEAREST = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"))
_SCALES_FIX = "export it with whole scales, like 1, 1, 2, 2"
_SHRINK_FIX = "shrink with pooling, or a Conv with a stride"
_MODE_FIX = "export it as nearest, asymmetric, floor; or as linear with half_pixel"
_FIRST_CHOICES = 11  # opset with coordinate modes


@rule("resize.mode", HEADER)
def mode(node: Node, target: Target) -> Verdict | None:
    """Require nearest or linear, each in a few of ONNX's variants."""
    kind, at, rounding = _resize_variant(node)
    if int_attribute(node, "antialias", 0):
        return no("it smooths before it shrinks (antialias)", _MODE_FIX)
    if kind == "nearest":
        known = (at, rounding) in _NEAREST
        return None if known else no(f"the DLA does not support nearest with {at} and {rounding}", _MODE_FIX)
    if kind != "linear":
        return no(f"the DLA does not support {kind}", _MODE_FIX)
    if at == "pytorch_half_pixel":
        return verify("pytorch_half_pixel differs from half_pixel for sizes of 1 only; the sources name half_pixel",
                      _MODE_FIX)  # fmt: skip
    return None if at == "half_pixel" else no(f"the DLA does not support linear with {at}", _MODE_FIX)


@rule("resize.scales", HEADER)
def scales(node: Node, target: Target) -> Verdict | None:
    """Require four stored whole scales that enlarge height and width only."""
    stored = _resize_scales(node)
    if stored is None or not stored.is_constant:
        return no(f"it is given sizes instead of scales{_equivalent_scales(node)}", _SCALES_FIX)
    factors = stored.values
    if factors is None:
        return no("its scales are not known beforehand", _SCALES_FIX)
    if len(factors) != 4:
        return verify(f"it has {len(factors)} scales; the layer takes 4", _SCALES_FIX)
    if factors[:2] != (1, 1):
        return no("it also resizes batch or channels", _SCALES_FIX)
    high, wide = map(float, factors[2:])
    if min(high, wide) < 1:
        return no(f"it shrinks, by {high:g}×{wide:g}; the DLA only enlarges", _SHRINK_FIX)
    if not high.is_integer() or not wide.is_integer():
        return no(f"its scales must be whole numbers, got {high:g}×{wide:g}", _SCALES_FIX)
    kind = "linear" if _resize_variant(node)[0] == "linear" else "nearest"
    return outside(f"resize.{kind}", f"scales ({kind})", (int(high), int(wide)), "resize in several steps")


def _resize_variant(node: Node) -> tuple[str, str, str]:
    """Return interpolation, coordinate mapping and rounding; old operators have fixed ones."""
    kind = {"bilinear": "linear"}.get(text_attribute(node, "mode", "nearest"), text_attribute(node, "mode", "nearest"))
    if node.op == "Upsample" or node.opset < _FIRST_CHOICES:
        return kind, "asymmetric", "floor"
    at = text_attribute(node, "coordinate_transformation_mode", "half_pixel")
    return kind, at, text_attribute(node, "nearest_mode", "round_prefer_floor")


def _resize_scales(node: Node) -> Tensor | None:
    """Return the scales; None if they are omitted or empty."""
    if "scales" in node.attributes:
        values = tuple(map(float, node.attributes["scales"]))
        return Tensor("scales", (len(values),), is_constant=True, values=values)
    is_old = node.op == "Upsample" or node.opset < _FIRST_CHOICES
    tensor = input_at(node, 1 if is_old else 2)
    return None if tensor is None or tensor.size == 0 else tensor


def _equivalent_scales(node: Node) -> str:
    """Return text with the scales that the sizes correspond to; empty if a size is unknown."""
    tensors = (input_at(node, 0), node.outputs[0])
    before, after = ([side for side in (tensor.shape or ())[2:] if side] if tensor else [] for tensor in tensors)
    if len(before) != 2 or len(after) != 2:
        return ""
    high, wide = (new / old for old, new in zip(before, after, strict=True))
    return f"; they amount to scales of {high:g}×{wide:g}"


RESIZE = (mode, scales)
