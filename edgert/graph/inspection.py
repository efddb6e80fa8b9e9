"""Description of a model as plain data: everything that ``edgert inspect`` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.errors import ModelError
from edgert.graph import model as messages
from edgert.graph.count import NodeCost, count, parameters, stored_tensors
from edgert.graph.ir import Graph
from edgert.graph.load import load
from edgert.graph.model import inputs, outputs
from edgert.graph.operators import WEIGHTED, is_integer
from edgert.graph.static_shape import Shapes, with_shapes
from edgert.graph.type_inference import custom_operator_of

if TYPE_CHECKING:
    import onnx


_MAX_NAMED = 4  # nodes that a text about unsupported operators names
_SUPPORTED_DOMAINS = ("com.microsoft", "ai.onnx.")
"""Prefixes of the domains of ONNX Runtime, and of the standard's other operator sets."""


def unsupported_nodes(model: messages.Model, custom: Collection[str] = ()) -> str:
    """Return a text that names nodes with unsupported operators; empty where every operator is supported.

    Supported are standard operators, those of ONNX Runtime, functions of the model, and operators registered by
    :func:`edgert.op`. An example: ``"node 'a' is acme.Funny, outside the ONNX standard; node 'b' is Reluu, which opset
    17 does not have"``. The text names four nodes and counts the others.

    Args:
        model: model to check.
        custom: operators that will be registered later, as ``domain::Name``.
    """
    local = {f"{function.domain}::{function.name}" for function in model.proto.functions} | set(custom)
    found = [
        f"node {messages.label(node, position)!r} is {op_name(node)}, {why}"
        for position, node in enumerate(messages.all_nodes(model.proto.graph))
        if f"{node.domain}::{node.op_type}" not in local
        and (why := _unsupported_reason(node, messages.default_opset(model.proto)))
    ]
    others = len(found) - _MAX_NAMED
    return "; ".join(found[:_MAX_NAMED]) + (f"; and {others} more" if others > 0 else "")


