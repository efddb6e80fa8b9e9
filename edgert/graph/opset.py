"""Conversion of a model to a newer version of the standard operator set, by onnx's own converter.

The converter (https://onnx.ai/onnx/repo-docs/VersionConverter.html) turns Upsample and the Resize of opset 10 into a
Resize that samples half a pixel off, and renames its result. These nodes are therefore moved to a domain that it does
not know, and rewritten here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgert.errors import ModelError
from edgert.graph import model as messages
from edgert.graph.draft import Draft
from edgert.graph.ir import Node
from edgert.graph.onnx_convert import to_graph, write

if TYPE_CHECKING:
    import onnx

_HIDDEN = "edgert.hidden"
_RESIZE_OPSET = 11
"""First opset whose Resize defines its sample positions; Upsample ended with 9 (https://onnx.ai/onnx/operators/)."""


def opset(model: messages.Model) -> int:
    """Return the version of the standard operators that the model uses."""
    return messages.default_opset(model.proto)


def raise_opset(model: messages.Model, wanted: int) -> messages.Model:
    """Return the model with operator set ``wanted``; the model itself when its version is as new.

    The model computes the same, and its tensors keep their names. Clean it first, so that scales of an Upsample are
    stored tensors.

    Raises:
        ModelError: the model's own version lacks an operator that it uses, or the wanted one has no equivalent.
    """
    if opset(model) >= wanted:
        return model
    _check_operators(model, wanted)
    proto = model.copied_proto()
    hidden = opset(model) < _RESIZE_OPSET <= wanted and _hide_resampling(proto)
    converted = _convert(proto, wanted, model)
    return _restore_resampling(converted, model) if hidden else model.derive(converted)


def _check_operators(model: messages.Model, wanted: int) -> None:
    version = opset(model)
    for position, node in enumerate(messages.all_nodes(model.proto.graph)):
        if messages.is_standard(node) and not messages.has_schema(node.op_type, version):
            why = f"node {messages.label(node, position)!r} is {node.op_type}, which opset {version} does not have"
            raise _conversion_error(model, why)
        for inner in (inner for body in messages.subgraphs(node) for inner in body.node):
            if version < _RESIZE_OPSET <= wanted and _is_resampling(inner):
                where = "in the body of an If, Loop or Scan"
                raise _conversion_error(model, f"node {inner.name!r} {where} is {inner.op_type} of opset {version}")


def _convert(proto: onnx.ModelProto, wanted: int, model: messages.Model) -> onnx.ModelProto:
    from onnx import helper, version_converter

    names = _all_names(proto.graph)
    before = {node.op_type for node in messages.all_nodes(proto.graph) if messages.is_standard(node)}
    metadata = list(proto.metadata_props)
    try:
        converted: onnx.ModelProto = version_converter.convert_version(proto, wanted)
    except (RuntimeError, ValueError) as error:  # its ConvertError is a RuntimeError
        text = " ".join(str(error).split())
        named = sorted((name for name in before if name in text), key=len, reverse=True)
        why = f"operator {named[0]}: {text}" if named else f"one of {', '.join(sorted(before))}: {text}"
        raise _conversion_error(model, why[:500]) from error
    for place, body in enumerate(_bodies(converted.graph)):
        _rename(body, {name: f"{name}_in_body_{place}" for name in _own_names(body) - names})
    del converted.metadata_props[:]
    converted.metadata_props.extend(metadata)
    known = [item for item in converted.opset_import if item.domain in messages.DEFAULT_DOMAINS]
    converted.ir_version = max(converted.ir_version, helper.find_min_ir_version_for(known))
    return converted


# The converter names the tensors that it adds to a body without regard to outer ones. Runtimes refuse equal names.


def _bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for body in messages.subgraphs(node):
            yield body
            yield from _bodies(body)


def _own_names(graph: onnx.GraphProto) -> set[str]:
    return {name for node in graph.node for name in node.output if name} | {item.name for item in graph.initializer}


def _all_names(graph: onnx.GraphProto) -> set[str]:
    return _own_names(graph).union(*map(_own_names, _bodies(graph)))


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    if not names:
        return
    for node in graph.node:
        for tensors in (node.input, node.output):
            for place, name in enumerate(tensors):
                tensors[place] = names.get(name, name)
        for body in messages.subgraphs(node):
            _rename(body, {old: new for old, new in names.items() if old not in _own_names(body)})
    for item in (*graph.initializer, *graph.value_info, *graph.output):
        item.name = names.get(item.name, item.name)


def _hide_resampling(proto: onnx.ModelProto) -> bool:
    """Move nodes that the converter gets wrong to a separate domain; return whether there were any."""
    found = [node for node in proto.graph.node if _is_resampling(node)]
    for node in found:
        node.domain = _HIDDEN
    if found:
        proto.opset_import.add(domain=_HIDDEN, version=1)
    return bool(found)


def _is_resampling(node: onnx.NodeProto) -> bool:
    return messages.is_standard(node) and node.op_type in ("Upsample", "Resize")


def _restore_resampling(converted: onnx.ModelProto, model: messages.Model) -> messages.Model:
    """Replace the hidden nodes by Resize nodes that sample as they did."""
    kept = [item for item in converted.opset_import if item.domain != _HIDDEN]
    del converted.opset_import[:]
    converted.opset_import.extend(kept)
    draft = Draft(to_graph(converted)[0], "raise-opset")
    for node in draft.graph.nodes:
        if node.domain == _HIDDEN:
            draft.replace(node, [_resize(node, draft, model)], "Resize")
    return write(draft.finish()[0], model.derive(converted), typed=True)


def _resize(node: Node, draft: Draft, model: messages.Model) -> Node:
    """Return a Resize of opset 11 for an Upsample of opset 7 or 9, or a Resize of opset 10.

    All of them take output pixel i from i / scale of the input ("asymmetric"). Nearest means rounding down, or up where
    Resize shrinks, as in ONNX Runtime (upsample.cc, "SIMPLE").
    """
    is_stored = len(node.inputs) > 1
    scales = draft.value(node.inputs[1]) if is_stored else np.asarray(node.attributes["scales"], np.float32)
    given = {"mode": b"linear", "coordinate_transformation_mode": "asymmetric"}  # bilinear in the oldest
    if node.attributes.get("mode", b"nearest") == b"nearest":
        given |= {"mode": b"nearest", "nearest_mode": _nearest_mode(node, scales, model)}
    operand = node.inputs[1] if is_stored else draft.add_constant(np.asarray(scales), f"{node.name}_scales")
    return replace(node, op="Resize", domain="", inputs=(node.inputs[0], "", operand), attributes=given)


def _nearest_mode(node: Node, scales: messages.Array | None, model: messages.Model) -> str:
    if node.op == "Upsample":
        return "floor"
    if scales is None:
        raise _conversion_error(model, f"node {node.name!r} (Resize) computes its scales at run time")
    if (scales < 1).any() and (scales > 1).any():
        raise _conversion_error(model, f"node {node.name!r} (Resize) grows one axis and shrinks another")
    return "ceil" if (scales < 1).any() else "floor"


def _conversion_error(model: messages.Model, why: str) -> ModelError:
    path, fix = str(model.path), "export the model again with standard operators and opset 13 or newer"
    return ModelError(f"model {path!r} cannot be raised to a newer opset", why=why, where=path, fix=fix)
