"""Graph of plain records, on which every pass, the planner and quantization work, and the driver of passes.

The attributes of a node that was read hold its ONNX message and decode it on demand; all else is free of ONNX.
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
    """Attributes of a node that was read, decoded on first use and written back unchanged."""

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
    """One operation of a graph.

    Attributes:
        op: operator, ``"Conv"``.
        inputs: names of the tensors it reads; ``""`` for an optional input that is left out.
        outputs: names of the tensors it computes; ``""`` for one that is left out.
        attributes: int, float, bytes, list, or an opaque message for what has no plain form (bodies of If and Loop).
        name: name, unique within a graph that was read.
        domain: operator set; ``""`` for the standard one.
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
    """Nodes in topological order, and stored tensors.

    Attributes:
        nodes: operations, each after those it reads.
        constants: stored tensors by name, read-only; copy one before changing it.
        inputs: tensors that are fed, in order.
        outputs: tensors that are returned, in order.
        specs: known types by tensor name; some names may no longer exist.
        opset: version of the standard operator set.
        domains: versions of other operator sets, by domain; a domain not listed has version 1.
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
        """Node that computes each tensor, by its name; raises ModelError when two nodes compute one tensor."""
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
        """Nodes that read each tensor, by its name; in order, each once."""
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
        """Return the type of a tensor, stored ones included; None where it is not known."""
        array = self.constants.get(name)
        if array is not None:
            return TensorSpec(name, array.shape, array.dtype.name)
        return self.specs.get(name) or self._ends.get(name)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return a tensor's shape; None unless all of it is known."""
        spec = self.spec(name)
        return None if spec is None else spec.sizes

    @cached_property
    def _ends(self) -> Mapping[str, TensorSpec]:
        return {spec.name: spec for spec in (*self.inputs, *self.outputs)}

    @cached_property
    def captured(self) -> frozenset[str]:
        """Names that the bodies of If, Loop and Scan nodes may read; passes must not rename or remove them."""
        return frozenset(name for node in self.nodes for name in node.captured)

    @cached_property
    def custom_operators(self) -> Mapping[str, Operator]:
        """Operators registered by :func:`edgert.op`, by the name of the node that uses them."""
        found = {node.name: operator(node.domain, node.op) for node in self.nodes if node.domain}
        return {name: custom for name, custom in found.items() if custom is not None}

    def is_private(self, name: str) -> bool:
        """Return whether exactly one node reads the tensor, and nothing outside can see it."""
        return len(self.consumers.get(name, ())) == 1 and not self.is_visible(name)

    def is_visible(self, name: str) -> bool:
        """Return whether the tensor is a graph output, or a body captures it."""
        return name in self.output_names or name in self.captured

    @cached_property
    def names(self) -> frozenset[str]:
        """Every tensor name in use; a new one must differ from them."""
        own = {name for node in self.nodes for name in (*node.reads, *node.outputs)}
        return frozenset(own | set(self.constants) | {spec.name for spec in (*self.inputs, *self.outputs)})


class Names:
    """Source of tensor names that a graph does not use yet; the same requests give the same names."""

    def __init__(self, graph: Graph) -> None:
        self._taken = set(graph.names)

    def new(self, wanted: str) -> str:
        """Return ``wanted``, with a number appended if it is taken."""
        name = free_name(wanted, self._taken)
        self._taken.add(name)
        return name


def free_name(wanted: str, taken: Container[str]) -> str:
    """Return ``wanted``, with the first unused number appended if it is taken."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


# Passes over a graph, and the one driver that runs them.

MAX_ROUNDS = 64
"""Limit in case two passes undo each other; the deepest chain of rewrites in real models takes six rounds."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a pass made.

    Attributes:
        rule: name of the pass.
        subject: name of the node or tensor that changed.
        detail: what was done to it.
    """

    rule: str
    subject: str
    detail: str


Result = tuple[Graph, tuple[Change, ...]]
"""New graph and changes; the given graph and no changes where there was nothing to do."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A named function from a graph to a new graph and its changes.

    A pass promises that

    - inputs and outputs keep their names, order, types and shapes;
    - the outputs stay equal, up to rounding where weights are multiplied into each other (tests run both);
    - every node comes after those it reads, no tensor is computed twice, and everything that is read exists;
    - the known type and shape of a tensor that stays is not lost or changed;
    - no change is left out: the given graph itself comes back where, and only where, there was nothing to do.

    With EDGERT_CHECK_PASSES=1 in the environment, as in all tests, :func:`run` checks all of these but the second.

    Attributes:
        name: name to choose the pass by; also the rule of its changes.
        does: what changes, in words; everything else stays.
        apply: function that makes the new graph.
        grows: whether the pass may add nodes; other passes only remove.
    """

    name: str
    does: str
    apply: Callable[[Graph], Result]
    grows: bool = False


def run(graph: Graph, passes: Iterable[Pass]) -> Result:
    """Run passes in order, round after round, until none finds anything left to do.

    Returns:
        The new graph (the given one when nothing changed) and every change, in order.

    Raises:
        ModelError: the graph is broken: a tensor is computed twice or never, or there is a cycle.
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
    """Raise RuntimeError for the first promise that a pass broke."""
    broken = next(_broken_promises(step, before, after, changes), "")
    if broken:
        raise RuntimeError(f"pass {step.name!r} {broken}")


def _broken_promises(step: Pass, before: Graph, after: Graph, changes: tuple[Change, ...]) -> Iterator[str]:
    if (after is before) != (not changes):
        yield "changed something without reporting it, or reported a change it did not make"
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        yield "changed the inputs or outputs"
    if not step.grows and len(after.nodes) > len(before.nodes):
        yield f"added nodes ({len(before.nodes)} before, {len(after.nodes)} after)"
    if _unavailable_tensors(after) and not _unavailable_tensors(before):
        yield f"left nodes that read tensors not computed before them: {', '.join(sorted(_unavailable_tensors(after)))}"
    for name in after.producers.keys() & before.producers.keys() & before.specs.keys():
        if after.specs.get(name) != before.specs[name]:
            yield f"lost or changed the type of {name!r}: {before.specs[name]}, now {after.specs.get(name)}"


def _unavailable_tensors(graph: Graph) -> set[str]:
    """Return the tensors that are read, or returned, but not computed before."""
    known = {spec.name for spec in graph.inputs} | graph.constants.keys()
    missing: set[str] = set()
    for node in graph.nodes:
        missing.update(set(node.reads) - known)
        known.update(node.outputs)
    return missing | (graph.output_names - known)


_CHECKED = os.environ.get("EDGERT_CHECK_PASSES", "") == "1"
