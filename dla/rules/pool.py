"""Pooling and local response normalisation."""

from __future__ import annotations

from dla.limit import GUIDE_84, LRN_WINDOWS
from dla.node import Node, whole
from dla.rule import outside, rule
from dla.target import Target
from dla.verdict import Verdict, no, note
from dla.window import window

_LEAVE = "leave it to the GPU"


@rule("pool.window")
def size(node: Node, target: Target) -> Verdict | None:
    """Height and width of the window."""
    at = window(node)
    return (
        None
        if at is None
        else outside("pool.window", "window", at.kernel, "write it as several smaller poolings in a row")
    )


@rule("pool.stride")
def stride(node: Node, target: Target) -> Verdict | None:
    """Steps of the window."""
    at = window(node)
    return None if at is None else outside("pool.stride", "stride", at.stride, "pool twice, with smaller strides")


@rule("pool.padding")
def padding(node: Node, target: Target) -> Verdict | None:
    """Padding on every side, with what rounding the size up adds."""
    at = window(node)
    return (
        None if at is None else outside("pool.padding", "padding", at.padding, "pad less, or pad in the layer before")
    )


@rule("pool.dilation", GUIDE_84)
def dilation(node: Node, target: Target) -> Verdict | None:
    """The window has no holes."""
    at = window(node)
    return None if at is None or at.dilation == (1, 1) else no("a pooling window cannot be dilated", _LEAVE)


@rule("pool.outputs", GUIDE_84)
def outputs(node: Node, target: Target) -> Verdict | None:
    """Only values come out, no indices."""
    given_out = list(filter(None, node.outputs))
    return None if len(given_out) < 2 else no("it also gives the indices of the largest values", _LEAVE)


@rule("pool.count", GUIDE_84)
def count(node: Node, target: Target) -> Verdict | None:
    """Xavier's average counts the padding."""
    at = window(node)
    is_open = at is not None and any(at.padding) and not whole(node, "count_include_pad", 0)
    if target.is_orin or node.op != "AveragePool" or not is_open:
        return None
    return no("Xavier averages with the padding counted, this one does not count it", "set count_include_pad=1 if the "
              "network was trained so, or average without padding")  # fmt: skip


POOL = (size, stride, padding, dilation, outputs, count)


@rule("lrn.window", GUIDE_84)
def lrn(node: Node, target: Target) -> Verdict | None:
    """Across 3, 5, 7 or 9 channels."""
    across = whole(node, "size", 0)
    if across in LRN_WINDOWS:
        return note("it is computed in FP16", "fp16") if target.is_int8 else None
    return no(f"its window must be {', '.join(map(str, LRN_WINDOWS))} channels, got {across}", _LEAVE)
