"""Constant nodes and stored tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgert.graph.draft import Draft
from edgert.graph.fold import tensor_summary
from edgert.graph.proto import Array, attributes, is_standard, to_array
from edgert.graph.record import Graph
from edgert.graph.rewrite import Change, Pass, Result

if TYPE_CHECKING:
    import onnx


def _store_constants(graph: Graph) -> Result:
    draft = Draft(graph, "store-constants")
    for node in graph.nodes:
        array = _value(node.attributes) if node.op == "Constant" and not node.domain else None
        if array is None or node.outputs[0] in graph.output_names:
            continue  # some backends take no stored tensor as a graph output
        draft.known({node.outputs[0]: array})
        draft.put(node, (), f"Constant → stored tensor {node.outputs[0]!r}")
    return draft.done()


def constant_value(node: onnx.NodeProto) -> Array | None:
    """What a Constant node holds; None for other nodes, and for strings and sparse tensors."""
    return _value(attributes(node)) if node.op_type == "Constant" and is_standard(node) else None


def _value(given: Mapping[str, Any]) -> Array | None:
    (name, value), *_ = [*given.items(), ("", None)]
    if name == "value":
        return to_array(value)
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    return np.array(value, dtypes[name]) if name in dtypes else None


def _remove_unused(graph: Graph) -> Result:
    used = {name for node in graph.nodes for name in node.reads} | graph.output_names
    unused = [name for name in graph.constants if name not in used]
    if not unused:
        return graph, ()
    kept = {name: array for name, array in graph.constants.items() if name in used}
    changes = (
        Change("remove-unused", name, f"unused {tensor_summary(graph.constants[name])} removed") for name in unused
    )
    return replace(graph, constants=kept), tuple(changes)


STORE_CONSTANTS = Pass(
    "store-constants",
    "Constant nodes become stored tensors of the same name",
    "there is nothing to run",
    _store_constants,
)
REMOVE_UNUSED = Pass("remove-unused", "stored tensors that nothing reads go", "they only take memory", _remove_unused)
