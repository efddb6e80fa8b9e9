"""A model as a graph of plain records, for code that decides what a graph should become.

:func:`read` turns a model into a :class:`Graph`; whoever rewrites it builds another Graph from its nodes and constants;
:func:`write` turns that into a model again. No ONNX message is seen outside this door.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgert.errors import ModelError
from edgert.graph.message import message, records
from edgert.graph.model import Model, TensorSpec, inputs, outputs, value_spec
from edgert.graph.record import Graph, Names, Node
from edgert.graph.static_shape import types

if TYPE_CHECKING:
    import onnx

__all__ = ["Graph", "Names", "Node", "extract", "read", "write"]


def read(model: Model) -> Graph:
    """The model as plain records, with all types that can be inferred; clean it first, so that weights are stored.

    Raises:
        ModelError: the graph is broken, or an input is no tensor.
    """
    fed, results = inputs(model), outputs(model)
    graph = replace(records(model.proto)[0], inputs=fed, outputs=results)
    return replace(graph, specs=types(graph))


def write(graph: Graph, like: Model, *, typed: bool = False) -> Model:
    """A model of these nodes and the stored tensors they read, with everything else (path, metadata) from ``like``.

    Operators of other domains get version 1 of their set unless ``graph`` or ``like`` names another.

    Args:
        typed: also record the types that ``like`` records of the tensors that are left; otherwise types of inner
            tensors are inferred again when needed.
    """
    proto = message(graph)
    body, old = proto.graph, like.proto.graph
    body.name = old.name
    _keep_values(body.input, old.input)
    _keep_values(body.output, old.output)
    if typed:
        made = {name for node in graph.nodes for name in node.outputs}
        body.value_info.extend(item for item in old.value_info if item.name in made)
    proto.ir_version = max(like.proto.ir_version, 4)  # the first where a stored tensor need not be a graph input
    known = {item.domain for item in proto.opset_import}
    proto.opset_import.extend(item for item in like.proto.opset_import if item.domain not in known | {"ai.onnx"})
    for name in _KEPT:
        _copy_field(like.proto, proto, name)
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


_KEPT = ("producer_name", "producer_version", "domain", "model_version", "doc_string", "metadata_props")


def _keep_values(values: Iterable[onnx.ValueInfoProto], old: Iterable[onnx.ValueInfoProto]) -> None:
    """Gives inputs or outputs that are as they were everything that the file says of them."""
    before = {item.name: item for item in old}
    for value in values:
        if value.name in before and value_spec(before[value.name]) in (value_spec(value), None):
            value.CopyFrom(before[value.name])


def _copy_field(source: onnx.ModelProto, target: onnx.ModelProto, name: str) -> None:
    value = getattr(source, name)
    if hasattr(value, "extend"):
        getattr(target, name).extend(value)
    elif source.HasField(name):
        setattr(target, name, value)
