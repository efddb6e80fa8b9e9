"""A graph as plain records: what every pass, the planner and quantization work on.

No ONNX message is seen here but in the attributes of a node that was read, where it is decoded when asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgert.custom_op import Operator, operator
from edgert.errors import ModelError
from edgert.graph.model import Array, TensorSpec, attributes

if TYPE_CHECKING:
    import onnx


class Attributes(Mapping[str, Any]):
    """Attributes of a node as it was read: decoded when first asked for, and written again as they were."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self.message = type(node)()
        self.message.CopyFrom(node)

    def __getitem__(self, name: str) -> Any:
        return self._decoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded)

    def __len__(self) -> int:
        return len(self._decoded)

    @cached_property
    def _decoded(self) -> dict[str, Any]:
        return attributes(self.message)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation.

    Attributes:
        op: operator, ``"Conv"``.
        inputs: tensor names, ``""`` for one that is left out.
        outputs: tensor names.
        attributes: int, float, bytes, list, or an opaque message for what has no plain form (bodies of If and Loop).
        name: unique within a graph that was read.
        domain: ``""`` for the standard operators.
        captured: outer tensors that its bodies may read.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    captured: frozenset[str] = frozenset()

    @property
    def reads(self) -> tuple[str, ...]:
        """Every tensor the node depends on, once each, in order."""
        return tuple(dict.fromkeys([*filter(None, self.inputs), *sorted(self.captured)]))


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes and stored tensors; every node stands after those it reads.

    Attributes:
        nodes: the operations.
        constants: name → stored tensor, read-only; copy before changing.
        inputs, outputs: what is fed and what comes out, in order.
        specs: every tensor whose type is known. It may hold names that are no longer there.
        opset: version of the standard operators.
        domains: versions of other operators, by domain; 1 of those that are not here.
    """

    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    specs: Mapping[str, TensorSpec]
    opset: int
    domains: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """Tensor → the node that computes it. Raises ModelError when two nodes compute one tensor."""
        found: dict[str, Node] = {}
        for node in self.nodes:
            for name in filter(None, node.outputs):
                if found.setdefault(name, node) is not node:
                    raise ModelError(
                        f"tensor {name!r} is computed twice",
                        why=f"by nodes {found[name].name!r} and {node.name!r}",
                        fix="export the model again",
                    )
        return found

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """Tensor → the nodes that read it, in order, each once."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.reads:
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(spec.name for spec in self.outputs)

    def spec(self, name: str) -> TensorSpec | None:
        """The type of a tensor, stored ones among them; None where it is not known."""
        array = self.constants.get(name)
        if array is not None:
            return TensorSpec(name, array.shape, array.dtype.name)
        return self.specs.get(name) or self._ends.get(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape; None unless all of it is known."""
        spec = self.spec(name)
        return None if spec is None else spec.sizes

    @cached_property
    def _ends(self) -> Mapping[str, TensorSpec]:
        return {spec.name: spec for spec in (*self.inputs, *self.outputs)}

    @cached_property
    def captured(self) -> frozenset[str]:
        """Names that the bodies of If, Loop and Scan nodes may read; whoever makes them keeps them."""
        return frozenset(name for node in self.nodes for name in node.captured)

    @cached_property
    def custom_operators(self) -> Mapping[str, Operator]:
        """Node name → its operator, for those that :func:`edgert.op` registered."""
        found = {node.name: operator(node.domain, node.op) for node in self.nodes if node.domain}
        return {name: one for name, one in found.items() if one is not None}

    def is_private(self, name: str) -> bool:
        """Whether one node reads the tensor, and nobody outside can see it."""
        return len(self.consumers.get(name, ())) == 1 and not self.is_visible(name)

    def is_visible(self, name: str) -> bool:
        """Whether someone beside the nodes' inputs knows the name: a graph output, or a body that captures it."""
        return name in self.output_names or name in self.captured

    @cached_property
    def names(self) -> frozenset[str]:
        """Every tensor name in use; what a new one must differ from."""
        own = {name for node in self.nodes for name in (*node.reads, *node.outputs)}
        return frozenset(own | set(self.constants) | {spec.name for spec in (*self.inputs, *self.outputs)})


class Names:
    """Hands out names that nothing in a graph has; the same requests give the same names."""

    def __init__(self, graph: Graph) -> None:
        self._taken = set(graph.names)

    def new(self, wanted: str) -> str:
        """``wanted``, or with a number behind it."""
        name = free_name(wanted, self._taken)
        self._taken.add(name)
        return name


def free_name(wanted: str, taken: Container[str]) -> str:
    """``wanted``, or with the first free number behind it: the same graph always gives the same name."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


# Passes over a graph, and the one driver that runs them.

MAX_ROUNDS = 64
"""The deepest chain of rewrites in real models takes six rounds; a bound in case two passes are at odds."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing a pass did: ``rule`` is the pass's name, ``subject`` a node or tensor, ``detail`` what became of it."""

    rule: str
    subject: str
    detail: str


Result = tuple[Graph, tuple[Change, ...]]
"""What a pass gives: the very graph it was given, and no change, where it does not apply."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A named function from a graph to a new graph and the list of what changed. It promises that

    - inputs and outputs keep their names, order, types and shapes;
    - the outputs stay equal, up to rounding where weights are multiplied into each other (tests run both);
    - every node stands after those it reads, no tensor is computed twice, and everything that is read is there;
    - what is known of the type and shape of a tensor that stays is not lost or changed;
    - no change is left out: the given graph itself comes back where, and only where, there was nothing to do.

    With EDGERT_CHECK_PASSES=1 in the environment, as in all tests, :func:`run` checks all of these but the second.

    Attributes:
        name: to choose it by; changes are filed under it.
        does: what becomes of which nodes; everything else stays.
        because: what it is good for.
        apply: graph → graph and changes.
        grows: whether there may be more nodes afterwards; other passes only remove.
    """

    name: str
    does: str
    because: str
    apply: Callable[[Graph], Result]
    grows: bool = False


def run(graph: Graph, passes: Iterable[Pass]) -> Result:
    """Runs passes in order, round after round, until none finds anything left to do.

    Returns:
        The new graph (the given one when nothing changed) and every change, in order.

    Raises:
        ModelError: the graph is broken: two nodes compute one tensor, one reads what nothing makes, or a cycle.
    """
    chosen = tuple(passes)
    changes: list[Change] = []
    for _ in range(MAX_ROUNDS):
        before = graph
        for step in chosen:
            after, found = step.apply(graph)
            if _CHECKED:
                check(step, graph, after, found)
            graph = after
            changes += found
        if graph is before:
            break
    return graph, tuple(changes)


def check(step: Pass, before: Graph, after: Graph, changes: tuple[Change, ...]) -> None:
    """Holds a pass to what it promises. Raises RuntimeError naming the pass and the promise."""
    broken = next(_broken(step, before, after, changes), "")
    if broken:
        raise RuntimeError(f"pass {step.name!r} {broken}")


def _broken(step: Pass, before: Graph, after: Graph, changes: tuple[Change, ...]) -> Iterator[str]:
    if (after is before) != (not changes):
        yield "changed something and reports nothing, or the other way round"
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        yield "changed the inputs or outputs"
    if not step.grows and len(after.nodes) > len(before.nodes):
        yield f"added nodes ({len(before.nodes)} before, {len(after.nodes)} after)"
    if _unmade(after) and not _unmade(before):
        yield f"left nodes that read what is not made before them: {', '.join(sorted(_unmade(after)))}"
    for name in after.producers.keys() & before.producers.keys() & before.specs.keys():
        if after.specs.get(name) != before.specs[name]:
            yield f"lost or changed the type of {name!r}: {before.specs[name]}, now {after.specs.get(name)}"


def _unmade(graph: Graph) -> set[str]:
    """What is read, or given out, before it is there."""
    known = {spec.name for spec in graph.inputs} | graph.constants.keys()
    missing: set[str] = set()
    for node in graph.nodes:
        missing.update(set(node.reads) - known)
        known.update(node.outputs)
    return missing | (graph.output_names - known)


_CHECKED = os.environ.get("EDGERT_CHECK_PASSES", "") == "1"