def refuse_integers(graph: Graph) -> None:
    """Raise ModelError for a model with ConvInteger, QLinearConv or the like, which TensorRT does not support.

    Source: https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    if found := [node for node in graph.nodes if is_integer(node.op)]:
        raise ModelError(
            f"TensorRT does not support {found[0].op}",
            why=f"node {found[0].name!r} uses it, and {len(found)} of {len(graph.nodes)} nodes compute in integers: "
            "this file was quantized for ONNX Runtime",
            fix="export the float model, without quantization; calibrate: makes the INT8 model that TensorRT "
            "takes. Or set engines: [onnxruntime], which runs this file on the CPU",
        )


def op_name(node: onnx.NodeProto) -> str:
    """Return the operator, ``"Conv"``, with its domain where it is not a standard one."""
    return node.op_type if messages.is_standard(node) else f"{node.domain}.{node.op_type}"


def _unsupported_reason(node: onnx.NodeProto, opset: int) -> str:
    if messages.is_standard(node):
        return "" if messages.has_schema(node.op_type, opset) else f"which opset {opset} does not have"
    known = node.domain.startswith(_SUPPORTED_DOMAINS) or custom_operator_of(node) is not None
    return "" if known else "outside the ONNX standard"


_MAX_LISTED = 6  # operators or dimensions that a warning names before "and others"


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Figures and facts about a model.

    Attributes:
        path: path of the file.
        size_bytes: bytes of the model with its weights inside.
        digest: SHA-256 of the file, see :class:`~edgert.graph.model.Model`.
        ir_version: version of the file format.
        opset: version of the standard operator set.
        opsets: version of each operator set that the file names; the standard one is ``""``.
        producer: program that wrote the file, ``"pytorch 1.12"``.
        inputs: names, types and shapes of the inputs.
        outputs: names, types and shapes of the outputs.
        dynamic: open input dimensions, ``"x[0] batch"``.
        nodes: number of nodes.
        ops: number of nodes by operator, most frequent first; operators outside the standard set carry their domain.
        macs: multiply-adds per inference; None while shapes are open.
        params: number of weights, each counted once.
        weight_bytes: bytes of the stored tensors as they are.
        activation_bytes: bytes read and written between nodes per inference; None while shapes are open.
        costs: the same numbers for each node; empty while shapes are open.
        uncounted: reason why there are no costs; empty where there are.
        quantized: ``""``, ``"qoperator"`` (QLinearConv and similar), ``"qdq"`` or ``"qoperator+qdq"``.
        warnings: what to know before running the model.
        metadata: texts that the exporter stored, by key.
    """

    path: str
    size_bytes: int
    digest: str
    ir_version: int
    opset: int
    opsets: Mapping[str, int]
    producer: str
    inputs: tuple[messages.TensorSpec, ...]
    outputs: tuple[messages.TensorSpec, ...]
    dynamic: tuple[str, ...]
    nodes: int
    ops: Mapping[str, int]
    macs: int | None
    params: int
    weight_bytes: int
    activation_bytes: int | None
    costs: tuple[NodeCost, ...]
    uncounted: str
    quantized: str
    warnings: tuple[str, ...]
    metadata: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as dicts, lists, strings and numbers, ready for :mod:`json`."""
        return asdict(replace(self, opsets=dict(self.opsets), ops=dict(self.ops), metadata=dict(self.metadata)))


def inspect(source: str | PathLike[str] | messages.Model, shapes: Shapes | None = None) -> ModelSummary:
    """Return a description of a model.

    Args:
        source: path of a file, or a loaded model.
        shapes: sizes for dynamic inputs, needed to count the work.

    Raises:
        ModelError: the file cannot be loaded, or the shapes do not fit.
    """
    loaded = source if isinstance(source, messages.Model) else load(source)
    model = with_shapes(loaded, shapes) if shapes else loaded
    costs, uncounted = tuple[NodeCost, ...](), ""
    try:
        costs = count(model)
    except ModelError as error:  # unknown costs are a normal result here
        uncounted = error.why
    proto, given, stored = model.proto, inputs(model), stored_tensors(model)
    counted = not uncounted
    return ModelSummary(
        path=str(Path(model.path)),
        size_bytes=loaded.proto.ByteSize(),
        digest=loaded.digest,
        ir_version=proto.ir_version,
        opset=messages.default_opset(proto),
        opsets={
            "" if item.domain in messages.DEFAULT_DOMAINS else item.domain: item.version for item in proto.opset_import
        },
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        inputs=given,
        outputs=outputs(model),
        dynamic=tuple(_dynamic_dims(given)),
        nodes=len(proto.graph.node),
        ops=dict(Counter(map(op_name, proto.graph.node)).most_common()),
        macs=sum(cost.macs for cost in costs) if counted else None,
        params=parameters(stored),
        weight_bytes=sum(spec.size_bytes for spec in stored.values()),
        activation_bytes=sum(cost.activation_bytes for cost in costs) if counted else None,
        costs=costs,
        uncounted=uncounted,
        quantized=_quantized(proto),
        warnings=tuple(_warnings(model)),
        metadata={item.key: item.value for item in proto.metadata_props},
    )


def _dynamic_dims(specs: Iterable[messages.TensorSpec]) -> Iterator[str]:
    for spec in specs:
        if not spec.ranked:
            yield f"{spec.name} (rank unknown)"
        for axis, dim in enumerate(spec.shape):
            if not isinstance(dim, int):
                yield f"{spec.name}[{axis}] {dim or '?'}"


def _quantized(proto: onnx.ModelProto) -> str:
    ops = {node.op_type for node in proto.graph.node}
    qoperator = any(map(is_integer, ops))
    # every QOperator model has a few Q/DQ nodes at its inputs and outputs; Q/DQ form has them around float layers
    qdq = "DequantizeLinear" in ops and bool(ops & WEIGHTED or not qoperator)
    return "+".join(name for name, found in (("qoperator", qoperator), ("qdq", qdq)) if found)


def _warnings(model: messages.Model) -> Iterator[str]:
    graph, opset = model.proto.graph, messages.default_opset(model.proto)
    weights = messages.initializer_names(graph)
    if listed := sum(item.name in weights for item in graph.input):
        text = f"{listed} stored tensors are also graph inputs, which keeps runtimes from folding them"
        yield f"{text}; edgert cleans this"
    quantized = _quantized(model.proto)
    if quantized == "qdq":
        yield "already quantized, with Q/DQ nodes: its own scales are used"
    elif quantized:
        partly = ", partly" if "qdq" in quantized else ","
        yield f"already quantized{partly} as QOperator nodes: TensorRT takes no such model"
    local = {(function.domain, function.name) for function in model.proto.functions}
    others, unknown = set(), set()
    for node in messages.all_nodes(graph):
        if messages.is_standard(node) and not messages.has_schema(node.op_type, opset):
            unknown.add(node.op_type)
        elif not messages.is_standard(node) and (node.domain, node.op_type) not in local:
            others.add(op_name(node))
    if others:
        only = all(name.startswith("com.microsoft.") for name in others)
        runs = "run in ONNX Runtime only" if only else "need a backend that has them"
        yield f"operators outside the ONNX standard: {_sorted_names(others)}; they {runs}"
    if unknown:
        yield f"operators that opset {opset} does not have: {_sorted_names(unknown)}; most backends refuse them"
    if found := {node.op_type for node in graph.node if any(True for _ in messages.subgraphs(node))}:
        yield f"control flow ({_sorted_names(found)}): the work inside is not counted"
    if dims := list(_dynamic_dims(inputs(model))):
        yield f"dynamic dimensions: {_sorted_names(dims)}; engines want static shapes or profiles"


def _sorted_names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:_MAX_LISTED]) + (" and others" if len(ordered) > _MAX_LISTED else "")
