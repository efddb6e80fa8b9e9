"""Reshapes and transposes moved behind what does not mind them, so that the layers before stay in four dimensions.

An operation on each element by itself gives the same numbers in any shape; one with a number per channel does where a
(N, C, 1, 1) tensor was made (N, C). Two views in a row are one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from edgert.graph.draft import Chain, Draft, each
from edgert.graph.node import Node
from edgert.graph.operators import POINTWISE, RESHAPES

_ALONE = POINTWISE - {"PRelu"}  # whose slopes have a shape of their own
_PAIRS = ("Add", "Div", "Mul", "Sub")
_TURNS = RESHAPES | {"Transpose"}
_SOFTMAX_BY_AXIS = 13
"""Before this opset Softmax is over all axes from one on: https://onnx.ai/onnx/operators/onnx__Softmax.html."""


def _alone(draft: Draft, node: Node) -> None:
    view = _view_before(draft, node.inputs[0], _TURNS)
    if view is not None:
        _swap(draft, view, node, (view.inputs[0], *node.inputs[1:]), node.attributes)


def _pair(draft: Draft, node: Node) -> None:
    for position in (0, 1):
        view = _view_before(draft, node.inputs[position], RESHAPES)
        stored = draft.value(node.inputs[1 - position])
        channels = None if view is None or stored is None else _channels_kept(draft, view)
        if view is None or stored is None or channels is None:
            continue
        if stored.size not in (1, channels) or stored.shape[-1:] not in ((), (stored.size,)):
            continue
        other = draft.constant(stored.reshape(1, -1, 1, 1), f"{node.name}_per_channel")
        pair = (view.inputs[0], other) if position == 0 else (other, view.inputs[0])
        _swap(draft, view, node, pair, node.attributes)
        return


def _softmax(draft: Draft, node: Node) -> None:
    view = _view_before(draft, node.inputs[0], _TURNS)
    shape = draft.shape(node.inputs[0])
    if view is None or shape is None:
        return
    by_axis = draft.graph.opset >= _SOFTMAX_BY_AXIS
    axis = node.attributes.get("axis", -1 if by_axis else 1) % len(shape)
    if view.op == "Transpose":
        if by_axis:
            axis = list(view.attributes["perm"])[axis] if "perm" in view.attributes else len(shape) - 1 - axis
            _swap(draft, view, node, (view.inputs[0],), {**node.attributes, "axis": axis})
    elif axis == 1 and len(shape) == 2 and _channels_kept(draft, view) is not None:
        _swap(draft, view, node, (view.inputs[0],), {**node.attributes, "axis": 1})


def _view_before(draft: Draft, name: str, ops: Collection[str]) -> Node | None:
    """The view of a computed (N, C, H, W) tensor that only one node reads."""
    view = draft.before(name)
    if view is None or view.op not in ops or not draft.graph.is_private(name):
        return None
    computed = view.inputs[0] in draft.graph.producers and draft.image(view.inputs[0]) is not None
    return view if computed and len(view.outputs) == 1 else None


def _channels_kept(draft: Draft, view: Node) -> int | None:
    """C where the view makes (N, C) of (N, C, 1, 1)."""
    image, flat = draft.image(view.inputs[0]), draft.shape(view.outputs[0])
    if image is None or flat is None or image[2:] != (1, 1) or flat != image[:2]:
        return None
    return image[1]


def _swap(draft: Draft, view: Node, node: Node, operands: tuple[str, ...], given: Any) -> None:
    image = draft.image(view.inputs[0]) or ()
    early = draft.tensor(f"{node.outputs[0]}_early", image, draft.dtype(view.inputs[0]))
    late = replace(view, inputs=(early, *view.inputs[1:]), outputs=node.outputs)
    draft.drop(view)
    draft.put(node, [replace(node, inputs=operands, outputs=(early,), attributes=given), late],
              f"{node.op} before {view.op} {view.name!r}, not behind it")  # fmt: skip


def _merge(draft: Draft, node: Node) -> None:
    """A view of a view, and a view that changes nothing."""
    shape, ends = draft.shape(node.inputs[0]), draft.shape(node.outputs[0])
    if shape is None or ends is None or draft.value(node.inputs[0]) is not None:
        return
    if shape == ends and draft.bypass(node, node.inputs[0], "changes nothing"):
        return
    first = draft.before(node.inputs[0])
    if first is None or first.op not in RESHAPES or first.inputs[0] in draft.graph.constants:
        return
    before = draft.shape(first.inputs[0])
    if before == ends and draft.bypass(node, first.inputs[0], f"undoes {first.name!r}"):
        return
    chain = Chain(draft, node, first.inputs[0])
    chain.reshape(ends).end(f"does the work of {first.name!r}, too")


sink_views = each(
    "view", {**dict.fromkeys(_ALONE, _alone), **dict.fromkeys(_PAIRS, _pair), "Softmax": _softmax}
    | dict.fromkeys(RESHAPES, _merge)
)  # fmt: skip
