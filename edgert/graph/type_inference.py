"""Types and shapes of the tensors inside a graph, as far as they can be inferred by onnx.

onnx has no rules for custom operators (:func:`edgert.op`), which bring their own. For some other operators outside the
standard, inference uses a standard node of the same output shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from edgert.custom_op import Operator, operator
from edgert.errors import ModelError
from edgert.graph import model as messages
from edgert.graph.ir import Graph, Node
from edgert.graph.model import Model, TensorSpec
from edgert.graph.onnx_convert import to_proto, with_large_constants_fed

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Port:
    """A formal input or output of an operator.

    Attributes:
        variable: type variable, ``"T"``, which ports of equal type share; the ONNX name of the type, as
            ``"tensor(float)"``, for a port of one fixed type.
        dtypes: allowed element types, by NumPy's names.
    """

    variable: str
    dtypes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of an operator.

    Attributes:
        inputs: formal inputs, in order.
        outputs: formal outputs, in order.
        repeats_input: whether the last input stands for any number of tensors.
        repeats_output: whether the last output stands for any number of tensors.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    repeats_input: bool
    repeats_output: bool

    def input(self, position: int) -> Port | None:
        """Return the port of the input at a position; None where the operator has no such input."""
        return _port_at(self.inputs, position, self.repeats_input)

    def output(self, position: int) -> Port | None:
        """Return the port of the output at a position; None where the operator has no such output."""
        return _port_at(self.outputs, position, self.repeats_output)

    def is_input_type(self, variable: str) -> bool:
        """Return whether an input has this type variable; outputs that share it then have the input's type."""
        return any(port.variable == variable for port in self.inputs)


@lru_cache(maxsize=512)
def signature(op: str, opset: int, domain: str = "") -> Signature | None:
    """Return the signature of an operator; None where onnx has no schema of it in this version.

    Repeated ports of differing types (the inputs of Loop) get a type variable each.
    """
    from onnx import defs

    try:
        schema = defs.get_schema(op, opset, "" if domain in messages.DEFAULT_DOMAINS else domain)
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
    return messages.dtype_name(numbers[inner]) if inner in numbers else name


def _port_at(ports: tuple[Port, ...], position: int, repeats: bool) -> Port | None:
    if position < len(ports):
        return ports[position]
    return ports[-1] if repeats and ports else None


def dtypes(graph: Graph) -> dict[str, str]:
    """Return known element types by tensor name: those recorded, and those that can be inferred."""
    specs = {**infer_specs(graph), **graph.specs, **{spec.name: spec for spec in (*graph.inputs, *graph.outputs)}}
    found = {name: spec.dtype for name, spec in specs.items()}
    found |= {name: array.dtype.name for name, array in graph.constants.items()}
    return {name: dtype for name, dtype in found.items() if dtype != "unknown"}


def cast_node(source: str, target: str, dtype: str, name: str) -> Node:
    """Return a Cast of ``source`` to ``dtype`` by NumPy's name, ``"float16"``, that computes ``target``."""
    return Node("Cast", (source,), (target,), {"to": messages.element_type(dtype)}, name)


def has_custom_operators(proto: onnx.ModelProto) -> bool:
    """Return whether any node uses a registered custom operator."""
    return any(custom_operator_of(node) is not None for node in proto.graph.node)


def custom_operator_of(node: onnx.NodeProto) -> Operator | None:
    """Return the registered custom operator that a node uses; None for other nodes."""
    return None if messages.is_standard(node) else operator(node.domain, node.op_type)


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
            messages.set_attribute(node, "plugin_namespace", node.domain)
            messages.set_attribute(node, "plugin_version", "1")
    return model.derive(proto)


def _without_custom_nodes(graph: Graph) -> Graph:
    """Return a graph for inference, in which typed inputs replace the results of custom nodes.

    They are replaced in order, since later types follow from earlier ones. A node whose inputs have unknown types
    stays, and so do all behind it. Raises ModelError for a type that the operator does not take.
    """
    while graph.custom_operators:
        node = next(node for node in graph.nodes if node.name in graph.custom_operators)
        known = specs_of(_infer(graph))
        given = [known.get(name) or graph.spec(name) for name in node.inputs]
        typed = [spec for spec in given if spec is not None and spec.dtype != "unknown"]
        if len(typed) < len(given):
            return graph
        fed = {spec.name: spec for spec in _result_specs(node, graph.custom_operators[node.name], typed)}
        graph = replace(
            graph,
            nodes=tuple(other for other in graph.nodes if other is not node),
            inputs=(*graph.inputs, *fed.values()),
            outputs=tuple(fed.get(spec.name, spec) for spec in graph.outputs),
        )
    return graph


def _result_specs(node: Node, custom: Operator, given: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the types of a node's results by the rules of its operator; a shape that they do not give is unknown."""
    settings = custom.settings(node.attributes, node.name)
    dtypes = custom.result_dtypes([spec.dtype for spec in given], node.name)
    sizes = [spec.sizes for spec in given if spec.sizes is not None]
    if custom.shape is None:
        return [replace(given[0], name=name, dtype=dtype) for name, dtype in zip(node.outputs, dtypes, strict=False)]
    shapes = list(custom.shapes(sizes, settings)) if len(sizes) == len(given) else [None] * len(dtypes)
    return [
        TensorSpec(name, shape or (), dtype, ranked=shape is not None)
        for name, shape, dtype in zip(node.outputs, shapes, dtypes, strict=False)
    ]


# Standard nodes with the output shape of operators that onnx has no rules for. They compute something else, and serve
# shape inference on a temporary copy only.
#
# These are the operators that ONNX Runtime's quantizer and optimizer write (domain ``com.microsoft``,
# https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md) and the experimental ones of models from
# before ONNX 1.5 (ImageScaler, Crop, Affine).

_Rule = tuple[str, slice]
"""Standard operator, and the inputs to pass to it."""
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
    """Return the types of inputs, outputs and all inner tensors that can be inferred, by tensor name.

    Args:
        graph: topologically sorted graph; large stored tensors are among the results.
        strict: whether contradicting shapes and unknown operators are errors; otherwise their types are left out.

    Raises:
        ModelError: the graph is broken, or ``strict`` and something is wrong; ``why`` is onnx's message.
    """
    nodes = tuple(_shape_equivalent(node, graph.opset) for node in graph.nodes)
    return _infer(_without_custom_nodes(replace(with_large_constants_fed(graph), nodes=nodes)), strict=strict)


def infer_specs(graph: Graph) -> dict[str, TensorSpec]:
    """Return all types that can be inferred, by tensor name; raise ModelError for a broken graph."""
    return specs_of(infer_values(graph))


def specs_of(values: dict[str, onnx.ValueInfoProto]) -> dict[str, TensorSpec]:
    """Return the types of those values that are tensors."""
    specs = {name: messages.value_spec(value) for name, value in values.items()}
    return {name: spec for name, spec in specs.items() if spec is not None}


def _infer(graph: Graph, *, strict: bool = False) -> dict[str, onnx.ValueInfoProto]:
    from onnx import shape_inference

    try:
        inferred = shape_inference.infer_shapes(to_proto(graph, typed=True), strict_mode=strict, data_prop=True).graph
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        what, why = "the shapes inside the model do not fit together", " ".join(str(error).split())[:500]
        raise ModelError(what, why=why, fix="export the model again, or check it with onnx.checker") from error
    return {item.name: item for item in (*inferred.value_info, *inferred.input, *inferred.output)}


class LazySpecs:
    """Recorded types of a graph's tensors; the first unknown one starts inference, which most graphs never need."""

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
