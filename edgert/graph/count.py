"""Work and traffic of every node, from shapes alone.

What is counted, per inference at the model's static shapes:

- **macs**: multiply-adds of convolutions, matrix products (Gemm, MatMul, Einsum over two operands) and recurrent
  layers, in float or integer form; one multiply-add is one MAC, the bias is free. Every other operator counts 0:
  pooling and elementwise nodes cost traffic, not MACs. That is the convention of the papers that publish "M MACs"
  (MobileNet, https://arxiv.org/abs/1704.04861, calls them mult-adds).
- **params**: elements of the stored tensors the node reads, in the first node that reads them, so the sum counts each
  weight once. Integer tensors that hold shapes, axes or indices (int64) are no parameters.
- **weight_bytes**: bytes of the stored tensors the node reads, shapes too, in every node that reads them.
- **activation_bytes**: bytes of the other tensors it reads plus those it writes; 0 for nodes that only rename a buffer
  (Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout) or read no data (Shape, Size, Constant).

Bodies of If, Loop and Scan are not counted: how often they run is not known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgert.errors import ModelError
from edgert.graph.ir import Graph, Node
from edgert.graph.model import Model, TensorSpec, inputs
from edgert.graph.onnx_convert import records
from edgert.graph.operators import ACTIVATIONS, KNOWN_FROM_SHAPES, VIEWS, about, of_kind
from edgert.graph.passes.noop import constant_value
from edgert.graph.proto import attributes, dtype_name, label, tensor_bytes
from edgert.graph.static_shape import types
from edgert.graph.type_inference import lighten

if TYPE_CHECKING:
    import onnx


# Memory that a graph's tensors need while it runs, node after node in its order.

_IN_PLACE = ACTIVATIONS | of_kind("affine")
"""Fused into what feeds them, or computed where their input stands, if nobody else reads that."""


def peak_bytes(graph: Graph, dtypes: Mapping[str, str] | None = None) -> int:
    """The most that is alive at once: what a node reads and writes, and what later nodes still read.

    Inputs and outputs of the graph live from beginning to end, since they are bound buffers. Stored tensors do not
    count, nor do nodes that only rename a buffer or work in place. It is the least that any allocator that keeps the
    order can reach, and TensorRT's and ONNX Runtime's come close; scratch space of kernels is not in it.

    Args:
        dtypes: computed type → the type it is held in, as ``{"float32": "float16"}``.
    """
    buffers = _buffers(graph)
    sizes = {name: _size_bytes(graph.specs.get(name), dtypes or {}) for name in set(buffers.values())}
    bound = {buffers.get(spec.name, spec.name) for spec in (*graph.inputs, *graph.outputs)}
    last = {
        buffers[name]: position for position, node in enumerate(graph.nodes) for name in node.reads if name in buffers
    }
    alive_bytes = peak = sum(sizes.get(name, 0) for name in bound)
    for position, node in enumerate(graph.nodes):
        made = {buffers[name] for name in node.outputs if name and buffers[name] == name} - bound
        alive_bytes += sum(sizes[name] for name in made)
        peak = max(peak, alive_bytes)
        read = {buffers[name] for name in node.reads if name in buffers}
        alive_bytes -= sum(sizes[name] for name in (read | made) - bound if last.get(name, -1) <= position)
    return peak


def _buffers(graph: Graph) -> dict[str, str]:
    """Computed or fed tensor → the tensor whose memory it is in."""
    found = {spec.name: spec.name for spec in graph.inputs}
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            source = node.inputs[0] if _shares(graph, node) else name
            found[name] = found.get(source, name)
    return found


def _shares(graph: Graph, node: Node) -> bool:
    """Whether a node's output stands where its first input does."""
    return bool(node.inputs) and (
        node.op in VIEWS
        or (node.op in _IN_PLACE and graph.is_private(node.inputs[0]) and node.inputs[0] in graph.producers)
    )


def _size_bytes(spec: TensorSpec | None, dtypes: Mapping[str, str]) -> int:
    if spec is None or not spec.is_static or spec.dtype in ("unknown", "object"):
        return 0
    return tensor_bytes(
        dtypes.get(spec.dtype, spec.dtype), math.prod(dim for dim in spec.shape if isinstance(dim, int))
    )


