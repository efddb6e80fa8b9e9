"""The records of a scheme: units that run as one kernel, points where tensors are rounded, and what shares a scale."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from dla import Form, Target as Dla
from edgert.graph import Graph, Node
from edgert.graph.fusion import SHORTCUT, Fusion, kernel
from edgert.graph.operators import WEIGHTED, about, is_copy

# Facts about a node that the quantizer needs: whether it has a stored weight, and which tensors it works on.

CLIPS = frozenset({"Relu", "Clip"})
"""Activations that bound a value and change nothing else: on integers of the same scale they do the same."""


def is_float(graph: Graph, tensor: str) -> bool:
    """Return whether a tensor is known to be float32."""
    spec = graph.specs.get(tensor)
    return spec is not None and spec.dtype == "float32"


def is_activation(graph: Graph, tensor: str) -> bool:
    """Return whether a tensor is float32 and depends on the inputs: such tensors have a range to measure."""
    return tensor in fed(graph) and is_float(graph, tensor)


def fed(graph: Graph) -> frozenset[str]:
    """Return tensors that depend on the graph's inputs: not stored ones, nor values computed from these or shapes."""
    if graph not in _FED:
        found = {spec.name for spec in graph.inputs}
        for node in graph.nodes:
            if about(node.op).kind != "measure" and not found.isdisjoint(node.reads):
                found.update(filter(None, node.outputs))
        _FED[graph] = frozenset(found)
    return _FED[graph]


_FED: WeakKeyDictionary[Graph, frozenset[str]] = WeakKeyDictionary()


def data_inputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """Return the float32 activations a node works on, once each; for one that moves data only what it moves."""
    names = node.inputs[:1] if is_copy(graph, node) else node.inputs
    return tuple(dict.fromkeys(name for name in names if is_activation(graph, name)))


def data_outputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """Return the float32 tensors a node computes."""
    return tuple(name for name in node.outputs if name and is_float(graph, name))


def in_order(graph: Graph) -> Iterator[str]:
    """Yield all tensors that are fed or computed, in the order they are computed."""
    yield from (spec.name for spec in graph.inputs)
    yield from (name for node in graph.nodes for name in node.outputs if name)


def is_weighted(graph: Graph, node: Node) -> bool:
    """Return whether a node applies a stored float32 weight (its second input) to an activation (its first)."""
    if node.op not in WEIGHTED or node.domain or len(node.inputs) < 2:
        return False
    weight = graph.constants.get(node.inputs[1])
    return weight is not None and weight.dtype == np.float32 and is_activation(graph, node.inputs[0])


def calibrated(graph: Graph) -> tuple[str, ...]:
    """Return float32 tensors that need a range, in the order they are fed and computed.

    Args:
        graph: of a prepared model.
    """
    return tuple(name for name in in_order(graph) if is_activation(graph, name))


def clip_behind(graph: Graph, tensor: str) -> Node | None:
    """Return the Relu or Clip that alone reads a computed tensor: its output's range differs from the tensor's."""
    if tensor not in graph.producers or not graph.is_private(tensor):
        return None
    (reader,) = graph.consumers[tensor]
    return reader if reader.op in CLIPS and not reader.domain else None


# Units: a node and what an INT8 kernel computes along with it.


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that run as one kernel, and so in one precision.

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
    """Return one unit per weighted node and per Add, with what their kernels fuse.

    Every other node that has float32 activations is a unit of its own.
    """
    taken: set[str] = set()
    found = []
    for node in graph.nodes:
        reads = any(is_activation(graph, name) for name in node.inputs)
        if node.name in taken or not reads or not any(is_float(graph, name) for name in node.outputs):
            continue
        weighted = is_weighted(graph, node)
        members = [node]
        if weighted or (node.op in SHORTCUT and not node.domain):
            members = [*kernel(graph, node, fusion, lambda other, _: other.name not in taken)]
        taken.update(member.name for member in members)
        made = {name for member in members for name in member.outputs}
        read = [n for member in members for n in member.inputs if n not in made and is_activation(graph, n)]
        bias = node.inputs[2] if weighted and len(node.inputs) > 2 else ""
        found.append(
            Unit(
                node.name,
                node.op,
                tuple(member.name for member in members),
                tuple(dict.fromkeys(read)),
                members[-1].outputs[0],
                node.inputs[1] if weighted else "",
                bias if bias in graph.constants else "",
            )
        )
    return tuple(found)


Target = Literal["ort", "gpu", "dla"]
"""ONNX Runtime's integer kernels; TensorRT on a GPU, strongly typed; TensorRT on a DLA, strongly typed."""

USUAL_DLA = Dla()
"""The default DLA: Orin's, with the TensorRT of JetPack 6."""


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
    """Tensors and nodes that become INT8.

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
        """Join all of them, and whatever they were joined with before, into one set."""
        first, *others = [self._root(name) for name in names] or [""]
        for other in others:
            self._parents[self._root(other)] = self._root(first)

    def groups(self, names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """Return, for each of the tensors, which of them are in its set."""
        sets: dict[str, list[str]] = {}
        for name in names:
            sets.setdefault(self._root(name), []).append(name)
        return {name: tuple(members) for members in sets.values() for name in members}

    def _root(self, name: str) -> str:
        parent = self._parents.setdefault(name, name)
        while parent != self._parents[parent]:
            self._parents[name] = parent = self._parents[parent]
        return parent


def sharing(graph: Graph, keeps_scale: Callable[[Node], bool], tensors: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Return tensor → those with its scale, including itself: inputs and outputs of nodes that keep the scale."""
    sets = Sharing()
    for node in graph.nodes:
        if keeps_scale(node):
            sets.join([*data_inputs(graph, node), *data_outputs(graph, node)])
    return sets.groups(tensors)


def groups_of(
    graph: Graph, points: Mapping[str, Point], keeps_scale: Callable[[Node], bool]
) -> dict[str, tuple[str, ...]]:
    """Return tensor of a point → the tensors whose values decide its scale."""
    groups = sharing(graph, keeps_scale, points)
    return {name: tuple(one for one in group if not points[one].is_hidden) or group for name, group in groups.items()}
