"""ONNX messages to and from plain Python: tensors, attributes, types, subgraphs, names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[Any]

DEFAULT_DOMAINS = ("", "ai.onnx")
_TYPES = {  # ONNX's name → NumPy's or ml_dtypes' name, bits per element in a tensor
    "FLOAT": ("float32", 32),
    "UINT8": ("uint8", 8),
    "INT8": ("int8", 8),
    "UINT16": ("uint16", 16),
    "INT16": ("int16", 16),
    "INT32": ("int32", 32),
    "INT64": ("int64", 64),
    "STRING": ("object", 0),
    "BOOL": ("bool", 8),
    "FLOAT16": ("float16", 16),
    "DOUBLE": ("float64", 64),
    "UINT32": ("uint32", 32),
    "UINT64": ("uint64", 64),
    "COMPLEX64": ("complex64", 64),
    "COMPLEX128": ("complex128", 128),
    "BFLOAT16": ("bfloat16", 16),
    "FLOAT8E4M3FN": ("float8_e4m3fn", 8),
    "FLOAT8E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "FLOAT8E5M2": ("float8_e5m2", 8),
    "FLOAT8E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "FLOAT8E8M0": ("float8_e8m0fnu", 8),
    "FLOAT6E2M3": ("float6_e2m3fn", 6),
    "FLOAT6E3M2": ("float6_e3m2fn", 6),
    "FLOAT4E2M1": ("float4_e2m1fn", 4),
    "UINT4": ("uint4", 4),
    "INT4": ("int4", 4),
    "UINT2": ("uint2", 2),
    "INT2": ("int2", 2),
}
_BITS = dict(_TYPES.values())


def to_array(tensor: onnx.TensorProto) -> Array:
    """The tensor's values. May be a read-only view of the message: copy before changing it."""
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)


def from_array(array: Array, name: str) -> onnx.TensorProto:
    """A tensor message with a copy of the values."""
    from onnx import TensorProto, numpy_helper

    if array.dtype.kind in "biuf":  # in the half of the time
        data_type = element_type(array.dtype.name)
        return TensorProto(name=name, data_type=data_type, dims=array.shape, raw_data=array.tobytes())
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Attribute name → value: int, float, bytes, list, message or graph."""
    from onnx import helper

    return {item.name: helper.get_attribute_value(item) for item in node.attribute if not item.ref_attr_name}


def set_attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    """Sets or replaces one attribute."""
    from onnx import helper

    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


@lru_cache(maxsize=64)
def dtype_name(element_type: int) -> str:
    """``TensorProto`` element type → NumPy dtype name, ``"float32"``; strings are ``"object"``; else ``"unknown"``.

    Types NumPy lacks carry the name ml_dtypes gives them: ``"bfloat16"``, ``"float8_e4m3fn"``, ``"int4"``.
    """
    from onnx import TensorProto

    if element_type not in TensorProto.DataType.values():
        return "unknown"
    return _TYPES.get(TensorProto.DataType.Name(element_type), ("unknown", 0))[0]


@lru_cache(maxsize=64)
def element_type(dtype: str) -> int:
    """The number that ONNX has for a type of NumPy's name; KeyError for one that it has not."""
    from onnx import TensorProto

    numbers: dict[str, int] = {dtype_name(number): number for number in TensorProto.DataType.values()}
    return numbers[dtype]


def dtype_bits(dtype: str) -> int:
    """Bits one element takes in a tensor: 32 for ``"float32"``, 4 for the packed ``"int4"``; 0 for what has no size."""
    return _BITS.get(dtype, 0)


def tensor_bytes(dtype: str, elements: int) -> int:
    """Bytes of a dense tensor, packed types rounded up to whole bytes."""
    return math.ceil(dtype_bits(dtype) * elements / 8)


def default_opset(proto: onnx.ModelProto) -> int:
    """The version of the standard operator set; 1 where the file names none, as the ONNX specification has it."""
    return next((item.version for item in proto.opset_import if item.domain in DEFAULT_DOMAINS), 1)


def is_standard(node: onnx.NodeProto) -> bool:
    """Whether the node belongs to the standard operator set."""
    return node.domain in DEFAULT_DOMAINS


def has_schema(op: str, opset: int) -> bool:
    """Whether the standard operator set of that version has the operator."""
    from onnx import defs

    try:
        defs.get_schema(op, opset, "")
    except defs.SchemaError:
        return False
    return True


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies of an If, Loop or Scan."""
    for item in node.attribute:
        if item.type == item.GRAPH:
            yield item.g
        elif item.type == item.GRAPHS:
            yield from item.graphs


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every dense tensor stored in a graph, in node attributes and subgraphs too."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from node_tensors(graph.node)


def node_tensors(nodes: Any) -> Iterator[onnx.TensorProto]:
    """Every dense tensor in the attributes of some nodes and their subgraphs."""
    for node in nodes:
        for item in node.attribute:
            if item.HasField("t"):
                yield item.t
            yield from item.tensors
            if item.HasField("sparse_tensor"):
                yield from (item.sparse_tensor.values, item.sparse_tensor.indices)
        for graph in subgraphs(node):
            yield from tensors(graph)


def label(node: onnx.NodeProto, position: int) -> str:
    """The node's name, or ``Conv_12`` for one without."""
    return node.name or f"{node.op_type}_{position}"
