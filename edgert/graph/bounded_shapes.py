"""Upper bounds for sizes that depend on data, so that the work of nodes behind NonZero and the like can be counted.

In a detector that includes non-maximum suppression, some sizes are known only once the tensors are computed. Each gets
the largest size that its operator can give: as many boxes as went in, or as many as the graph allows.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edgert.errors import ModelError
from edgert.graph.ir import Graph, Node
from edgert.graph.model import TensorSpec
from edgert.graph.static_shape import tensor_types

_ROUNDS = 200
"""Largest number of inferences: one for each depth of operators whose sizes depend on data."""
_SAME_AXIS = frozenset({"Slice", "Compress", "Unique", "TopK", "Identity", "SplitToSequence"})
"""Operators whose results are no longer along any axis than their first input."""


@dataclass(frozen=True, eq=False)
class BoundedGraph:
    """A graph in which every tensor has a size.

    Attributes:
        graph: graph with static types only.
        sources: bound as text, ``"NonZero [2, 50]"``, by the name of each node whose result size depends on data.
        tail: names of those nodes and of all nodes behind them.
    """

    graph: Graph
    sources: Mapping[str, str]
    tail: frozenset[str]


def bound_shapes(graph: Graph, objects: int | None = None) -> BoundedGraph:
    """Return the graph with sizes that depend on data set to their upper bounds.

    Args:
        graph: graph with static inputs.
        objects: largest number of boxes, or of other things found; None for as many as each operator can give.

    Raises:
        ModelError: nothing bounds a size; the error names the node and the key to set.
    """
    pinned: dict[str, TensorSpec] = {}
    sources: dict[str, str] = {}
    specs: Mapping[str, TensorSpec] = graph.specs
    for _ in range(_ROUNDS):
        frontier = _frontier(graph, specs, pinned)
        if not frontier:
            break
        for node in frontier:
            for name in filter(None, node.outputs):
                spec = specs.get(name) or TensorSpec(name, (), "float32", ranked=False)
                if not spec.is_static:
                    shape = _bound(node, spec, _Sizes(graph, specs), objects)
                    pinned[name] = replace(spec, shape=shape, ranked=True)
                    sources[node.name] = f"{node.op} {list(shape)}"
                else:
                    pinned[name] = spec
        cut = {id(node) for node in graph.nodes if all(name in pinned for name in node.outputs if name)}
        left = tuple(node for node in graph.nodes if id(node) not in cut)
        trimmed = replace(graph, nodes=left, inputs=(*graph.inputs, *pinned.values()), specs={}, outputs=())
        specs = {**tensor_types(trimmed), **pinned}
    ends = tuple(specs.get(spec.name, spec) for spec in graph.outputs)
    graph = replace(graph, specs={**graph.specs, **specs}, outputs=ends)
    return BoundedGraph(graph, sources, _downstream(graph, sources))


def _downstream(graph: Graph, sources: Mapping[str, str]) -> frozenset[str]:
    found, tensors = set[str](), set[str]()
    for node in graph.nodes:
        if node.name in sources or not tensors.isdisjoint(node.reads):
            found.add(node.name)
            tensors.update(filter(None, node.outputs))
    return frozenset(found)


def _frontier(graph: Graph, specs: Mapping[str, TensorSpec], pinned: Mapping[str, TensorSpec]) -> list[Node]:
    """Return the nodes with a result of open size that depend on no other such node."""

    def is_open(name: str) -> bool:
        spec = pinned.get(name) or specs.get(name)
        return name not in graph.constants and (spec is None or not spec.is_static)

    found, behind = list[Node](), set[str]()
    for node in graph.nodes:
        results = list(filter(None, node.outputs))
        waits = not behind.isdisjoint(node.reads)
        opened = any(map(is_open, results))
        if opened and not waits:
            found.append(node)
        if opened or waits:
            behind.update(results)
    return found


@dataclass(frozen=True)
class _Sizes:
    """Known sizes and values of a graph's tensors."""

    graph: Graph
    specs: Mapping[str, TensorSpec]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; empty where it is not known."""
        if name in self.graph.constants:
            return self.graph.constants[name].shape
        spec = self.specs.get(name)
        return (spec.sizes if spec else None) or ()

    def scalar(self, name: str) -> int | None:
        """Return the value of a stored tensor of one element; None for other tensors."""
        array = self.graph.constants.get(name)
        return None if array is None or array.size != 1 else int(array.reshape(-1)[0])


def _bound(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    bound = _BOUNDS.get(node.op, _same_axis if node.op in _SAME_AXIS else _stated)
    return tuple(max(size, 1) for size in bound(node, spec, sizes, objects))


def _non_zero(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    shape = sizes.shape(node.inputs[0])
    count = math.prod(shape)
    return (len(shape), min(count, objects or count))


def _suppression(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return the bound of NonMaxSuppression: the stated number of boxes for each class and image, or all."""
    batch, boxes = sizes.shape(node.inputs[0])[:2] or (1, 1)
    classes = (sizes.shape(node.inputs[1]) or (1, 1, 1))[1]
    stated = sizes.scalar(node.inputs[2]) if len(node.inputs) > 2 else None
    most = batch * classes * min(boxes, stated or boxes)
    return (min(most, objects or most), 3)


def _reshaped(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return the bound of a Reshape: the first open dimension gets all elements that the known ones leave."""
    rank = sizes.shape(node.inputs[1])
    known = list(spec.shape) if spec.ranked and spec.shape else [None] * (rank[0] if rank else 1)
    fixed = math.prod(dim for dim in known if isinstance(dim, int) and dim > 0)
    rest = max(math.prod(sizes.shape(node.inputs[0])) // max(fixed, 1), 1)
    found = []
    for dim in known:
        found.append(dim if isinstance(dim, int) else rest)
        rest = rest if isinstance(dim, int) else 1
    return tuple(found)


def _same_axis(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return the input's size along every open axis, at most ``objects``."""
    shape = sizes.shape(node.inputs[0])
    if not spec.ranked or len(spec.shape) != len(shape):
        return _stated(node, spec, sizes, objects) if objects or not shape else (math.prod(shape),)
    return tuple(
        dim if isinstance(dim, int) else min(size, objects or size) for dim, size in zip(spec.shape, shape, strict=True)
    )


def _rows_read(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return as many rows as the longest tensor that an If, Loop or Scan reads; it may suppress boxes inside."""
    rows = max((shape[0] for shape in map(sizes.shape, node.reads) if len(shape) > 0), default=0)
    if not rows:
        return _stated(node, spec, sizes, objects)
    dims = spec.shape if spec.ranked else (None,)
    return tuple(dim if isinstance(dim, int) else min(rows, objects or rows) for dim in dims)


def _stated(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    if objects is None:
        raise _unbounded_error(node)
    dims = spec.shape if spec.ranked else (None,)
    return tuple(dim if isinstance(dim, int) else objects for dim in dims)


_BOUNDS: Mapping[str, Callable[[Node, TensorSpec, _Sizes, int | None], tuple[int, ...]]] = {
    "NonZero": _non_zero,
    "NonMaxSuppression": _suppression,
    "Reshape": _reshaped,
    **dict.fromkeys(("If", "Loop", "Scan"), _rows_read),
}


def _unbounded_error(node: Node) -> ModelError:
    why = f"the size of what {node.op} returns depends on the image"
    if node.domain:
        why = f"onnx does not know the operator {node.domain}.{node.op}, nor the size of its result"
    return ModelError(
        f"nothing bounds the size of the result of node {node.name!r}",
        why=why,
        fix="state how many objects to count: objects: 100 in the model's section",
        code="E205",
    )
