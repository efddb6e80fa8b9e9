"""Conversion of ONNX messages to plain records, and back.

Records express less than messages. Functions of the file are inlined, every node gets a unique name, and stored tensors
that are also listed as inputs become constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from edgert import limits
from edgert.errors import ModelError
from edgert.graph import model as messages
from edgert.graph.ir import Attributes, Change, Graph, Node, free_name

if TYPE_CHECKING:
    import onnx

LIGHT_ELEMENTS = 1024
"""Largest stored tensor, in elements, that may hold shapes and axes; larger ones are weights."""


def to_graph(proto: onnx.ModelProto) -> tuple[Graph, tuple[Change, ...]]:
    """Return the graph of a message, with the types that the file records, and the changes this took."""
    proto, changes = _inline_functions(proto)
    graph = proto.graph
    names, renamed = _node_names(graph.node)
    outer = {name for node in graph.node for name in node.output} | {item.name for item in graph.input}
    outer |= messages.initializer_names(graph)
    nodes = tuple(_read_node(node, name, outer) for node, name in zip(graph.node, names, strict=True))
    constants = dict(_read_constants(graph))
    fed = tuple(_read_spec(item) for item in graph.input if item.name not in constants)
    results = tuple(map(_read_spec, graph.output))
    recorded = {item.name: _read_spec(item) for item in graph.value_info}
    specs = {**recorded, **{spec.name: spec for spec in (*fed, *results)}}
    domains = {item.domain: item.version for item in proto.opset_import if item.domain not in messages.DEFAULT_DOMAINS}
    changes += [*_dropped_items(graph, constants), *renamed]
    return Graph(nodes, constants, fed, results, specs, messages.default_opset(proto), domains), tuple(changes)


def to_proto(graph: Graph, *, typed: bool = False) -> onnx.ModelProto:
    """Return a message of the nodes and the stored tensors they read; ``typed`` adds known types of inner tensors."""
    from onnx import ModelProto

    proto = ModelProto(ir_version=8)
    body = proto.graph
    body.name = "graph"
    body.input.extend(map(_value_message, graph.inputs))
    body.output.extend(map(_value_message, graph.outputs))
    body.node.extend(map(_node_message, graph.nodes))
    used = {name for node in graph.nodes for name in node.reads} | graph.output_names
    body.initializer.extend(messages.from_array(array, name) for name, array in graph.constants.items() if name in used)
    if typed:
        ends = {spec.name for spec in (*graph.inputs, *graph.outputs)}
        made = [name for node in graph.nodes for name in node.outputs if name in graph.specs and name not in ends]
        body.value_info.extend(_value_message(graph.specs[name]) for name in made)
    proto.opset_import.add(domain="", version=graph.opset)
    for domain in sorted({node.domain for node in graph.nodes} - {""}):
        proto.opset_import.add(domain=domain, version=graph.domains.get(domain, 1))
    return proto


def write(graph: Graph, like: messages.Model, *, typed: bool = False) -> messages.Model:
    """Return a model of these nodes and the stored tensors they read, with path, metadata and the rest from ``like``.

    Operators of other domains get version 1 of their set unless ``graph`` or ``like`` names another.

    Args:
        graph: graph to write.
        like: model that the graph was made from.
        typed: whether types of inner tensors are copied from ``like``; otherwise they are inferred when needed.
    """
    proto = to_proto(graph)
    body, old = proto.graph, like.proto.graph
    body.name = old.name
    _restore_values(body.input, old.input)
    _restore_values(body.output, old.output)
    if typed:
        made = {name for node in graph.nodes for name in node.outputs}
        body.value_info.extend(item for item in old.value_info if item.name in made)
    proto.ir_version = max(like.proto.ir_version, 4)  # the first in which a stored tensor need not be a graph input
    known = {item.domain for item in proto.opset_import}
    proto.opset_import.extend(item for item in like.proto.opset_import if item.domain not in known | {"ai.onnx"})
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        if like.proto.HasField(name):
            setattr(proto, name, getattr(like.proto, name))
    proto.metadata_props.extend(like.proto.metadata_props)
    return like.derive(proto)


def _restore_values(values: Iterable[onnx.ValueInfoProto], old: Iterable[onnx.ValueInfoProto]) -> None:
    """Copy unchanged inputs or outputs as the file records them, descriptions included."""
    before = {item.name: item for item in old}
    for value in values:
        if value.name in before and messages.value_spec(before[value.name]) in (messages.value_spec(value), None):
            value.CopyFrom(before[value.name])


def with_large_constants_fed(graph: Graph) -> Graph:
    """Return the graph with large stored tensors as inputs, which makes shape inference cheap."""
    large = [
        messages.TensorSpec(name, array.shape, array.dtype.name)
        for name, array in graph.constants.items()
        if array.size > LIGHT_ELEMENTS
    ]
    names = {spec.name for spec in large}
    small = {name: array for name, array in graph.constants.items() if name not in names}
    return replace(graph, constants=small, inputs=(*graph.inputs, *large)) if large else graph


def _count_inlined_nodes(proto: onnx.ModelProto) -> int:
    """Return the number of nodes after inlining every function, where a function that calls itself counts once."""

    def calls(graph: onnx.GraphProto | onnx.FunctionProto) -> Counter[tuple[str, str]]:
        return Counter((node.domain, node.op_type) for node in messages.all_nodes(graph))

    def size(graph: Counter[tuple[str, str]]) -> int:
        return sum(count * sizes.get(call, 1) for call, count in graph.items())

    bodies = {(function.domain, function.name): calls(function) for function in proto.functions}
    sizes: dict[tuple[str, str], int] = {}
    for _ in bodies:  # a callee may follow its caller: each round resolves one more depth of calls
        before = dict(sizes)
        sizes = {call: min(size(body), limits.MODEL_NODES + 1) for call, body in bodies.items()}
        if sizes == before:
            break
    return size(calls(proto.graph))


def _inline_functions(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[Change]]:
    if not proto.functions:
        return proto, []
    from onnx import checker, inliner

    names = [f"{function.domain}::{function.name}" for function in proto.functions]
    if (count := _count_inlined_nodes(proto)) > limits.MODEL_NODES:
        why = f"its functions call one another: inlined they are {count:.3g} nodes, more than {limits.MODEL_NODES:,}"
        raise ModelError("the functions of the model cannot be inlined", why=why)
    try:
        inlined = inliner.inline_local_functions(proto)
    except (checker.ValidationError, RuntimeError) as error:  # a function that calls itself, or gets too many inputs
        raise ModelError("the functions of the model cannot be inlined", why=str(error).splitlines()[0]) from error
    return inlined, [Change("inline-functions", name, "local function inlined") for name in names]


def _node_names(nodes: Iterable[onnx.NodeProto]) -> tuple[list[str], list[Change]]:
    """Return a unique name for each node, its own or ``Conv_12``, and the changes."""
    written = [node.name for node in nodes]
    taken = set(written)
    seen: set[str] = {""}
    names, changes = [], []
    for position, (node, old) in enumerate(zip(nodes, written, strict=True)):
        name = old
        if old in seen:
            name = free_name(old or f"{node.op_type}_{position}", taken)
            detail = f"named; was {old!r}, as other nodes are" if old else "named"
            changes.append(Change("name-nodes", name, detail))
            taken.add(name)
        seen.add(name)
        names.append(name)
    return names, changes


def _read_constants(graph: onnx.GraphProto) -> Iterator[tuple[str, messages.Array]]:
    """Yield (name, stored tensor); of two with one name the last is used, as in ONNX Runtime."""
    for item in graph.initializer:
        array = messages.to_array(item)
        array.flags.writeable = False
        yield item.name, array
    for sparse in graph.sparse_initializer:  # https://onnx.ai/onnx/repo-docs/IR.html#tensor-definition
        values, indices, shape = messages.to_array(sparse.values), messages.to_array(sparse.indices), tuple(sparse.dims)
        array = np.zeros(math.prod(shape), values.dtype)
        array[indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)] = values
        array.flags.writeable = False
        yield sparse.values.name, array.reshape(shape)


def _dropped_items(graph: onnx.GraphProto, constants: Mapping[str, messages.Array]) -> Iterator[Change]:
    for item in graph.input:
        if item.name in constants:
            yield Change("drop-initializer-inputs", item.name, "no longer a graph input")
    latest = {item.name: position for position, item in enumerate(graph.initializer)}
    for position, item in enumerate(graph.initializer):
        if latest[item.name] != position:
            shape = f"{messages.dtype_name(item.data_type)}[{', '.join(map(str, item.dims))}]"
            yield Change("remove-unused", item.name, f"stored twice {shape} removed")
    made = {name for node in graph.node for name in node.output}
    for item in graph.value_info:
        if item.name not in made:
            yield Change("forget-gone", item.name, "type of a tensor that no longer exists removed")


def _read_spec(value: onnx.ValueInfoProto) -> messages.TensorSpec:
    return messages.value_spec(value) or messages.TensorSpec(value.name, (), "unknown", ranked=False)


def _read_node(node: onnx.NodeProto, name: str, outer: set[str]) -> Node:
    given = Attributes(node)
    given.message.name = name
    return Node(
        node.op_type,
        tuple(node.input),
        tuple(node.output),
        given,
        name,
        "" if messages.is_standard(node) else node.domain,
        _captured_names(node) & outer,  # bodies have inner names, too
    )


def _captured_names(node: onnx.NodeProto) -> frozenset[str]:
    """Return all names that the bodies of a node read, inner ones included."""
    names: set[str] = set()
    for graph in messages.subgraphs(node):
        names.update(item.name for item in graph.output)
        for inner in graph.node:
            names.update(filter(None, inner.input))
            names |= _captured_names(inner)
    return frozenset(names)


def _node_message(node: Node) -> onnx.NodeProto:
    from onnx import NodeProto, helper

    given = node.attributes
    if isinstance(given, Attributes) and _is_unchanged(node, given.message):
        return given.message
    made = NodeProto(op_type=node.op, input=node.inputs, output=node.outputs, name=node.name, domain=node.domain)
    if isinstance(given, Attributes):
        made.attribute.extend(given.message.attribute)
    else:
        written = ((name, value) for name, value in sorted(given.items()) if value is not None)
        made.attribute.extend(helper.make_attribute(name, value) for name, value in written)
    return made


def _is_unchanged(node: Node, message: onnx.NodeProto) -> bool:
    return (
        node.op == message.op_type
        and node.name == message.name
        and node.inputs == tuple(message.input)
        and node.outputs == tuple(message.output)
        and node.domain == message.domain
    )


@lru_cache(maxsize=4096)
def _value_message(spec: messages.TensorSpec) -> onnx.ValueInfoProto:
    """Return the message of a tensor's type; the cache shares it, so copy it before changing it."""
    from onnx import ValueInfoProto, helper

    if spec.dtype == "unknown":
        return ValueInfoProto(name=spec.name)
    return helper.make_tensor_value_info(
        spec.name, messages.element_type(spec.dtype), list(spec.shape) if spec.ranked else None
    )
