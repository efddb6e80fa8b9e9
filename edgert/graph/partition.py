"""Parts of a graph: the subgraph that computes some tensors, and a partition by the accelerator that runs each node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgert.errors import ModelError
from edgert.graph.ir import Graph, Node
from edgert.graph.model import TensorSpec


def extract(graph: Graph, wanted: Iterable[str], given: Iterable[str] = ()) -> Graph:
    """Return the part that computes ``wanted`` when ``given`` is fed; its other inputs are the graph inputs it needs.

    Args:
        graph: the graph.
        wanted: tensors that become the outputs, in this order; a tensor that is also given is left out.
        given: tensors that are fed instead of computed; those that are not needed are left out.

    Raises:
        ModelError: nothing computes a wanted tensor, or the type of a fed or wanted one is not known.
    """
    fed = dict.fromkeys(given)
    names = [name for name in dict.fromkeys(wanted) if name not in fed]
    needed, used = _upstream(graph, names, fed)
    order = [*fed, *(spec.name for spec in graph.inputs if spec.name not in fed)]
    return replace(
        graph,
        nodes=tuple(node for node in graph.nodes if id(node) in needed),
        inputs=tuple(_known(graph, name) for name in order if name in used),
        outputs=tuple(_known(graph, name) for name in names),
    )


def _upstream(graph: Graph, names: Sequence[str], fed: Mapping[str, object]) -> tuple[set[int], set[str]]:
    """Return the identities of the nodes that compute the names, and every tensor that these read."""
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


def _known(graph: Graph, name: str) -> TensorSpec:
    spec = graph.spec(name)
    if spec is None or spec.dtype == "unknown":
        raise ModelError(
            f"the type of tensor {name!r} is not known",
            why="shape inference does not reach it",
            fix="give the model static input shapes (input: size, or profiles)",
        )
    return spec


# A graph is cut into parts where the accelerator changes, in an order in which they can run one after another.
#
# A part is a maximal run of nodes of one accelerator. A node may read the result of another accelerator that itself
# reads a result of the first. Such a node starts a further part, so that going back and forth is always possible.


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that run one after another on one accelerator.

    Attributes:
        accelerator: ``"cpu1"``.
        nodes: their names, in graph order.
        inputs: tensors from outside: inputs of the network, or outputs of earlier parts.
        outputs: tensors that later parts read, or that are outputs of the network.
    """

    accelerator: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        ends = self.nodes[0] if len(self.nodes) == 1 else f"{self.nodes[0]} … {self.nodes[-1]}"
        return f"{len(self.nodes)} nodes {ends} on {self.accelerator}"


def parts(graph: Graph, accelerators: Mapping[str, str]) -> tuple[Part, ...]:
    """Return the fewest parts, in an order in which each follows those it reads.

    Args:
        graph: the graph.
        accelerators: node name → accelerator that runs it, for every node.
    """
    wanted = list(dict.fromkeys(accelerators[node.name] for node in graph.nodes))
    runs = min((_runs(graph, accelerators, first) for first in wanted), key=len, default=[])
    return tuple(_part(graph, runs, number, accelerators) for number in range(len(runs)))


def _runs(graph: Graph, accelerators: Mapping[str, str], first: str) -> list[list[Node]]:
    """Return runs of nodes: all that are ready on one accelerator, then all on the one with the most ready nodes.

    Taking all that are ready is never worse than leaving some: those would need another run.
    """
    left, runs = list(graph.nodes), []
    made = {*graph.constants, *(spec.name for spec in graph.inputs)}
    here = first
    while left:
        run, left = _ready(left, accelerators, here, made)
        if run:
            runs.append(run)
        places = dict.fromkeys(accelerators[node.name] for node in left)
        waiting = {place: len(_ready(left, accelerators, place, set(made))[0]) for place in places}
        here = max(waiting, key=waiting.__getitem__, default=here)  # the accelerator with the most ready nodes
    return runs


def _ready(
    nodes: Sequence[Node], accelerators: Mapping[str, str], here: str, made: set[str]
) -> tuple[list[Node], list[Node]]:
    """Return the nodes that can run on ``here`` now, and the others; add the outputs of the former to ``made``."""
    run, left = [], []
    for node in nodes:
        if accelerators[node.name] == here and made.issuperset(node.reads):
            run.append(node)
            made.update(node.outputs)
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
