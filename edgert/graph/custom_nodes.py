"""Nodes of custom operators, registered by :func:`edgert.op`: found, and typed, since onnx has no rules for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgert.custom_op import Operator, operator
from edgert.graph.model import Dim, Model, TensorSpec, value_spec
from edgert.graph.proto import attributes, dtype_name, element_type, is_standard, label, set_attribute

if TYPE_CHECKING:
    import onnx


def has_custom_operators(proto: onnx.ModelProto) -> bool:
    """Whether some node is of a registered custom operator."""
    return any(custom_operator_of(node) is not None for node in proto.graph.node)


def custom_operator_of(node: onnx.NodeProto) -> Operator | None:
    """The custom operator of a node; None where it is not a registered one."""
    return None if is_standard(node) else operator(node.domain, node.op_type)


def results(
    one: Operator, given: Sequence[TensorSpec], outputs: Sequence[str], settings: Mapping[str, object], node: str
) -> list[TensorSpec]:
    """What a node computes, by its operator's rules. A size that does not follow from them yet is unknown.

    Args:
        given: its inputs.
        outputs: names.
        settings: its attributes, defaults filled in.

    Raises:
        ModelError: a type that the operator does not take.
    """
    dtypes = one.result_dtypes([spec.dtype for spec in given], node)
    shapes = _shapes(one, given, settings)
    return [
        TensorSpec(name, shape or (), dtype, ranked=shape is not None)
        for name, shape, dtype in zip(outputs, shapes, dtypes, strict=False)
    ]


def for_plugins(model: Model) -> Model:
    """The model with what TensorRT's parser looks a plugin up by: the domain as a namespace, and a version.

    Both are attributes of the node, by the parser's own names:
    https://github.com/onnx/onnx-tensorrt/blob/main/onnxOpImporters.cpp (FallbackPluginImporter).
    """
    if not has_custom_operators(model.proto):
        return model
    proto = model.copied_proto()
    for node in proto.graph.node:
        if custom_operator_of(node) is not None:
            set_attribute(node, "plugin_namespace", node.domain)
            set_attribute(node, "plugin_version", "1")
    return model.derive(proto)


def _shapes(
    one: Operator, given: Sequence[TensorSpec], settings: Mapping[str, object]
) -> Sequence[tuple[Dim, ...] | None]:
    if one.shape is None:
        return [given[0].shape if given[0].ranked else None] * len(one.outputs)
    if not all(spec.is_static for spec in given):
        return [None] * len(one.outputs)
    sizes = [tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in given]
    return list(one.shapes(sizes, settings))


def type_custom_nodes(light: onnx.ModelProto) -> None:
    """Takes custom nodes out of a copy that is only inferred: what they compute is typed and fed instead.

    One after another, as the types of later ones follow from those before. Raises ModelError as :func:`results`.
    """
    from onnx import shape_inference

    imported = {item.domain for item in light.opset_import}
    for domain in {node.domain for node in light.graph.node if custom_operator_of(node)} - imported:
        light.opset_import.add(domain=domain, version=1)  # onnx wants every domain named, exporters leave them out
    while True:
        place = next((n for n, node in enumerate(light.graph.node) if custom_operator_of(node)), None)
        if place is None:
            return
        graph = shape_inference.infer_shapes(light, data_prop=True).graph
        specs = {item.name: value_spec(item) for item in (*graph.value_info, *graph.input, *graph.output)}
        known = {name: spec for name, spec in specs.items() if spec is not None and spec.dtype != "unknown"}
        known |= {t.name: TensorSpec(t.name, tuple(t.dims), dtype_name(t.data_type)) for t in graph.initializer}
        node = light.graph.node[place]
        if not known.keys() >= set(node.input):
            return  # what reads it stays unknown, as with an operator that nobody registered
        _feed(light, place, known)


def _feed(light: onnx.ModelProto, place: int, known: Mapping[str, TensorSpec]) -> None:
    """One node's outputs become inputs of the graph."""
    from onnx import helper

    node = light.graph.node[place]
    one, name = custom_operator_of(node), label(node, place)
    assert one is not None  # asked by the caller
    ends = {item.name: item for item in light.graph.output}
    settings = one.settings(attributes(node), name)
    for spec in results(one, [known[item] for item in node.input], list(node.output), settings, name):
        dims = list(spec.shape) if spec.ranked else None
        value = helper.make_tensor_value_info(spec.name, element_type(spec.dtype), dims)
        light.graph.input.append(value)
        if spec.name in ends:
            ends[spec.name].type.CopyFrom(value.type)
    del light.graph.node[place]
