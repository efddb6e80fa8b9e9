"""Types and shapes of the tensors inside a graph, as far as onnx can infer them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from edgert.custom_op import Operator, operator
from edgert.errors import ModelError
from edgert.graph.ir import Graph
from edgert.graph.model import (
    Dim,
    Model,
    TensorSpec,
    attributes,
    default_opset,
    dtype_name,
    element_type,
    is_standard,
    label,
    set_attribute,
    value_spec,
)
from edgert.graph.onnx_convert import LIGHT_ELEMENTS, lightened, to_proto

if TYPE_CHECKING:
    import onnx


# Nodes of custom operators, registered by :func:`edgert.op`: found, and typed, since onnx has no rules for them.


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


# Shapes for operators that onnx has no rules for: each is replaced by a standard node with the same output shape.
#
# Covers what ONNX Runtime's quantizer and optimizer write (domain ``com.microsoft``,
# https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md) and the experimental operators of
# models from before ONNX 1.5 (ImageScaler, Crop, Affine). Replacements serve shape inference on a throw-away copy;
# they compute something else.

_Rule = tuple[str, Callable[[Sequence[str]], Sequence[str]]]


def _first(names: Sequence[str]) -> Sequence[str]:
    return names[:1]


_CONTRIB: dict[str, _Rule] = {
    "QLinearAdd": ("Add", lambda names: [names[0], names[3]]),
    "QLinearMul": ("Mul", lambda names: [names[0], names[3]]),
    "QLinearConcat": ("Concat", lambda names: names[2::3]),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", _first),
    "QLinearAveragePool": ("AveragePool", _first),
    "QLinearLeakyRelu": ("Identity", _first),
    "QLinearSigmoid": ("Identity", _first),
    "QLinearSoftmax": ("Identity", _first),
    "QGemm": ("Gemm", lambda names: [names[0], names[3]]),
    "FusedConv": ("Conv", lambda names: names[:2]),
    "FusedGemm": ("Gemm", lambda names: names[:3]),
    "Gelu": ("Identity", _first),
    "BiasGelu": ("Identity", _first),
    "FastGelu": ("Identity", _first),
    "QuickGelu": ("Identity", _first),
}
_EXPERIMENTAL: dict[str, _Rule] = {
    "Affine": ("Identity", _first),
    "ImageScaler": ("Identity", _first),
    "ParametricSoftplus": ("Identity", _first),
    "ScaledTanh": ("Identity", _first),
    "Crop": ("Pad", _first),
}
_KEPT = {
    "AveragePool": ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"),
    "Concat": ("axis",),
    "Conv": ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    "Gemm": ("transA", "transB"),
}


def _use_shape_equivalent(node: onnx.NodeProto, opset: int) -> None:
    """Turns a node into a standard one of the same output shape, in place; leaves alone what needs or has none."""
    table = _EXPERIMENTAL if is_standard(node) else _CONTRIB if node.domain == "com.microsoft" else {}
    given = attributes(node) if node.op_type in table else {}
    unfit = given.get("channels_last", 0) or (node.op_type == "Crop" and not _crops(given, opset))
    if node.op_type not in table or unfit:
        return
    op, pick = table[node.op_type]
    operands = list(pick(node.input))
    kept = [item for item in node.attribute if item.name in _KEPT.get(op, ())]
    node.op_type, node.domain = op, ""
    del node.input[:], node.attribute[:]
    node.input.extend(operands)
    node.attribute.extend(kept)
    if op == "Pad":
        left, top, right, bottom = given["border"]
        set_attribute(node, "pads", [0, 0, -top, -left, 0, 0, -bottom, -right])


def _crops(given: dict[str, object], opset: int) -> bool:
    """Whether a Crop can be written as a Pad by negative amounts, which are an attribute up to opset 10."""
    border = given.get("border")
    return isinstance(border, list) and len(border) == 4 and "scale" not in given and 2 <= opset <= 10


def infer_values(proto: onnx.ModelProto, *, strict: bool = False) -> dict[str, onnx.ValueInfoProto]:
    """Tensor name → its type, for graph inputs, outputs and everything between that could be inferred.

    Args:
        proto: not changed; should be topologically sorted.
        strict: raise when two shapes contradict each other or an operator is unknown, instead of knowing less.

    Raises:
        ModelError: the graph is broken, or ``strict`` and something is wrong; ``why`` has onnx's own words.
    """
    return _inferred(lighten(proto), strict=strict)


def infer_graph(graph: Graph) -> dict[str, onnx.ValueInfoProto]:
    """As :func:`infer_values`, for a graph in records; stored tensors that are large are among the results."""
    return _inferred(to_proto(lightened(graph), typed=True), strict=False)


def infer_specs(graph: Graph) -> dict[str, TensorSpec]:
    """Tensor name → spec, as far as it can be inferred. Raises ModelError."""
    found = {name: value_spec(value) for name, value in infer_graph(graph).items()}
    return {name: spec for name, spec in found.items() if spec is not None}


def _inferred(light: onnx.ModelProto, *, strict: bool) -> dict[str, onnx.ValueInfoProto]:
    from onnx import shape_inference

    try:
        for node in light.graph.node:
            _use_shape_equivalent(node, default_opset(light))
        type_custom_nodes(light)
        inferred = shape_inference.infer_shapes(light, strict_mode=strict, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        fix = "export the model again, or check it with onnx.checker"
        raise ModelError("the shapes inside the model do not fit together", why=_brief(error), fix=fix) from error
    graph = inferred.graph
    return {item.name: item for item in (*graph.value_info, *graph.input, *graph.output)}


def lighten(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the bytes of large stored tensors, which become typed graph inputs: cheap at any model size."""
    light = type(proto)()
    light.ir_version = max(proto.ir_version, 4)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    graph, source = light.graph, proto.graph
    graph.name = source.name
    graph.node.extend(source.node)
    for field in ("input", "output", "value_info", "sparse_initializer"):
        getattr(graph, field).extend(getattr(source, field))
    _lighten_initializers(graph, source)
    return light


def _lighten_initializers(graph: onnx.GraphProto, source: onnx.GraphProto) -> None:
    from onnx import helper

    listed = {item.name for item in source.input}
    for tensor in source.initializer:
        if math.prod(tensor.dims) <= LIGHT_ELEMENTS:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
