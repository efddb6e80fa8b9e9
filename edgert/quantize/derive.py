"""Tensors that need no counting of their own: their values are those of others, in another order.

A Reshape or Transpose has the histogram of what it moves, a Concat the sum of its inputs' histograms; exactly so, as a
histogram depends on nothing but how often each value occurs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from edgert.graph.node import Graph
from edgert.graph.operators import REORDERS, about
from edgert.quantize.histogram import Histogram

MOST_PARTS = 64
"""A tensor of more parts is counted itself: adding up histograms costs what counting 10,000 values does."""


def parts(graph: Graph, wanted: Iterable[str], countable: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Wanted tensor → the countable tensors that together hold its values, itself where there are no others.

    A tensor stands in its parts as often as its values occur in the wanted one.
    """
    found: dict[str, tuple[str, ...]] = {}
    usable = frozenset(countable)
    for node in graph.nodes:  # in order, so that what a node reads has been resolved before it
        moved = node.inputs[:1] if node.op in REORDERS else node.inputs if about(node.op).kind == "join" else ()
        pieces = tuple(part for name in moved for part in found.get(name, (name,)))
        if 0 < len(pieces) <= MOST_PARTS and not node.domain and usable.issuperset(moved):
            found[node.outputs[0]] = pieces
    return {name: found.get(name, (name,)) for name in wanted}


def assemble(counted: Mapping[str, Histogram], made_of: Mapping[str, tuple[str, ...]]) -> dict[str, Histogram]:
    """The histogram of each tensor in ``made_of`` from those of its parts. Tensors of one part share it."""
    return {
        name: counted[found[0]] if len(found) == 1 else Histogram.merged([counted[part] for part in found])
        for name, found in made_of.items()
    }
