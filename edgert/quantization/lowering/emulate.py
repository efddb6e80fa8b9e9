"""Emulation of a model on a DLA by a float32 graph that runs anywhere.

It follows the arithmetic that public sources describe, and was never compared with a real DLA. docs/int8-forms.md lists
what is emulated, what is assumed, and what is left out.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dla import fuses
from edgert.graph import Graph, Node, draft, model, operators
from edgert.quantization.lowering.trt_form import Amax, DlaScales
from edgert.quantization.lowering.weights import bias_factor, integer_weight, with_plain_bias
from edgert.quantization.scheme.units import Scheme, data_inputs, data_outputs, is_activation, is_weighted

LOW, HIGH = -128, 127
"""Range of stored activations; weights are within ±127 (TensorRT's guide to quantized types)."""

_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
"""Summand for rounding: floor(|v| + 0.5) would round 0.49999997 up, as the sum is rounded first. With this summand it
reaches the next integer exactly when the fraction of |v| is a half or more, for every float32."""

_FLOAT, _FLOAT16 = 1, 10  # TensorProto.DataType, which the ONNX standard fixes


def round_half_away(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the nearest integers, halves away from zero."""
    whole = np.trunc(values)
    rounded: npt.NDArray[np.float64] = np.where(np.abs(values - whole) >= 0.5, whole + np.sign(values), whole)
    return rounded


def add_steps(builder: draft.Builder, tensor: str, scale: np.float32, wanted: str, *, positive: bool = False) -> str:
    """Add nodes that turn a tensor into its integers, held in float32; NaN stays NaN.

    ``scale`` is 1 for a tensor that is in steps already. ``positive`` is for a tensor that is never negative, and saves
    half the work.
    """

    def add(op: str, inputs: list[str], end: str) -> str:
        return builder.add(op, inputs, builder.name(f"{wanted}_{end}"))

    def number(value: np.float32, end: str) -> str:
        return builder.share_constant(np.asarray(value, np.float32), f"{wanted}_{end}_by")

    steps = tensor if scale == 1 else add("Div", [tensor, number(scale, "steps")], "steps")
    size = steps if positive else add("Abs", [steps], "size")
    rounded = add("Floor", [add("Add", [size, number(_BELOW_HALF, "up")], "up")], "floor")
    if not positive:
        rounded = add("Mul", [rounded, add("Sign", [steps], "sign")], "rounded")
    bounds = [builder.share_constant(np.asarray(bound, np.float32), f"int8_{bound}") for bound in (LOW, HIGH)]
    return builder.add("Clip", [rounded, *bounds], builder.name(wanted))


def add_values(builder: draft.Builder, steps: str, scale: np.float32 | npt.NDArray[np.float32], output: str) -> str:
    """Add the product of integers and their scale, as ``output``; return ``output``."""
    factor = builder.share_constant(np.asarray(scale, np.float32), f"{output}_scale")
    return builder.add("Mul", [steps, factor], output)


def add_fp16(builder: draft.Builder, tensor: str, output: str) -> str:
    """Add the rounding of a tensor to float16 as ``output``; too large values become infinite. Return ``output``."""
    short = builder.add("Cast", [tensor], builder.name(f"{output}_fp16"), {"to": _FLOAT16})
    return builder.add("Cast", [short], output, {"to": _FLOAT})


Mode = Literal["int8", "lookup", "fp16", "float", "moved"]
"""Execution of a node on a DLA. ``int8``: on integers. ``lookup``: integers in and out, computed in FP16. ``fp16``: in
FP16, because it is kept or has no other form. ``float``: not on the DLA. ``moved``: values are only moved."""


def execution_modes(graph: Graph, scheme: Scheme) -> Mapping[str, Mode]:
    """Return the mode of every node by name, from the verdicts of :mod:`dla` in the scheme."""
    kept = frozenset(name for unit in scheme.kept for name in unit.nodes)
    able = frozenset(name for point in scheme.points.values() for name in point.readers)

    def mode(node: Node) -> Mode:
        form = scheme.forms[node.name]
        if node.domain or node.captured or not data_inputs(graph, node) or not data_outputs(graph, node):
            return "float"
        if operators.is_copy(graph, node):
            return "moved"
        if form == "fp16" or (form != "none" and node.name in kept):
            return "fp16"
        return form if form != "none" and node.name in able else "float"

    return {node.name: mode(node) for node in graph.nodes}


def unrounded_tensors(graph: Graph, scheme: Scheme, mode: Mapping[str, Mode]) -> frozenset[str]:
    """Return the tensors inside fused units, which the same kernel reads before they are rounded."""
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
"""Type in which a tensor is stored; ``real`` is float32, outside the DLA."""


class Tensors:
    """Forms of tensors in the emulated graph, each added when it is first read.

    Tensors of ``unrounded`` are read unrounded.
    """

    def __init__(
        self, graph: Graph, builder: draft.Builder, scales: Callable[[str], np.float32], unrounded: Collection[str]
    ) -> None:
        self._builder, self._scale, self._unrounded = builder, scales, unrounded
        self._positive = operators.non_negative(graph)
        self._visible = graph.output_names.union(*(node.captured for node in graph.nodes))
        self._computed = {spec.name: spec.name for spec in graph.inputs}
        self._kinds: dict[str, Kind] = {}
        self._made: dict[tuple[str, str], str] = {}

    def kind(self, name: str) -> Kind:
        """Return the type in which a tensor is stored; a fed one is ``real``."""
        return self._kinds.get(name, "real")

    def output_name(self, name: str, kind: Kind) -> str:
        """Return the name under which a node writes an output that is stored as ``kind``."""
        self._kinds[name] = kind
        public = kind == "int8" and name in self._visible
        self._computed[name] = self._builder.name(f"{name}_raw") if public else name
        return self._computed[name]

    def set_steps(self, name: str, steps: str) -> None:
        """Record the integers of a tensor that exists in no other form."""
        self._kinds[name] = "int8"
        self._made[name, "int8"] = steps

    def expose(self, name: str) -> None:
        """Add the form with its own name of a tensor that the graph returns or a body reads."""
        if self.kind(name) == "int8" and name in self._visible:
            self.float_operand(name)

    def steps(self, name: str) -> str:
        """Return the integers of a tensor."""
        return self._form(name, "int8", lambda: self.add_rounding(self._computed[name], self._scale(name), name))

    def steps_at(self, name: str, scale: np.float32) -> str:
        """Return the integers of a tensor at a coarser scale, rounded from those at its own."""
        if scale == self._scale(name):
            return self.steps(name)
        return self._form(name, f"int8 at {scale}", lambda: self.add_rounding(self.from_steps(name), scale, name))

    def add_rounding(self, source: str, scale: np.float32, name: str) -> str:
        """Add the rounding of a form of a tensor; return its integers."""
        return add_steps(self._builder, source, scale, f"{name}_int8", positive=name in self._positive)

    def from_steps(self, name: str) -> str:
        """Return the values of a tensor's integers."""

        def make() -> str:
            output = self._builder.name(f"{name}_from_int8")
            return add_values(self._builder, self.steps(name), self._scale(name), output)

        return self._form(name, "values", make)

    def int8_operand(self, name: str) -> str:
        """Return the tensor that an INT8 node reads if it does not work on integers."""
        return self._computed[name] if name in self._unrounded else self.from_steps(name)

    def float_operand(self, name: str) -> str:
        """Return the tensor that a node outside the DLA reads, FP16 where an INT8 node writes it."""
        return self.fp16_operand(name) if self.kind(name) == "int8" else self._computed[name]

    def fp16_operand(self, name: str) -> str:
        """Return the tensor that an FP16 node reads, unrounded within a fused unit."""
        if name in self._unrounded or self.kind(name) == "fp16":
            return self._computed[name]
        return self._fp16(name, self._computed.get(name) or self.from_steps(name))

    def fp16_operand_from_steps(self, name: str) -> str:
        """Return the tensor that a ``lookup`` node reads."""
        return self._computed[name] if self.kind(name) == "fp16" else self._fp16(name, self.from_steps(name))

    def _fp16(self, name: str, source: str) -> str:
        """Return the float16 form of ``source``, under the tensor's own name where that is visible and unused."""

        def make() -> str:
            public = self.kind(name) == "int8" and name in self._visible and self._computed.get(name, source) == source
            return add_fp16(self._builder, source, name if public else self._builder.name(f"{source}_fp16"))

        return self._form(name, f"fp16 {source}", make)

    def _form(self, name: str, form: str, make: Callable[[], str]) -> str:
        if (name, form) not in self._made:
            self._made[name, form] = make()
        return self._made[name, form]


_EXACT = operators.of_values("picked") | {"Relu"}
"""Operators that make integers of the same scale from integers."""

_AVERAGING = frozenset({"AveragePool", "Resize"})
"""Operators that make fractions from integers, which are rounded before they are scaled, so that halves stay exact."""


def emulate_dla(graph: Graph, scheme: Scheme, amax: Amax, *, rounded: Mapping[str, model.Array] = {}) -> Graph:
    """Return the graph with every float32 tensor as a DLA would compute it; what no DLA can run stays float32.

    INT8 nodes work on integers, held in float32: sums of products are exact up to 2**24. A fused activation or residual
    addition reads them unrounded. Results are rounded once, halves away from zero, and clipped to -128 and 127. Kept
    units compute on values rounded to float16, with float32 sums. Results of INT8 nodes are rounded to float16 for all
    other nodes and for the graph's outputs. Run the graph unfused: :class:`~edgert.backend.ort.Function` with
    ``fused=False``.

    Graph inputs and outputs keep their names, and so does the output of every weighted node. It holds the result before
    rounding or, where it is a graph output, that result in float16. Arguments are those of
    :func:`~edgert.quantization.lowering.lower.lower`, with a scheme for target ``dla``.
    """
    form = _Emitter(graph, scheme, amax, rounded)
    for node in graph.nodes:
        form.add(node)
    return form.builder.finish()


class _Emitter:
    """Emitter of the nodes in order, each with the forms of its inputs."""

    def __init__(self, graph: Graph, scheme: Scheme, amax: Amax, rounded: Mapping[str, model.Array]) -> None:
        self.builder = draft.Builder(graph)
        self._graph, self._rounded = graph, rounded
        self._scales = DlaScales(graph, scheme, amax)
        self._mode = execution_modes(graph, scheme)
        self._unrounded = unrounded_tensors(graph, scheme, self._mode)
        self._able = frozenset(name for point in scheme.points.values() for name in point.readers)
        self._tensors = Tensors(graph, self.builder, self._scales.__getitem__, self._unrounded)

    def add(self, node: Node) -> None:
        """Emit a node, and the conversions of its inputs and outputs."""
        mode = self._mode[node.name]
        if mode == "float":
            self._emit(node, self._tensors.float_operand, "real")
        elif mode == "moved":
            self._move(node)
        elif mode == "fp16":
            self._add_fp16(self._in_fp16(node), self._tensors.fp16_operand, "fp16")
        elif mode == "lookup":
            self._add_fp16(node, self._tensors.fp16_operand_from_steps, "int8")
        elif is_weighted(self._graph, node) and all(name in self._graph.constants for name in node.inputs[2:] if name):
            self._add_weighted(node)
        else:
            self._add_integer(node)
        for name in data_outputs(self._graph, node):
            self._tensors.expose(name)

    def _emit(self, node: Node, read: Callable[[str], str], kind: Kind) -> None:
        floats = data_outputs(self._graph, node)
        outputs = [self._tensors.output_name(name, kind) if name in floats else name for name in node.outputs]
        self._append(node, read, outputs)

    def _append(self, node: Node, read: Callable[[str], str], outputs: list[str]) -> None:
        data: Collection[str] = data_inputs(self._graph, node)
        if self._mode[node.name] == "float":  # reads float32 tensors at any position
            data = [name for name in node.inputs if is_activation(self._graph, name)]
        inputs = tuple(read(name) if name in data else name for name in node.inputs)
        self.builder.nodes.append(replace(node, inputs=inputs, outputs=tuple(outputs)))

    def _move(self, node: Node) -> None:
        (source,) = data_inputs(self._graph, node)
        if self._tensors.kind(source) != "int8":
            self._emit(node, self._tensors.float_operand, self._tensors.kind(source))
        elif node.name not in self._able:
            self._emit(node, self._tensors.float_operand, "fp16")
        elif self._has_one_scale(node):
            self._add_exact(node)
        else:
            self._emit(node, self._tensors.from_steps, "int8")

    def _has_one_scale(self, node: Node) -> bool:
        names = [*data_inputs(self._graph, node), *data_outputs(self._graph, node)]
        return len({float(self._scales[name]) for name in names}) == 1

    def _add_integer(self, node: Node) -> None:
        """Emit a node without weights, on integers where all its operands have one scale, else on real values."""
        data = data_inputs(self._graph, node)
        alone = node.op in _AVERAGING or operators.about(node.op).kind == "reduction"  # other inputs are parameters
        if self._unrounded.isdisjoint(data) and (alone or set(filter(None, node.inputs)) <= set(data)):
            if node.op in _EXACT | _AVERAGING and self._has_one_scale(node):
                return self._add_exact(node)
            if node.op in operators.SUMS and len(node.inputs) > 1:  # integers of the coarsest scale among the operands
                common = max((self._scales[name] for name in node.inputs), key=float)
                total = self.builder.name(f"{node.outputs[0]}_sum")
                self._append(node, lambda name: self._tensors.steps_at(name, common), [total])
                add_values(self.builder, total, common, self._tensors.output_name(node.outputs[0], "int8"))
                return None
        return self._emit(node, self._tensors.int8_operand, "int8")

    def _add_exact(self, node: Node) -> None:
        floats = data_outputs(self._graph, node)
        outputs = [self.builder.name(f"{name}_steps") if name in floats else name for name in node.outputs]
        self._append(node, self._tensors.steps, outputs)
        for name, steps in zip(node.outputs, outputs, strict=True):
            if name in floats:
                fractional = node.op in _AVERAGING and self._mode[node.name] == "int8"
                found = self._tensors.add_rounding(steps, np.float32(1), name) if fractional else steps
                self._tensors.set_steps(name, found)

    def _add_weighted(self, node: Node) -> None:
        """Emit products of integers, their sum with the bias, and the value that the sum represents.

        The bias is rounded to steps of the input's scale times the weight's, as in int32. Int32 would overflow for
        weights that are tiny beside their bias; this graph does not.
        """
        weight = integer_weight(self._graph, node, self._rounded)
        values = weight.values.astype(np.float32)
        inputs = [self._tensors.steps(node.inputs[0]), self.builder.share_constant(values, f"{node.inputs[1]}_int8")]
        steps = np.asarray(self._scales[node.inputs[0]] * weight.scales, np.float32)
        attributes: Mapping[str, Any] = node.attributes
        if name := "".join(node.inputs[2:3]):
            exact = self._graph.constants[name].astype(np.float64) * bias_factor(node) / steps.astype(np.float64)
            inputs.append(self.builder.share_constant(round_half_away(exact).astype(np.float32), f"{name}_int32"))
            attributes = with_plain_bias(node)
        if steps.ndim and operators.about(node.op).kind == "conv":  # channels come before the spatial dimensions
            steps = steps.reshape([-1, *[1] * (values.ndim - 2)])
        total = self.builder.name(f"{node.outputs[0]}_sum")
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=(total,), attributes=attributes))
        add_values(self.builder, total, steps, self._tensors.output_name(node.outputs[0], "int8"))

    def _add_fp16(self, node: Node, read: Callable[[str], str], kind: Kind) -> None:
        """Emit a node on float16 values, its results rounded to float16 unless the next node is fused with it."""
        if not self._unrounded.isdisjoint(node.outputs):
            return self._emit(node, read, kind)
        floats = data_outputs(self._graph, node)
        outputs = [self.builder.name(f"{name}_exact") if name in floats else name for name in node.outputs]
        self._append(node, read, outputs)
        for name, exact in zip(node.outputs, outputs, strict=True):
            if name in floats:
                add_fp16(self.builder, exact, self._tensors.output_name(name, kind))
        return None

    def _in_fp16(self, node: Node) -> Node:
        inputs = list(node.inputs)
        for place, name in enumerate(inputs):
            stored = self._graph.constants.get(name)
            if stored is not None and stored.dtype == np.float32:
                with np.errstate(over="ignore"):
                    rounded = stored.astype(np.float16).astype(np.float32)
                inputs[place] = self.builder.share_constant(rounded, f"{name}_fp16")
        return replace(node, inputs=tuple(inputs))
