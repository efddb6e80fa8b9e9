"""Record of an ONNX model in memory, types of its tensors, and plain-Python access to ONNX messages."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgert import limits
from edgert.errors import ModelError

if TYPE_CHECKING:
    import onnx


Array = npt.NDArray[Any]

DEFAULT_DOMAINS = ("", "ai.onnx")
_TYPES = {  # ONNX's name → name in NumPy or ml_dtypes, bits per element in a tensor
    **{f"{kind}INT{bits}": (f"{kind.lower()}int{bits}", bits) for kind in ("", "U") for bits in (2, 4, 8, 16, 32, 64)},
    "FLOAT": ("float32", 32),
    "FLOAT16": ("float16", 16),
    "DOUBLE": ("float64", 64),
    "BFLOAT16": ("bfloat16", 16),
    "STRING": ("object", 0),
    "BOOL": ("bool", 8),
    "COMPLEX64": ("complex64", 64),
    "COMPLEX128": ("complex128", 128),
    "FLOAT8E4M3FN": ("float8_e4m3fn", 8),
    "FLOAT8E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "FLOAT8E5M2": ("float8_e5m2", 8),
    "FLOAT8E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "FLOAT8E8M0": ("float8_e8m0fnu", 8),
    "FLOAT6E2M3": ("float6_e2m3fn", 6),
    "FLOAT6E3M2": ("float6_e3m2fn", 6),
    "FLOAT4E2M1": ("float4_e2m1fn", 4),
}
_BITS = dict(_TYPES.values())


def to_array(tensor: onnx.TensorProto) -> Array:
    """Return the tensor's values, which may be a read-only view of the message."""
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)


def from_array(array: Array, name: str) -> onnx.TensorProto:
    """Return a tensor message with a copy of the values."""
    from onnx import TensorProto, numpy_helper

    if array.dtype.kind in "biuf":  # twice as fast as onnx
        data_type = element_type(array.dtype.name)
        return TensorProto(name=name, data_type=data_type, dims=array.shape, raw_data=array.tobytes())
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes by name, as int, float, bytes, list, message or graph."""
    from onnx import helper

    return {item.name: helper.get_attribute_value(item) for item in node.attribute if not item.ref_attr_name}


def set_attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    """Set or replace one attribute."""
    from onnx import helper

    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


@lru_cache(maxsize=64)
def dtype_name(element_type: int) -> str:
    """Return the NumPy dtype name of a ``TensorProto`` element type, as ``"float32"``.

    Strings are ``"object"``. Types that NumPy lacks carry the name ml_dtypes gives them: ``"bfloat16"``,
    ``"float8_e4m3fn"``, ``"int4"``. Anything else is ``"unknown"``.
    """
    from onnx import TensorProto

    if element_type not in TensorProto.DataType.values():
        return "unknown"
    return _TYPES.get(TensorProto.DataType.Name(element_type), ("unknown", 0))[0]


@lru_cache(maxsize=64)
def element_type(dtype: str) -> int:
    """Return the ``TensorProto`` element type of a NumPy dtype name; raise KeyError where there is none."""
    from onnx import TensorProto

    numbers: dict[str, int] = {dtype_name(number): number for number in TensorProto.DataType.values()}
    return numbers[dtype]


def dtype_bits(dtype: str) -> int:
    """Return the bits of one element in a tensor: 32 for ``"float32"``, 4 for the packed ``"int4"``, 0 if unknown."""
    return _BITS.get(dtype, 0)


def tensor_bytes(dtype: str, elements: int) -> int:
    """Return the bytes of a dense tensor, packed types rounded up to whole bytes."""
    return math.ceil(dtype_bits(dtype) * elements / 8)


def default_opset(proto: onnx.ModelProto | onnx.FunctionProto) -> int:
    """Return the version of the standard operator set; 1 where the file names none, as ONNX specifies."""
    return next((item.version for item in proto.opset_import if item.domain in DEFAULT_DOMAINS), 1)


def is_standard(node: onnx.NodeProto) -> bool:
    """Return whether the node belongs to the standard operator set."""
    return node.domain in DEFAULT_DOMAINS


def has_schema(op: str, opset: int) -> bool:
    """Return whether the standard operator set of that version has the operator."""
    from onnx import defs

    try:
        defs.get_schema(op, opset, "")
    except defs.SchemaError:
        return False
    return True


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies of an If, Loop or Scan."""
    for item in node.attribute:
        if item.type == item.GRAPH:
            yield item.g
        elif item.type == item.GRAPHS:
            yield from item.graphs


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph or function and of its subgraphs."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every dense tensor stored in a graph, in node attributes and subgraphs too."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from node_tensors(graph.node)


