"""Padding in front of a convolution or pooling, made part of it.

Exact where both write the same value around the image: zero for a Conv, and for an AveragePool that counts its padding;
minus infinity for a MaxPool, or zero where no value can be below zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from edgert.graph.dla_rewrites.max_pool import Window, window_of
from edgert.graph.draft import Draft, each
from edgert.graph.ir import Node
from edgert.graph.value_ranges import non_negative

_LOWEST = -3e38  # the most negative float32 is -3.4e38


def _fold(draft: Draft, node: Node) -> None:
    pad = draft.before(node.inputs[0])
    if pad is None or pad.op != "Pad":
        return
    window = window_of(draft, node, _kernel(draft, node))
    around = _pads(draft, pad)
    if window is None or around is None or not _is_same_value(draft, node, pad, window):
        return
    pads = [own + added for own, added in zip(window.pads, around, strict=True)]
    reach = [(size - 1) * step + 1 for size, step in zip(window.kernel, window.dilations, strict=True)]
    if any(pad_px >= size for pad_px, size in zip(pads, reach * 2, strict=True)):
        return
    given: dict[str, Any] = {key: value for key, value in node.attributes.items() if key != "auto_pad"}
    given["pads"] = pads
    if node.op == "AveragePool":
        given["count_include_pad"] = 1
    inputs = (pad.inputs[0], *node.inputs[1:])
    draft.put(node, [replace(node, inputs=inputs, attributes=given)], f"takes in the padding {around} of {pad.name!r}")


def _kernel(draft: Draft, node: Node) -> tuple[int, int] | None:
    shape = draft.shape(node.inputs[1]) if node.op == "Conv" else None
    return (shape[2], shape[3]) if shape is not None and len(shape) == 4 else None


def _pads(draft: Draft, pad: Node) -> list[int] | None:
    """Top, left, bottom, right; None for a Pad that does anything else."""
    pads = draft.integers(pad, "pads", 1)
    shape = draft.image(pad.inputs[0])
    if pads is None or shape is None or pad.attributes.get("mode", b"constant") != b"constant":
        return None
    axes = draft.integers(pad, "axes", 3)
    if axes is not None:
        pads = _on_all_axes(pads, axes)
    inner = [pads[2], pads[3], pads[6], pads[7]]
    return inner if min(inner) >= 0 and not any((*pads[:2], *pads[4:6])) else None


def _on_all_axes(pads: list[int], axes: list[int]) -> list[int]:
    full, count = [0] * 8, len(axes)
    for position, axis in enumerate(axes):
        full[axis % 4], full[axis % 4 + 4] = pads[position], pads[position + count]
    return full


def _is_same_value(draft: Draft, node: Node, pad: Node, window: Window) -> bool:
    value = _value(draft, pad)
    if value is None:
        return False
    if node.op == "MaxPool":
        return value <= _LOWEST or (value == 0 and pad.inputs[0] in non_negative(draft.graph))
    if node.op == "Conv":
        return value == 0
    counts = not window.is_padded or bool(node.attributes.get("count_include_pad", 0))
    return value == 0 and counts and not window.ceil


def _value(draft: Draft, pad: Node) -> float | None:
    """What is written around the image; None where that is computed."""
    if len(pad.inputs) < 3 or not pad.inputs[2]:
        return float(pad.attributes.get("value", 0.0))
    stored = draft.value(pad.inputs[2])
    return None if stored is None else float(stored.reshape(-1)[0]) if np.size(stored) else 0.0


fold_pad = each("pad", {"Conv": _fold, "AveragePool": _fold, "MaxPool": _fold})
