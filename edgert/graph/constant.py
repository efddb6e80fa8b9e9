"""Passes that turn what is known before the model runs into stored tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from edgert.graph.index import Index
from edgert.graph.proto import Array, attributes, dtype_name, is_standard, label, to_array
from edgert.graph.rewrite import Pass, add_initializer, allow_plain_initializers, drop_nodes
from edgert.graph.spec import initializer_names

if TYPE_CHECKING:
    import onnx


def _drop_initializer_inputs(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph = proto.graph
    weights = initializer_names(graph)
    listed = [position for position, item in enumerate(graph.input) if item.name in weights]
    for position in reversed(listed):
        yield graph.input[position].name, "no longer a graph input"
        del graph.input[position]
    if weights:
        allow_plain_initializers(proto)


def _store_constants(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph, outputs = proto.graph, {item.name for item in proto.graph.output}
    stored = set()
    for position, node in enumerate(graph.node):
        array = constant_value(node)
        if array is None or node.output[0] in outputs:
            continue  # some backends take no stored tensor as a graph output
        add_initializer(proto, array, node.output[0])
        stored.add(position)
        yield label(node, position), f"Constant → stored tensor {node.output[0]!r}"
    drop_nodes(graph, stored)


def constant_value(node: onnx.NodeProto) -> Array | None:
    """What a Constant node holds; None for other nodes, and for strings and sparse tensors."""
    if node.op_type != "Constant" or not is_standard(node):
        return None
    (name, value), *_ = [*attributes(node).items(), ("", None)]
    if name == "value":
        return to_array(value)
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    return np.array(value, dtypes[name]) if name in dtypes else None


def tensor_summary(array: Array) -> str:
    """``int64[4]``."""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def stored_summary(tensor: onnx.TensorProto) -> str:
    """``float32[64, 3, 3, 3]``."""
    return f"{dtype_name(tensor.data_type)}[{', '.join(map(str, tensor.dims))}]"


def _remove_unused(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph = proto.graph
    index = Index.of(graph)
    used = set(index.consumers) | index.captured | index.outputs | index.inputs
    latest = {item.name: position for position, item in enumerate(graph.initializer)}
    for position in reversed(range(len(graph.initializer))):
        tensor = graph.initializer[position]
        if tensor.name in used and latest[tensor.name] == position:
            continue
        why = "unused" if tensor.name not in used else "stored twice"
        yield tensor.name, f"{why} {stored_summary(tensor)} removed"
        del graph.initializer[position]


def _forget_gone(proto: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    graph = proto.graph
    known = set(itertools.chain.from_iterable(node.output for node in graph.node))
    for position in reversed(range(len(graph.value_info))):
        name = graph.value_info[position].name
        if name not in known:
            yield name, "type of a tensor that is gone removed"
            del graph.value_info[position]


DROP_INITIALIZER_INPUTS = Pass(
    "drop-initializer-inputs",
    "stored tensors leave the list of graph inputs, so that runtimes may fold them; the IR version becomes at least 4",
    _drop_initializer_inputs,
)
STORE_CONSTANTS = Pass("store-constants", "Constant nodes become stored tensors of the same name", _store_constants)
REMOVE_UNUSED = Pass("remove-unused", "stored tensors that nothing reads or a later one hides go", _remove_unused)
FORGET_GONE = Pass("forget-gone", "recorded types of tensors that no node makes go", _forget_gone)
