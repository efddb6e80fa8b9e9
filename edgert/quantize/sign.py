"""Which tensors are never negative, as far as operators alone tell."""

from __future__ import annotations

from edgert.graph.node import Graph, Node
from edgert.quantize.operator import POOLS, clip_bounds, data_inputs, data_outputs, is_movement

_POSITIVE = frozenset({"Sigmoid", "Softmax", "HardSigmoid", "Softplus", "Exp", "Abs"})
_KEEPS = POOLS | {"GlobalAveragePool", "GlobalMaxPool", "Concat", "Add", "Mul", "ReduceMean", "ReduceMax"}


def never_negative(graph: Graph) -> frozenset[str]:
    """Names of the float32 tensors that cannot be negative."""
    found: set[str] = set()
    for node in graph.nodes:
        if _is_positive(graph, node, found):
            found.update(data_outputs(graph, node))
    return frozenset(found)


def _is_positive(graph: Graph, node: Node, found: set[str]) -> bool:
    if node.domain:
        return False
    bounds = clip_bounds(graph, node)
    if node.op in _POSITIVE or (bounds is not None and bounds[0] >= 0):
        return True
    keeps = node.op in _KEEPS or is_movement(graph, node)
    names = data_inputs(graph, node)
    stored = [name for name in node.inputs if name in graph.constants]
    return (
        keeps and bool(names) and set(names) <= found and (is_movement(graph, node) or node.op in POOLS or not stored)
    )
