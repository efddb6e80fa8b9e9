"""A rearrangement written as a convolution, merged into the convolution behind it.

A Conv of k x k pixels over blocks of s x s laid into channels is one of (s k) x (s k) over the image itself, with the
same weights in other places and s times the stride and padding: the Focus layer of YOLO and its first Conv become one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgert.graph.draft import Chain, Draft, each
from edgert.graph.fit.mean import MAX_KERNEL
from edgert.graph.fit.rearrange import MAX_STRIDE
from edgert.graph.fit.window import Pair, Window, window_of
from edgert.graph.node import Node
from edgert.graph.proto import Array


@dataclass(frozen=True, slots=True)
class _Choice:
    """A Conv with one 1 in each filter and zeros elsewhere; ``weight`` is (K, C, rows, columns)."""

    source: str
    weight: Array

    @property
    def block(self) -> Pair:
        return self.weight.shape[2], self.weight.shape[3]


def _merge(draft: Draft, node: Node) -> None:
    choice, weight = _choice_before(draft, node), draft.value(node.inputs[1])
    if choice is None or weight is None or weight.ndim != 4 or node.attributes.get("group", 1) != 1:
        return
    window, ends = window_of(draft, node, (weight.shape[2], weight.shape[3])), draft.shape(node.outputs[0])
    given = None if window is None else _attributes(choice.block, window)
    if ends is None or given is None or not _pays(draft, node, choice, weight, ends):
        return
    merged = _merged(choice, weight)
    chain = Chain(draft, node, choice.source)
    chain.then("Conv", ends, chain.store(merged, "weight"), *node.inputs[2:], **given)
    sizes = " → ".join(f"{kernel.shape[2]}x{kernel.shape[3]}" for kernel in (weight, merged))
    chain.end(f"{sizes}, does the rearrangement before it, too")


def _choice_before(draft: Draft, node: Node) -> _Choice | None:
    """The rearrangement that only this node reads."""
    first = draft.before(node.inputs[0])
    weight = None if first is None or first.op != "Conv" else draft.value(first.inputs[1])
    if first is None or weight is None or weight.ndim != 4 or not draft.graph.is_private(node.inputs[0]):
        return None
    window = window_of(draft, first, (weight.shape[2], weight.shape[3]))
    whole = window is not None and window.strides == window.kernel and not window.is_padded and window.is_dense
    plain = len([name for name in first.inputs if name]) == 2 and first.attributes.get("group", 1) == 1
    return _Choice(first.inputs[0], weight) if whole and plain and _is_choice(weight) else None


def _is_choice(weight: Array) -> bool:
    flat = weight.reshape(len(weight), -1)
    return bool(np.all(np.count_nonzero(flat, axis=1) == 1) and np.all(flat.max(axis=1) == 1))


def _attributes(block: Pair, window: Window) -> dict[str, Any] | None:
    """Of the merged Conv; None where a DLA would not take it."""
    rows, columns = block
    kernel = (window.kernel[0] * rows, window.kernel[1] * columns)
    strides = (window.strides[0] * rows, window.strides[1] * columns)
    spread = block != (1, 1) and not window.is_dense
    if spread or max(kernel) > MAX_KERNEL or max(strides) > MAX_STRIDE:
        return None
    pads = [pad * step for pad, step in zip(window.pads, (*block, *block), strict=True)]
    given = {"kernel_shape": list(kernel), "strides": list(strides), "pads": pads}
    return {**given, "dilations": list(window.dilations)}


def _pays(draft: Draft, node: Node, choice: _Choice, weight: Array, ends: tuple[int, ...]) -> bool:
    """Whether the merged Conv takes no more multiply-adds than the two."""
    between = draft.shape(node.inputs[0]) or ()
    inputs_px, outputs_px = np.prod(between[2:]), np.prod(ends[2:])
    merged = weight.size // weight.shape[1] * choice.weight[0].size
    return bool(merged * outputs_px <= choice.weight.size * inputs_px + weight.size * outputs_px)


def _merged(choice: _Choice, weight: Array) -> Array:
    """Weight (m, k, i, j) goes to (m, channel of k, rows i + row of k, columns j + column of k)."""
    filters, _, tall, wide = weight.shape
    rows, columns = choice.block
    placed = np.einsum("mkij,kcyx->mciyjx", weight, choice.weight)  # sums of one number and zeros: exact
    merged: Array = placed.reshape(filters, choice.weight.shape[1], tall * rows, wide * columns)
    return merged


merge_rearrangements = each("merge-rearrangement", {"Conv": _merge})
