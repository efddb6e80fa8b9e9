"""The pass that adds a constant per channel behind a layer to the layer's bias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgert.graph.evaluate import MIN_OPSET
from edgert.graph.layer import F64, store_bias, to_f64, weights_of
from edgert.graph.proto import default_opset, is_standard, label
from edgert.graph.rewrite import Pass, Workspace, drop_nodes

if TYPE_CHECKING:
    import onnx


def _fold_bias(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph = proto.graph
    if default_opset(proto) < MIN_OPSET:
        return
    if not any(node.op_type == "Add" for node in graph.node):
        return
    work = Workspace.of(proto)
    producers, gone = dict(work.index.producers), set()
    for position, node in enumerate(graph.node):
        if node.op_type != "Add" or not is_standard(node):
            continue
        for computed, stored in (tuple(node.input), tuple(reversed(node.input))):
            before = producers.get(computed)
            if before is not None and _fold(work, graph.node[before], computed, stored):
                graph.node[before].output[0] = node.output[0]
                producers[node.output[0]] = before
                gone.add(position)
                yield label(node, position), f"added to the bias of {label(graph.node[before], before)!r}"
                break
    drop_nodes(graph, gone)


def _fold(work: Workspace, layer: onnx.NodeProto, computed: str, stored: str) -> bool:
    constant = work.index.constant(stored)
    if constant is None or not work.index.is_private(computed):
        return False
    weights = weights_of(layer, work.index)
    if weights is None:
        return False
    rank = 2 if layer.op_type == "Gemm" else weights.kernel.ndim
    added = _per_channel(to_f64(constant), rank, len(weights.bias))
    return added is not None and store_bias(work, layer, weights.bias + added)


def _per_channel(values: F64, rank: int, channels: int) -> F64 | None:
    """Values that broadcast to (N, channels, …) with one value per channel, as (channels,) or (1,); else None."""
    shape = (1,) * (rank - values.ndim) + values.shape
    fits = len(shape) == rank and shape[1] in (1, channels) and values.size == shape[1]
    return values.reshape(-1) if fits else None


FOLD_BIAS = Pass(
    "fold-bias",
    "the bias of a Conv, ConvTranspose or Gemm takes in a constant per channel added to its output; the Add goes",
    _fold_bias,
)
