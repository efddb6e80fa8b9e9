"""A graph's nodes as the DLA's rules see them."""

import dla
from edgert.graph.ir import Graph, Node
from edgert.graph.operators import about

_MAX_VALUES = 64
"""Stored tensors of up to so many elements are handed over with their values: scales, limits, shapes, no kernels."""


def dla_nodes(graph: Graph) -> tuple[dla.Node, ...]:
    """The graph's nodes in order. Results of stored tensors alone, and shapes of static ones, count as stored."""
    known, found = set(graph.constants), []
    for node in graph.nodes:
        if _is_known(graph, node, known):
            known.update(filter(None, node.outputs))
        inputs, outputs = (
            tuple(dla_tensor(graph, name, name in known) if name else None for name in names)
            for names in (node.inputs, node.outputs)
        )
        found.append(dla.Node(node.op, inputs, outputs, node.attributes, node.name, node.domain, graph.opset))
    return tuple(found)


def _is_known(graph: Graph, node: Node, known: set[str]) -> bool:
    """Whether what a node computes is there before anything runs."""
    kind = about(node.op).kind
    if kind == "random" or node.domain:
        return False
    if kind == "measure" and node.inputs:
        return graph.shape(node.inputs[0]) is not None
    return known.issuperset(node.reads)


def dla_tensor(graph: Graph, name: str, is_known: bool) -> dla.Tensor:
    """A tensor of the graph as the rules see it; ``is_known``: it is there before anything runs."""
    spec, array = graph.spec(name), graph.constants.get(name)
    dtype = spec.dtype if spec else "unknown"
    shape = tuple(dim if isinstance(dim, int) else None for dim in spec.shape) if spec and spec.ranked else None
    if array is None or array.dtype.kind not in "fiub":  # texts and the like have no values, and are not known to be 0
        return dla.Tensor(name, shape, dtype, is_known)
    values = tuple(map(float, array.ravel())) if array.size <= _MAX_VALUES else None
    return dla.Tensor(name, shape, dtype, is_known, values, not array.any())
