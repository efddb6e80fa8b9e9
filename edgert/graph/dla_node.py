"""A graph's nodes as the DLA's rules see them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dla import Tensor
from edgert.graph.ir import Graph, Node
from edgert.graph.model import Array, TensorSpec
from edgert.graph.operators import about

_MAX_VALUES = 64
"""Stored tensors of up to so many elements are handed over with their values: scales, limits, shapes, no kernels."""


@dataclass(frozen=True, slots=True)
class DlaNode:
    """One node with the tensors around it; implements :class:`dla.Node`."""

    name: str
    op: str
    domain: str
    opset: int
    attributes: Mapping[str, Any]
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]


def dla_nodes(graph: Graph) -> tuple[DlaNode, ...]:
    """The graph's nodes in order. Results of stored tensors alone, and shapes of static ones, count as stored."""
    reader = _Reader(graph)
    return tuple(map(reader.node, graph.nodes))


class _Reader:
    """One walk over a graph in order; ``known`` holds the tensors that are there before anything runs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known = set(graph.constants)
        self.ends: dict[str, TensorSpec] = {spec.name: spec for spec in (*graph.inputs, *graph.outputs)}

    def node(self, node: Node) -> DlaNode:
        if self._is_known(node):
            self.known.update(filter(None, node.outputs))
        return DlaNode(
            name=node.name,
            op=node.op,
            domain=node.domain,
            opset=self.graph.opset,
            attributes=node.attributes,
            inputs=tuple(self._tensor(name) for name in node.inputs),
            outputs=tuple(self._tensor(name) for name in node.outputs),
        )

    def _is_known(self, node: Node) -> bool:
        kind = about(node.op).kind
        if kind == "random" or node.domain:
            return False
        if kind == "measure" and node.inputs:
            spec = self._spec(node.inputs[0])
            return spec is not None and spec.is_static
        return self.known.issuperset(node.reads)

    def _tensor(self, name: str) -> Tensor | None:
        if not name:
            return None
        array = self.graph.constants.get(name)
        if array is not None:
            return Tensor(name, array.shape, array.dtype.name, True, _values(array), _is_zero(array))
        spec = self._spec(name)
        if spec is None or not spec.ranked:
            return Tensor(name, None, spec.dtype if spec else "unknown", is_constant=name in self.known)
        shape = tuple(dim if isinstance(dim, int) else None for dim in spec.shape)
        return Tensor(name, shape, spec.dtype, is_constant=name in self.known)

    def _spec(self, name: str) -> TensorSpec | None:
        return self.graph.specs.get(name) or self.ends.get(name)


def _values(array: Array) -> tuple[float, ...] | None:
    """Values of a small tensor of numbers."""
    if array.size > _MAX_VALUES or array.dtype.kind not in "fiub":
        return None
    return tuple(map(float, array.ravel()))


def _is_zero(array: Array) -> bool | None:
    """Of numbers; texts and the like are not known to be 0."""
    return not array.any() if array.dtype.kind in "fiub" else None
