"""Pass that computes shapes, grids and other small constants once, instead of in every frame.

NumPy evaluates the operators from which exporters build shapes and grids, and those of small networks that compute
position biases from a stored grid. They follow the ONNX specification (https://onnx.ai/onnx/operators/) of opset 7 and
later.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph.draft import Draft
from edgert.graph.ir import Graph, Node, Pass, Result
from edgert.graph.model import Array, dtype_name, to_array
from edgert.graph.type_inference import LazySpecs

MIN_OPSET = 7
"""First opset whose arithmetic broadcasts without an attribute."""


class TooLargeError(Exception):
    """Signal that a result would exceed the caller's limit; raised before it is allocated."""


@dataclass(frozen=True, slots=True)
class Call:
    """Operands of a node.

    Attributes:
        inputs: values of the inputs; None for an optional one that is left out.
        attributes: attributes of the node.
        opset: version of the standard operator set.
        limit_bytes: largest result that may be computed.
    """

    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any]
    opset: int
    limit_bytes: int

    def array(self, position: int) -> Array:
        """Return a required input; raise KeyError where it is left out."""
        found = self.optional(position)
        if found is None:
            raise KeyError(f"input {position}")
        return found

    def optional(self, position: int) -> Array | None:
        """Return an input; None where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def integers(self, name: str, position: int) -> list[int] | None:
        """Return integers that are an attribute in old opsets and an input in new ones; None when left out."""
        found = self.optional(position)
        values = self.attributes.get(name) if found is None else found.reshape(-1).tolist()
        return None if values is None else [int(value) for value in values]

    def axes(self) -> tuple[int, ...] | None:
        """Return the axes of a reduction or Squeeze; None when left out."""
        axes = self.integers("axes", 1)
        return None if axes is None else tuple(axes)

    def allow(self, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        """Raise TooLargeError when a result of this shape exceeds the limit."""
        if math.prod(shape) * np.dtype(dtype).itemsize > self.limit_bytes:
            raise TooLargeError


def evaluate(op: str, call: Call) -> list[Array] | None:
    """Return a node's outputs; None where the operator or these operands are not supported.

    Raises:
        TooLargeError: an output would take more than ``call.limit_bytes``.
    """
    compute = _OPERATORS.get(op)
    if compute is None or call.opset < MIN_OPSET:
        return None
    try:
        with np.errstate(all="ignore"):
            made = compute(call)
    except (KeyError, ValueError, IndexError, TypeError, ArithmeticError):
        return None  # operands that the specification does not allow: the backend decides
    return [np.asarray(item) for item in (made if isinstance(made, list) else [made])]


def is_supported(op: str) -> bool:
    """Return whether :func:`evaluate` supports the operator."""
    return op in _OPERATORS


def _elementwise(function: Callable[..., Array]) -> Callable[[Call], Array]:
    def compute(call: Call) -> Array:
        operands = [call.array(position) for position in range(len(call.inputs))]
        shape = np.broadcast_shapes(*(item.shape for item in operands))
        call.allow(shape, np.result_type(*operands))
        return function(*operands)

    return compute


def _reduction(function: Callable[..., Array]) -> Callable[[Call], Array]:
    def compute(call: Call) -> Array:
        data, axes = call.array(0), call.axes()
        if not axes and call.attributes.get("noop_with_empty_axes", 0):
            return data
        keep = bool(call.attributes.get("keepdims", 1))
        reduced = function(data, axis=axes or None, keepdims=keep)
        return np.asarray(reduced, data.dtype)  # NumPy sums small integers in wider types; modulo 2^n it is equal

    return compute


def _divide(first: Array, second: Array) -> Array:
    if np.issubdtype(first.dtype, np.floating):
        return np.divide(first, second)
    if not np.all(second):
        raise ZeroDivisionError
    quotient = np.floor_divide(first, second)  # ONNX rounds towards zero, NumPy down
    inexact = np.multiply(quotient, second) != first
    below = inexact & ((first < 0) != (second < 0))
    return np.asarray(quotient + below.astype(first.dtype), first.dtype)


def _modulo(call: Call) -> Array:
    if call.attributes.get("fmod", 0):
        return _elementwise(np.fmod)(call)
    if not np.all(call.array(1)):
        raise ZeroDivisionError
    return _elementwise(np.mod)(call)


def _cast(call: Call) -> Array:
    name = dtype_name(call.attributes["to"])
    dtype = np.dtype(name)  # TypeError for types NumPy lacks
    if "O" in (dtype.kind, call.array(0).dtype.kind):
        raise TypeError(name)
    call.allow(call.array(0).shape, dtype)
    cast: Array = call.array(0).astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(cast, np.trunc(call.array(0))):
        raise ValueError(name)  # out of range: undefined in ONNX, so every backend may differ
    return cast


def _gather(call: Call) -> Array:
    data, indices, axis = call.array(0), call.array(1), call.attributes.get("axis", 0)
    call.allow([data.size // max(1, data.shape[axis]), indices.size], data.dtype)
    return np.take(data, indices.astype(np.int64), axis=axis)


def _concat(call: Call) -> Array:
    operands = [call.array(position) for position in range(len(call.inputs))]
    call.allow([sum(item.size for item in operands)], operands[0].dtype)
    return np.concatenate(operands, axis=call.attributes["axis"])


def _slice(call: Call) -> Array:
    data = call.array(0)
    starts, ends = call.integers("starts", 1), call.integers("ends", 2)
    if starts is None or ends is None:
        raise KeyError("starts, ends")
    axes = call.integers("axes", 3) or list(range(len(starts)))
    steps = call.integers("steps", 4) or [1] * len(starts)
    cuts = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cuts[axis] = _to_python_slice(start, end, step, data.shape[axis])
    return data[tuple(cuts)]


def _to_python_slice(start: int, end: int, step: int, size: int) -> slice:
    """Return the Python slice with the elements of an ONNX one.

    ONNX clamps ends that are out of range: with a negative step, -1 then means "before the first element".
    """
    start, end = (value + size if value < 0 else value for value in (start, end))
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    end = min(max(end, -1), size - 1)
    return slice(min(max(start, 0), size - 1), None if end < 0 else end, step)


def _split(call: Call) -> list[Array]:
    data, axis = call.array(0), call.attributes.get("axis", 0)
    sizes = call.integers("split", 1)
    if sizes is None:
        raise KeyError("split")  # even splits depend on the number of outputs, which differs between opsets
    return np.split(data, np.cumsum(sizes)[:-1], axis=axis)


def _reshape(call: Call) -> Array:
    data, shape = call.array(0), call.array(1).tolist()
    if not call.attributes.get("allowzero", 0):
        shape = [data.shape[position] if size == 0 else size for position, size in enumerate(shape)]
    reshaped: Array = data.reshape(shape)
    return reshaped


def _flatten(call: Call) -> Array:
    data, axis = call.array(0), call.attributes.get("axis", 1)
    axis += data.ndim if axis < 0 else 0
    return data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))


def _expand(call: Call) -> Array:
    data, wanted = call.array(0), call.array(1).tolist()
    shape = np.broadcast_shapes(data.shape, tuple(wanted))
    call.allow(shape, data.dtype)
    return np.broadcast_to(data, shape)


def _tile(call: Call) -> Array:
    data, repeats = call.array(0), call.array(1).tolist()
    call.allow([*data.shape, *repeats], data.dtype)
    return np.tile(data, repeats)


def _constant_of_shape(call: Call) -> Array:
    value = to_array(call.attributes["value"]) if "value" in call.attributes else np.zeros(1, np.float32)
    shape = call.array(0).tolist()
    call.allow(shape, value.dtype)
    return np.full(shape, value.reshape(-1)[0], value.dtype)


def _range(call: Call) -> Array:
    start, limit, delta = (call.array(position).reshape(()) for position in range(3))
    count = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
    call.allow([count], start.dtype)
    steps: Array = np.arange(count).astype(start.dtype)
    return np.asarray(start + steps * delta, start.dtype)


def _matmul(call: Call) -> Array:
    first, second = call.array(0), call.array(1)
    if min(first.ndim, second.ndim) < 2:
        raise ValueError
    batch = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    call.allow([*batch, first.shape[-2], second.shape[-1]], first.dtype)
    return np.asarray(np.matmul(first, second), first.dtype)


def _sigmoid(call: Call) -> Array:
    data = call.array(0)
    return np.asarray(1 / (1 + np.exp(-data)), data.dtype)


def _nonzero(call: Call) -> Array:
    data = call.array(0)
    call.allow([data.ndim, data.size], np.int64)
    return np.array(np.nonzero(data), np.int64)


_OPERATORS: dict[str, Callable[[Call], Array | list[Array]]] = {
    "Abs": _elementwise(np.abs),
    "Add": _elementwise(np.add),
    "And": _elementwise(np.logical_and),
    "Cast": _cast,
    "Ceil": _elementwise(np.ceil),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Cos": _elementwise(np.cos),
    "Div": _elementwise(_divide),
    "Equal": _elementwise(np.equal),
    "Exp": _elementwise(np.exp),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _elementwise(np.floor),
    "Gather": _gather,
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Identity": lambda call: call.array(0),
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "Log": _elementwise(np.log),
    "MatMul": _matmul,
    "Max": _elementwise(lambda *operands: reduce(np.maximum, operands)),
    "Min": _elementwise(lambda *operands: reduce(np.minimum, operands)),
    "Mod": _modulo,
    "Mul": _elementwise(np.multiply),
    "Neg": _elementwise(np.negative),
    "NonZero": _nonzero,
    "Not": _elementwise(np.logical_not),
    "Or": _elementwise(np.logical_or),
    "Pow": _elementwise(lambda base, exponent: np.asarray(np.power(base, exponent), base.dtype)),
    "Range": _range,
    "Reciprocal": _elementwise(np.reciprocal),
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
    "ReduceProd": _reduction(np.prod),
    "ReduceSum": _reduction(np.sum),
    "Relu": lambda call: np.maximum(call.array(0), 0),
    "Reshape": _reshape,
    "Shape": lambda call: np.array(call.array(0).shape[call.attributes.get("start", 0) : call.attributes.get("end")]),
    "Sigmoid": _sigmoid,
    "Sin": _elementwise(np.sin),
    "Size": lambda call: np.array(call.array(0).size, np.int64),
    "Slice": _slice,
    "Split": _split,
    "Sqrt": _elementwise(np.sqrt),
    "Squeeze": lambda call: np.squeeze(call.array(0), call.axes()),
    "Sub": _elementwise(np.subtract),
    "Tile": _tile,
    "Transpose": lambda call: np.transpose(call.array(0), call.attributes.get("perm")),
    "Unsqueeze": lambda call: np.expand_dims(call.array(0), call.integers("axes", 1) or ()),
    "Where": _elementwise(np.where),
}


TENSOR_CAP_BYTES = 2**20
"""Largest folded tensor, unless its operands are larger; keeps models from growing."""
TOTAL_CAP_BYTES = 2**24
"""Largest total of the tensors that one walk folds."""

_UNKNOWN = -(2**62)  # a dynamic dimension in the value of a Shape node; real sizes are never negative
_MOVERS = ("Concat", "Gather", "Identity", "Slice", "Squeeze", "Unsqueeze")  # copy elements unchanged


class _Folder:
    """Walk over a graph in order that evaluates nodes with known operands.

    Attributes:
        known: values computed so far, by tensor name.
        partial: shapes with some unknown dimensions, by tensor name.
        left_bytes: bytes that may still be folded.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known: dict[str, Array] = {}
        self.partial: dict[str, Array] = {}
        self.left_bytes = TOTAL_CAP_BYTES
        self.specs = LazySpecs(graph)

    def fold(self, node: Node) -> bool:
        """Evaluate a node where possible; return whether its outputs are now known."""
        if node.domain or not is_supported(node.op) or not self.graph.output_names.isdisjoint(node.outputs):
            return False
        made = self._shape(node) if node.op in ("Shape", "Size") else self._compute(node, self._value)
        if made is None and node.op in _MOVERS:
            made = self._compute(node, lambda name: self.partial[name] if name in self.partial else self._value(name))
        return made is not None and self._store(node, made)

    def _store(self, node: Node, made: list[Array]) -> bool:
        if any(array.dtype == np.int64 and np.any(array == _UNKNOWN) for array in made):
            self.partial.update(zip(node.outputs, made, strict=False))
            return False
        size_bytes = sum(array.nbytes for array in made)
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        self.known.update(zip(node.outputs, made, strict=False))
        return True

    def _shape(self, node: Node) -> list[Array] | None:
        spec = self.specs.get(node.inputs[0], static=True)
        if spec is None or not spec.ranked or (node.op == "Size" and not spec.is_static):
            return None
        dims = [dim if isinstance(dim, int) else _UNKNOWN for dim in spec.shape]
        if node.op == "Size":
            return [np.array(np.prod(dims, dtype=np.int64))]
        cut = node.attributes
        return [np.array(dims[cut.get("start", 0) : cut.get("end")], np.int64)]

    def _compute(self, node: Node, value: Callable[[str], Array | None]) -> list[Array] | None:
        operands = [value(name) if name else None for name in node.inputs]
        if not operands or any(name and array is None for name, array in zip(node.inputs, operands, strict=True)):
            return None
        limit_bytes = max(TENSOR_CAP_BYTES, sum(array.nbytes for array in operands if array is not None))
        try:
            return evaluate(node.op, Call(operands, node.attributes, self.graph.opset, limit_bytes))
        except TooLargeError:
            return None

    def _value(self, name: str) -> Array | None:
        return self.known[name] if name in self.known else self.graph.constants.get(name)


