"""Checks of a parsed file: complete, undamaged, known to the installed onnx. Every later step relies on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.errors import ModelError, nearest
from edgert.graph import proto as messages
from edgert.graph.model import Model

if TYPE_CHECKING:
    import onnx

_AGAIN = "download or export it again"


def check_versions(proto: onnx.ModelProto, file: Path) -> None:
    """Raises ModelError when the file is newer than the installed onnx."""
    import onnx

    known = onnx.defs.onnx_opset_version()
    opset = messages.default_opset(proto)
    installed = f"the installed onnx {onnx.__version__}"
    if proto.ir_version > onnx.IR_VERSION:
        why = f"it has IR version {proto.ir_version}; {installed} knows up to {onnx.IR_VERSION}"
    elif opset > known:
        why = f"it uses opset {opset}; {installed} knows up to {known}"
    else:
        return
    fix = f"pip install --upgrade onnx, or export with opset {min(opset, known)} or lower"
    raise ModelError(f"model {str(file)!r} is newer than the installed onnx", why=why, fix=fix)


def check_standard(model: Model) -> None:
    """Raises ModelError where onnx's own checker, types and shapes included, finds what the standard forbids."""
    import onnx

    try:
        onnx.checker.check_model(model.proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"model {str(model.path)!r} is not valid ONNX", why=str(error).splitlines()[0], fix=_AGAIN
        ) from error


def check_graph(proto: onnx.ModelProto, file: Path) -> None:
    """Raises ModelError when the graph or a part of it is missing, or a node lacks what its operator needs."""
    missing = _missing(proto)
    if missing:
        raise ModelError(f"model {str(file)!r} is incomplete: {missing}", why="cut short, or a bad export", fix=_AGAIN)
    if any(isinstance(text, bytes) for text in _texts(proto)):
        raise _damaged(file, "a name in it is not text")
    _check_outputs(proto.graph, file)
    for problem in _node_problems(proto):
        raise _damaged(file, problem)


def check_tensors(proto: onnx.ModelProto, file: Path) -> None:
    """Raises ModelError when a stored tensor has an unknown type, or more or fewer values than its shape says."""
    for tensor in messages.tensors(proto.graph):
        dtype = messages.dtype_name(tensor.data_type)
        if dtype == "unknown":
            raise _damaged(file, f"tensor {tensor.name!r} has unknown element type {tensor.data_type}")
        if any(size < 0 for size in tensor.dims) or not _is_full(tensor, dtype):
            raise _damaged(file, f"tensor {tensor.name!r} does not fill its shape {list(tensor.dims)}")


def _damaged(file: Path, why: str) -> ModelError:
    return ModelError(f"model {str(file)!r} is damaged", why=why, fix=_AGAIN)


def _missing(proto: onnx.ModelProto) -> str:
    if not proto.HasField("graph"):
        return "no graph"
    if not proto.graph.output:
        return "no outputs"
    needs_opset = proto.ir_version >= 3 and any(map(messages.is_standard, proto.graph.node))
    if needs_opset and not any(item.domain in messages.DEFAULT_DOMAINS for item in proto.opset_import):
        return "no operator-set version"
    return ""


def _texts(proto: onnx.ModelProto) -> Iterator[str | bytes]:
    """Every name; protobuf hands out bytes for what is not UTF-8."""
    graph = proto.graph
    yield from (proto.producer_name, proto.producer_version, graph.name)
    yield from (text for item in proto.metadata_props for text in (item.key, item.value))
    yield from (item.domain for item in proto.opset_import)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from (tensor.name for tensor in messages.tensors(graph))
    for node in messages.all_nodes(graph):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (item.name for item in node.attribute)


def _check_outputs(graph: onnx.GraphProto, file: Path) -> None:
    made = {name for node in graph.node for name in node.output}
    made |= {item.name for item in graph.input} | {item.name for item in graph.initializer}
    made |= {item.values.name for item in graph.sparse_initializer}
    for output in graph.output:
        if output.name not in made:
            raise ModelError(
                f"model {str(file)!r} never computes its output {output.name!r}",
                why=f"no node makes it{nearest(output.name, made)}",
                fix="export the model again",
            )


def _node_problems(proto: onnx.ModelProto) -> Iterator[str]:
    """What is wrong with nodes of the standard set; operators that onnx does not know are for the backend to judge."""
    from onnx import defs

    opset = messages.default_opset(proto)
    for position, node in enumerate(messages.all_nodes(proto.graph)):
        if not messages.is_standard(node) or not messages.has_schema(node.op_type, opset):
            continue
        problem = _problem(node, defs.get_schema(node.op_type, opset, ""))
        if problem:
            yield f"node {messages.label(node, position)!r} ({node.op_type}) {problem}"


def _problem(node: onnx.NodeProto, schema: Any) -> str:
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return f"has {len(node.input)} inputs"
    if not schema.min_output <= len(node.output) <= schema.max_output:
        return f"has {len(node.output)} outputs"
    given = {item.name: item for item in node.attribute}
    for name, wanted in schema.attributes.items():
        if wanted.required and name not in given:
            return f"lacks attribute {name!r}"
        if name in given and not given[name].ref_attr_name and given[name].type != wanted.type.value:
            return f"has attribute {name!r} of the wrong type"
    return ""


def _is_full(tensor: onnx.TensorProto, dtype: str) -> bool:
    elements: int = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        return messages.tensor_bytes(dtype, elements) == len(tensor.raw_data)
    fields = {"float32": "float_data", "float64": "double_data", "int64": "int64_data", "object": "string_data"}
    fields |= {"uint32": "uint64_data", "uint64": "uint64_data", "complex64": "float_data", "complex128": "double_data"}
    stored: int = len(getattr(tensor, fields.get(dtype, "int32_data")))
    if dtype.startswith("complex"):
        return stored == 2 * elements
    shared = messages.dtype_bits(dtype) in (2, 4)  # these share one int32 per byte
    return stored == (messages.tensor_bytes(dtype, elements) if shared else elements)
