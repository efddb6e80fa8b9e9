"""Nodes that compute in float16, and reasons why the rest do not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgert.errors import ModelError, nearest
from edgert.graph import Graph, Node
from edgert.graph.operators import ARITHMETIC, about, is_copy, of_kind
from edgert.graph.type_inference import dtypes
from edgert.quantization.fp16.rules import EXACT_INTEGERS, Array, Facts, Measured, Ports, magnitudes, ports, reason

# The end of a detector, where it computes positions: a float16 step can be a pixel there, and unequal scores equal.

MIN_PLACES = 64
"""A stored tensor with as many values, over two axes or at even distances, is taken for anchors or a grid."""
MIN_STEPS = 7

_RANKING = frozenset({"TopK", "NonMaxSuppression"})
_HEAVY = of_kind("conv", "product", "recurrent", "control")


def positions(facts: Facts) -> dict[int, str]:
    """Return index of a node in the graph → why it belongs to computing positions or ranking scores.

    The tail is what no weighted node comes after. In it, look for nodes with a table of positions, with values beyond
    2048, or with a ranking: all that they depend on and lead to is meant. An error before a multiplication by the
    stride grows with it, and rounding behind it would undo what was gained.
    """
    graph = facts.graph
    tail = _tail(graph)
    found = {at: why for at in tail if (why := _why(facts, graph.nodes[at], tail))}
    makers = {at: [graph.producers[name] for name in graph.nodes[at].reads if name in graph.producers] for at in tail}
    readers = {at: [one for name in graph.nodes[at].outputs for one in graph.consumers.get(name, ())] for at in tail}
    before, after = (_reachable(graph, found, beside) for beside in (makers, readers))
    linked = dict.fromkeys(sorted((before | after) - set(found)), "it is part of computing positions or ranks")
    return {**found, **linked}


def _why(facts: Facts, node: Node, tail: Collection[int]) -> str:
    if node.op in _RANKING:
        return "scores that differ would become equal"
    if about(node.op).kind != "conversion" and any(map(facts.counts, node.inputs)):
        return "it computes with indices"
    if node.op in ARITHMETIC:
        for name in node.inputs:
            if name in facts.graph.constants and _is_table(facts.graph.constants[name]):
                return f"it computes positions with {name!r}"
    large = (name for name in node.outputs if name and facts.types.get(name) == "float32")
    name = next((name for name in large if facts.reach.get(name, 0) > EXACT_INTEGERS), "")
    return f"{name!r} may reach {facts.reach[name]:.4g}, where float16 steps by 2" if name else ""


def _is_table(stored: Array) -> bool:
    """Return whether a stored operand gives each place its own number, unlike biases and gains, which are per channel.

    Such tables have two axes, or many values at even distances, as on a grid; learnt ones do not.
    """
    if stored.size < MIN_PLACES:
        return False
    steps = np.diff(np.unique(stored))
    is_grid = steps.size >= MIN_STEPS and bool(np.ptp(steps) <= 1e-3 * steps.max())
    return is_grid or sum(size > 1 for size in stored.shape) > 1


def _tail(graph: Graph) -> frozenset[int]:
    """Return indices of the nodes that are not weighted and that no weighted node depends on."""
    heavy: set[str] = set()
    tail = set()
    for at in reversed(range(len(graph.nodes))):
        node = graph.nodes[at]
        if node.op in _HEAVY or not heavy.isdisjoint(node.outputs):
            heavy.update(node.reads)
        else:
            tail.add(at)
    return frozenset(tail)


def _reachable(graph: Graph, start: Collection[int], beside: Mapping[int, Sequence[Node]]) -> frozenset[int]:
    """Return places reachable from ``start``, among those whose neighbors are known."""
    places = {id(node): at for at, node in enumerate(graph.nodes)}
    found: set[int] = set()
    waiting = list(start)
    while waiting:
        near = {places[id(node)] for node in beside[waiting.pop()]} & beside.keys() - found
        found |= near
        waiting += near
    return frozenset(found)


_PICKING = of_kind("join") | {"Where"}
_BETWEEN = "it only moves values between nodes that stay float32"


@dataclass(frozen=True)
class Plan:
    """A decision for every node of a graph, by its index.

    Attributes:
        types: tensor → element type before anything is changed.
        ports: what changes type with each node.
        fp16_nodes: nodes that compute in float16.
        reasons: why others stay float32; nodes that touch no float32 tensors, or only convert or measure them, are in
            neither.
    """

    graph: Graph
    types: Mapping[str, str]
    ports: Sequence[Ports]
    fp16_nodes: frozenset[int]
    reasons: Mapping[int, str]

    def reads_fp16(self, at: int, position: int) -> bool:
        """Return whether a node reads an input in float16."""
        return at in self.fp16_nodes and position in self.ports[at].inputs

    def gives_fp16(self, at: int, position: int) -> bool:
        """Return whether a node computes an output in float16."""
        return at in self.fp16_nodes and position in self.ports[at].outputs


def plan(graph: Graph, keep: Collection[str], measured: Measured, pinned: Collection[str]) -> Plan:
    """Decide the precision of every node.

    Args:
        graph: the float graph.
        keep: names of nodes that stay float32.
        measured: see :data:`~edgert.quantization.fp16.rules.Measured`.
        pinned: tensors that must exist in float32 in any case.

    Raises:
        ModelError: a name in ``keep`` is no node's.
    """
    names = {node.name for node in graph.nodes}
    for name in keep:
        if name not in names:
            raise ModelError(
                f"no node is called {name!r}, which should stay float32{nearest(name, names)}",
                fix="name nodes as edgert inspect lists them",
            )
    types = dtypes(graph)
    facts = Facts(graph, types, magnitudes(graph, measured))
    found = [ports(graph, node, types) for node in graph.nodes]
    tail = positions(facts)
    reasons = {}  # why nodes stay float32 for their own sake
    for at, node in enumerate(graph.nodes):
        if found[at].carries and about(node.op).kind not in ("conversion", "measure"):
            why = "it was named" if node.name in keep else reason(facts, node, found[at]) or tail.get(at, "")
            if why:
                reasons[at] = why
    draft = _Draft(graph, found, frozenset(pinned), reasons)
    draft.keep_between()
    draft.fix_starts()
    draft.fix_ends()
    fp16_nodes = frozenset(at for at, item in enumerate(found) if item.has_fp16_form and at not in draft.reasons)
    described = {at: why for at, why in sorted(draft.reasons.items()) if why}
    return Plan(graph, types, found, fp16_nodes - _conversions(graph), described)


def _conversions(graph: Graph) -> frozenset[int]:
    """Return nodes that make float32 of other types: they are written anew, for each type that is read."""
    return frozenset(at for at, node in enumerate(graph.nodes) if makes_float32(node))


def makes_float32(node: Node) -> bool:
    """Return whether a node converts to float32: ONNX's number of that type is 1."""
    return about(node.op).kind == "conversion" and not node.domain and node.attributes["to"] == 1


