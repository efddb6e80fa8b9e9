"""The record that carries an ONNX model through edgert, and the types of what it takes and gives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.errors import ModelError
from edgert.graph.proto import dtype_name

if TYPE_CHECKING:
    import onnx


MAX_PROTO_BYTES = 2**31 - 1
"""Protocol buffers refuse larger messages: https://protobuf.dev/programming-guides/proto-limits/."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """An ONNX model in memory, weights included.

    Attributes:
        proto: the ONNX message. Read it; to change a model, make a new one with a pass or :meth:`derive`.
        path: the file it came from, for messages; models derived from it have it, too.
        digest: SHA-256 in hex. For a loaded model, of the file's bytes (followed, where there is external data, by
            each data file's name and bytes); for a derived one, of ``to_bytes``. Equal digests mean equal models.
    """

    proto: onnx.ModelProto
    path: Path
    digest: str

    def derive(self, proto: onnx.ModelProto) -> Model:
        """A model made from this one; takes ownership of ``proto``. Raises ModelError above 2 GiB."""
        return from_proto(proto, self.path)

    def copied_proto(self) -> onnx.ModelProto:
        """A deep copy of the message, the caller's to change."""
        copy = type(self.proto)()
        copy.CopyFrom(self.proto)
        return copy


def from_proto(proto: onnx.ModelProto, path: str | Path = "<memory>") -> Model:
    """A model around a message made in memory; takes ownership of it. Raises ModelError above 2 GiB."""
    data = _serialize(proto, Path(path))
    return Model(proto, Path(path), hashlib.sha256(data).hexdigest())


def to_bytes(model: Model) -> bytes:
    """The model as one ONNX file, weights inside; equal models give equal bytes. Raises ModelError above 2 GiB."""
    return _serialize(model.proto, model.path)


def _serialize(proto: onnx.ModelProto, path: Path) -> bytes:
    size_bytes = proto.ByteSize()
    if size_bytes > MAX_PROTO_BYTES:
        raise ModelError(
            f"model {str(path)!r} is too large for one ONNX file",
            why=f"it takes {size_bytes} bytes with its weights inside; ONNX files end at {MAX_PROTO_BYTES}",
            fix="use a smaller model, or quantize its weights first",
        )
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


Dim = int | str | None
"""A known size; a named one (equal names mean equal sizes within a model); an unknown one."""

_MEANINGLESS = ("", "None", "?", "-1")  # what exporters write for "unknown": two of them need not be equal


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The type of a tensor.

    Attributes:
        name: its name in the graph.
        shape: one entry per dimension; empty for a scalar and where even the rank is unknown.
        dtype: NumPy's name, ``"float32"``; ``"object"`` for strings; ``"bfloat16"``, ``"float8_e4m3fn"``, ``"int4"``
            as ml_dtypes names them; ``"unknown"`` where the model does not record it.
        ranked: False where the model does not record how many dimensions there are.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    ranked: bool = True

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a known number."""
        return self.ranked and all(isinstance(dim, int) for dim in self.shape)

    def __str__(self) -> str:
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name} {self.dtype}[{dims if self.ranked else '...'}]"


def inputs(model: Model) -> tuple[TensorSpec, ...]:
    """What must be fed, in order. Old models also list their weights among the inputs: those are left out.

    Raises:
        ModelError: an input is no tensor (a sequence, a map).
    """
    graph = model.proto.graph
    weights = initializer_names(graph)
    return tuple(_tensor_spec(item, model, "input") for item in graph.input if item.name not in weights)


def outputs(model: Model) -> tuple[TensorSpec, ...]:
    """What comes out, in order. Raises ModelError when an output is no tensor (a sequence, a map)."""
    return tuple(_tensor_spec(item, model, "output") for item in model.proto.graph.output)


def initializer_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Names of the stored tensors, dense and sparse."""
    dense = {item.name for item in graph.initializer}
    return frozenset(dense | {item.values.name for item in graph.sparse_initializer})


def value_spec(value: onnx.ValueInfoProto) -> TensorSpec | None:
    """The spec of a value; None when it is known not to be a tensor."""
    kind = value.type.WhichOneof("value")
    if kind is None:
        return TensorSpec(value.name, (), "unknown", ranked=False)
    if kind != "tensor_type":
        return None
    tensor = value.type.tensor_type
    shape = tuple(map(_dim, tensor.shape.dim))
    return TensorSpec(value.name, shape, dtype_name(tensor.elem_type), tensor.HasField("shape"))


def _tensor_spec(value: onnx.ValueInfoProto, model: Model, role: str) -> TensorSpec:
    spec = value_spec(value)
    if spec is None:
        kind = (value.type.WhichOneof("value") or "value").removesuffix("_type").replace("_", " ")
        raise ModelError(
            f"{role} {value.name!r} of model {str(model.path)!r} is a {kind}, not a tensor",
            why="edgert moves tensors only",
            fix="export the model without it (for scikit-learn converters: zipmap=False)",
        )
    return spec


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return None if dim.dim_param in _MEANINGLESS else dim.dim_param


# The smallest model that makes an engine go through everything: one convolution.

_OPSET, _IR = 13, 8  # known to every runtime that edgert supports


def smallest() -> Model:
    """(1, 3, 8, 8) float32 in, (1, 1, 8, 8) out."""
    from onnx import TensorProto, helper

    shapes = {"x": (1, 3, 8, 8), "y": (1, 1, 8, 8)}
    ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    weight = helper.make_tensor("w", TensorProto.FLOAT, (1, 3, 1, 1), [1.0, 1.0, 1.0])
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    graph = helper.make_graph([node], "smallest", [ends["x"]], [ends["y"]], [weight])
    opset = [helper.make_opsetid("", _OPSET)]
    return from_proto(helper.make_model(graph, opset_imports=opset, ir_version=_IR), Path("smallest.onnx"))
