"""Memory that a graph's tensors need while it runs, node after node in its order."""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgert.graph.node import Graph, Node
from edgert.graph.operators import ACTIVATIONS, VIEWS, of_kind
from edgert.graph.proto import tensor_bytes
from edgert.graph.spec import TensorSpec

_IN_PLACE = ACTIVATIONS | of_kind("affine")
"""Fused into what feeds them, or computed where their input stands, if nobody else reads that."""


def peak_bytes(graph: Graph, dtypes: Mapping[str, str] | None = None) -> int:
    """The most that is alive at once: what a node reads and writes, and what later nodes still read.

    Inputs and outputs of the graph live from beginning to end, since they are bound buffers. Stored tensors do not
    count, nor do nodes that only rename a buffer or work in place. It is the least that any allocator that keeps the
    order can reach, and TensorRT's and ONNX Runtime's come close; scratch space of kernels is not in it.

    Args:
        dtypes: computed type → the type it is held in, as ``{"float32": "float16"}``.
    """
    buffers = _buffers(graph)
    sizes = {name: _size_bytes(graph.specs.get(name), dtypes or {}) for name in set(buffers.values())}
    bound = {buffers.get(spec.name, spec.name) for spec in (*graph.inputs, *graph.outputs)}
    last = {
        buffers[name]: position for position, node in enumerate(graph.nodes) for name in node.reads if name in buffers
    }
    alive_bytes = peak = sum(sizes.get(name, 0) for name in bound)
    for position, node in enumerate(graph.nodes):
        made = {buffers[name] for name in node.outputs if name and buffers[name] == name} - bound
        alive_bytes += sum(sizes[name] for name in made)
        peak = max(peak, alive_bytes)
        read = {buffers[name] for name in node.reads if name in buffers}
        alive_bytes -= sum(sizes[name] for name in (read | made) - bound if last.get(name, -1) <= position)
    return peak


def _buffers(graph: Graph) -> dict[str, str]:
    """Computed or fed tensor → the tensor whose memory it is in."""
    found = {spec.name: spec.name for spec in graph.inputs}
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            source = node.inputs[0] if _shares(graph, node) else name
            found[name] = found.get(source, name)
    return found


def _shares(graph: Graph, node: Node) -> bool:
    """Whether a node's output stands where its first input does."""
    return bool(node.inputs) and (
        node.op in VIEWS
        or (node.op in _IN_PLACE and graph.is_private(node.inputs[0]) and node.inputs[0] in graph.producers)
    )


def _size_bytes(spec: TensorSpec | None, dtypes: Mapping[str, str]) -> int:
    if spec is None or not spec.is_static or spec.dtype in ("unknown", "object"):
        return 0
    return tensor_bytes(
        dtypes.get(spec.dtype, spec.dtype), math.prod(dim for dim in spec.shape if isinstance(dim, int))
    )
