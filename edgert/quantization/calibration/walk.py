"""Running a graph piece by piece, all images side by side.

The graph is cut behind each tensor that somebody wants to see. Every image is moved to the first cut, then every
image to the second, and so on: each node runs once per image, and only what lies across the cut is in memory.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Node, TensorSpec, extract, read, write

# A graph cut into consecutive parts, so that few of its tensors are in memory at a time.

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


Feeds = Mapping[str, Array]
"""Input name → array, one image."""

THREADS = 2
"""Images that are on their way at once, by default. Each runs on one thread."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The nodes between two cuts.

    Attributes:
        target: the tensor behind which the graph is cut.
        made: tensors to compute here: the target, and what later pieces read. Empty when all of them are there.
        given: tensors of earlier pieces that it reads.
        last: tensors that nobody needs when it is done.
    """

    target: str
    made: tuple[str, ...]
    given: tuple[str, ...]
    last: tuple[str, ...]


def pieces(graph: Graph, targets: Sequence[str]) -> tuple[Piece, ...]:
    """The graph cut behind each target, in the order given: upstream ones first, or nothing is gained. A target that
    comes a second time makes an empty piece.

    Raises:
        ModelError: nothing computes a target.
    """
    wanted = list(targets)
    fed = [spec.name for spec in graph.inputs]
    needed = extract(graph, [name for name in wanted if name not in fed])
    waiting = {name: len(nodes) for name, nodes in needed.consumers.items()}
    done: set[int] = set()
    held, found = set(fed), []
    for position, target in enumerate(wanted):
        later = frozenset(wanted[position + 1 :])
        nodes = _pending(needed, target, done)
        done.update(map(id, nodes))
        for name in (name for node in nodes for name in node.reads):
            waiting[name] -= 1
        made = [name for node in nodes for name in node.outputs if waiting.get(name) or name in {target, *later}]
        given = [name for name in dict.fromkeys(n for node in nodes for n in node.reads) if name in held]
        held.update(made)
        last = [name for name in held if not waiting.get(name) and name not in later]
        held.difference_update(last)
        found.append(Piece(target, tuple(made), tuple(given), tuple(sorted(last))))
    return tuple(found)


def walk(
    graph: Graph,
    targets: Sequence[str],
    feeds: Sequence[Feeds],
    like: Model,
    *,
    threads: int = THREADS,
    stop: threading.Event | None = None,
) -> Iterator[list[Array]]:
    """Yields each target's values, one array per image, in the order of the targets; again for one named again.

    Every node computes exactly what ONNX defines, Q/DQ pairs included. An array that a node computed may be
    changed in place until the next one is asked for: what follows then reads the changed values. Arrays of ``feeds``
    must be left alone. What later pieces do not need is dropped.

    Args:
        graph: types of its inner tensors are inferred where they are missing.
        targets: tensors, upstream ones first.
        feeds: all images; their number bounds the memory, with what lies across a cut.
        like: the model that the graph was read from.
        stop: ends the walk when set, before the next image's next piece.

    Raises:
        ModelError: nothing computes a target.
        BuildError: ONNX Runtime cannot run a piece.
        CalibrationError: stopped.
    """
    typed = _typed(graph, like)
    states = [dict(one) for one in feeds]
    with ThreadPoolExecutor(threads) as pool:
        for piece in pieces(typed, targets):
            if piece.made:
                function = Function(write(extract(typed, piece.made, piece.given), like), fused=False)
                for state, made in zip(states, pool.map(_until(stop, function), states), strict=True):
                    state.update(made)
            yield [state[piece.target] for state in states]
            for state in states:
                for name in piece.last:
                    state.pop(name, None)


def check_stop(stop: threading.Event | None) -> None:
    """Raises CalibrationError once ``stop`` is set."""
    if stop is not None and stop.is_set():
        raise CalibrationError("stopped while INT8 was made", fix="run it again")


def _until(stop: threading.Event | None, function: Function) -> Callable[[Feeds], Mapping[str, Array]]:
    def run(state: Feeds) -> Mapping[str, Array]:
        check_stop(stop)
        return function(state)

    return run


def _pending(graph: Graph, target: str, done: set[int]) -> list[Node]:
    """Nodes not done yet that the target depends on, in the order of the graph."""
    found: set[int] = set()
    waiting = [target]
    while waiting:
        node = graph.producers.get(waiting.pop())
        if node is not None and id(node) not in found and id(node) not in done:
            found.add(id(node))
            waiting.extend(node.reads)
    return [node for node in graph.nodes if id(node) in found]


def _typed(graph: Graph, like: Model) -> Graph:
    """The graph with the types of all tensors, inferred again where a rewrite left some out."""
    known = all(name in graph.specs for node in graph.nodes for name in node.outputs if name)
    return graph if known else read(write(graph, like))