def _run_folder(graph: Graph) -> tuple[_Folder, list[Node]]:
    """Return a folder that has walked over the graph, and the nodes it evaluated."""
    folder = _Folder(graph)
    if graph.opset < MIN_OPSET:
        return folder, []
    return folder, [node for node in graph.nodes if folder.fold(node)]


def _fold(graph: Graph) -> Result:
    folder, folded = _run_folder(graph)
    if not folded:
        return graph, ()
    draft = Draft(graph, "fold-constants")
    for node in folded:
        draft.store_values({name: folder.known[name] for name in node.outputs if name})
        draft.replace(node, (), f"{node.op} → constant {tensor_summary(folder.known[node.outputs[0]])}")
    return draft.finish()


def with_folded_constants(graph: Graph) -> Graph:
    """Return the graph with every constant tensor stored, even where nothing reads it any more.

    Folding repeats, since a folded shape lets more shapes be inferred.
    """
    while True:
        folder, folded = _run_folder(graph)
        if not folded:
            return graph
        gone = set(map(id, folded))
        left = tuple(node for node in graph.nodes if id(node) not in gone)
        graph = replace(graph, nodes=left, constants={**graph.constants, **folder.known})
        if not any(node.op in ("Shape", "Size") for node in left):
            return graph


def tensor_summary(array: Array) -> str:
    """Return element type and shape, as ``int64[4]``."""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


FOLD_CONSTANTS = Pass(
    "fold-constants",
    "Shape, Gather and other nodes whose result is known beforehand become stored tensors",
    "a DLA computes no shapes, and such a node would cut the graph",
    _fold,
)
