"""Types and shapes of the tensors inside a graph, as far as onnx can infer them.

onnx has no rules for nodes of custom operators (:func:`edgert.op`); their own rules type them here. Nor has it rules
for some operators outside the standard: a standard node of the same output shape replaces each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from edgert.custom_op import Operator, operator
from edgert.errors import ModelError
from edgert.graph.ir import Graph, Node
from edgert.graph.model import (
    DEFAULT_DOMAINS,
    Model,
    TensorSpec,
    dtype_name,
    element_type,
    is_standard,
    set_attribute,
    value_spec,
)
from edgert.graph.onnx_convert import lightened, to_proto

if TYPE_CHECKING:
    import onnx


# Element types: those of an operator's inputs and outputs by its ONNX schema, and those of all tensors of a graph.


@dataclass(frozen=True, slots=True)
class Port:
    """A formal input or output of an operator.

    Attributes:
        variable: ports with the same type variable have the same type, ``"T"``; a port of one fixed type has that
            type's ONNX name here, ``"tensor(float)"``.
        dtypes: element types it may have, by NumPy's names.
    """

    variable: str
    dtypes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of an operator.

    Attributes:
        inputs: in order.
        outputs: in order.
        repeats_input: whether the last input stands for any number of tensors.
        repeats_output: whether the last output stands for any number of tensors.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    repeats_input: bool
    repeats_output: bool

    def input(self, position: int) -> Port | None:
        """Return the port of an input; None for one that the operator does not have."""
        return _at(self.inputs, position, self.repeats_input)

    def output(self, position: int) -> Port | None:
        """Return the port of an output; None for one that the operator does not have."""
        return _at(self.outputs, position, self.repeats_output)

    def is_given(self, variable: str) -> bool:
        """Return whether an input has this type variable, so that an output of it has the input's type."""
        return any(port.variable == variable for port in self.inputs)


@lru_cache(maxsize=512)
def signature(op: str, opset: int, domain: str = "") -> Signature | None:
    """Return the signature of an operator; None where the onnx package has no schema of it for that version.

    Ports without a common type (the inputs of Loop) get a type variable each.
    """
    from onnx import defs

    try:
        schema = defs.get_schema(op, opset, "" if domain in DEFAULT_DOMAINS else domain)
    except defs.SchemaError:
        return None
    taken, given = schema.inputs, schema.outputs
    return Signature(tuple(_ports(taken)), tuple(_ports(given)), _repeats(taken), _repeats(given))


def _ports(formal: Sequence[Any]) -> Iterator[Port]:
    for position, item in enumerate(formal):
        variable = item.type_str if item.is_homogeneous else f"{item.type_str}@{position}"
        yield Port(variable, frozenset(map(_dtype, item.types)))


def _repeats(formal: Sequence[Any]) -> bool:
    return bool(formal) and str(formal[-1].option.name) == "Variadic"


def _dtype(name: str) -> str:
    """Return ``"float32"`` for ``"tensor(float)"``; other types keep their name."""
    from onnx import TensorProto

    inner = name.removeprefix("tensor(").removesuffix(")").upper()
    numbers = dict(TensorProto.DataType.items())
    return dtype_name(numbers[inner]) if inner in numbers else name


def _at(ports: tuple[Port, ...], position: int, repeats: bool) -> Port | None:
    if position < len(ports):
        return ports[position]
    return ports[-1] if repeats and ports else None


# Element types of a graph's tensors, also of those that shape inference did not reach.


def dtypes(graph: Graph) -> dict[str, str]:
    """Return tensor → element type by NumPy's name, as recorded or as operators imply; unknown ones are left out."""
    found = {name: spec.dtype for name, spec in graph.specs.items()}
    found |= {spec.name: spec.dtype for spec in (*graph.inputs, *graph.outputs)}
    found |= {name: array.dtype.name for name, array in graph.constants.items()}
    found = {name: dtype for name, dtype in found.items() if dtype != "unknown"}
    for node in graph.nodes:
        for position, name in enumerate(node.outputs):
            if name and name not in found:
                dtype = _output_dtype(graph, node, position, found)
                if dtype:
                    found[name] = dtype
    return found


def cast_node(source: str, target: str, dtype: str, name: str) -> Node:
    """Return a node that converts a tensor to ``"float16"``, ``"int64"``, …."""
    return Node("Cast", (source,), (target,), {"to": element_type(dtype)}, name)


