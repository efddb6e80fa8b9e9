"""A float32 graph written again with parts of it in float16."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from edgert.graph import Graph, Names, Node, TensorSpec
from edgert.graph.ir import free_name
from edgert.graph.operator_types import cast_node
from edgert.quantization.fp16.magnitudes import Array, Measured
from edgert.quantization.fp16.plan import Plan, makes_float32, plan
from edgert.quantization.fp16.weights import fp16_weight, with_holdable_scales

Precision = Literal["float32", "float16"]
_OTHER: Mapping[Precision, Precision] = {"float32": "float16", "float16": "float32"}


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that still computes in float32, and why."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fp16Graph:
    """A graph in float16, and what in it is not, in graph order."""

    graph: Graph
    kept: tuple[Kept, ...]


def to_fp16(graph: Graph, *, keep: Collection[str] = (), amax: Measured | None = None) -> Fp16Graph:
    """Makes float16 of every float32 node that can bear it; other types, shape arithmetic among them, stay.

    Stored tensors are converted, weights so that each filter keeps its sum
    (:mod:`~edgert.quantization.fp16.weights`). Cast nodes are put where the two types meet: one per tensor, none where
    a tensor is only moved between float32 nodes. Tensors keep their names where they are computed; the converted one is
    called ``name_float16`` or ``name_float32``. Inputs, outputs, and whatever the body of an If or Loop reads keep
    their names and stay float32.

    A node stays float32 when it is named; when the ONNX schema of its operator has no float16 form; when values leave
    float16's range, by what was measured or by what it computes; when a stored tensor leaves it, or would lose more
    than 1 % (small constants that guard a division); when it adds up more than 2048 values, or squares; and when it
    computes positions or ranks scores in a detector's tail. Without measured ranges, operators whose results grow
    (Exp, Pow, squares) stay float32 as well.

    Q/DQ nodes follow: from opset 19 they take float16 scales, before that they are float32 between Casts. Scales of
    stored weights that are too small for that are raised where it makes no difference
    (:func:`~edgert.quantization.fp16.weights.with_holdable_scales`).

    Args:
        graph: of static shapes and unique node names; of any precision.
        keep: names of nodes that stay float32.
        amax: tensor → the largest magnitude measured in it (``histogram.amax``, not the threshold for INT8). Four times
            as much is allowed for.

    Raises:
        ModelError: a name in ``keep`` is no node's.
    """
    pinned = {name for node in graph.nodes for name in node.captured}
    pinned |= {spec.name for spec in (*graph.inputs, *graph.outputs) if spec.dtype == "float32"}
    decided = plan(with_holdable_scales(graph), keep, amax or {}, pinned)
    kept = tuple(Kept(graph.nodes[at].name, why) for at, why in decided.reasons.items())
    converted = _Conversion(decided, frozenset(name for name in pinned if decided.types.get(name) == "float32"))
    return Fp16Graph(converted.graph(), kept)


class _Conversion:
    """Who needs which tensor in which type, what it is then called, and the graph that follows.

    Tensors that are ``pinned`` exist in float32 in any case, under their own name.
    """

    def __init__(self, decided: Plan, pinned: frozenset[str]) -> None:
        self._plan, self._source, self._pinned = decided, decided.graph, pinned
        self._names, self._nodes = Names(self._source), {node.name for node in self._source.nodes}
        self._native = dict(self._native_types())
        self._wanted = self._demand()
        self._called = {name: self._call(name) for name in self._wanted}

    def graph(self) -> Graph:
        """The converted graph."""
        nodes = [*self._casts_of(spec.name for spec in self._source.inputs)]
        for at, node in enumerate(self._source.nodes):
            nodes.extend(self._conversions(node) if makes_float32(node) else self._converted(at, node))
        return replace(
            self._source,
            nodes=tuple(nodes),
            constants=self._constants(),
            specs=self._specs(),
        )

    def _native_types(self) -> Iterator[tuple[str, Precision]]:
        """What each float32 tensor that is fed or computed is without a Cast."""
        for spec in self._source.inputs:
            if spec.name in self._pinned:
                yield spec.name, "float32"
        for at, node in enumerate(self._source.nodes):
            for position, name in enumerate(node.outputs):
                if self._plan.types.get(name) == "float32" and not makes_float32(node):
                    yield name, "float16" if self._plan.gives_fp16(at, position) else "float32"

    def _demand(self) -> dict[str, set[Precision]]:
        """Every float32 tensor → the types it has to exist in."""
        wanted: dict[str, set[Precision]] = {name: {own} for name, own in self._native.items()}
        for name in sorted(self._pinned):
            wanted.setdefault(name, set()).add("float32")
        for at, node in enumerate(self._source.nodes):
            for position, name in enumerate(node.inputs):
                if self._plan.types.get(name) == "float32" and not makes_float32(node):
                    wanted.setdefault(name, set()).add("float16" if self._plan.reads_fp16(at, position) else "float32")
        return wanted

    def _call(self, name: str) -> dict[Precision, str]:
        """Type → name: its own for the type that is pinned, or that it is computed in, or that it only has."""
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
        name = free_name(f"Cast_{target}", self._nodes)
        self._nodes.add(name)
        return cast_node(source, target, dtype, name)

    def _conversions(self, node: Node) -> Iterator[Node]:
        """Casts to float32, once for each type that is wanted of them, straight from their source."""
        source = node.inputs[0]
        called = self._called.get(source, {})
        for dtype in sorted(self._wanted.get(node.outputs[0], ())):
            own = self._native.get(source)
            given = called.get(dtype) or (called[own] if own else source)
            yield self._cast(given, self._called[node.outputs[0]][dtype], dtype)

    def _converted(self, at: int, node: Node) -> Iterator[Node]:
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
        for name, dtype, alias in self._aliases():
            if name in stored:
                found[alias] = fp16_weight(self._source, name) if dtype == "float16" else stored[name]
                found[alias].flags.writeable = False
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
