"""Decision which nodes compute in float16, and the reasons of those that do not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgert.graph import Graph, Node, operators, type_inference
from edgert.quantization.fp16.rules import EXACT_INTEGERS, Array, Facts, Ports, magnitudes, ports, reason

MIN_PLACES = 64
"""Smallest number of values of a stored tensor that counts as anchors or a grid."""
MIN_STEPS = 7

_RANKING = frozenset({"TopK", "NonMaxSuppression"})
_HEAVY = operators.of_kind("conv", "product", "recurrent", "control")


def positions(facts: Facts) -> dict[int, str]:
    """Return the reasons of nodes that compute positions or rank scores, by index of the node.

    In float16 a step can be a pixel there, and different scores equal. Such nodes are in the tail, behind which there
    is no weighted node. They read a table of positions, have values beyond 2048, or rank. The nodes of the tail that
    they depend on or lead to belong to them: errors before a multiplication by the stride grow with it, and rounding
    behind it would add new ones.
    """
    nodes, tail = facts.graph.nodes, sorted(_tail(facts.graph))
    found = {at: why for at in tail if (why := _position_reason(facts, nodes[at]))}
    linked, made, read = set[int](), set[str](), set[str]()  # tensors behind found nodes, and before them
    for at in tail:
        if at in found or not made.isdisjoint(nodes[at].reads):
            linked.add(at)
            made.update(nodes[at].outputs)
    for at in reversed(tail):
        if at in found or not read.isdisjoint(nodes[at].outputs):
            linked.add(at)
            read.update(nodes[at].reads)
    return {**found, **dict.fromkeys(sorted(linked - set(found)), "it is part of computing positions or ranks")}


def _position_reason(facts: Facts, node: Node) -> str:
    if node.op in _RANKING:
        return "different scores would become equal"
    if operators.about(node.op).kind != "conversion" and any(map(facts.counts, node.inputs)):
        return "it computes with indices"
    if node.op in operators.ARITHMETIC:
        for name in node.inputs:
            if name in facts.graph.constants and _is_table(facts.graph.constants[name]):
                return f"it computes positions with {name!r}"
    large = (name for name in node.outputs if name and facts.types.get(name) == "float32")
    name = next((name for name in large if facts.reach.get(name, 0) > EXACT_INTEGERS), "")
    return f"{name!r} may reach {facts.reach[name]:.4g}, where float16 steps by 2" if name else ""


def _is_table(stored: Array) -> bool:
    """Return whether a stored operand is a table of positions: over two axes, or evenly spaced as a grid.

    Biases and gains are per channel, and not evenly spaced.
    """
    if stored.size < MIN_PLACES:
        return False
    steps = np.diff(np.unique(stored))
    is_grid = steps.size >= MIN_STEPS and bool(np.ptp(steps) <= 1e-3 * steps.max())
    return is_grid or sum(size > 1 for size in stored.shape) > 1


def _tail(graph: Graph) -> frozenset[int]:
    """Return the indices of nodes that are not weighted and lead to no weighted node."""
    heavy: set[str] = set()
    tail = set()
    for at in reversed(range(len(graph.nodes))):
        node = graph.nodes[at]
        if node.op in _HEAVY or not heavy.isdisjoint(node.outputs):
            heavy.update(node.reads)
        else:
            tail.add(at)
    return frozenset(tail)


_PICKING = operators.of_kind("join") | {"Where"}
_BETWEEN = "it only moves values between nodes that stay float32"


@dataclass(frozen=True)
class Plan:
    """A decision for every node of a graph, by its index.

    Attributes:
        ports: inputs and outputs that change type with each node.
        fp16_nodes: indices of nodes that compute in float16.
        reasons: reasons of nodes that stay float32, by index. Nodes without float32 tensors, and those that only
            convert or measure them, are in neither.
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


