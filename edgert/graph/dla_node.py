"""Conversion of a graph's nodes to the records that the DLA's rules check."""

import dla
from edgert.graph.ir import Graph, Node
from edgert.graph.operators import about

_MAX_VALUES = 64
"""Largest stored tensor, in elements, whose values are passed on: scales, bounds and shapes, but no kernels."""


def dla_nodes(graph: Graph) -> tuple[dla.Node, ...]:
    """Return the graph's nodes in order, as records for the rules.

    Results that follow from stored tensors or static shapes alone count as stored.
    """
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
    kind = about(node.op).kind
    if kind == "random" or node.domain:
        return False
    if kind == "measure" and node.inputs:
        return graph.shape(node.inputs[0]) is not None
    return known.issuperset(node.reads)


def dla_tensor(graph: Graph, name: str, is_known: bool) -> dla.Tensor:
    """Return a tensor as a record for the rules; ``is_known`` states whether its value is known before a run."""
    spec, array = graph.spec(name), graph.constants.get(name)
    dtype = spec.dtype if spec else "unknown"
    shape = tuple(dim if isinstance(dim, int) else None for dim in spec.shape) if spec and spec.ranked else None
    if array is None or array.dtype.kind not in "fiub":  # strings have no numbers, and are not known to be 0
        return dla.Tensor(name, shape, dtype, is_known)
    values = tuple(map(float, array.ravel())) if array.size <= _MAX_VALUES else None
    return dla.Tensor(name, shape, dtype, is_known, values, not array.any())
