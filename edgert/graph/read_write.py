"""A model read as a graph, and a graph written as a model again.

Whoever rewrites a model reads it, builds another :class:`~edgert.graph.ir.Graph` from its nodes and constants, and
writes that. No ONNX message is seen outside this door.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgert.graph.ir import Graph
from edgert.graph.model import Model, inputs, outputs, value_spec
from edgert.graph.onnx_convert import to_graph, to_proto
from edgert.graph.static_shape import types

if TYPE_CHECKING:
    import onnx


def read(model: Model) -> Graph:
    """The model as plain records, with all types that can be inferred; clean it first, so that weights are stored.

    Raises:
        ModelError: the graph is broken, or an input is no tensor.
    """
    fed, results = inputs(model), outputs(model)
    graph = replace(to_graph(model.proto)[0], inputs=fed, outputs=results)
    return replace(graph, specs=types(graph))


def write(graph: Graph, like: Model, *, typed: bool = False) -> Model:
    """A model of these nodes and the stored tensors they read, with everything else (path, metadata) from ``like``.

    Operators of other domains get version 1 of their set unless ``graph`` or ``like`` names another.

    Args:
        typed: also record the types that ``like`` records of the tensors that are left; otherwise types of inner
            tensors are inferred again when needed.
    """
    proto = to_proto(graph)
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


_KEPT = ("producer_name", "producer_version", "domain", "model_version", "doc_string", "metadata_props")


def _keep_values(values: Iterable[onnx.ValueInfoProto], old: Iterable[onnx.ValueInfoProto]) -> None:
    """Gives inputs or outputs that are as they were everything that the file records of them."""
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
