"""A network cut in two: the body that an accelerator can run as one piece, and the head that stays behind.

The body is closed under what it reads: it takes the model's inputs, and no node in it waits for one that the
accelerator cannot run. What the rest reads of it are the cut tensors; the head is computed from those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgert.errors import PlacementError
from edgert.graph.fit.draft import needed
from edgert.graph.node import Graph, Node
from edgert.graph.spec import TensorSpec

CanRun = Callable[[Node], bool]
"""Whether the accelerator can run a node of the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A graph in two parts; running one after the other gives what the graph gives.

    Attributes:
        body: from the graph's inputs to the cut tensors.
        tail: from the cut tensors, and those of the graph's inputs that it still reads, to the graph's outputs; without
            those that the body computes already, which are among the cut tensors.
        tensors: where it is cut, in the order in which they are computed: the body's outputs.
    """

    body: Graph
    tail: Graph
    tensors: tuple[TensorSpec, ...]


def cut_head(graph: Graph, can_run: CanRun) -> Cut | None:
    """Cuts off everything from the first nodes on that cannot run.

    Args:
        graph: of a model; shapes of the cut tensors must be known.
        can_run: asked once for each node.

    Returns:
        None where nothing has to be cut: every node can run.

    Raises:
        PlacementError: not even a first node can run, so there is no body; or a cut tensor's type is not known.
    """
    body = _runnable(graph, can_run)
    if len(body) == len(graph.nodes):
        return None
    if not body:
        first = graph.nodes[0]
        raise PlacementError(
            f"nothing of the model can go before a cut: node {first.name!r} ({first.op}) cannot run",
            why="no node that can run is reached from the inputs without one that cannot",
            fix="rewrite it (edgert.graph.fit), or export the model without that step",
        )
    return _cut(graph, body)


def _runnable(graph: Graph, can_run: CanRun) -> set[int]:
    """Identities of nodes that can run and wait for none that cannot."""
    waiting: set[str] = set()
    body = set()
    for node in graph.nodes:
        if waiting.isdisjoint(node.reads) and can_run(node):
            body.add(id(node))
        else:
            waiting.update(node.outputs)
    return body


def _cut(graph: Graph, body: set[int]) -> Cut:
    rest = [node for node in graph.nodes if id(node) not in body]
    read = {name for node in rest for name in node.reads} | graph.output_names
    inner = [node for node in graph.nodes if id(node) in body]
    names = [name for node in inner for name in node.outputs if name in read]
    tensors = tuple(_spec(graph, name) for name in names)
    kept = needed(inner, names)
    used = {name for node in rest for name in node.reads}
    fed = (*tensors, *graph.inputs)
    tail = replace(graph, nodes=tuple(rest), inputs=tuple(spec for spec in fed if spec.name in used))
    tail = replace(tail, outputs=tuple(spec for spec in graph.outputs if spec.name in tail.producers))
    return Cut(replace(graph, nodes=kept, outputs=tensors), tail, tensors)


def _spec(graph: Graph, name: str) -> TensorSpec:
    ends = {spec.name: spec for spec in graph.outputs}
    spec = ends.get(name) or graph.specs.get(name)
    if spec is None or not spec.is_static:
        raise PlacementError(
            f"the model cannot be cut at tensor {name!r}",
            why="its shape is not known",
            fix="give the model static input shapes",
        )
    return spec
