"""Transposed convolutions."""

from __future__ import annotations

from dla.limit import DECONV_LONG, GUIDE, HEADER, LIMITS
from dla.node import Node, given, numbers, whole
from dla.rule import outside, rule
from dla.target import Target
from dla.verdict import Verdict, no, verify
from dla.window import Pair, window

_FIX = "upsample with Resize and a Conv behind it; kernel = stride, without padding, compiles best"


@rule("deconv.kernel")
def kernel(node: Node, target: Target) -> Verdict | None:
    """Kernel of up to 32, or long in one direction only; no large square."""
    at = window(node)
    return None if at is None else _size("kernel", at.kernel)


@rule("deconv.stride")
def stride(node: Node, target: Target) -> Verdict | None:
    """The same for the stride."""
    at = window(node)
    return None if at is None else _size("stride", at.stride)


def _size(what: str, sides: Pair) -> Verdict | None:
    if 1 in sides and max(sides) in DECONV_LONG:
        return None
    far = outside(f"deconv.{what}", what, sides, _FIX)
    small, large = LIMITS["deconv.square"], LIMITS["deconv.kernel"]
    if far is None and sides[0] == sides[1] and sides[0] not in small:
        return no(f"square {what} of {small.high + 1} to {large.high} is switched off, got {sides[0]}", _FIX)
    return far


@rule("deconv.padding", GUIDE)
def padding(node: Node, target: Target) -> Verdict | None:
    """There is no padding."""
    at = window(node)
    if at is not None and any(at.padding):
        return no(f"padding must be 0, got {'×'.join(map(str, at.padding))}", _FIX)
    if any(numbers(node, "output_padding", ())) or "output_shape" in node.attributes:
        return verify("the sources say nothing of output padding", _FIX)
    return None


@rule("deconv.groups", GUIDE)
def groups(node: Node, target: Target) -> Verdict | None:
    """There is one group."""
    count = whole(node, "group", 1)
    return None if count == 1 else no(f"groups must be 1, got {count}", _FIX)


@rule("deconv.dilation", GUIDE)
def dilation(node: Node, target: Target) -> Verdict | None:
    """There is no dilation."""
    at = window(node)
    return None if at is None or at.dilation == (1, 1) else no("dilation must be 1", _FIX)


@rule("deconv.channels", HEADER)
def channels(node: Node, target: Target) -> Verdict | None:
    """Channels read and written; the kernel is (read, written, height, width)."""
    stored = given(node, 1)
    return None if stored is None else outside("deconv.channels", "channels", (stored.shape or ())[:2], _FIX)


DECONV = (kernel, stride, padding, groups, dilation, channels)