def node_tensors(nodes: Any) -> Iterator[onnx.TensorProto]:
    """Yield every dense tensor in the attributes of nodes and in their subgraphs."""
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
    """Return the node's name, or ``Conv_12`` for one without."""
    return node.name or f"{node.op_type}_{position}"


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """An ONNX model in memory, weights included.

    Attributes:
        proto: ONNX message, which is never changed: make a new model with a pass or :meth:`derive`.
        path: file that the model, or the one it is derived from, was loaded from; for messages.
        known_digest: :attr:`digest`; empty until it is first read.
    """

    proto: onnx.ModelProto
    path: Path
    known_digest: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 in hex; equal digests mean equal models.

        Of a loaded model it covers the file's bytes, then the name and bytes of each external data file. Of a derived
        one it covers ``to_bytes``, which takes as long as writing the file. Raises ModelError above 2 GiB.
        """
        if not self.known_digest:
            object.__setattr__(self, "known_digest", hashlib.sha256(to_bytes(self)).hexdigest())
        return self.known_digest

    @property
    def engine_key(self) -> str:
        """Digest and inputs, under which engines are cached: a pipeline reduces the inputs of some files."""
        return f"{self.digest} {inputs(self)}"

    def derive(self, proto: onnx.ModelProto) -> Model:
        """Return a model with a message made from this one's; takes ownership of ``proto``."""
        return from_proto(proto, self.path)

    def copied_proto(self) -> onnx.ModelProto:
        """Return a deep copy of the message, which the caller may change."""
        copy = type(self.proto)()
        copy.CopyFrom(self.proto)
        return copy


def from_proto(proto: onnx.ModelProto, path: str | Path = "<memory>") -> Model:
    """Return a model of a message made in memory; takes ownership of the message."""
    return Model(proto, Path(path))


def from_bytes(content: bytes, path: str | Path = "<memory>") -> Model:
    """Return the model that :func:`to_bytes` wrote, with the digest of these bytes."""
    import onnx

    return Model(onnx.ModelProto.FromString(content), Path(path), hashlib.sha256(content).hexdigest())


def to_bytes(model: Model) -> bytes:
    """Return the model as one ONNX file, weights inside; equal models give equal bytes.

    Raises:
        ModelError: the model is larger than 2 GiB.
    """
    check_size(model.proto.ByteSize(), model.path)
    data: bytes = model.proto.SerializeToString(deterministic=True)
    return data


def check_size(size_bytes: int, path: Path, most_bytes: int = limits.MODEL_BYTES) -> None:
    """Raise ModelError when a model with its weights has more bytes than are read, or fit into one ONNX file."""
    if size_bytes > most_bytes:
        why = f"it takes {size_bytes} bytes with its weights, and at most {most_bytes} are possible"
        fix = "use a smaller model, or quantize its weights first"
        raise ModelError(f"model {str(path)!r} is too large", why=why, fix=fix)


Dim = int | str | None
"""Dimension: a known size, a name (equal names mean equal sizes within a model), or None for unknown."""