_FREE = VIEWS | KNOWN_FROM_SHAPES


@dataclass(frozen=True, slots=True)
class NodeCost:
    """One node's work; the module says how each number is counted.

    Attributes:
        name: the node's name; ``Conv_12``, by position, for one without.
        op: operator, with its domain in front unless standard: ``"com.microsoft.FusedConv"``.
        macs: multiply-adds.
        params: weights first read here.
        weight_bytes: stored tensors read.
        activation_bytes: computed tensors read and written.
        output_shape: of the first output.
    """

    name: str
    op: str
    macs: int
    params: int
    weight_bytes: int
    activation_bytes: int
    output_shape: tuple[int, ...]


def count(model: Model) -> tuple[NodeCost, ...]:
    """The cost of every node, in graph order.

    Raises:
        ModelError: a dimension is dynamic, or a tensor's shape cannot be inferred; names it and says what to do.
    """
    counter = _Counter(model)
    return tuple(counter.cost(node, position) for position, node in enumerate(model.proto.graph.node))


def op_name(node: onnx.NodeProto) -> str:
    """``"Conv"``; with its domain for operators outside the standard set."""
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def stored_bytes(graph: onnx.GraphProto) -> int:
    """Bytes of all tensors a graph stores, in initializers and Constant nodes."""
    return sum(map(_spec_bytes, _stored(graph).values()))


def parameters(graph: onnx.GraphProto) -> int:
    """Number of weights a graph stores, each counted once; needs no shapes."""
    return sum(_elements(spec) for spec in _stored(graph).values() if _is_weight(spec))


class _Counter:
    """One walk over a model in order; ``seen`` are the weights already counted."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.specs: Mapping[str, TensorSpec] = types(records(lighten(model.proto))[0])
        self.stored = _stored(model.proto.graph)
        self.seen: set[str] = set()

    def cost(self, node: onnx.NodeProto, position: int) -> NodeCost:
        name = label(node, position)
        reads, writes = _names(node.input), _names(node.output)
        weights = [self.stored[item] for item in reads if item in self.stored]
        info = about(node.op_type)
        work = _MACS.get(info.work)
        return NodeCost(
            name=name,
            op=op_name(node),
            macs=work(_Shapes(self, node, name), info.weight) if work else 0,
            params=self._params(reads),
            weight_bytes=sum(_spec_bytes(spec) for spec in weights),
            activation_bytes=self._activation_bytes(node, name, (*reads, *writes)),
            output_shape=self.shape(writes[0], name) if writes else (),
        )

    def shape(self, tensor: str, node: str) -> tuple[int, ...]:
        """A tensor's static shape. Raises ModelError."""
        spec = self.stored.get(tensor) or self.specs.get(tensor)
        if spec is not None and spec.is_static:
            return tuple(dim for dim in spec.shape if isinstance(dim, int))
        raise self._not_static(tensor, node, spec)

    def _params(self, reads: tuple[str, ...]) -> int:
        fresh = {name for name in reads if name in self.stored and name not in self.seen}
        self.seen |= fresh
        return sum(_elements(self.stored[name]) for name in fresh if _is_weight(self.stored[name]))

    def _activation_bytes(self, node: onnx.NodeProto, name: str, tensors: tuple[str, ...]) -> int:
        if node.op_type in _FREE:
            return 0
        moved = [tensor for tensor in tensors if tensor not in self.stored]
        shapes = {tensor: self.shape(tensor, name) for tensor in moved}
        return sum(tensor_bytes(self._dtype(tensor), math.prod(shapes[tensor])) for tensor in moved)

    def _dtype(self, tensor: str) -> str:
        return self.specs[tensor].dtype

    def _not_static(self, tensor: str, node: str, spec: TensorSpec | None) -> ModelError:
        dynamic = [item for item in inputs(self.model) if not item.is_static]
        what = f"node {node!r} of model {str(self.model.path)!r} cannot be counted: its tensor {tensor!r} has no size"
        if dynamic:
            dims = "; ".join(f"input {item.name!r} has dynamic dimensions {_open_dims(item)}" for item in dynamic)
            return ModelError(what, why=dims, fix="fix these shapes first: a shape profile, or with_shapes in Python")
        why = f"its shape depends on the data ({spec})" if spec else "no shape can be inferred for it"
        return ModelError(what, why=why, fix="export with static shapes and standard operators only")


