"""The pass that adds a constant per channel behind a layer to the layer's bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgert.graph.draft import Draft, each
from edgert.graph.evaluate import MIN_OPSET
from edgert.graph.layer import F64, weights_of, with_bias
from edgert.graph.record import Node
from edgert.graph.rewrite import Pass


def _fold_bias(draft: Draft, node: Node) -> None:
    if draft.graph.opset < MIN_OPSET:
        return
    for computed, stored in (node.inputs, tuple(reversed(node.inputs))):
        layer = draft.before(computed)
        made = None if layer is None else _with_added(draft, layer, computed, stored)
        if layer is not None and made is not None:
            draft.replace(layer, replace(made, outputs=node.outputs))
            draft.put(node, (), f"added to the bias of {layer.name!r}")
            return


def _with_added(draft: Draft, layer: Node, computed: str, stored: str) -> Node | None:
    constant, weights = draft.value(stored), weights_of(layer, draft)
    if constant is None or weights is None or not draft.graph.is_private(computed):
        return None
    rank = 2 if layer.op == "Gemm" else weights.kernel.ndim
    added = _per_channel(constant.astype(np.float64), rank, len(weights.bias))
    return None if added is None else with_bias(draft, layer, weights.bias + added)


def _per_channel(values: F64, rank: int, channels: int) -> F64 | None:
    """Values that broadcast to (N, channels, …) with one value per channel, as (channels,) or (1,); else None."""
    shape = (1,) * (rank - values.ndim) + values.shape
    fits = len(shape) == rank and shape[1] in (1, channels) and values.size == shape[1]
    return values.reshape(-1) if fits else None


FOLD_BIAS = Pass(
    "fold-bias",
    "a constant per channel behind a layer is added to the layer's bias",
    "it is a layer of its own otherwise",
    each("fold-bias", {"Add": _fold_bias}),
)
