"""The records of a scheme: units that run as one kernel, points where tensors are rounded, and what shares a scale."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dla import Form
from dla import Target as Dla
from edgert.graph import Graph, Node
from edgert.graph.fusion import SHORTCUT, Fusion, kernel
from edgert.graph.operators import WEIGHTED, is_copy

# What the quantizer asks of a node: whether it has a stored weight, and what it works on.

CLIPS = frozenset({"Relu", "Clip"})
"""Activations that bound a value and change nothing else: on integers of the same scale they do the same."""


def is_float(graph: Graph, tensor: str) -> bool:
    """Whether a tensor is known to be float32."""
    spec = graph.specs.get(tensor)
    return spec is not None and spec.dtype == "float32"


def is_activation(graph: Graph, tensor: str) -> bool:
    """Whether a tensor is a float32 one that is fed or computed."""
    return bool(tensor) and tensor not in graph.constants and is_float(graph, tensor)


def data_inputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """The float32 activations a node works on, once each; for one that moves data only what it moves."""
    names = node.inputs[:1] if is_copy(graph, node) else node.inputs
    return tuple(dict.fromkeys(name for name in names if is_activation(graph, name)))


def data_outputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """The float32 tensors a node computes."""
    return tuple(name for name in node.outputs if name and is_float(graph, name))


def in_order(graph: Graph) -> Iterator[str]:
    """All tensors that are fed or computed, in the order they come to be."""
    yield from (spec.name for spec in graph.inputs)
    yield from (name for node in graph.nodes for name in node.outputs if name)


def is_weighted(graph: Graph, node: Node) -> bool:
    """Whether a node applies a stored float32 weight (its second input) to an activation (its first)."""
    if node.op not in WEIGHTED or node.domain or len(node.inputs) < 2:
        return False
    weight = graph.constants.get(node.inputs[1])
    return weight is not None and weight.dtype == np.float32 and is_activation(graph, node.inputs[0])


# Units: a node and what an INT8 kernel computes along with it.


@dataclass(frozen=True, slots=True)
class Unit:
    """What runs as one kernel, and so in one precision.

    Attributes:
        name: of its main node.
        op: operator of its main node.
        nodes: names of its nodes, the main one first, then in the order they run.
        inputs: activations it reads from outside, once each.
        output: the tensor that leaves it, first of several.
        weight: the stored weight, "" for a unit without.
        bias: the stored bias, "" without.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str
    weight: str = ""
    bias: str = ""


def fuse(graph: Graph, fusion: Fusion) -> tuple[Unit, ...]:
    """One unit per weighted node and per Add, with what their kernels take along; every other node that has float32
    activations is a unit of its own."""
    taken: set[str] = set()
    units = []
    for node in graph.nodes:
        if node.name in taken or not _has_activations(graph, node):
            continue
        members = _members(graph, node, fusion, taken)
        taken.update(member.name for member in members)
        units.append(_unit(graph, members))
    return tuple(units)


def _has_activations(graph: Graph, node: Node) -> bool:
    return any(is_activation(graph, name) for name in node.inputs) and any(is_float(graph, n) for n in node.outputs)


def _members(graph: Graph, node: Node, fusion: Fusion, taken: Collection[str]) -> Sequence[Node]:
    opens = is_weighted(graph, node) or (node.op in SHORTCUT and not node.domain)
    return kernel(graph, node, fusion, lambda other, _: other.name not in taken) if opens else (node,)


def _unit(graph: Graph, members: Sequence[Node]) -> Unit:
    main, made = members[0], {name for node in members for name in node.outputs}
    read = [name for node in members for name in node.inputs if name not in made and is_activation(graph, name)]
    weighted = is_weighted(graph, main)
    bias = main.inputs[2] if weighted and len(main.inputs) > 2 else ""
    return Unit(
        main.name,
        main.op,
        tuple(node.name for node in members),
        tuple(dict.fromkeys(read)),
        members[-1].outputs[0],
        main.inputs[1] if weighted else "",
        bias if bias in graph.constants else "",
    )


Target = Literal["ort", "gpu", "dla"]
"""ONNX Runtime's integer kernels; TensorRT on a GPU, strongly typed; TensorRT on a DLA, strongly typed."""

USUAL_DLA = Dla()
"""Whose DLA is meant by default: Orin's, with the TensorRT of JetPack 6."""


@dataclass(frozen=True, slots=True)
class Point:
    """A tensor that is rounded to 8 bits.

    Attributes:
        tensor: its name.
        readers: names of the nodes that read it rounded; others read it as it was.
        is_output: the graph gives it out rounded.
        is_hidden: a Relu or Clip of the same scale reads it and nothing else, so its own range is not used.
        amax: its largest magnitude where that is known without measuring; 0 where it is not.
    """

    tensor: str
    readers: tuple[str, ...]
    is_output: bool = False
    is_hidden: bool = False
    amax: float = 0.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A node that stays in floating point though one like it could be INT8, and why."""

    node: str
    reason: str


@dataclass(frozen=True, eq=False)
class Scheme:
    """What becomes INT8.

    Attributes:
        target: who runs it.
        units: what runs in INT8, in order; the names are what ``keep`` takes.
        points: tensor → its point, in the order the tensors come to be.
        groups: tensor of a point → the tensors whose values decide its scale. Tensors with one scale have the same.
        direct: nodes that work on the stored integers themselves: they move, pick or bound values.
        kept: units left in higher precision because that was asked for.
        skipped: nodes left in floating point for other reasons.
        forms: node → how the DLA runs it, for target ``dla``; empty for others.
    """

    target: Target
    units: tuple[Unit, ...]
    points: Mapping[str, Point]
    groups: Mapping[str, tuple[str, ...]]
    direct: frozenset[str]
    kept: tuple[Unit, ...]
    skipped: tuple[Skipped, ...]
    forms: Mapping[str, Form] = field(default_factory=dict)

    @property
    def weighted(self) -> frozenset[str]:
        """Names of the nodes whose weights become INT8."""
        return frozenset(unit.name for unit in self.units if unit.weight)

    @property
    def needed(self) -> tuple[str, ...]:
        """Tensors whose range must be known."""
        found = dict.fromkeys(name for group in self.groups.values() for name in group)
        return tuple(name for name in found if not self.points[name].amax)


# Which tensors must have one scale: sets that grow together.


class Sharing:
    """Disjoint sets of tensors (union-find); the members of a set keep the order in which they were named."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def join(self, names: Iterable[str]) -> None:
        """Puts all of them, and whatever they were joined with before, into one set."""
        first, *others = [self._root(name) for name in names] or [""]
        for other in others:
            self._parents[self._root(other)] = self._root(first)

    def groups(self, names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """For each of the tensors, which of them are in its set."""
        sets: dict[str, list[str]] = {}
        for name in names:
            sets.setdefault(self._root(name), []).append(name)
        return {name: tuple(members) for members in sets.values() for name in members}

    def _root(self, name: str) -> str:
        parent = self._parents.setdefault(name, name)
        while parent != self._parents[parent]:
            self._parents[name] = parent = self._parents[parent]
        return parent
