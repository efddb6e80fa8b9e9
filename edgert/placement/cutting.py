"""Cutting a placed network into segments: connected pieces of one accelerator, each run and compiled by itself."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from edgert.errors import ModelError, PlacementError
from edgert.graph import Graph, Model, TensorSpec, extract, write
from edgert.graph.partition import Part, parts
from edgert.placement.problem import Assignment, Network


@dataclass(frozen=True, slots=True)
class Segment:
    """Units that one accelerator runs in one go.

    Attributes:
        accelerator: of all of them.
        units: their indices, rising.
    """

    accelerator: str
    units: tuple[int, ...]


def neighbors(network: Network) -> tuple[list[list[int]], list[list[int]]]:
    """Indices of the units before and after every unit, each once, rising."""
    before: list[set[int]] = [set() for _ in network.units]
    after: list[set[int]] = [set() for _ in network.units]
    for edge in network.edges:
        if edge.producer is not None:
            after[edge.producer].update(edge.consumers)
            for consumer in edge.consumers:
                before[consumer].add(edge.producer)
    return [sorted(units) for units in before], [sorted(units) for units in after]


def segments(network: Network, assignment: Assignment) -> tuple[Segment, ...]:
    """The segments in an order in which every one follows those it reads.

    Units in order join the segments of the units they read, wherever that leaves an order to run in: a piece that a
    path leaves and enters again is two. The home accelerator, where pieces cost least, joins last.
    """
    before, _ = neighbors(network)
    pieces = _Pieces(before, assignment)
    for home in (False, True):
        pieces.join(unit for unit, name in enumerate(assignment) if (name == network.home) == home)
    return tuple(Segment(assignment[units[0]], tuple(units)) for units in pieces.in_order())


class _Pieces:
    """A partition of the units that grows coarser and never gets a cycle."""

    def __init__(self, before: list[list[int]], assignment: Assignment) -> None:
        self._before, self._assignment = before, assignment
        self._piece = list(range(len(before)))
        self._units = {unit: [unit] for unit in self._piece}
        self._outside = {unit: set(before[unit]) for unit in self._piece}  # units of other pieces that it reads

    def join(self, units: Iterable[int]) -> None:
        """These with what they read."""
        for unit in units:
            for read in self._before[unit]:
                one, other = self._piece[read], self._piece[unit]
                same = self._assignment[read] == self._assignment[unit]
                if one != other and same and not (self._detour(one, other) or self._detour(other, one)):
                    self._merge(one, other)

    def in_order(self) -> list[list[int]]:
        """The pieces, each after those it reads, else by first unit."""
        done: dict[int, None] = {}
        for piece in sorted(self._units, key=lambda piece: min(self._units[piece])):
            _after_all(piece, self._reads, done)
        return [sorted(self._units[piece]) for piece in done]

    def _reads(self, piece: int) -> set[int]:
        return {self._piece[read] for read in self._outside[piece]}

    def _detour(self, start: int, end: int) -> bool:
        """Whether a third piece lies between."""
        waiting = list(self._reads(end) - {start})
        seen = set(waiting)
        while waiting:
            fresh = self._reads(waiting.pop()) - seen
            if start in fresh:
                return True
            seen |= fresh
            waiting += fresh
        return False

    def _merge(self, one: int, other: int) -> None:
        small, large = sorted((one, other), key=lambda piece: len(self._units[piece]))
        for unit in self._units[small]:
            self._piece[unit] = large
        self._units[large] += self._units.pop(small)
        reads = self._outside[large] | self._outside.pop(small)
        self._outside[large] = {read for read in reads if self._piece[read] != large}


def _after_all(piece: int, reads: Callable[[int], set[int]], done: dict[int, None]) -> None:
    """Appends a piece behind everything it reads, without recursion."""
    stack = [piece]
    while stack:
        missing = [] if stack[-1] in done else sorted(reads(stack[-1]) - done.keys())
        if missing:
            stack += missing
        else:
            done.setdefault(stack.pop())


# A graph cut where the accelerator changes: parts in an order in which they can run, and each as a model.
#
# A part is a segment as ONNX nodes and tensors; only too many of them are refused.

__all__ = ["MOST_PARTS", "Part", "cut", "partition"]

MOST_PARTS = 16
"""Each is a thread with tensors of its own; beyond this a pipeline of them only waits."""


def partition(graph: Graph, accelerators: Mapping[str, str]) -> tuple[Part, ...]:
    """The fewest parts, in an order in which each follows those it reads.

    Args:
        accelerators: node name → accelerator, for every node.

    Raises:
        PlacementError: more than :data:`MOST_PARTS`.
    """
    found = parts(graph, accelerators)
    if len(found) > MOST_PARTS:
        ends = ", ".join(f"{part.nodes[0]} ({part.accelerator})" for part in found[:6])
        raise PlacementError(
            f"this placement cuts the model into {len(found)} segments",
            why=f"each is a thread of its own, and there are {MOST_PARTS} at most; they begin at {ends} …",
            fix="assign larger connected parts: a glob for a whole block, such as '/head/*'",
        )
    return found


def cut(graph: Graph, part: Part, like: Model) -> Model:
    """A part as a model whose inputs and outputs are the tensors that go into it and out of it.

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
            raise _not_there(part, _shown(spec))
    return write(found, like)


def _shown(spec: TensorSpec) -> str:
    return f"tensor {spec} has a size that is not known before the model runs"


def _not_there(part: Part, why: str) -> PlacementError:
    fix = "keep the nodes on both sides of that tensor on one accelerator"
    return PlacementError(f"the model cannot be cut around its {part}", why=why, fix=fix)
