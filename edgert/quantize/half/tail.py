"""The end of a detector, where it computes positions: a float16 step can be a pixel there, and unequal scores equal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from edgert.graph.node import Graph, Node
from edgert.graph.operators import ARITHMETIC, about, of_kind
from edgert.quantize.half.rule import EXACT_INTEGERS, Facts
from edgert.quantize.magnitude import Array

MIN_PLACES = 64
"""A stored tensor with as many values, over two axes or at even distances, is taken for anchors or a grid."""
MIN_STEPS = 7

_RANKING = frozenset({"TopK", "NonMaxSuppression"})
_HEAVY = of_kind("conv", "product", "recurrent", "control")


def positions(facts: Facts) -> dict[int, str]:
    """Index of a node in the graph → why it belongs to the computation of positions or to the ranking of scores.

    The tail is what no weighted node comes after. In it, whatever a node with a table of places, with values beyond
    2048, or with a ranking depends on and leads to is meant: an error before a multiplication by the stride grows with
    it, and rounding behind it would undo what was gained.
    """
    graph = facts.graph
    tail = _tail(graph)
    found = {at: why for at in tail if (why := _why(facts, graph.nodes[at], tail))}
    before = _spread(graph, found, tail, lambda node: _sources(graph, node))
    after = _spread(graph, found, tail, lambda node: _targets(graph, node))
    spread = dict.fromkeys(sorted((before | after) - set(found)), "it is part of computing positions or ranks")
    return {**found, **spread}


def _why(facts: Facts, node: Node, tail: Collection[int]) -> str:
    if node.op in _RANKING:
        return "scores that differ would become equal"
    if about(node.op).kind != "conversion" and any(map(facts.counts, node.inputs)):
        return "it computes with indices"
    table = next(_tables(facts.graph, node), "") if node.op in ARITHMETIC else ""
    if table:
        return f"it computes positions with {table!r}"
    large = (name for name in node.outputs if name and facts.types.get(name) == "float32")
    name = next((name for name in large if facts.reach.get(name, 0) > EXACT_INTEGERS), "")
    return f"{name!r} may reach {facts.reach[name]:.4g}, where float16 steps by 2" if name else ""


def _tables(graph: Graph, node: Node) -> Iterator[str]:
    """Stored operands that give each place its own number, unlike biases and gains, which channels have."""
    for name in node.inputs:
        table = graph.constants.get(name)
        if table is not None and table.size >= MIN_PLACES and (_axes(table) > 1 or _is_ladder(table)):
            yield name


def _axes(table: Array) -> int:
    return sum(size > 1 for size in table.shape)


def _is_ladder(table: Array) -> bool:
    """Whether many values stand at even distances, as on a grid; learnt ones do not."""
    steps = np.diff(np.unique(table))
    return steps.size >= MIN_STEPS and bool(np.ptp(steps) <= 1e-3 * steps.max())


def _tail(graph: Graph) -> frozenset[int]:
    """Indices of the nodes that no weighted node depends on, and that are none."""
    heavy: set[str] = set()
    tail = set()
    for at in reversed(range(len(graph.nodes))):
        node = graph.nodes[at]
        if node.op in _HEAVY or not heavy.isdisjoint(node.outputs):
            heavy.update(node.reads)
        else:
            tail.add(at)
    return frozenset(tail)


def _spread(
    graph: Graph, start: Collection[int], within: Collection[int], step: Callable[[Node], Iterator[Node]]
) -> frozenset[int]:
    places = {id(node): at for at, node in enumerate(graph.nodes)}
    found: set[int] = set()
    waiting = list(start)
    while waiting:
        for node in step(graph.nodes[waiting.pop()]):
            at = places[id(node)]
            if at in within and at not in found:
                found.add(at)
                waiting.append(at)
    return frozenset(found)


def _sources(graph: Graph, node: Node) -> Iterator[Node]:
    return (graph.producers[name] for name in node.reads if name in graph.producers)


def _targets(graph: Graph, node: Node) -> Iterator[Node]:
    return (reader for name in node.outputs for reader in graph.consumers.get(name, ()))
