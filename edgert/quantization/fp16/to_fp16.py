"""Conversion of a float32 graph to float16, except for the nodes that need float32."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

import numpy as np

from edgert.board.host import core_count
from edgert.graph import Graph, Names, Node, TensorSpec, ir, type_inference
from edgert.quantization.fp16.plan import Plan, makes_float32, plan
from edgert.quantization.fp16.rules import LARGEST, Array, as_fp16
from edgert.quantization.lowering.weights import F64, from_kernel_layout, kernel_of

Precision = Literal["float32", "float16"]
_OTHER: Mapping[Precision, Precision] = {"float32": "float16", "float16": "float32"}


def to_fp16(graph: Graph, *, keep: Collection[str] = ()) -> tuple[Graph, dict[str, str]]:
    """Convert float32 nodes to float16, where float16 suffices; other types, shape arithmetic included, stay.

    Stored tensors are converted, weights so that each filter keeps its sum (:func:`fp16_weight`). One Cast per tensor
    is added where the two types meet. A computed tensor keeps its name, and the converted one is called
    ``name_float16`` or ``name_float32``. Inputs, outputs, and tensors that bodies of If or Loop read keep their names
    and stay float32.

    A node stays float32 in these cases:

    - It is named in ``keep``, or the ONNX schema of its operator has no float16 form.
    - Values leave float16's range by the formula of the node.
    - A stored tensor leaves the range, or would lose more than 1 % (small constants that guard a division).
    - It sums more than 2048 values, or squares.
    - It computes positions or ranks scores in a detector's tail.
    - Its results grow (Exp, Pow, squares).

    Args:
        graph: graph with static shapes and unique node names, not quantized.
        keep: names of nodes that stay float32.

    Returns:
        The graph, and the reasons of nodes that stay float32, by name in graph order.
    """
    pinned = {name for node in graph.nodes for name in node.captured}
    pinned |= {spec.name for spec in (*graph.inputs, *graph.outputs) if spec.dtype == "float32"}
    decided = plan(graph, keep, pinned)
    converted = _Conversion(decided, frozenset(name for name in pinned if decided.types.get(name) == "float32"))
    return converted.graph(), {graph.nodes[at].name: why for at, why in decided.reasons.items()}


class _Conversion:
    """Types and names of all tensors, and the graph built from them.

    Pinned tensors must exist in float32 under their own name.
    """

    def __init__(self, decided: Plan, pinned: frozenset[str]) -> None:
        self._plan, self._source, self._pinned = decided, decided.graph, pinned
        self._names, self._nodes = Names(self._source), {node.name for node in self._source.nodes}
        self._native = dict(self._native_types())
        self._wanted = self._wanted_types()
        self._called = {name: self._name_types(name) for name in self._wanted}

    def graph(self) -> Graph:
        """Return the converted graph."""
        nodes = [*self._casts_of(spec.name for spec in self._source.inputs)]
        for at, node in enumerate(self._source.nodes):
            nodes.extend(self._conversions(node) if makes_float32(node) else self._convert(at, node))
        return replace(self._source, nodes=tuple(nodes), constants=self._constants(), specs=self._specs())

    def _native_types(self) -> Iterator[tuple[str, Precision]]:
        """Yield the type that each fed or computed float32 tensor has without a Cast."""
        for spec in self._source.inputs:
            if spec.name in self._pinned:
                yield spec.name, "float32"
        for at, node in enumerate(self._source.nodes):
            for position, name in enumerate(node.outputs):
                if self._plan.types.get(name) == "float32" and not makes_float32(node):
                    yield name, "float16" if self._plan.gives_fp16(at, position) else "float32"

    def _wanted_types(self) -> dict[str, set[Precision]]:
        wanted: dict[str, set[Precision]] = {name: {own} for name, own in self._native.items()}
        for name in sorted(self._pinned):
            wanted.setdefault(name, set()).add("float32")
        for at, node in enumerate(self._source.nodes):
            for position, name in enumerate(node.inputs):
                if self._plan.types.get(name) == "float32" and not makes_float32(node):
                    wanted.setdefault(name, set()).add("float16" if self._plan.reads_fp16(at, position) else "float32")
        return wanted

    def _name_types(self, name: str) -> dict[Precision, str]:
        """Return the name of a tensor in each type; the pinned, computed or only type has the tensor's own name."""
        wanted = self._wanted[name]
        single: Precision = "float16" if wanted == {"float16"} else "float32"
        own = "float32" if name in self._pinned else self._native.get(name, single)
        other = _OTHER[own]
        return {own: name, **({other: self._names.new(f"{name}_{other}")} if other in wanted else {})}

    def _casts_of(self, names: Iterable[str]) -> Iterator[Node]:
        for name in names:
            own = self._native.get(name)
            if own is not None and len(self._wanted[name]) > 1:
                called = self._called[name]
                yield self._cast(called[own], called[_OTHER[own]], _OTHER[own])

    def _cast(self, source: str, target: str, dtype: Precision) -> Node:
        name = ir.free_name(f"Cast_{target}", self._nodes)
        self._nodes.add(name)
        return type_inference.cast_node(source, target, dtype, name)

    def _conversions(self, node: Node) -> Iterator[Node]:
        """Yield one Cast from the source of a conversion to each type in which its result is read."""
        source = node.inputs[0]
        called = self._called.get(source, {})
        for dtype in sorted(self._wanted.get(node.outputs[0], ())):
            own = self._native.get(source)
            given = called.get(dtype) or (called[own] if own else source)
            yield self._cast(given, self._called[node.outputs[0]][dtype], dtype)

    def _convert(self, at: int, node: Node) -> Iterator[Node]:
        inputs = (
            self._name(name, "float16" if self._plan.reads_fp16(at, position) else "float32")
            for position, name in enumerate(node.inputs)
        )
        outputs = (self._name(name, self._native.get(name, "float32")) for name in node.outputs)
        yield replace(node, inputs=tuple(inputs), outputs=tuple(outputs))
        yield from self._casts_of(node.outputs)

    def _name(self, name: str, dtype: Precision) -> str:
        return self._called[name][dtype] if name in self._called else name

    def _constants(self) -> dict[str, Array]:
        found, stored = dict(self._source.constants), self._source.constants
        wanted = [(name, dtype, alias) for name, dtype, alias in self._aliases() if name in stored]

        def made(name: str, dtype: Precision, _: str) -> Array:
            return fp16_weight(self._source, name) if dtype == "float16" else stored[name]

        with ThreadPoolExecutor(min(_THREADS, core_count()), "edgert-fp16") as pool:  # NumPy releases the GIL
            arrays = list(pool.map(lambda each: made(*each), wanted))
        for (_, _, alias), array in zip(wanted, arrays, strict=True):
            found[alias] = array
            array.flags.writeable = False
        return found

    def _specs(self) -> dict[str, TensorSpec]:
        specs = dict(self._source.specs)
        for name, dtype, alias in self._aliases():
            if name in self._source.specs:
                specs[alias] = replace(self._source.specs[name], name=alias, dtype=dtype)
        return specs

    def _aliases(self) -> Iterator[tuple[str, Precision, str]]:
        for name, called in self._called.items():
            yield from ((name, dtype, alias) for dtype, alias in called.items())


