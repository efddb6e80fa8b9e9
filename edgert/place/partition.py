"""A graph cut where the accelerator changes: parts in an order in which they can run, and each as a model.

A part is a segment as ONNX nodes and tensors: a maximal run of nodes on one accelerator. A node whose inputs come from
an accelerator that must first hear from its own starts a further part there, so that an assignment is never refused
for going back and forth; only too many parts are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgert.errors import ModelError, PlacementError
from edgert.graph.model import Model
from edgert.graph.node import Graph, Node, extract, write
from edgert.graph.spec import TensorSpec

MOST_PARTS = 16
"""Each is a thread with tensors of its own; beyond this a pipeline of them only waits."""


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that run one after another on one accelerator.

    Attributes:
        accelerator: ``"cpu1"``.
        nodes: their names, in graph order.
        inputs: tensors from outside: inputs of the network, or of parts before.
        outputs: tensors that later parts read, or that leave the network.
    """

    accelerator: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        ends = self.nodes[0] if len(self.nodes) == 1 else f"{self.nodes[0]} … {self.nodes[-1]}"
        return f"{len(self.nodes)} nodes {ends} on {self.accelerator}"


def partition(graph: Graph, accelerators: Mapping[str, str]) -> tuple[Part, ...]:
    """The fewest parts, in an order in which each follows those it reads.

    Args:
        accelerators: node name → accelerator, for every node.

    Raises:
        PlacementError: more than :data:`MOST_PARTS`.
    """
    wanted = list(dict.fromkeys(accelerators[node.name] for node in graph.nodes))
    runs = min((_runs(graph, accelerators, first) for first in wanted), key=len, default=[])
    if len(runs) > MOST_PARTS:
        ends = ", ".join(f"{run[0].name} ({accelerators[run[0].name]})" for run in runs[:6])
        raise PlacementError(
            f"this placement cuts the model into {len(runs)} segments",
            why=f"each is a thread of its own, and there are {MOST_PARTS} at most; they begin at {ends} …",
            fix="assign larger connected parts: a glob for a whole block, such as '/head/*'",
        )
    return tuple(_part(graph, runs, number, accelerators) for number in range(len(runs)))


def cut(graph: Graph, part: Part, like: Model) -> Model:
    """A part as a model whose inputs and outputs are the tensors it is handed and hands on.

    Raises:
        PlacementError: the type or size of one of these tensors is not known before the model runs.
    """
    try:
        found = extract(graph, part.outputs, part.inputs)
    except ModelError as error:
        raise _not_there(part, error.what) from error
    ends = {spec.name for spec in (*graph.inputs, *graph.outputs)}
    for spec in (*found.inputs, *found.outputs):
        if spec.name not in ends and not spec.is_static:
            raise _not_there(part, _told(spec))
    return write(found, like)


def _told(spec: TensorSpec) -> str:
    return f"tensor {spec} has a size that is not known before the model runs"


def _not_there(part: Part, why: str) -> PlacementError:
    fix = "keep the nodes on both sides of that tensor on one accelerator"
    return PlacementError(f"the model cannot be cut around its {part}", why=why, fix=fix)


def _runs(graph: Graph, accelerators: Mapping[str, str], first: str) -> list[list[Node]]:
    """Runs of nodes: everything that can run where we are, then on to where the most waits.

    Taking all that is ready is never worse than leaving some: what is left would need another run.
    """
    left, runs = list(graph.nodes), []
    made = {*graph.constants, *(spec.name for spec in graph.inputs)}
    here = first
    while left:
        run, left = _ready(left, accelerators, here, made)
        if run:
            runs.append(run)
        if left:
            here = _next(left, accelerators, made)
    return runs


def _ready(
    nodes: Sequence[Node], accelerators: Mapping[str, str], here: str, made: set[str]
) -> tuple[list[Node], list[Node]]:
    """The nodes that can run here now, whose outputs are then ``made``, and the others."""
    run, left = [], []
    for node in nodes:
        if accelerators[node.name] == here and made.issuperset(node.reads):
            run.append(node)
            made.update(node.outputs)
        else:
            left.append(node)
    return run, left


def _next(left: Sequence[Node], accelerators: Mapping[str, str], made: set[str]) -> str:
    """The accelerator that can now run the most nodes."""
    places = dict.fromkeys(accelerators[node.name] for node in left)
    return max(places, key=lambda place: len(_ready(left, accelerators, place, set(made))[0]))


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
