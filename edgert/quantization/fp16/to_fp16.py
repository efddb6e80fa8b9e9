"""A float32 graph written again with parts of it in float16."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edgert.errors import ModelError
from edgert.graph import Graph, Names, Node, TensorSpec
from edgert.graph.ir import free_name
from edgert.graph.operator_types import cast_node, dtypes
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


def to_fp16(
    graph: Graph,
    *,
    keep: Collection[str] = (),
    amax: Measured | None = None,
    io: Precision = "float32",
) -> Fp16Graph:
    """Makes float16 of every float32 node that can bear it; other types, shape arithmetic among them, stay.

    Stored tensors are converted, weights so that each filter keeps its sum
    (:mod:`~edgert.quantization.fp16.weights`). Cast
    nodes are put where the two types meet: one per tensor, none where a tensor is only moved between float32 nodes.
    Tensors keep their names where they are computed; the converted one is called ``name_float16`` or ``name_float32``.
    Inputs, outputs, and whatever the body of an If or Loop reads keep their names in any case.

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
        amax: tensor → the largest magnitude measured in it (``histogram.amax``, not the threshold for INT8); a mapping
            or a function that gives None for what was not measured. Four times as much is allowed for.
        io: type of the inputs and outputs that are float32 now. ``"float16"`` makes them float16 without a Cast.

    Raises:
        ModelError: a name in ``keep`` is no node's; an If or Loop reads an input that is to become float16.
    """
    captured = {name for node in graph.nodes for name in node.captured}
    ends = {spec.name for spec in (*graph.inputs, *graph.outputs) if spec.dtype == "float32"}
    if io == "float16":
        _check_captured(graph, captured)
    pins: dict[str, Precision] = {**dict.fromkeys(captured, "float32"), **dict.fromkeys(ends, io)}
    decided = plan(with_holdable_scales(graph), keep, amax, [name for name, pin in pins.items() if pin == "float32"])
    pins = {name: pin for name, pin in pins.items() if decided.types.get(name) == "float32"}
    kept = tuple(Kept(graph.nodes[at].name, why) for at, why in decided.reasons.items())
    return Fp16Graph(_Conversion(decided, pins).graph(), kept)


def _check_captured(graph: Graph, captured: Collection[str]) -> None:
    for spec in (*graph.inputs, *graph.outputs):
        if spec.dtype == "float32" and spec.name in captured:
            raise ModelError(
                f"tensor {spec.name!r} cannot become float16",
                why="the body of an If, Loop or Scan reads it by that name, in float32",
                fix="leave inputs and outputs float32 (io: float32)",
            )


class _Conversion:
    """Who needs which tensor in which type, what it is then called, and the graph that follows."""

    def __init__(self, decided: Plan, pins: Mapping[str, Precision]) -> None:
        self._plan, self._source, self._pins = decided, decided.graph, pins
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
            inputs=tuple(map(self._end, self._source.inputs)),
            outputs=tuple(map(self._end, self._source.outputs)),
            specs=self._specs(),
        )

    def _native_types(self) -> Iterator[tuple[str, Precision]]:
        """What each float32 tensor that is fed or computed is without a Cast."""
        for spec in self._source.inputs:
            if spec.name in self._pins:
                yield spec.name, self._pins[spec.name]
        for at, node in enumerate(self._source.nodes):
            for position, name in enumerate(node.outputs):
                if self._plan.types.get(name) == "float32" and not makes_float32(node):
                    yield name, "float16" if self._plan.gives_fp16(at, position) else "float32"

    def _demand(self) -> dict[str, set[Precision]]:
        """Every float32 tensor → the types it has to exist in."""
        wanted: dict[str, set[Precision]] = {name: {own} for name, own in self._native.items()}
        for name, pin in self._pins.items():
            wanted.setdefault(name, set()).add(pin)
        for at, node in enumerate(self._source.nodes):
            for position, name in enumerate(node.inputs):
                if self._plan.types.get(name) == "float32" and not makes_float32(node):
                    wanted.setdefault(name, set()).add("float16" if self._plan.reads_fp16(at, position) else "float32")
        return wanted

    def _call(self, name: str) -> dict[Precision, str]:
        """Type → name: its own for the type that is pinned, or that it is computed in, or that it only has."""
        wanted = self._wanted[name]
        single: Precision = "float16" if wanted == {"float16"} else "float32"
        own = self._pins.get(name, self._native.get(name, single))
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
        found = dict(self._source.constants)
        for name, called in self._called.items():
            if name in self._source.constants:
                for dtype, alias in called.items():
                    stored = self._source.constants[name]
                    found[alias] = fp16_weight(self._source, name) if dtype == "float16" else stored
                    found[alias].flags.writeable = False
        return found

    def _end(self, spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype=self._pins[spec.name]) if spec.name in self._pins else spec

    def _specs(self) -> dict[str, TensorSpec]:
        specs = dict(self._source.specs)
        for name, called in self._called.items():
            if name in self._source.specs:
                for dtype, alias in called.items():
                    specs[alias] = replace(self._source.specs[name], name=alias, dtype=dtype)
        return specs


# What a float16 graph computes, on processors that have no float16 arithmetic.


def rounded(graph: Graph) -> Graph:
    """The same graph with every float16 node computed in float32 and its results rounded to float16.

    ONNX Runtime's CPU kernels compute chains of float16 nodes in float32 without rounding in between, which hides
    overflow; in this graph it shows. It is what a processor gives that multiplies float16 and adds up in float32, as
    tensor cores do; where a backend adds up in float16 the result is worse.

    Inputs and outputs keep names and types.
    """
    fp16_nodes = {name for name, dtype in dtypes(graph).items() if dtype == "float16"}
    names = Names(graph)
    read = {name for node in graph.nodes for name in node.inputs if name in fp16_nodes}
    wide = {name: names.new(f"{name}_wide") for name in sorted(read)}
    raw = {name: names.new(f"{name}_raw") for node in graph.nodes for name in node.outputs if name in fp16_nodes}
    steps = _Steps(wide, raw, {node.name for node in graph.nodes})
    nodes = [*steps.widened(spec.name for spec in graph.inputs)]
    for node in graph.nodes:
        nodes.extend(steps.of(node))
    stored = {wide[name]: graph.constants[name].astype(np.float32) for name in wide if name in graph.constants}
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **stored})


@dataclass(frozen=True, slots=True)
class _Steps:
    """Names of float16 tensors in float32: as they are read, and as they are computed; node names taken."""

    wide: Mapping[str, str]
    raw: Mapping[str, str]
    taken: set[str]

    def of(self, node: Node) -> Iterator[Node]:
        """A node in float32, what rounds its results, and what reads them back."""
        inputs = tuple(self.wide.get(name, name) for name in node.inputs)
        if node.op == "Cast":
            yield replace(node, inputs=inputs)
        else:
            yield replace(node, inputs=inputs, outputs=tuple(self.raw.get(name, name) for name in node.outputs))
            for name in filter(self.raw.__contains__, node.outputs):
                yield self._cast(self.raw[name], name, "float16")
        yield from self.widened(node.outputs)

    def widened(self, names: Iterable[str]) -> Iterator[Node]:
        """Casts to float32 of those that somebody reads."""
        for name in filter(self.wide.__contains__, names):
            yield self._cast(name, self.wide[name], "float32")

    def _cast(self, source: str, target: str, dtype: str) -> Node:
        name = free_name(f"Cast_{target}", self.taken)
        self.taken.add(name)
        return cast_node(source, target, dtype, name)
