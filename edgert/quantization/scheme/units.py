"""Records of a scheme: units that run as one kernel, points where tensors are rounded, groups that share a scale."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from dla import Form, Target as Dla
from edgert.graph import Graph, Node, operators
from edgert.graph.fusion import SHORTCUT, Fusion, kernel

CLIPS = frozenset({"Relu", "Clip"})
"""Activations that only bound values, and do the same to integers of the same scale."""


def is_float(graph: Graph, tensor: str) -> bool:
    """Return whether a tensor is known to be float32."""
    spec = graph.specs.get(tensor)
    return spec is not None and spec.dtype == "float32"


def is_activation(graph: Graph, tensor: str) -> bool:
    """Return whether a tensor is float32 and depends on the inputs, so that its range must be measured."""
    return tensor in fed_tensors(graph) and is_float(graph, tensor)


def fed_tensors(graph: Graph) -> frozenset[str]:
    """Return the tensors that depend on values of the graph's inputs."""
    if graph not in _FED:
        found = {spec.name for spec in graph.inputs}
        for node in graph.nodes:
            if operators.about(node.op).kind != "measure" and not found.isdisjoint(node.reads):
                found.update(filter(None, node.outputs))
        _FED[graph] = frozenset(found)
    return _FED[graph]


_FED: WeakKeyDictionary[Graph, frozenset[str]] = WeakKeyDictionary()


def data_inputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """Return the float32 activations that a node reads as data, once each."""
    names = node.inputs[:1] if operators.is_copy(graph, node) else node.inputs
    return tuple(dict.fromkeys(name for name in names if is_activation(graph, name)))


def data_outputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """Return the float32 tensors a node computes."""
    return tuple(name for name in node.outputs if name and is_float(graph, name))


def tensors_in_order(graph: Graph) -> Iterator[str]:
    """Yield all tensors that are fed or computed, in order of execution."""
    yield from (spec.name for spec in graph.inputs)
    yield from (name for node in graph.nodes for name in node.outputs if name)


def is_weighted(graph: Graph, node: Node) -> bool:
    """Return whether a node applies a stored float32 weight, its second input, to an activation, its first."""
    if node.op not in operators.WEIGHTED or node.domain or len(node.inputs) < 2:
        return False
    weight = graph.constants.get(node.inputs[1])
    return weight is not None and weight.dtype == np.float32 and is_activation(graph, node.inputs[0])


def tensors_to_calibrate(graph: Graph) -> tuple[str, ...]:
    """Return the float32 tensors of a prepared model's graph that need a range, in order of execution."""
    return tuple(name for name in tensors_in_order(graph) if is_activation(graph, name))


def clip_behind(graph: Graph, tensor: str) -> Node | None:
    """Return the Relu or Clip that alone reads a computed tensor; None where there is none."""
    if tensor not in graph.producers or not graph.is_private(tensor):
        return None
    (reader,) = graph.consumers[tensor]
    return reader if reader.op in CLIPS and not reader.domain else None


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that run as one kernel, and so in one precision.

    Attributes:
        nodes: names of the nodes, the main one first, then in order of execution.
        inputs: activations read from outside, once each.
        output: first tensor that leaves the unit.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str
    weight: str = ""
    bias: str = ""


def fuse(graph: Graph, fusion: Fusion) -> tuple[Unit, ...]:
    """Return the units of a graph: weighted nodes and Adds with what they fuse, and all other nodes alone."""
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
"""Integer kernels of ONNX Runtime, strongly typed TensorRT on a GPU, and strongly typed TensorRT on a DLA."""

USUAL_DLA = Dla()
"""Default DLA: that of Orin, with the TensorRT of JetPack 6."""


@dataclass(frozen=True, slots=True)
class Point:
    """A tensor that is rounded to 8 bits.

    Attributes:
        readers: names of the nodes that read it rounded; others read it unrounded.
        is_output: whether the graph returns it rounded.
        is_hidden: whether only a Relu or Clip of the same scale reads it, so that its own range is not used.
        amax: largest magnitude where it is known without measuring; 0 elsewhere.
    """

    tensor: str
    readers: tuple[str, ...]
    is_output: bool = False
    is_hidden: bool = False
    amax: float = 0.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A node that stays in floating point, and the reason."""

    node: str
    reason: str


@dataclass(frozen=True, eq=False)
class Scheme:
    """Tensors and nodes that become INT8.

    Attributes:
        units: units that run in INT8, in order; ``keep`` takes their names.
        points: points by tensor, in order of execution.
        groups: tensors whose values decide the scale of a point, by the point's tensor; equal for tensors of one scale.
        direct: names of nodes that work on stored integers, to move, pick or bound values.
        kept: units in higher precision because ``keep`` named them.
        skipped: nodes in floating point for other reasons.
        forms: form in which a DLA runs each node, by name; empty for other targets.
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
        """Tensors whose range must be measured."""
        found = dict.fromkeys(name for group in self.groups.values() for name in group)
        return tuple(name for name in found if not self.points[name].amax)


class Sharing:
    """Disjoint sets of tensors that must have one scale (union-find)."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def join(self, names: Iterable[str]) -> None:
        """Join the sets of all these tensors into one."""
        first, *others = [self._root(name) for name in names] or [""]
        for other in others:
            self._parents[self._root(other)] = self._root(first)

    def groups(self, names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """Return, for each of these tensors, those of them that are in its set, in the order given."""
        sets: dict[str, list[str]] = {}
        for name in names:
            sets.setdefault(self._root(name), []).append(name)
        return {name: tuple(members) for members in sets.values() for name in members}

    def _root(self, name: str) -> str:
        parent = self._parents.setdefault(name, name)
        while parent != self._parents[parent]:
            self._parents[name] = parent = self._parents[parent]
        return parent


def scale_groups(
    graph: Graph, keeps_scale: Callable[[Node], bool], tensors: Iterable[str]
) -> Mapping[str, tuple[str, ...]]:
    """Return the tensors that share the scale of each tensor, itself included, through nodes that keep the scale."""
    sets = Sharing()
    for node in graph.nodes:
        if keeps_scale(node):
            sets.join([*data_inputs(graph, node), *data_outputs(graph, node)])
    return sets.groups(tensors)


def point_groups(
    graph: Graph, points: Mapping[str, Point], keeps_scale: Callable[[Node], bool]
) -> dict[str, tuple[str, ...]]:
    """Return the tensors whose values decide the scale of each point, by the point's tensor."""
    groups = scale_groups(graph, keeps_scale, points)
    return {name: tuple(one for one in group if not points[one].is_hidden) or group for name, group in groups.items()}
