"""Arithmetic that a DLA has under another name: Neg, Sub, Div and Sum as Mul and Add, slopes of the input's rank."""

from __future__ import annotations

import numpy as np

from edgert.graph.draft import FLOATS, Chain, Draft, each
from edgert.graph.node import Node
from edgert.graph.proto import Array


def _negate(draft: Draft, node: Node) -> None:
    shape = draft.shape(node.inputs[0])
    if shape is None or draft.dtype(node.inputs[0]) not in FLOATS:
        return
    Chain(draft, node, node.inputs[0]).scalar("Mul", -1).end("Neg → Mul by -1")


def _subtract(draft: Draft, node: Node) -> None:
    first, second = node.inputs
    shape = draft.shape(node.outputs[0])
    left, right = draft.value(first), draft.value(second)
    if shape is None or draft.dtype(node.outputs[0]) not in FLOATS or (left is None) == (right is None):
        return
    if right is not None:
        chain = Chain(draft, node, first)
        chain.then("Add", shape, chain.store(-right, "negated")).end("Sub of a constant → Add")
    else:
        chain = Chain(draft, node, second)
        chain.scalar("Mul", -1).then("Add", shape, first).end("Sub from a constant → Mul by -1 and Add")


def _divide(draft: Draft, node: Node) -> None:
    shape, divisor = draft.shape(node.outputs[0]), draft.value(node.inputs[1])
    if shape is None or divisor is None or draft.dtype(node.inputs[0]) not in FLOATS or node.inputs[0] == "":
        return
    inverse = _inverse(divisor)
    if inverse is None or draft.value(node.inputs[0]) is not None:
        return
    chain = Chain(draft, node, node.inputs[0])
    chain.then("Mul", shape, chain.store(inverse, "inverse")).end("Div by a constant → Mul")


def _inverse(divisor: Array) -> Array | None:
    """One divided by each number; None where that overflows or loses digits in the number's own type."""
    if not np.all(divisor):
        return None
    inverse: Array = 1 / divisor.astype(np.float64)
    limits = np.finfo(divisor.dtype)
    size = np.abs(inverse)
    return inverse if np.all(size <= limits.max) and np.all(size >= limits.tiny) else None


def _add_up(draft: Draft, node: Node) -> None:
    shapes = [draft.shape(name) for name in node.inputs]
    if len(shapes) < 2 or draft.dtype(node.outputs[0]) not in FLOATS:
        return
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return
    chain = Chain(draft, node, node.inputs[0])
    for position, name in enumerate(node.inputs[1:], 2):
        chain.then("Add", np.broadcast_shapes(*known[:position]), name)
    chain.end(f"Sum → {len(shapes) - 1} Add")


def _raise_slope(draft: Draft, node: Node) -> None:
    shape, slope = draft.image(node.inputs[0]), draft.value(node.inputs[1])
    if shape is None or slope is None or slope.ndim == 4:
        return
    chain = Chain(draft, node, node.inputs[0])
    chain.then("PRelu", shape, chain.store(slope.reshape((1,) * (4 - slope.ndim) + slope.shape), "slope"))
    chain.end(f"slope {list(slope.shape)} → 4 dimensions")


negate = each("neg", {"Neg": _negate})
subtract = each("sub", {"Sub": _subtract})
divide = each("div", {"Div": _divide})
add_up = each("sum", {"Sum": _add_up})
raise_slope = each("prelu-slope", {"PRelu": _raise_slope})
