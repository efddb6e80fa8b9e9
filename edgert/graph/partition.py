"""Subgraphs: the part that computes some tensors, and parts by the accelerator that runs each node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgert.errors import ModelError
from edgert.graph.ir import Graph, Node
from edgert.graph.model import TensorSpec


def extract(graph: Graph, wanted: Iterable[str], given: Iterable[str] = ()) -> Graph:
    """Return the subgraph that computes ``wanted`` from ``given`` and from graph inputs.

    Args:
        graph: graph to take the nodes from.
        wanted: tensors that become the outputs, in this order, except those that are also given.
        given: tensors that are fed instead of computed; unneeded ones do not become inputs.

    Raises:
        ModelError: nothing computes a wanted tensor, or the type of a new input or output is unknown.
    """
    fed = dict.fromkeys(given)
    names = [name for name in dict.fromkeys(wanted) if name not in fed]
    needed, used = _upstream(graph, names, fed)
    order = [*fed, *(spec.name for spec in graph.inputs if spec.name not in fed)]
    return replace(
        graph,
        nodes=tuple(node for node in graph.nodes if id(node) in needed),
        inputs=tuple(_typed_spec(graph, name) for name in order if name in used),
        outputs=tuple(_typed_spec(graph, name) for name in names),
    )


def _upstream(graph: Graph, names: Sequence[str], fed: Mapping[str, object]) -> tuple[set[int], set[str]]:
    """Return the ids of the nodes that compute the named tensors, and the names of all tensors involved."""
    starts = {spec.name for spec in graph.inputs}
    needed: set[int] = set()
    used: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        used.add(name)
        if name in fed or name in graph.constants or name in starts:
            continue
        if name not in graph.producers:
            raise ModelError(f"nothing computes tensor {name!r}", why="no node has it among its outputs")
        node = graph.producers[name]
        if id(node) not in needed:
            needed.add(id(node))
            waiting.extend(node.reads)
    return needed, used


def _typed_spec(graph: Graph, name: str) -> TensorSpec:
    spec = graph.spec(name)
    if spec is None or spec.dtype == "unknown":
        raise ModelError(
            f"the type of tensor {name!r} is not known",
            why="shape inference does not reach it",
            fix="give the model static input shapes (input: size, or profiles)",
        )
    return spec


# Parts by accelerator. A node may read the result of another accelerator that itself reads a result of the first one.
# Such a node begins another part, so that data can always go back and forth.


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that run one after another on one accelerator.

    Attributes:
        accelerator: accelerator that runs the nodes, ``"cpu1"``.
        nodes: names of the nodes, in graph order.
        inputs: tensors from outside: inputs of the network, or outputs of earlier parts.
        outputs: tensors that later parts read, or that the network returns.
    """

    accelerator: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        ends = self.nodes[0] if len(self.nodes) == 1 else f"{self.nodes[0]} … {self.nodes[-1]}"
        return f"{len(self.nodes)} nodes {ends} on {self.accelerator}"


def parts(graph: Graph, accelerators: Mapping[str, str]) -> tuple[Part, ...]:
    """Divide a graph into the fewest parts, each after those it reads.

    Args:
        graph: graph to divide.
        accelerators: accelerator of every node, by the node's name.
    """
    used = dict.fromkeys(accelerators[node.name] for node in graph.nodes)
    runs = min((_runs_from(graph, accelerators, first) for first in used), key=len, default=[])
    return tuple(_part(graph, runs, number, accelerators) for number in range(len(runs)))


def _runs_from(graph: Graph, accelerators: Mapping[str, str], first: str) -> list[list[Node]]:
    """Return runs of nodes, beginning on the accelerator ``first`` and going on where most nodes are ready.

    A run takes every node that is ready on its accelerator: one left behind would need another run.
    """
    left, runs = list(graph.nodes), []
    computed = {*graph.constants, *(spec.name for spec in graph.inputs)}
    current = first
    while left:
        run, left = _take_ready(left, accelerators, current, computed)
        if run:
            runs.append(run)
        others = dict.fromkeys(accelerators[node.name] for node in left)
        ready = {other: len(_take_ready(left, accelerators, other, set(computed))[0]) for other in others}
        current = max(ready, key=ready.__getitem__, default=current)
    return runs


def _take_ready(
    nodes: Sequence[Node], accelerators: Mapping[str, str], current: str, computed: set[str]
) -> tuple[list[Node], list[Node]]:
    """Return the nodes that can run on ``current`` now, and the others; add what the former write to ``computed``."""
    run, left = [], []
    for node in nodes:
        if accelerators[node.name] == current and computed.issuperset(node.reads):
            run.append(node)
            computed.update(node.outputs)
        else:
            left.append(node)
    return run, left


def _part(graph: Graph, runs: Sequence[Sequence[Node]], number: int, accelerators: Mapping[str, str]) -> Part:
    run = runs[number]
    own = {name for node in run for name in node.outputs if name}
    later = {name for other in runs[number + 1 :] for node in other for name in node.reads}
    reads = dict.fromkeys(name for node in run for name in node.reads)
    return Part(
        accelerators[run[0].name],
        tuple(node.name for node in run),
        tuple(name for name in reads if name not in own and name not in graph.constants),
        tuple(name for node in run for name in node.outputs if name in later or name in graph.output_names),
    )
