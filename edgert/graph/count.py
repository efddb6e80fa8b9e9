"""Work, traffic and memory of a graph's nodes, from shapes alone.

Counts per inference, at the model's static shapes:

- **macs**: multiply-adds. The bias is free, and operators that are not sums of products have none, as in the papers
  that publish "M MACs" (MobileNet, https://arxiv.org/abs/1704.04861).
  :mod:`edgert.graph.operators` has the formula of each operator. Pooling and elementwise nodes cost traffic, no MACs.
- **params**: elements of the stored tensors the node reads, in the first node that reads them, so the sum counts each
  weight once. Integer tensors that hold shapes, axes or indices (int64) are no parameters.
- **weight_bytes**: bytes of the stored tensors the node reads, shapes too, in every node that reads them.
- **activation_bytes**: bytes of the other tensors it reads plus those it writes. It is 0 for nodes that only rename a
  buffer (Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout) or read no data (Shape, Size, Constant).

Bodies of If, Loop and Scan do not count, since nothing says how often they run.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgert.errors import ModelError
from edgert.graph.clean import constant_value
from edgert.graph.ir import Graph, Node
from edgert.graph.model import Model, TensorSpec, inputs
from edgert.graph.onnx_convert import to_graph
from edgert.graph.operators import ACTIVATIONS, KNOWN_FROM_SHAPES, VIEWS, about, of_kind
from edgert.graph.static_shape import tensor_types

ShapeOf = Callable[[str], tuple[int, ...]]
"""Function that returns a tensor's static shape by name; it may raise for a tensor without one."""


@dataclass(frozen=True, slots=True)
class Product:
    """Sums of products as a matrix product: ``groups`` times (rows x depth) by (depth x columns).

    Attributes:
        rows: output positions, batch included.
        channels: channels read per position and group; the depth is channels times ``taps``.
        columns: channels written per position and group.
        taps: positions of the convolution kernel.
        groups: independent products.
    """

    rows: int = 0
    channels: int = 0
    columns: int = 0
    taps: int = 1
    groups: int = 1

    @property
    def macs(self) -> int:
        """Number of multiply-adds."""
        return self.rows * self.channels * self.columns * self.taps * self.groups


def product_of(node: Node, shape_of: ShapeOf) -> Product:
    """Return the matrix product inside a node; empty for a node that multiplies nothing.

    Args:
        node: the node.
        shape_of: returns the static shape of a tensor.

    Raises:
        ModelError: the operator does not take inputs of these shapes. Errors of ``shape_of`` pass through.
    """
    info = about(node.op)
    formula = _FORMULAS.get(info.work)
    if formula is None:
        return Product()
    read = dict[str, tuple[int, ...]]()

    def record_shape(name: str) -> tuple[int, ...]:
        read[name] = shape_of(name)
        return read[name]

    try:
        return formula(node, info.weight, record_shape)
    except (ValueError, IndexError, ZeroDivisionError) as error:
        given = ", ".join(f"{name} {list(shape)}" for name, shape in read.items())
        what = f"node {node.name!r} ({node.op}) cannot take its inputs"
        raise ModelError(what, why=given, fix="export the model again; onnx.checker.check_model names more") from error


def multiply_adds(graph: Graph) -> dict[str, int]:
    """Return the multiply-adds of each node by its name; 0 where a shape is open or not known."""
    found = {}
    for node in graph.nodes:
        shapes = {name: graph.shape(name) for name in (*filter(None, node.inputs), *node.outputs[:1])}
        known = {name: shape for name, shape in shapes.items() if shape is not None}
        found[node.name] = product_of(node, known.__getitem__).macs if len(known) == len(shapes) else 0
    return found