def _output_dtype(graph: Graph, node: Node, position: int, known: Mapping[str, str]) -> str:
    """Return the element type of an output; empty when known types do not imply it."""
    given = _attribute_dtype(node, known)
    if given:
        return given
    found = signature(node.op, graph.opset, node.domain)
    port = found.output(position) if found else None
    if found is None or port is None:
        return ""
    if len(port.dtypes) == 1:
        return next(iter(port.dtypes))
    ports = ((found.input(at), name) for at, name in enumerate(node.inputs) if name in known)
    return next((known[name] for taken, name in ports if taken and taken.variable == port.variable), "")


def _attribute_dtype(node: Node, known: Mapping[str, str]) -> str:
    """Return the type of an operator's output where an attribute or a default sets it, else ``""``."""
    for attribute in ("to", "dtype", "output_dtype"):
        if node.attributes.get(attribute):
            return dtype_name(node.attributes[attribute])
    if node.op == "QuantizeLinear" and len(node.inputs) < 3:
        return "uint8"
    if node.op == "DequantizeLinear":
        return known.get(node.inputs[1], "")
    if node.op in ("Constant", "ConstantOfShape") and "value" in node.attributes:
        return dtype_name(node.attributes["value"].data_type)
    return "float32" if node.op == "ConstantOfShape" else ""


# Nodes of custom operators.


def has_custom_operators(proto: onnx.ModelProto) -> bool:
    """Return whether some node is of a registered custom operator."""
    return any(custom_operator_of(node) is not None for node in proto.graph.node)


def custom_operator_of(node: onnx.NodeProto) -> Operator | None:
    """Return the custom operator of a node; None where it is not a registered one."""
    return None if is_standard(node) else operator(node.domain, node.op_type)


def for_plugins(model: Model) -> Model:
    """Return the model with the attributes by which TensorRT's parser finds a plugin: namespace (domain) and version.

    Their names are the parser's own:
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


def _without_custom_nodes(graph: Graph) -> Graph:
    """Return a graph for inference only, in which the results of custom nodes are typed inputs.

    Nodes are replaced one after another, as the types of later ones follow from those before. A node whose inputs have
    no known types stays, and so do those behind it. Raises ModelError for a type that the operator does not take.
    """
    while graph.custom_operators:
        node = next(node for node in graph.nodes if node.name in graph.custom_operators)
        known = specs_of(_inferred(graph))
        given = [known.get(name) or graph.spec(name) for name in node.inputs]
        typed = [spec for spec in given if spec is not None and spec.dtype != "unknown"]
        if len(typed) < len(given):
            return graph
        fed = {spec.name: spec for spec in _results(node, graph.custom_operators[node.name], typed)}
        graph = replace(
            graph,
            nodes=tuple(other for other in graph.nodes if other is not node),
            inputs=(*graph.inputs, *fed.values()),
            outputs=tuple(fed.get(spec.name, spec) for spec in graph.outputs),
        )
    return graph


def _results(node: Node, one: Operator, given: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return what a node computes, by its operator's rules; a size that does not follow from them yet is unknown."""
    settings = one.settings(node.attributes, node.name)
    dtypes = one.result_dtypes([spec.dtype for spec in given], node.name)
    sizes = [spec.sizes for spec in given if spec.sizes is not None]
    if one.shape is None:
        return [replace(given[0], name=name, dtype=dtype) for name, dtype in zip(node.outputs, dtypes, strict=False)]
    shapes = list(one.shapes(sizes, settings)) if len(sizes) == len(given) else [None] * len(dtypes)
    return [
        TensorSpec(name, shape or (), dtype, ranked=shape is not None)
        for name, shape, dtype in zip(node.outputs, shapes, dtypes, strict=False)
    ]


# An operator that onnx has no rules for is replaced by a standard node with the same output shape.
#
# This covers what ONNX Runtime's quantizer and optimizer write (domain ``com.microsoft``,
# https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md) and the experimental operators of
# models from before ONNX 1.5 (ImageScaler, Crop, Affine). Replacements serve shape inference on a temporary copy;
# they compute something else.

