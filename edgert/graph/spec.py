"""What a model takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgert.errors import ModelError
from edgert.graph.model import Model
from edgert.graph.proto import dtype_name

if TYPE_CHECKING:
    import onnx

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
            as ml_dtypes names them; ``"unknown"`` where the model says nothing.
        ranked: False where the model does not say how many dimensions there are.
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
