"""Passes over the list of nodes: local functions inlined, order, names, and nodes nobody needs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from edgert.errors import ModelError, nearest
from edgert.graph.index import Index, captured_names
from edgert.graph.proto import label
from edgert.graph.rewrite import Pass, drop_nodes, free_name
from edgert.graph.spec import initializer_names

if TYPE_CHECKING:
    import onnx


def _inline_functions(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    if not proto.functions:
        return
    from onnx import inliner

    names = [f"{function.domain}::{function.name}" for function in proto.functions]
    proto.CopyFrom(inliner.inline_local_functions(proto))
    yield from ((name, "local function inlined") for name in names)


def _sort_nodes(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph = proto.graph
    index = Index.of(graph)
    order = _topological_order(graph, index)
    if order == list(range(len(order))):
        return
    nodes = [_copy(graph.node[position]) for position in order]
    del graph.node[:]
    graph.node.extend(nodes)
    yield graph.name or "graph", f"{len(order)} nodes put in the order in which they run"


def _topological_order(graph: onnx.GraphProto, index: Index) -> list[int]:
    """Kahn's algorithm; among the nodes that are ready the one written first goes first, so sorted graphs stay."""
    needs = {position: _needs(node, index, graph, position) for position, node in enumerate(graph.node)}
    followers: dict[int, list[int]] = {}
    for position, before in needs.items():
        for earlier in before:
            followers.setdefault(earlier, []).append(position)
    waiting = {position: len(before) for position, before in needs.items()}
    ready = [position for position, count in waiting.items() if count == 0]
    order: list[int] = []
    while ready:
        position = heapq.heappop(ready)
        order.append(position)
        for follower in followers.get(position, ()):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(graph.node):
        raise _cycle(graph, waiting)
    return order


def _needs(node: onnx.NodeProto, index: Index, graph: onnx.GraphProto, position: int) -> set[int]:
    known = index.inputs | initializer_names(graph) if _reads_unmade(node, index) else frozenset()
    for name in filter(None, node.input):
        if name not in index.producers and name not in known:
            raise ModelError(
                f"node {label(node, position)!r} reads {name!r}, which nothing makes",
                why=f"no node, input or stored tensor has that name{nearest(name, index.producers)}",
                fix="export the model again",
            )
    names = {*node.input, *captured_names(node)}
    return {index.producers[name] for name in names if name in index.producers} - _self_captured(node, position, index)


def _reads_unmade(node: onnx.NodeProto, index: Index) -> bool:
    return any(name and name not in index.producers for name in node.input)


def _self_captured(node: onnx.NodeProto, position: int, index: Index) -> set[int]:
    """A body may use a name of its own that its node also gives out; that is no cycle."""
    own = any(index.producers.get(name) == position for name in captured_names(node))
    return {position} if own and not set(node.input) & set(node.output) else set()


def _cycle(graph: onnx.GraphProto, waiting: Mapping[int, int]) -> ModelError:
    position = next(position for position, count in waiting.items() if count > 0)
    name = label(graph.node[position], position)
    return ModelError(f"node {name!r} waits for its own result", why="the graph has a cycle", fix="export it again")


def _name_nodes(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph = proto.graph
    taken = {node.name for node in graph.node if node.name}
    seen: set[str] = set()
    for position, node in enumerate(graph.node):
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        old, node.name = node.name, free_name(node.name or f"{node.op_type}_{position}", taken)
        taken.add(node.name)
        seen.add(node.name)
        yield node.name, f"named; was {old!r}, which others are called too" if old else "named"


def _remove_dead(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph = proto.graph
    wanted = {item.name for item in graph.output}
    dead = set()
    for position in reversed(range(len(graph.node))):
        node = graph.node[position]
        if wanted.isdisjoint(filter(None, node.output)):
            dead.add(position)
            yield label(node, position), f"{node.op_type} removed, nothing reads its result"
        else:
            wanted.update(filter(None, node.input))
            wanted |= captured_names(node)
    drop_nodes(graph, dead)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = type(node)()
    copy.CopyFrom(node)
    return copy


INLINE_FUNCTIONS = Pass("inline-functions", "nodes that call a function of the file become its body", _inline_functions)
SORT_NODES = Pass("sort-nodes", "nodes are reordered, if need be, so that each comes after what it reads", _sort_nodes)
NAME_NODES = Pass("name-nodes", "nodes without a name, or with another's, get one of their own", _name_nodes)
REMOVE_DEAD = Pass("remove-dead", "nodes that no graph output depends on go; needs sorted nodes", _remove_dead)
