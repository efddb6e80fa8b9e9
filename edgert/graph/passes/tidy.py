"""Passes over the list of nodes: their order, and nodes that nobody needs."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgert.errors import ModelError, nearest
from edgert.graph.draft import needed
from edgert.graph.ir import Graph, Node
from edgert.graph.passes.contract import Change, Pass, Result


def _sort_nodes(graph: Graph) -> Result:
    order = _topological_order(graph)
    if order == list(range(len(order))):
        return graph, ()
    nodes = tuple(graph.nodes[position] for position in order)
    change = Change("sort-nodes", "graph", f"{len(order)} nodes put in the order in which they run")
    return replace(graph, nodes=nodes), (change,)


def _topological_order(graph: Graph) -> list[int]:
    """Kahn's algorithm; among the nodes that are ready the one written first goes first, so sorted graphs stay."""
    needs = _needs(graph)
    followers: dict[int, list[int]] = {}
    for position, before in enumerate(needs):
        for earlier in before:
            followers.setdefault(earlier, []).append(position)
    waiting = {position: len(before) for position, before in enumerate(needs)}
    ready = [position for position, count in waiting.items() if count == 0]
    order: list[int] = []
    while ready:
        position = heapq.heappop(ready)
        order.append(position)
        for follower in followers.get(position, ()):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(graph.nodes):
        raise _cycle(graph.nodes, waiting)
    return order


def _needs(graph: Graph) -> list[set[int]]:
    """For each node the positions of those it reads."""
    places = {id(node): position for position, node in enumerate(graph.nodes)}
    makers = {name: places[id(node)] for name, node in graph.producers.items()}
    known = {spec.name for spec in graph.inputs} | graph.constants.keys()
    found = []
    for node in graph.nodes:
        for name in filter(None, node.inputs):
            if name not in makers and name not in known:
                raise _dangling(node, name, makers)
        # a body may use a name of its own that its node also gives out; that is no cycle
        names = {*node.inputs, *(node.captured - set(node.outputs))}
        found.append({makers[name] for name in names if name in makers})
    return found


def _dangling(node: Node, name: str, makers: Mapping[str, int]) -> ModelError:
    return ModelError(
        f"node {node.name!r} reads {name!r}, which nothing makes",
        why=f"no node, input or stored tensor has that name{nearest(name, makers)}",
        fix="export the model again",
    )


def _cycle(nodes: Sequence[Node], waiting: Mapping[int, int]) -> ModelError:
    name = next(node.name for position, node in enumerate(nodes) if waiting[position] > 0)
    return ModelError(f"node {name!r} waits for its own result", why="the graph has a cycle", fix="export it again")


def _remove_dead(graph: Graph) -> Result:
    kept = needed(graph.nodes, graph.output_names)
    if len(kept) == len(graph.nodes):
        return graph, ()
    alive = set(map(id, kept))
    dead = [node for node in graph.nodes if id(node) not in alive]
    changes = (Change("remove-dead", node.name, f"{node.op} removed, nothing reads its result") for node in dead)
    return replace(graph, nodes=kept), tuple(changes)


SORT_NODES = Pass(
    "sort-nodes", "nodes are reordered, if need be, so that each comes after what it reads", "runtimes want it",
    _sort_nodes,
)  # fmt: skip
REMOVE_DEAD = Pass(
    "remove-dead", "nodes that no graph output depends on go; needs sorted nodes", "they compute nothing", _remove_dead
)
