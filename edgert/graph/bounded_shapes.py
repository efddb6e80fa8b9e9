"""Upper bounds for sizes that depend on data, so that the work behind NonZero, suppression and the like can be counted.

A detector that ends in its own suppression has tensors whose sizes are known only after they were computed. Each gets
the most that its operator can give: as many boxes as went in, or as many as the graph allows.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edgert.errors import ModelError
from edgert.graph.ir import Graph, Node
from edgert.graph.model import TensorSpec
from edgert.graph.static_shape import types

_ROUNDS = 200
"""Most times that sizes are inferred again: once for each depth of operators whose sizes depend on data."""
_SAME_AXIS = frozenset({"Slice", "Compress", "Unique", "TopK", "Gather", "Identity", "Concat", "SplitToSequence"})
"""Operators none of whose results is longer along an axis than their first input is."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """A graph whose tensors all have sizes.

    Attributes:
        graph: with static specs.
        sources: name of each node whose result has a size that depends on data → that size, in words.
        tail: names of those nodes and of all that read what they give.
    """

    graph: Graph
    sources: Mapping[str, str]
    tail: frozenset[str]


def bounded(graph: Graph, objects: int | None = None) -> Bounded:
    """Return the graph with sizes that depend on data set to their upper bounds.

    Args:
        graph: with static inputs.
        objects: how many boxes, or other things found, are counted at most; None: as many as each operator can give.

    Raises:
        ModelError: nothing bounds a size; the error names the node and the key to set.
    """
    pinned: dict[str, TensorSpec] = {}
    sources: dict[str, str] = {}
    specs: Mapping[str, TensorSpec] = graph.specs
    for _ in range(_ROUNDS):
        first = _frontier(graph, specs, pinned)
        if not first:
            break
        for node in first:
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
        specs = {**types(trimmed), **pinned}
    ends = tuple(specs.get(spec.name, spec) for spec in graph.outputs)
    return Bounded(replace(graph, specs={**graph.specs, **specs}, outputs=ends), sources, _behind(graph, sources))


def _behind(graph: Graph, sources: Mapping[str, str]) -> frozenset[str]:
    """Return the names of nodes that read what the sources give, sources included."""
    found, tensors = set[str](), set[str]()
    for node in graph.nodes:
        if node.name in sources or not tensors.isdisjoint(node.reads):
            found.add(node.name)
            tensors.update(filter(None, node.outputs))
    return frozenset(found)


def _frontier(graph: Graph, specs: Mapping[str, TensorSpec], pinned: Mapping[str, TensorSpec]) -> list[Node]:
    """Return the nodes with a result of open size that depend on no other one: what reads their sizes waits."""

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
    """Known sizes of a graph's tensors."""

    graph: Graph
    specs: Mapping[str, TensorSpec]

    def of(self, name: str) -> tuple[int, ...]:
        """Return a shape; empty where it is not known."""
        if name in self.graph.constants:
            return self.graph.constants[name].shape
        spec = self.specs.get(name)
        return (spec.sizes if spec else None) or ()

    def number(self, name: str) -> int | None:
        """Return the value of a stored tensor of one number; None where it is not stored."""
        array = self.graph.constants.get(name)
        return None if array is None or array.size != 1 else int(array.reshape(-1)[0])


def _bound(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return the most that each dimension of a result can be."""
    most = _BOUNDS.get(node.op, _same_axis if node.op in _SAME_AXIS else _stated)
    return tuple(max(size, 1) for size in most(node, spec, sizes, objects))


def _non_zero(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    shape = sizes.of(node.inputs[0])
    count = math.prod(shape)
    return (len(shape), min(count, objects or count))


def _suppression(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return the size of NonMaxSuppression's result: at most so many boxes of each class."""
    batch, boxes = sizes.of(node.inputs[0])[:2] or (1, 1)
    classes = (sizes.of(node.inputs[1]) or (1, 1, 1))[1]
    stated = sizes.number(node.inputs[2]) if len(node.inputs) > 2 else None
    most = batch * classes * min(boxes, stated or boxes)
    return (min(most, objects or most), 3)


def _reshaped(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return a shape with the elements of the input; the first open dimension has what the others leave."""
    rank = sizes.of(node.inputs[1])
    known = list(spec.shape) if spec.ranked and spec.shape else [None] * (rank[0] if rank else 1)
    fixed = math.prod(one for one in known if isinstance(one, int) and one > 0)
    rest = max(math.prod(sizes.of(node.inputs[0])) // max(fixed, 1), 1)
    found = []
    for one in known:
        found.append(one if isinstance(one, int) else rest)
        rest = rest if isinstance(one, int) else 1
    return tuple(found)


def _same_axis(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return the input's size along every open axis, but no more than the stated number."""
    shape = sizes.of(node.inputs[0])
    if not spec.ranked or len(spec.shape) != len(shape):
        return _stated(node, spec, sizes, objects) if objects or not shape else (math.prod(shape),)
    return tuple(
        one if isinstance(one, int) else min(size, objects or size) for one, size in zip(spec.shape, shape, strict=True)
    )


def _rows_read(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return as many rows as the longest tensor that the bodies of If, Loop or Scan read: suppression inside an If."""
    rows = max((shape[0] for shape in map(sizes.of, node.reads) if len(shape) > 0), default=0)
    if not rows:
        return _stated(node, spec, sizes, objects)
    dims = spec.shape if spec.ranked else (None,)
    return tuple(one if isinstance(one, int) else min(rows, objects or rows) for one in dims)


def _stated(node: Node, spec: TensorSpec, sizes: _Sizes, objects: int | None) -> tuple[int, ...]:
    """Return the stated number for every open dimension."""
    if objects is None:
        raise _unbounded(node)
    dims = spec.shape if spec.ranked else (None,)
    return tuple(one if isinstance(one, int) else objects for one in dims)


_BOUNDS: Mapping[str, Callable[[Node, TensorSpec, _Sizes, int | None], tuple[int, ...]]] = {
    "NonZero": _non_zero,
    "NonMaxSuppression": _suppression,
    "Reshape": _reshaped,
    **dict.fromkeys(("If", "Loop", "Scan"), _rows_read),
}


def _unbounded(node: Node) -> ModelError:
    why = f"{node.op} gives as much as it finds in an image"
    if node.domain:
        why = f"onnx does not know {node.domain}.{node.op} of node {node.name!r}, nor the size of its result"
    return ModelError(
        f"nothing bounds the size of the result of node {node.name!r}",
        why=why,
        fix="state how many objects to count: objects: 100 in the model's section",
        code="E205",
    )
