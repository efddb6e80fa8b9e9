"""Work, traffic and memory of a graph's nodes, from shapes alone.

What is counted, per inference at the model's static shapes:

- **macs**: multiply-adds, see :mod:`edgert.graph.multiply_adds`. Pooling and elementwise nodes cost traffic, not MACs.
- **params**: elements of the stored tensors the node reads, in the first node that reads them, so the sum counts each
  weight once. Integer tensors that hold shapes, axes or indices (int64) are no parameters.
- **weight_bytes**: bytes of the stored tensors the node reads, shapes too, in every node that reads them.
- **activation_bytes**: bytes of the other tensors it reads plus those it writes; 0 for nodes that only rename a buffer
  (Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout) or read no data (Shape, Size, Constant).

Bodies of If, Loop and Scan are not counted: how often they run is not known beforehand.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edgert.errors import ModelError
from edgert.graph.ir import Graph, Node
from edgert.graph.model import Model, TensorSpec, inputs
from edgert.graph.multiply_adds import product_of
from edgert.graph.onnx_convert import to_graph
from edgert.graph.operators import ACTIVATIONS, KNOWN_FROM_SHAPES, VIEWS, of_kind
from edgert.graph.passes.tidy import constant_value
from edgert.graph.proto import dtype_name, tensor_bytes
from edgert.graph.static_shape import types
from edgert.graph.type_inference import lighten

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
        ModelError: a dimension is dynamic, or a tensor's shape cannot be inferred; names it and what to do.
    """
    counter = _Counter(model)
    return tuple(map(counter.cost, counter.graph.nodes))


def stored_tensors(model: Model) -> dict[str, TensorSpec]:
    """What is there before the first frame: initializers and what Constant nodes hold, by name; needs no shapes."""
    return _stored(model, _light_graph(model))


def stored_bytes(stored: Mapping[str, TensorSpec]) -> int:
    """Bytes of stored tensors."""
    return sum(map(_spec_bytes, stored.values()))


def parameters(stored: Mapping[str, TensorSpec]) -> int:
    """Number of weights among stored tensors, each counted once."""
    return sum(_elements(spec) for spec in stored.values() if _is_weight(spec))


class _Counter:
    """One walk over a model in order; ``seen`` are the weights already counted."""

    def __init__(self, model: Model) -> None:
        self.model, self.graph = model, _light_graph(model)
        self.specs: Mapping[str, TensorSpec] = types(self.graph)
        self.stored = _stored(model, self.graph)
        self.seen: set[str] = set()

    def cost(self, node: Node) -> NodeCost:
        reads, writes = (tuple(filter(None, names)) for names in (node.inputs, node.outputs))
        return NodeCost(
            name=node.name,
            op=f"{node.domain}.{node.op}" if node.domain else node.op,
            macs=product_of(node, lambda tensor: self.shape(tensor, node)).macs,
            params=self._params(reads),
            weight_bytes=sum(_spec_bytes(self.stored[name]) for name in reads if name in self.stored),
            activation_bytes=self._activation_bytes(node, (*reads, *writes)),
            output_shape=self.shape(writes[0], node) if writes else (),
        )

    def shape(self, tensor: str, node: Node) -> tuple[int, ...]:
        """A tensor's static shape. Raises ModelError."""
        spec = self.stored.get(tensor) or self.specs.get(tensor)
        if spec is not None and spec.is_static:
            return tuple(dim for dim in spec.shape if isinstance(dim, int))
        raise self._not_static(tensor, node, spec)

    def _params(self, reads: tuple[str, ...]) -> int:
        fresh = {name for name in reads if name in self.stored and name not in self.seen}
        self.seen |= fresh
        return parameters({name: self.stored[name] for name in fresh})

    def _activation_bytes(self, node: Node, tensors: tuple[str, ...]) -> int:
        moved = [] if node.op in _FREE else [tensor for tensor in tensors if tensor not in self.stored]
        elements = {name: math.prod(self.shape(name, node)) for name in moved}
        return sum(tensor_bytes(self.specs[name].dtype, elements[name]) for name in moved)

    def _not_static(self, tensor: str, node: Node, spec: TensorSpec | None) -> ModelError:
        dynamic = [item for item in inputs(self.model) if not item.is_static]
        path = str(self.model.path)
        what = f"node {node.name!r} of model {path!r} cannot be counted: its tensor {tensor!r} has no size"
        if dynamic:
            dims = "; ".join(f"input {item.name!r} has dynamic dimensions {_open_dims(item)}" for item in dynamic)
            return ModelError(what, why=dims, fix="fix these shapes first: a shape profile, or with_shapes in Python")
        why = f"its shape depends on the data ({spec})" if spec else "no shape can be inferred for it"
        return ModelError(what, why=why, fix="export with static shapes and standard operators only")


def _light_graph(model: Model) -> Graph:
    """The nodes of a model as they stand, large stored tensors left out."""
    return to_graph(lighten(model.proto))[0]


def _stored(model: Model, graph: Graph) -> dict[str, TensorSpec]:
    initializers = model.proto.graph.initializer
    found = {item.name: TensorSpec(item.name, tuple(item.dims), dtype_name(item.data_type)) for item in initializers}
    for node in graph.nodes:
        array = constant_value(node)
        if array is not None:
            found[node.outputs[0]] = TensorSpec(node.outputs[0], array.shape, array.dtype.name)
    return found


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
