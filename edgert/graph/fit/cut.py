"""A network cut in pieces: the body that an accelerator can run as one, and what stays before and behind it.

The front is what cannot run and waits for nothing else: an input turned from NHWC to NCHW. The body reads the model's
inputs and the front, and no node in it waits for any other that cannot run. The tail is the rest: a detector's last
reshapes and its box arithmetic, computed from the cut tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from edgert.errors import PlacementError
from edgert.graph.node import Graph, Node
from edgert.graph.spec import TensorSpec

CanRun = Callable[[Node], bool]
"""Whether the accelerator can run a node of the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A graph in pieces; running one after the other gives what the graph gives.

    Every piece takes tensors of the pieces before it and inputs of the graph, by their names. It gives what later
    pieces read and what is an output of the graph.

    Attributes:
        front: what the body has to wait for; None where that is nothing.
        body: what the accelerator runs.
        tail: what is left; None where that is nothing.
    """

    front: Graph | None
    body: Graph
    tail: Graph | None

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors that the body hands on."""
        return self.body.outputs


def cut_head(graph: Graph, can_run: CanRun) -> Cut:
    """Cuts off everything from the first nodes on that cannot run, and before the body, what stands in its way.

    Args:
        graph: of a model; shapes of the tensors that are cut must be known.
        can_run: asked once for each node.

    Raises:
        PlacementError: no node can run, so there is no body; or a cut tensor's shape is not known.
    """
    front, body, tail = _sorted(graph, can_run)
    if not body:
        first = graph.nodes[0] if graph.nodes else Node("", (), ())
        raise PlacementError(
            "the model has no part that can run on the accelerator",
            why=f"no node can run, from {first.name!r} ({first.op}) on",
            fix="rewrite it (edgert.graph.fit), or place it on the GPU: placement: gpu",
        )
    pieces = [_piece(graph, nodes, [*later]) for nodes, later in ((front, body + tail), (body, tail), (tail, []))]
    return Cut(pieces[0] if front else None, pieces[1], pieces[2] if tail else None)


def _sorted(graph: Graph, can_run: CanRun) -> tuple[list[Node], list[Node], list[Node]]:
    front, body, tail = [], [], []
    in_body: set[str] = set()
    in_tail: set[str] = set()
    for node in graph.nodes:
        waits = not in_tail.isdisjoint(node.reads)
        if not waits and can_run(node):
            body.append(node)
            in_body.update(node.outputs)
        elif waits or not in_body.isdisjoint(node.reads):
            tail.append(node)
            in_tail.update(node.outputs)
        else:
            front.append(node)
    return front, body, tail


def _piece(graph: Graph, nodes: Sequence[Node], later: Iterable[Node]) -> Graph:
    made = [name for node in nodes for name in node.outputs if name]
    used = {name for node in nodes for name in node.reads} - set(made) - set(graph.constants)
    wanted = {name for node in later for name in node.reads} | graph.output_names
    fed = [spec.name for spec in graph.inputs]
    order = [*fed, *(name for node in graph.nodes for name in node.outputs)]
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=tuple(_spec(graph, name) for name in order if name in used),
        outputs=tuple(_spec(graph, name) for name in made if name in wanted),
    )


def _spec(graph: Graph, name: str) -> TensorSpec:
    ends = {spec.name: spec for spec in (*graph.inputs, *graph.outputs)}
    if name in ends:
        return ends[name]
    spec = graph.specs.get(name)
    if spec is None or not spec.is_static:
        raise PlacementError(
            f"the model cannot be cut at tensor {name!r}",
            why="its shape is not known",
            fix="give the model static input shapes",
        )
    return spec
