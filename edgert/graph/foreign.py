"""Nodes whose operator an engine may not have, named for an error: outside the standard, or not in its version."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from edgert.graph.count import op_name
from edgert.graph.model import Model
from edgert.graph.own import operator_of
from edgert.graph.proto import all_nodes, default_opset, has_schema, is_standard, label

if TYPE_CHECKING:
    import onnx

_NAMED = 4
_KNOWN = ("com.microsoft", "ai.onnx.")
"""Domains of ONNX Runtime's own operators, and of the standard's other sets."""


def foreign_nodes(model: Model, own: Collection[str] = ()) -> str:
    """``"node 'a' is acme.Funny, outside the ONNX standard; node 'b' is Reluu, which opset 17 does not have"``.

    Empty where every operator is a standard one, one of ONNX Runtime's own, a function of the model, or registered by
    :func:`edgert.op`. Names four nodes and counts the others.

    Args:
        own: operators besides, ``domain::Name``, that somebody is known to register.
    """
    local = {f"{function.domain}::{function.name}" for function in model.proto.functions} | set(own)
    told = [
        f"node {label(node, position)!r} is {op_name(node)}, {why}"
        for position, node in enumerate(all_nodes(model.proto.graph))
        if f"{node.domain}::{node.op_type}" not in local and (why := _why(node, default_opset(model.proto)))
    ]
    others = len(told) - _NAMED
    return "; ".join(told[:_NAMED]) + (f"; and {others} more" if others > 0 else "")


def _why(node: onnx.NodeProto, opset: int) -> str:
    if is_standard(node):
        return "" if has_schema(node.op_type, opset) else f"which opset {opset} does not have"
    known = node.domain.startswith(_KNOWN) or operator_of(node) is not None
    return "" if known else "outside the ONNX standard"