class _Shapes:
    """Shapes around one node, by position, for the rules below."""

    def __init__(self, counter: _Counter, node: onnx.NodeProto, name: str) -> None:
        self._counter, self.node, self._name = counter, node, name

    def input(self, position: int) -> tuple[int, ...]:
        return self._counter.shape(self.node.input[position], self._name)

    def output(self) -> tuple[int, ...]:
        return self._counter.shape(next(filter(None, self.node.output)), self._name)


def _convolution(shapes: _Shapes, weight: int) -> int:
    """Every output element takes a kernel of C/g * prod(k) products; the weights have shape (M, C/g, k…)."""
    return math.prod(shapes.output()) * math.prod(shapes.input(weight)[1:])


def _transposed_convolution(shapes: _Shapes, weight: int) -> int:
    """Every input element meets a kernel of M/g * prod(k) products; the weights have shape (C, M/g, k…)."""
    return math.prod(shapes.input(0)) * math.prod(shapes.input(weight)[1:])


def _gemm(shapes: _Shapes, _weight: int) -> int:
    rows, columns = shapes.input(0)
    depth = rows if attributes(shapes.node).get("transA", 0) else columns
    return math.prod(shapes.output()) * depth


def _product(shapes: _Shapes, _weight: int) -> int:
    """Every output element of a matrix product is a sum over the last axis of the left operand."""
    return math.prod(shapes.output()) * shapes.input(0)[-1]


def _einsum(shapes: _Shapes, _weight: int) -> int:
    """One multiply-add for each combination of labels of two operands; other forms count 0."""
    equation = attributes(shapes.node)["equation"].decode().replace(" ", "")
    terms = equation.split("->")[0].split(",")
    if len(terms) != 2 or "." in equation:
        return 0
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms):
        sizes.update(zip(term, shapes.input(position), strict=True))
    return math.prod(sizes.values())


def _recurrent(shapes: _Shapes, weight: int) -> int:
    """W is (directions, gates * hidden, input), R (directions, gates * hidden, hidden); both at every step."""
    steps_and_batch = math.prod(shapes.input(0)[:2])
    return steps_and_batch * (math.prod(shapes.input(weight)) + math.prod(shapes.input(weight + 1)))


_MACS: dict[str, Callable[[_Shapes, int], int]] = {
    "conv": _convolution,
    "transposed": _transposed_convolution,
    "gemm": _gemm,
    "matmul": _product,
    "einsum": _einsum,
    "recurrent": _recurrent,
}


def _stored(graph: onnx.GraphProto) -> dict[str, TensorSpec]:
    """Tensors that are there before the first frame: initializers and what Constant nodes hold."""
    found = {
        item.name: TensorSpec(item.name, tuple(item.dims), dtype_name(item.data_type)) for item in graph.initializer
    }
    for node in graph.node:
        array = constant_value(node)
        if array is not None:
            found[node.output[0]] = TensorSpec(node.output[0], array.shape, array.dtype.name)
    return found


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(filter(None, names))


def _is_weight(spec: TensorSpec) -> bool:
    return spec.dtype != "int64"  # those are shapes, axes and indices


def _elements(spec: TensorSpec) -> int:
    return math.prod(dim for dim in spec.shape if isinstance(dim, int))


def _spec_bytes(spec: TensorSpec) -> int:
    return tensor_bytes(spec.dtype, _elements(spec))


def _open_dims(spec: TensorSpec) -> str:
    if not spec.ranked:
        return "(rank unknown)"
    return ", ".join(f"{axis} ({dim or '?'})" for axis, dim in enumerate(spec.shape) if not isinstance(dim, int))
