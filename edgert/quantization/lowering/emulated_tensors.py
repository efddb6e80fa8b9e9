"""The forms of a tensor in an emulated graph: as computed, as integers, as the values of these, in float16."""

from collections.abc import Callable, Collection, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from dla import fuses
from edgert.graph import Graph, Node
from edgert.graph.draft import Builder
from edgert.graph.operators import is_copy, non_negative
from edgert.quantization.scheme.units import Scheme, data_inputs, data_outputs

LOW, HIGH = -128, 127
"""Activations are clipped to these, weights to ±127 (TensorRT's guide to quantized types)."""

_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
"""floor(|v| + 0.5) would round 0.49999997 up, because the sum is rounded first. With this, for every float32 v, the sum
reaches the next integer exactly when |v| is a half or more above the last."""

_FLOAT, _FLOAT16 = 1, 10  # TensorProto.DataType, which the ONNX standard fixes


def away(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the nearest integers, halves away from zero."""
    whole = np.trunc(values)
    rounded: npt.NDArray[np.float64] = np.where(np.abs(values - whole) >= 0.5, whole + np.sign(values), whole)
    return rounded


def add_steps(builder: Builder, tensor: str, scale: np.float32, wanted: str, *, positive: bool = False) -> str:
    """Add nodes that turn a tensor into its integers, held in float32; NaN stays NaN.

    Args:
        builder: of the emulated graph.
        tensor: the tensor to round.
        scale: of one step; 1 for a tensor that is in steps already.
        wanted: the name to start from for new tensors.
        positive: the tensor is never negative, which saves half the work.

    Returns:
        The name of the result, like ``wanted``.
    """

    def add(op: str, inputs: list[str], end: str) -> str:
        return builder.add(op, inputs, builder.name(f"{wanted}_{end}"))

    def number(value: np.float32, end: str) -> str:
        return builder.store(np.asarray(value, np.float32), f"{wanted}_{end}_by")

    steps = tensor if scale == 1 else add("Div", [tensor, number(scale, "steps")], "steps")
    size = steps if positive else add("Abs", [steps], "size")
    rounded = add("Floor", [add("Add", [size, number(_BELOW_HALF, "up")], "up")], "floor")
    if not positive:
        rounded = add("Mul", [rounded, add("Sign", [steps], "sign")], "rounded")
    bounds = [builder.store(np.asarray(bound, np.float32), f"int8_{bound}") for bound in (LOW, HIGH)]
    return builder.add("Clip", [rounded, *bounds], builder.name(wanted))


def add_values(builder: Builder, steps: str, scale: np.float32 | npt.NDArray[np.float32], output: str) -> str:
    """Add the product of steps and their scale, as ``output``."""
    factor = builder.store(np.asarray(scale, np.float32), f"{output}_scale")
    return builder.add("Mul", [steps, factor], output)


def add_fp16(builder: Builder, tensor: str, output: str) -> str:
    """Add the rounding of a tensor to float16, halves to even, as ``output``; too large values become infinite."""
    short = builder.add("Cast", [tensor], builder.name(f"{output}_fp16"), {"to": _FLOAT16})
    return builder.add("Cast", [short], output, {"to": _FLOAT})


# How a DLA would run each node: in INT8, in FP16, or not at all.
#
# The scheme holds the verdict of the rules of :mod:`dla` on every node, its parameters and its neighbors.

Mode = Literal["int8", "lookup", "fp16", "float", "moved"]
"""``int8``: integers in, integers out. ``lookup``: integers in and out, computed in FP16 in between. ``fp16``: in FP16,
because it was asked to be or because a DLA has it in nothing else. ``float``: not on the DLA. ``moved``: values pass as
they are."""


def modes(graph: Graph, scheme: Scheme) -> Mapping[str, Mode]:
    """Return node name → how it runs, for every node."""
    kept = frozenset(name for unit in scheme.kept for name in unit.nodes)
    able = frozenset(name for point in scheme.points.values() for name in point.readers)

    def mode(node: Node) -> Mode:
        form = scheme.forms[node.name]
        if node.domain or node.captured or not data_inputs(graph, node) or not data_outputs(graph, node):
            return "float"
        if is_copy(graph, node):
            return "moved"
        if form == "fp16" or (form != "none" and node.name in kept):
            return "fp16"
        return form if form != "none" and node.name in able else "float"

    return {node.name: mode(node) for node in graph.nodes}


def unrounded(graph: Graph, scheme: Scheme, mode: Mapping[str, Mode]) -> frozenset[str]:
    """Return the tensors inside fused units, which are never rounded.

    The next node is the only reader of a convolution or addition and runs in the same kernel, so it sees the exact
    values.
    """
    units = {name: unit.name for unit in (*scheme.units, *scheme.kept) for name in unit.nodes}
    found = set()
    for node in graph.nodes:
        if node.name in units and mode[node.name] in ("int8", "fp16") and graph.is_private(node.outputs[0]):
            (reader,) = graph.consumers[node.outputs[0]]
            same = mode[node.name] == mode[reader.name] and units.get(reader.name) == units[node.name]
            if same and fuses(node.op, reader.op):
                found.add(node.outputs[0])
    return frozenset(found)


Kind = Literal["int8", "fp16", "real"]
"""How a DLA, or what runs beside it, keeps a tensor; ``real`` is float32."""


class Tensors:
    """The forms of tensors, each made once, when it is first read.

    Args:
        graph: the float graph.
        builder: of the emulated graph.
        scales: tensor → value of one step.
        unrounded: tensors that the next node reads as they were computed.
    """

    def __init__(
        self, graph: Graph, builder: Builder, scales: Callable[[str], np.float32], unrounded: Collection[str]
    ) -> None:
        self._builder, self._scale, self._unrounded = builder, scales, unrounded
        self._positive = non_negative(graph)
        self._visible = graph.output_names.union(*(node.captured for node in graph.nodes))
        self._computed = {spec.name: spec.name for spec in graph.inputs}
        self._kinds: dict[str, Kind] = {}
        self._made: dict[tuple[str, str], str] = {}

    def kind(self, name: str) -> Kind:
        """Return how a tensor is stored; a fed one is ``real``."""
        return self._kinds.get(name, "real")

    def place(self, name: str, kind: Kind) -> str:
        """Return the name under which a node writes an output that will be stored as ``kind``."""
        self._kinds[name] = kind
        public = kind == "int8" and name in self._visible
        self._computed[name] = self._builder.name(f"{name}_raw") if public else name
        return self._computed[name]

    def set_steps(self, name: str, steps: str) -> None:
        """Record that a tensor exists as integers only."""
        self._kinds[name] = "int8"
        self._made[name, "int8"] = steps

    def close(self, name: str) -> None:
        """Make sure that a tensor seen from outside exists under its own name."""
        if self.kind(name) == "int8" and name in self._visible:
            self.outside(name)

    def steps(self, name: str) -> str:
        """Return the integers of a tensor."""
        return self._form(name, "int8", lambda: self.rounded(self._computed[name], self._scale(name), name))

    def steps_at(self, name: str, scale: np.float32) -> str:
        """Return the integers at a coarser scale, from those at the tensor's own."""
        if scale == self._scale(name):
            return self.steps(name)
        return self._form(name, f"int8 at {scale}", lambda: self.rounded(self.from_steps(name), scale, name))

    def rounded(self, source: str, scale: np.float32, name: str) -> str:
        """Return integers of some form of a tensor."""
        return add_steps(self._builder, source, scale, f"{name}_int8", positive=name in self._positive)

    def from_steps(self, name: str) -> str:
        """Return the values of the integers, however the tensor is stored."""

        def make() -> str:
            output = self._builder.name(f"{name}_from_int8")
            return add_values(self._builder, self.steps(name), self._scale(name), output)

        return self._form(name, "values", make)

    def inside(self, name: str) -> str:
        """Return what an INT8 node reads that does not work on integers themselves."""
        return self._computed[name] if name in self._unrounded else self.from_steps(name)

    def outside(self, name: str) -> str:
        """Return what a node outside the DLA reads: an INT8 node writes its result in FP16 for it."""
        return self.fp16(name) if self.kind(name) == "int8" else self._computed[name]

    def fp16(self, name: str) -> str:
        """Return what a node in FP16 reads, unrounded within a fused unit."""
        if name in self._unrounded or self.kind(name) == "fp16":
            return self._computed[name]
        return self._fp16(name, self._computed.get(name) or self.from_steps(name))

    def fp16_from_steps(self, name: str) -> str:
        """Return what a node reads that is computed in FP16 among INT8 ones."""
        return self._computed[name] if self.kind(name) == "fp16" else self._fp16(name, self.from_steps(name))

    def _fp16(self, name: str, source: str) -> str:
        """Return the float16 form; of its sources, computed and stored, the first keeps the tensor's name outside."""

        def make() -> str:
            public = self.kind(name) == "int8" and name in self._visible and self._computed.get(name, source) == source
            return add_fp16(self._builder, source, name if public else self._builder.name(f"{source}_fp16"))

        return self._form(name, f"fp16 {source}", make)

    def _form(self, name: str, form: str, make: Callable[[], str]) -> str:
        if (name, form) not in self._made:
            self._made[name, form] = make()
        return self._made[name, form]