def plan(graph: Graph, keep: Collection[str], pinned: Collection[str]) -> Plan:
    """Return the decision for every node. Tensors that are ``pinned`` must exist in float32."""
    types = type_inference.dtypes(graph)
    facts = Facts(graph, types, magnitudes(graph))
    found = [ports(graph, node, types) for node in graph.nodes]
    tail = positions(facts)
    reasons = {}  # of nodes themselves, before their neighbors count
    for at, node in enumerate(graph.nodes):
        if found[at].carries and operators.about(node.op).kind not in ("conversion", "measure"):
            why = "it was named" if node.name in keep else reason(facts, node, found[at]) or tail.get(at, "")
            if why:
                reasons[at] = why
    draft = _Decision(graph, found, frozenset(pinned), reasons)
    draft.keep_between()
    draft.fix_starts()
    draft.fix_ends()
    fp16_nodes = frozenset(at for at, item in enumerate(found) if item.has_fp16_form and at not in draft.reasons)
    described = {at: why for at, why in sorted(draft.reasons.items()) if why}
    return Plan(graph, types, found, fp16_nodes - _conversions(graph), described)


def _conversions(graph: Graph) -> frozenset[int]:
    """Return the indices of nodes that convert to float32, which are replaced by a Cast for each type that is read."""
    return frozenset(at for at, node in enumerate(graph.nodes) if makes_float32(node))


def makes_float32(node: Node) -> bool:
    """Return whether a node converts to float32, which is type 1 of ONNX."""
    return operators.about(node.op).kind == "conversion" and not node.domain and node.attributes["to"] == 1


class _Decision:
    """Nodes that stay float32 with their reasons, and their extension to neighbors; empty reasons are not listed."""

    def __init__(
        self, graph: Graph, found: Sequence[Ports], pinned: frozenset[str], reasons: Mapping[int, str]
    ) -> None:
        self._graph, self._ports, self._pinned = graph, found, pinned
        self._places = {id(node): at for at, node in enumerate(graph.nodes)}
        self._free = {at for at, item in enumerate(found) if item.has_fp16_form} - set(reasons) - _conversions(graph)
        self._fed = {spec.name for spec in graph.inputs} & pinned
        self.reasons = dict(reasons)

    def keep_between(self) -> None:
        """Keep nodes that move values from float32 to float32 nodes, so that these are not rounded between."""
        nodes = self._graph.nodes
        moving = [
            at
            for at in sorted(self._free)
            if not nodes[at].domain and (nodes[at].op in _PICKING or operators.is_copy(self._graph, nodes[at]))
        ]
        fed: set[int] = set()
        for at in moving:
            if any(self._is_float32(name, fed) for name in self._data(at)):
                fed.add(at)
        needed: set[int] = set()
        for at in reversed(moving):
            if any(self._is_read_as_float32(name, needed) for name in nodes[at].outputs):
                needed.add(at)
        self._keep(fed & needed, _BETWEEN)

    def fix_starts(self) -> None:
        """Keep nodes that make floats from other types where a float32 node reads them."""
        for at in sorted(self._free, reverse=True):
            outputs = [name for name in self._graph.nodes[at].outputs if name]
            if self._is_start(at) and any(self._is_read_as_float32(name, ()) for name in outputs):
                self._keep({at}, "")

    def fix_ends(self) -> None:
        """Keep nodes that make other types from floats (comparisons) where they read float32."""
        for at in sorted(self._free):
            if not self._ports[at].gives and any(self._is_float32(name, ()) for name in self._data(at)):
                self._keep({at}, "")

    def _keep(self, places: Collection[int], why: str) -> None:
        self._free -= set(places)
        self.reasons.update(dict.fromkeys(places, why))

    def _is_start(self, at: int) -> bool:
        return self._ports[at].gives and not self._data(at)

    def _data(self, at: int) -> list[str]:
        names = [self._graph.nodes[at].inputs[position] for position in sorted(self._ports[at].inputs)]
        return [name for name in names if name not in self._graph.constants]

    def _is_float32(self, name: str, also: Collection[int]) -> bool:
        """Return whether a tensor exists in float32, or can at no cost."""
        maker = self._graph.producers.get(name)
        if maker is None:
            return name in self._fed
        at = self._places[id(maker)]
        return at in also or at in self.reasons or (at in self._free and self._is_start(at))

    def _is_read_as_float32(self, name: str, also: Collection[int]) -> bool:
        """Return whether a tensor is read in float32, or must exist in float32."""
        readers = (self._places[id(node)] for node in self._graph.consumers.get(name, ()))
        return name in self._pinned or any(at in also or self.reasons.get(at) for at in readers)