# Weights in float16 whose filters keep their sums.
#
# Filters of small networks detect edges with weights of opposite sign that nearly cancel. On a flat area the output is
# the filter's sum times the brightness, and the rounding errors of all weights add up. Rounding some of them the other
# way keeps the sum, at no cost in a run.

LONGEST = 8192
"""Largest filter, in weights, whose sum is kept; errors of larger ones cancel by chance."""
_MOST_FLIPS = 512  # candidates per filter; errors of 8192 weights add up to some fifty steps
_AT_ONCE = 500_000  # weights of a thread in memory at a time, in some ten float64 copies
_THREADS = 4


def fp16_weight(graph: Graph, name: str) -> Array:
    """Return a stored float32 tensor in float16: filters keep their sums, anything else is rounded to nearest."""
    stored = graph.constants[name]
    readers = graph.consumers.get(name, ())
    is_weight = readers and all(node.inputs[1:2] == (name,) for node in readers)
    kernel = kernel_of(graph, readers[0]) if is_weight and np.isfinite(stored).all() else None
    if kernel is None or kernel.values.size > LONGEST * kernel.outputs:
        return as_fp16(stored)
    rows = kernel.values.reshape(kernel.outputs, -1)
    parts = np.array_split(rows, 1 + rows.size // _AT_ONCE)
    values = np.concatenate([keep_sums(part) for part in parts]).reshape(kernel.values.shape)
    return from_kernel_layout(values, kernel.node, kernel.stored).astype(np.float16)


def keep_sums(rows: F64) -> F64:
    """Return float16 values next to those of ``rows`` (filters, weights) that keep the sum of each row.

    From the nearest values on, values are rounded the other way in order of their cost in squared error per change of
    the sum.
    """
    nearest = as_fp16(rows)
    values: F64 = nearest.astype(np.float64)
    error = values - rows
    total = error.sum(axis=1)
    away = np.where(error > 0, np.float16(-np.inf), np.float16(np.inf))
    step = np.where(error == 0, 0.0, np.nextafter(nearest, away).astype(np.float64) - values)
    # (error + step)^2 - error^2 for each |step|: the two are of opposite sign
    last = LARGEST + np.arange(rows.shape[1])  # cost of weights that do not help: after all others, from left to right
    cost = np.where(step * total[:, None] < 0, np.abs(step) - 2 * np.abs(error), last)
    order = np.argsort(cost, axis=1, kind="stable")[:, :_MOST_FLIPS]
    each = np.arange(len(rows))
    for column in order.T:
        move = step[each, column]
        flip = np.abs(total + move) < np.abs(total)
        values[each, column] += np.where(flip, move, 0.0)
        total += np.where(flip, move, 0.0)
    return values
