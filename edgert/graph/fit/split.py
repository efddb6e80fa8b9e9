"""Split as one Slice for each part."""

from __future__ import annotations

import numpy as np

from edgert.graph.draft import FLOATS, Draft, each
from edgert.graph.node import Node

_INPUTS_SINCE = 10
"""Before this opset a Slice has its numbers as attributes: https://onnx.ai/onnx/operators/onnx__Slice.html."""


def _split(draft: Draft, node: Node) -> None:
    shapes = [draft.shape(name) for name in node.outputs]
    shape = draft.shape(node.inputs[0])
    if shape is None or draft.dtype(node.inputs[0]) not in FLOATS:
        return
    axis = node.attributes.get("axis", 0) % len(shape)
    nodes, start = [], 0
    for name, part in zip(node.outputs, shapes, strict=True):
        if part is None:
            return
        nodes.append(cut(draft, node, name, axis, start, start + part[axis]))
        start += part[axis]
    if start == shape[axis]:
        draft.put(node, nodes, f"Split → {len(nodes)} Slice")


def cut(draft: Draft, near: Node, target: str, axis: int, start: int, end: int) -> Node:
    """A Slice of the first input of a node: elements ``start`` up to ``end`` along one axis."""
    label = draft.label(f"{near.name}/Slice")
    if draft.graph.opset < _INPUTS_SINCE:
        given = {"axes": [axis], "starts": [start], "ends": [end]}
        return Node("Slice", (near.inputs[0],), (target,), given, label)
    numbers = ((start, "start"), (end, "end"), (axis, "axis"))
    stored = [draft.constant(np.array([number], np.int64), f"{label}_{what}") for number, what in numbers]
    return Node("Slice", (near.inputs[0], *stored), (target,), {}, label)


split_to_slices = each("split", {"Split": _split})