def _conv(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    """Return the product of a Conv, whose weights have shape (M, C/g, k...)."""
    batch, columns, *space = shape_of(node.outputs[0])
    _, channels, *kernel = shape_of(node.inputs[weight])
    groups = node.attributes.get("group", 1)
    return Product(batch * math.prod(space), channels, columns // groups, math.prod(kernel), groups)


def _transposed(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    """Return the product of a ConvTranspose: each input position times a whole kernel of shape (C, M/g, k...)."""
    batch, channels, *space = shape_of(node.inputs[0])
    _, columns, *kernel = shape_of(node.inputs[weight])
    groups = node.attributes.get("group", 1)
    return Product(batch * math.prod(space), channels // groups, columns, math.prod(kernel), groups)


def _gemm(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    first, second = shape_of(node.inputs[0]), shape_of(node.inputs[weight])
    rows, depth = reversed(first) if node.attributes.get("transA", 0) else first
    return Product(rows, depth, second[0] if node.attributes.get("transB", 0) else second[-1])


def _matmul(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    """Return the product of a MatMul.

    A stored right operand serves every matrix of the left operand, so these count as rows of one product.
    """
    left, right, out = (shape_of(name) for name in (node.inputs[0], node.inputs[weight], node.outputs[0]))
    columns = right[-1] if len(right) > 1 else 1
    groups = math.prod(out[:-2]) if len(right) > 2 else 1
    return Product(math.prod(out) // max(columns * groups, 1), left[-1], columns, 1, groups)


def _einsum(node: Node, _weight: int, shape_of: ShapeOf) -> Product:
    """Return the product of an Einsum of two operands, one multiply-add per combination of labels; else none."""
    equation = node.attributes["equation"].decode("utf-8", "replace").replace(" ", "")
    given, arrow, written = equation.partition("->")
    terms = given.split(",")
    if len(terms) != 2 or "." in equation:
        return Product()
    first, second = (
        dict(zip(term, shape_of(name), strict=True)) for term, name in zip(terms, node.inputs, strict=True)
    )
    output = written if arrow else {label for label in given if given.count(label) == 1}
    parts: dict[str, int] = {"rows": 1, "channels": 1, "columns": 1, "groups": 1}
    for label, size in {**first, **second}.items():
        shared = "groups" if label in second else "rows"
        parts["channels" if label not in output else shared if label in first else "columns"] *= size
    return Product(**parts)


def _recurrent(node: Node, weight: int, shape_of: ShapeOf) -> Product:
    """Return the product of an RNN, GRU or LSTM, whose two weights are used at every step.

    W is (directions, gates * hidden, input), R is (directions, gates * hidden, hidden).
    """
    steps, batch, depth = shape_of(node.inputs[0])
    directions, gates, hidden = shape_of(node.inputs[weight + 1])
    return Product(steps * batch, depth + hidden, gates, 1, directions)


_FORMULAS: dict[str, Callable[[Node, int, ShapeOf], Product]] = {
    "conv": _conv,
    "transposed": _transposed,
    "gemm": _gemm,
    "matmul": _matmul,
    "einsum": _einsum,
    "recurrent": _recurrent,
}


_IN_PLACE = ACTIVATIONS | of_kind("affine")
"""Operators that run in the memory of their input, or fused into the node before, if nothing else reads that input."""
_FREE = VIEWS | KNOWN_FROM_SHAPES


def peak_bytes(graph: Graph) -> int:
    """Return the peak memory of activations, in bytes: what a node reads and writes, and what later nodes still read.

    Inputs and outputs of the graph live from beginning to end, since they are bound buffers. Stored tensors do not
    count, nor do nodes that only rename a buffer or work in place. No allocator that keeps the node order can need
    less; TensorRT and ONNX Runtime come close. Scratch space of kernels is not included.

    Args:
        graph: sorted graph with known shapes; tensors of unknown shape count 0.
    """
    buffers = _buffers(graph)
    found = {name: graph.specs.get(name) for name in set(buffers.values())}
    sizes = {name: spec.size_bytes if spec else 0 for name, spec in found.items()}
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
    """Return the tensor whose memory each computed or fed tensor uses; views use that of their first input."""
    found = {spec.name: spec.name for spec in graph.inputs}
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else ""
        in_place = node.op in _IN_PLACE and graph.is_private(source) and source in graph.producers
        for name in filter(None, node.outputs):
            found[name] = found.get(source, name) if node.op in VIEWS or in_place else name
    return found


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Cost of one node; the module's docstring says how each number is counted.

    Attributes:
        name: the node's name; ``Conv_12``, by position, for one without.
        op: operator, with its domain in front unless standard: ``"com.microsoft.FusedConv"``.
        macs: multiply-adds.
        params: weights that no earlier node reads.
        weight_bytes: bytes of stored tensors read.
        activation_bytes: bytes of computed tensors read and written.
        output_shape: shape of the first output.
    """

    name: str
    op: str
    macs: int
    params: int
    weight_bytes: int
    activation_bytes: int
    output_shape: tuple[int, ...]


def count(model: Model) -> tuple[NodeCost, ...]:
    """Return the cost of every node, in graph order.

    Raises:
        ModelError: a dimension is dynamic, or a tensor's shape cannot be inferred.
    """
    counter = _Counter(model)
    return tuple(map(counter.cost, counter.graph.nodes))


def stored_tensors(model: Model) -> dict[str, TensorSpec]:
    """Return the types of initializers and of values of Constant nodes, by name; shapes of inputs may be open."""
    return _stored(to_graph(model.proto)[0])


def parameters(stored: Mapping[str, TensorSpec]) -> int:
    """Return the number of weights among stored tensors; shapes, axes and indices (int64) do not count."""
    return sum(math.prod(spec.sizes or ()) for spec in stored.values() if spec.dtype != "int64")


class _Counter:
    """Walk over a model in order; ``seen`` holds the weights counted so far."""

    def __init__(self, model: Model) -> None:
        self.model, self.graph = model, to_graph(model.proto)[0]
        self.specs: Mapping[str, TensorSpec] = tensor_types(self.graph)
        self.stored = _stored(self.graph)
        self.seen: set[str] = set()

    def cost(self, node: Node) -> NodeCost:
        reads, writes = (tuple(filter(None, names)) for names in (node.inputs, node.outputs))
        stored = {name: self.stored[name] for name in reads if name in self.stored}
        fresh = {name: spec for name, spec in stored.items() if name not in self.seen}
        self.seen.update(fresh)
        moved = () if node.op in _FREE else tuple(name for name in (*reads, *writes) if name not in self.stored)
        return NodeCost(
            name=node.name,
            op=f"{node.domain}.{node.op}" if node.domain else node.op,
            macs=product_of(node, lambda tensor: self.static_spec(tensor, node).sizes or ()).macs,
            params=parameters(fresh),
            weight_bytes=sum(self.stored[name].size_bytes for name in reads if name in stored),
            activation_bytes=sum(self.static_spec(name, node).size_bytes for name in moved),
            output_shape=self.static_spec(writes[0], node).sizes or () if writes else (),
        )

    def static_spec(self, tensor: str, node: Node) -> TensorSpec:
        """Return the type of a tensor of static shape; raise ModelError for any other."""
        spec = self.stored.get(tensor) or self.specs.get(tensor)
        if spec is not None and spec.is_static:
            return spec
        path = str(self.model.path)
        what = f"node {node.name!r} of model {path!r} cannot be counted: its tensor {tensor!r} has no size"
        dynamic = [item for item in inputs(self.model) if not item.is_static]
        if dynamic:
            dims = "; ".join(f"input {item.name!r} has dynamic dimensions {_open_dims(item)}" for item in dynamic)
            raise ModelError(what, why=dims, fix="fix these shapes first: a shape profile, or with_shapes in Python")
        why = f"its shape depends on the data ({spec})" if spec else "no shape can be inferred for it"
        raise ModelError(what, why=why, fix="export with static shapes and standard operators only")


def _stored(graph: Graph) -> dict[str, TensorSpec]:
    constants = {node.outputs[0]: array for node in graph.nodes if (array := constant_value(node)) is not None}
    arrays = {**graph.constants, **constants}
    return {name: TensorSpec(name, array.shape, array.dtype.name) for name, array in arrays.items()}


def _open_dims(spec: TensorSpec) -> str:
    if not spec.ranked:
        return "(rank unknown)"
    return ", ".join(f"{axis} ({dim or '?'})" for axis, dim in enumerate(spec.shape) if not isinstance(dim, int))