class _Draft:
    """Nodes that stay float32, extended by nodes that should follow them; an empty reason is not listed."""

    def __init__(
        self, graph: Graph, found: Sequence[Ports], pinned: frozenset[str], reasons: Mapping[int, str]
    ) -> None:
        self._graph, self._ports, self._pinned = graph, found, pinned
        self._places = {id(node): at for at, node in enumerate(graph.nodes)}
        self._free = {at for at, item in enumerate(found) if item.has_fp16_form} - set(reasons) - _conversions(graph)
        self._fed = {spec.name for spec in graph.inputs} & pinned
        self.reasons = dict(reasons)

    def keep_between(self) -> None:
        """Keep nodes that move values from float32 to float32: rounding them on the way would undo what was kept."""
        nodes = self._graph.nodes
        moving = [
            at
            for at in sorted(self._free)
            if not nodes[at].domain and (nodes[at].op in _PICKING or is_copy(self._graph, nodes[at]))
        ]
        fed: set[int] = set()
        for at in moving:
            if any(self._is_full(name, fed) for name in self._data(at)):
                fed.add(at)
        needed: set[int] = set()
        for at in reversed(moving):
            if any(self._is_needed_full(name, needed) for name in nodes[at].outputs):
                needed.add(at)
        self._keep(fed & needed, _BETWEEN)

    def fix_starts(self) -> None:
        """Let nodes that make floats of something else (DequantizeLinear) give what the first float32 reader wants."""
        for at in sorted(self._free, reverse=True):
            outputs = [name for name in self._graph.nodes[at].outputs if name]
            if self._is_start(at) and any(self._is_needed_full(name, ()) for name in outputs):
                self._keep({at}, "")

    def fix_ends(self) -> None:
        """Let nodes that make something else of floats (QuantizeLinear, comparisons) take the type they can get."""
        for at in sorted(self._free):
            if not self._ports[at].gives and any(self._is_full(name, ()) for name in self._data(at)):
                self._keep({at}, "")

    def _keep(self, places: Collection[int], why: str) -> None:
        self._free -= set(places)
        self.reasons.update(dict.fromkeys(places, why))

    def _is_start(self, at: int) -> bool:
        return self._ports[at].gives and not self._data(at)

    def _data(self, at: int) -> list[str]:
        """Return the float inputs of a node that are not stored."""
        names = [self._graph.nodes[at].inputs[position] for position in sorted(self._ports[at].inputs)]
        return [name for name in names if name not in self._graph.constants]

    def _is_full(self, name: str, also: Collection[int]) -> bool:
        """Return whether a tensor exists in float32 anyway, or could at no cost."""
        maker = self._graph.producers.get(name)
        if maker is None:
            return name in self._fed
        at = self._places[id(maker)]
        return at in also or at in self.reasons or (at in self._free and self._is_start(at))

    def _is_needed_full(self, name: str, also: Collection[int]) -> bool:
        """Return whether a tensor is read in float32, or has to exist in float32."""
        readers = (self._places[id(node)] for node in self._graph.consumers.get(name, ()))
        return name in self._pinned or any(at in also or self.reasons.get(at) for at in readers)