_Rule = tuple[str, slice]
"""The standard operator, and the inputs to pass to it."""
_FIRST, _OPERANDS = slice(1), slice(0, 4, 3)
_SAME = ("Identity", _FIRST)
_SAME_SHAPE = ("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "Gelu", "BiasGelu", "FastGelu", "QuickGelu")
_CONTRIB: dict[str, _Rule] = {
    "QLinearAdd": ("Add", _OPERANDS),
    "QLinearMul": ("Mul", _OPERANDS),
    "QGemm": ("Gemm", _OPERANDS),
    "QLinearConcat": ("Concat", slice(2, None, 3)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", _FIRST),
    "QLinearAveragePool": ("AveragePool", _FIRST),
    "FusedConv": ("Conv", slice(2)),
    "FusedGemm": ("Gemm", slice(3)),
    **dict.fromkeys(_SAME_SHAPE, _SAME),
}
_EXPERIMENTAL: dict[str, _Rule] = {
    "Crop": ("Pad", _FIRST),
    **dict.fromkeys(("Affine", "ImageScaler", "ParametricSoftplus", "ScaledTanh"), _SAME),
}
_KEPT = {
    "AveragePool": ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"),
    "Concat": ("axis",),
    "Conv": ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    "Gemm": ("transA", "transB"),
}


def _shape_equivalent(node: Node, opset: int) -> Node:
    """Return a standard node of the same output shape; the node itself where it needs or has none."""
    table = _CONTRIB if node.domain == "com.microsoft" else {} if node.domain else _EXPERIMENTAL
    if node.op not in table or node.attributes.get("channels_last", 0):
        return node
    op, picked = table[node.op]
    given = {name: value for name, value in node.attributes.items() if name in _KEPT.get(op, ())}
    if op == "Pad":  # a Pad by negative amounts, which are an attribute up to opset 10
        border = node.attributes.get("border")
        if not isinstance(border, list) or len(border) != 4 or "scale" in node.attributes or not 2 <= opset <= 10:
            return node
        left, top, right, bottom = border
        given = {"pads": [0, 0, -top, -left, 0, 0, -bottom, -right]}
    return replace(node, op=op, domain="", inputs=node.inputs[picked], attributes=given)


def infer_values(graph: Graph, *, strict: bool = False) -> dict[str, onnx.ValueInfoProto]:
    """Return tensor name → type, for graph inputs, outputs and everything between that could be inferred.

    Args:
        graph: should be topologically sorted; large stored tensors are among the results.
        strict: raise when two shapes contradict each other or an operator is unknown, instead of leaving types out.

    Raises:
        ModelError: the graph is broken, or ``strict`` and something is wrong; ``why`` has onnx's own words.
    """
    nodes = tuple(_shape_equivalent(node, graph.opset) for node in graph.nodes)
    return _inferred(_without_custom_nodes(replace(lightened(graph), nodes=nodes)), strict=strict)


def infer_specs(graph: Graph) -> dict[str, TensorSpec]:
    """Return tensor name → spec, as far as it can be inferred; raise ModelError for a broken graph."""
    return specs_of(infer_values(graph))


def specs_of(values: dict[str, onnx.ValueInfoProto]) -> dict[str, TensorSpec]:
    """Return the types of those values that are tensors."""
    specs = {name: value_spec(value) for name, value in values.items()}
    return {name: spec for name, spec in specs.items() if spec is not None}


def _inferred(graph: Graph, *, strict: bool = False) -> dict[str, onnx.ValueInfoProto]:
    from onnx import shape_inference

    try:
        inferred = shape_inference.infer_shapes(to_proto(graph, typed=True), strict_mode=strict, data_prop=True).graph
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        what, why = "the shapes inside the model do not fit together", " ".join(str(error).split())[:500]
        raise ModelError(what, why=why, fix="export the model again, or check it with onnx.checker") from error
    return {item.name: item for item in (*inferred.value_info, *inferred.input, *inferred.output)}


class LazySpecs:
    """Types of a graph's tensors as recorded; others are inferred on first use, which most graphs never need."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def get(self, name: str, *, static: bool = False) -> TensorSpec | None:
        """Return a tensor's type; with ``static``, a recorded one counts only where its shape is known."""
        spec = self._graph.spec(name)
        is_enough = spec is not None and (spec.is_static if static else spec.ranked and spec.dtype != "unknown")
        return spec if is_enough else self._inferred.get(name)

    @cached_property
    def _inferred(self) -> dict[str, TensorSpec]:
        return infer_specs(self._graph)