_MEANINGLESS = ("", "None", "?", "-1")  # names that exporters give unknown dimensions, equal or not


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and type of a tensor.

    Attributes:
        name: name in the graph.
        shape: dimensions; empty for a scalar, and where even the rank is unknown.
        dtype: element type by NumPy's name, as :func:`dtype_name` returns it; ``"unknown"`` where it is not recorded.
        ranked: whether the number of dimensions is known.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    ranked: bool = True

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a known number."""
        return self.sizes is not None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Shape where every dimension is a known number; None otherwise."""
        known = tuple(dim for dim in self.shape if isinstance(dim, int))
        return known if self.ranked and len(known) == len(self.shape) else None

    @property
    def size_bytes(self) -> int:
        """Bytes of the dense tensor; 0 where its shape or type has no known size."""
        return 0 if self.sizes is None else tensor_bytes(self.dtype, math.prod(self.sizes))

    def __str__(self) -> str:
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name} {self.dtype}[{dims if self.ranked else '...'}]"


def inputs(model: Model) -> tuple[TensorSpec, ...]:
    """Return the inputs that must be fed, in order, without the weights that old models list among them.

    Raises:
        ModelError: an input is not a tensor (a sequence, a map), or larger than any image.
    """
    graph = model.proto.graph
    weights = initializer_names(graph)
    found = tuple(_tensor_spec(item, model, "input") for item in graph.input if item.name not in weights)
    for spec in found:
        if (count := math.prod(dim for dim in spec.shape if isinstance(dim, int))) > limits.INPUT_ELEMENTS:
            why, fix = f"it has {count:.3g} elements, {limits.INPUT_ELEMENTS:,} at most", "export a smaller input"
            raise ModelError(f"input {spec.name!r} is too large", why=why, where=str(model.path), fix=fix)
    return found


def outputs(model: Model) -> tuple[TensorSpec, ...]:
    """Return the outputs, in order; raise ModelError when one is not a tensor (a sequence, a map)."""
    return tuple(_tensor_spec(item, model, "output") for item in model.proto.graph.output)


def initializer_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the names of the stored tensors, dense and sparse."""
    dense = {item.name for item in graph.initializer}
    return frozenset(dense | {item.values.name for item in graph.sparse_initializer})


def value_spec(value: onnx.ValueInfoProto) -> TensorSpec | None:
    """Return the type of a value; None when it is not a tensor."""
    kind = value.type.WhichOneof("value")
    if kind is None:
        return TensorSpec(value.name, (), "unknown", ranked=False)
    if kind != "tensor_type":
        return None
    tensor, shape = value.type.tensor_type, list[Dim]()
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            shape.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            shape.append(None if dim.dim_param in _MEANINGLESS else dim.dim_param)
    return TensorSpec(value.name, tuple(shape), dtype_name(tensor.elem_type), tensor.HasField("shape"))


def _tensor_spec(value: onnx.ValueInfoProto, model: Model, role: str) -> TensorSpec:
    spec = value_spec(value)
    if spec is None:
        kind = (value.type.WhichOneof("value") or "value").removesuffix("_type").replace("_", " ")
        raise ModelError(
            f"{role} {value.name!r} of model {str(model.path)!r} is of type {kind}, not a tensor",
            why="edgert handles tensors only",
            fix="export the model without it (for scikit-learn converters: zipmap=False)",
        )
    return spec


_OPSET, _IR = 13, 8  # every runtime that edgert supports reads these


def smallest() -> Model:
    """Return a model of one convolution, which takes an engine through every step.

    Its input is (1, 3, 8, 8) float32, its output (1, 1, 8, 8).
    """
    from onnx import TensorProto, helper

    shapes = {"x": (1, 3, 8, 8), "y": (1, 1, 8, 8)}
    ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    weight = helper.make_tensor("w", TensorProto.FLOAT, (1, 3, 1, 1), [1.0, 1.0, 1.0])
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    graph = helper.make_graph([node], "smallest", [ends["x"]], [ends["y"]], [weight])
    opset = [helper.make_opsetid("", _OPSET)]
    return from_proto(helper.make_model(graph, opset_imports=opset, ir_version=_IR), Path("smallest.onnx"))
