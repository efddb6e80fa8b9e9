"""A graph cut into consecutive parts, so that few of its tensors are in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from edgert.graph.node import Graph, Node, extract
from edgert.graph.spec import TensorSpec

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Nodes that run in one go.

    Attributes:
        graph: computes ``made`` from what is live.
        made: its outputs: wanted tensors, and what later slices read.
        dead: tensors, made here or before, that no later slice reads.
    """

    graph: Graph
    made: tuple[str, ...]
    dead: tuple[str, ...]


def cut(graph: Graph, wanted: Collection[str], limit_bytes: int) -> tuple[Slice, ...]:
    """Slices that compute all wanted tensors, each node once, in order.

    Args:
        graph: of a prepared model: the sizes of its tensors are known.
        wanted: computed tensors.
        limit_bytes: what one slice may compute; a single node may exceed it, tensors whose size depends on the data
            count as nothing. Where the cuts fall depends on graph, wanted tensors and limit alone.
    """
    needed = extract(graph, wanted)
    uses = {name: position for position, node in enumerate(needed.nodes) for name in node.reads}
    ends = [*_ends(needed, uses, limit_bytes), len(needed.nodes)]
    live = {spec.name for spec in needed.inputs}
    found: list[Slice] = []
    start = 0
    for end in ends:
        nodes = needed.nodes[start:end]
        made = [n for node in nodes for n in node.outputs if n and (n in wanted or uses.get(n, -1) >= end)]
        part = extract(needed, made, sorted(live))
        live.update(made)
        dead = sorted(name for name in live if uses.get(name, -1) < end)
        live.difference_update(dead)
        found.append(Slice(part, tuple(made), tuple(dead)))
        start = end
    return tuple(slice_ for slice_ in found if slice_.made)


def _ends(graph: Graph, uses: dict[str, int], limit_bytes: int) -> Iterator[int]:
    """Positions to cut before; never where a tensor of unknown type would have to cross."""
    filled_bytes, blocked = 0, -1
    for position, node in enumerate(graph.nodes):
        size_bytes = sum(_size_bytes(graph.specs.get(name)) for name in node.outputs)
        if filled_bytes + size_bytes > limit_bytes and filled_bytes and position > blocked:
            yield position
            filled_bytes = 0
        filled_bytes += size_bytes
        blocked = max([blocked, *(uses.get(name, -1) for name in _untyped(graph, node))])


def _untyped(graph: Graph, node: Node) -> Sequence[str]:
    return [n for n in node.outputs if n and (n not in graph.specs or graph.specs[n].dtype == "unknown")]


def _size_bytes(spec: TensorSpec | None) -> int:
    dims = [dim for dim in spec.shape if isinstance(dim, int)] if spec is not None and spec.is_static else [0]
    return FLOAT_BYTES * math.prod(dims)
