"""A graph as plain records, for code that decides what a graph should become.

:func:`read` turns a model into a :class:`Graph`; whoever rewrites it builds another Graph from its nodes and constants;
:func:`write` turns that into a model again. No ONNX message is seen outside this door.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgert.errors import ModelError
from edgert.graph.index import captured_names
from edgert.graph.model import Model
from edgert.graph.proto import Array, attributes, default_opset, element_type, from_array, is_standard, label, to_array
from edgert.graph.rewrite import allow_plain_initializers, free_name
from edgert.graph.shape import type_map
from edgert.graph.spec import TensorSpec, inputs, outputs
from edgert.operator import Operator, operator

if TYPE_CHECKING:
    import onnx


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
    """

    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    specs: Mapping[str, TensorSpec]
    opset: int

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """Tensor → the node that computes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

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

    @cached_property
    def own_operators(self) -> Mapping[str, Operator]:
        """Node name → its operator, for those that :func:`edgert.op` registered."""
        found = {node.name: operator(node.domain, node.op) for node in self.nodes if node.domain}
        return {name: one for name, one in found.items() if one is not None}

    def is_private(self, name: str) -> bool:
        """Whether one node reads the tensor, and nobody outside can see it."""
        return len(self.consumers.get(name, ())) == 1 and name not in self.output_names

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


def read(model: Model) -> Graph:
    """The model as plain records; clean it first, so that weights are stored tensors and nodes have names.

    Raises:
        ModelError: the graph is broken, or an input is no tensor.
    """
    graph = model.proto.graph
    specs = type_map(model)
    outer = {name for node in graph.node for name in node.output} | {item.name for item in graph.input}
    outer |= {item.name for item in graph.initializer}
    nodes = tuple(_node(node, position, outer) for position, node in enumerate(graph.node))
    constants = {item.name: to_array(item) for item in graph.initializer}
    for array in constants.values():
        array.flags.writeable = False
    return Graph(nodes, constants, inputs(model), outputs(model), specs, default_opset(model.proto))


def write(graph: Graph, like: Model) -> Model:
    """A model of these nodes and the stored tensors they read, with everything else (path, metadata) from ``like``.

    Types of inner tensors are not recorded: they are inferred again when needed. Operators of other domains get
    version 1 of their set unless ``like`` names another.
    """
    from onnx import GraphProto

    proto = type(like.proto)()
    for item in proto.DESCRIPTOR.fields:
        if item.name != "graph" and item.name in _KEPT:
            _copy_field(like.proto, proto, item.name)
    body = GraphProto(name=like.proto.graph.name)
    body.input.extend(_value(spec) for spec in graph.inputs)
    body.output.extend(_value(spec) for spec in graph.outputs)
    body.node.extend(map(_message, graph.nodes))
    used = {name for node in graph.nodes for name in node.reads} | graph.output_names
    body.initializer.extend(from_array(array, name) for name, array in graph.constants.items() if name in used)
    proto.graph.CopyFrom(body)
    _import_domains(proto, graph)
    allow_plain_initializers(proto)
    return like.derive(proto)


def extract(graph: Graph, wanted: Iterable[str], given: Iterable[str] = ()) -> Graph:
    """The part that computes ``wanted`` when ``given`` is fed; its other inputs are those of the graph it needs.

    Args:
        wanted: tensors that become the outputs, in this order; a tensor that is also given passes through nothing and
            is left out.
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
    """Identities of the nodes that compute the names, and every tensor that these read from outside or each other."""
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
    ends = {spec.name: spec for spec in (*graph.inputs, *graph.outputs)}
    spec = graph.specs.get(name) or ends.get(name)
    if spec is None or spec.dtype == "unknown":
        raise ModelError(
            f"the type of tensor {name!r} is not known",
            why="shape inference does not reach it",
            fix="give the model static input shapes (input: size, or profiles)",
        )
    return spec


_KEPT = ("ir_version", "opset_import", "producer_name", "producer_version", "domain", "model_version", "doc_string",
         "metadata_props")  # fmt: skip


def _copy_field(source: onnx.ModelProto, target: onnx.ModelProto, name: str) -> None:
    value = getattr(source, name)
    if hasattr(value, "extend"):
        getattr(target, name).extend(value)
    elif source.HasField(name):
        setattr(target, name, value)


def _import_domains(proto: onnx.ModelProto, graph: Graph) -> None:
    known = {item.domain for item in proto.opset_import}
    for item in proto.opset_import:
        if item.domain in ("", "ai.onnx"):
            item.version = graph.opset
    for domain in sorted({node.domain for node in graph.nodes} - known - {"", "ai.onnx"}):
        proto.opset_import.add(domain=domain, version=1)


def _node(node: onnx.NodeProto, position: int, outer: set[str]) -> Node:
    return Node(
        node.op_type,
        tuple(node.input),
        tuple(node.output),
        attributes(node),
        label(node, position),
        "" if is_standard(node) else node.domain,
        captured_names(node) & outer,  # bodies have names of their own, too
    )


def _message(node: Node) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node(
        node.op, list(node.inputs), list(node.outputs), name=node.name, domain=node.domain, **node.attributes
    )


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(spec.name, element_type(spec.dtype), list(spec.shape) if spec.ranked else None)
