"""A model as a DLA would compute it, as a float32 graph that runs anywhere.

It models the arithmetic that public sources tell of, and was never compared with a real DLA: docs/quantization.md has
what is modelled, what is assumed, and what is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edgert.graph.node import Graph, Node
from edgert.quantize.build import Array, Builder
from edgert.quantize.cache import dla_scale
from edgert.quantize.emulate_region import Way, unrounded, ways
from edgert.quantize.emulate_round import add_half, add_steps, add_values
from edgert.quantize.emulate_weight import WeightedForm, weighted_form
from edgert.quantize.operator import data_inputs, data_outputs, is_activation, is_weighted
from edgert.quantize.point import Scheme
from edgert.quantize.sign import never_negative

_EXACT = frozenset({"MaxPool", "GlobalMaxPool", "ReduceMax", "Relu", "Concat", "Max", "Min"})
"""On integers of one scale these give integers of that scale."""

_AVERAGING = frozenset({"AveragePool", "Resize", "Upsample"})
"""On integers of one scale these give fractions, which are rounded as they are: exact halves stay exact halves."""

_SUMS = frozenset({"Add", "Sub", "Sum", "Max", "Min"})
"""Operands are brought to the coarsest of their scales first."""


def emulate_dla(
    graph: Graph,
    scheme: Scheme,
    amax: Callable[[tuple[str, ...]], float],
    *,
    per_channel: bool = True,
    rounded: Mapping[str, Array] = {},
) -> Graph:
    """The graph with every float32 tensor of a DLA's as the DLA would have it; what no DLA can run stays float32.

    INT8 nodes work on integers, held in float32: sums of products are exact up to 2**24, a fused activation or
    residual addition sees them unrounded, and results are rounded once, halves away from zero, and clipped to -128
    and 127. Units that the scheme keeps compute on values rounded to float16, with float32 sums.

    Graph inputs and outputs keep their names. The output of every weighted node keeps its name too: it holds what the
    node gives before it is rounded, or, where the graph gives it out, the rounded values.

    Args:
        graph: of a prepared model, or one with the same names and other values.
        scheme: for target ``dla``; its kept units are the FP16 islands.
        amax: threshold of the tensors that share a scale.
        per_channel: one scale per output channel of a weight, else one per weight.
        rounded: weight name → int8 values of its shape decided elsewhere, for the scales of
            :func:`~edgert.quantize.weight.weight_scales`.

    Raises:
        ValueError: the scheme is for another target.
    """
    if scheme.target != "dla":
        raise ValueError(f"a scheme for a DLA is needed, this one is for {scheme.target!r}")
    form = _Form(graph, scheme, amax, per_channel, rounded)
    for node in graph.nodes:
        form.add(node)
    return form.builder.finish()


class _Form:
    """Emits node after node. A tensor is ``int8`` (stored as steps), ``half``, or ``real`` (as the float model has it).

    Several forms of one tensor are made when somebody reads them, once each: its steps, the values these stand for,
    its float16 values.
    """

    def __init__(
        self,
        graph: Graph,
        scheme: Scheme,
        amax: Callable[[tuple[str, ...]], float],
        per_channel: bool,
        rounded: Mapping[str, Array],
    ) -> None:
        self.builder = Builder(graph)
        self._graph, self._scheme, self._amax = graph, scheme, amax
        self._per_channel, self._rounded = per_channel, rounded
        self._way: Mapping[str, Way] = ways(graph, scheme)
        self._unrounded = unrounded(graph, scheme, self._way)
        self._positive = never_negative(graph)
        self._visible = graph.output_names.union(*(node.captured for node in graph.nodes))
        self._kind: dict[str, str] = {}
        self._raw = {spec.name: spec.name for spec in graph.inputs}
        self._made: dict[tuple[str, str], str] = {}
        self._scales: dict[str, np.float32] = {}

    def add(self, node: Node) -> None:
        """Emits one node, and whatever its inputs and outputs need around it."""
        way = self._way[node.name]
        if way == "float":
            self._emit(node, self._values, "real")
        elif way == "moved":
            self._move(node)
        elif way == "kept":
            self._add_kept(node)
        elif way in ("lookup", "half"):
            self._add_curve(node, "int8" if way == "lookup" else "half")
        elif is_weighted(self._graph, node):
            self._add_weighted(node)
        else:
            self._add_integer(node)

    # ------------------------------------------------------------------ forms of a tensor

    def _steps(self, name: str) -> str:
        """The integers that stand for a tensor."""
        return self._form(name, "int8", lambda: self._round(self._raw[name], self._scale(name), name))

    def _round(self, raw: str, scale: np.float32, name: str) -> str:
        return add_steps(self.builder, raw, scale, f"{name}_int8", positive=name in self._positive)

    def _from_steps(self, name: str) -> str:
        """What the integers stand for, whatever the tensor is stored as. Somebody may have it by the tensor's name."""

        def make() -> str:
            public = name in self._visible and self._raw.get(name) != name
            output = name if public else self.builder.name(f"{name}_from_int8")
            return add_values(self.builder, self._steps(name), self._scale(name), output)

        return self._form(name, "values", make)

    def _values(self, name: str) -> str:
        """What a node outside the DLA reads."""
        return self._from_steps(name) if self._kind.get(name) == "int8" else self._raw[name]

    def _int8_values(self, name: str) -> str:
        """What an INT8 node reads that does not work on integers."""
        return self._raw[name] if name in self._unrounded else self._from_steps(name)

    def _curve_values(self, name: str) -> str:
        """What a node reads that is computed in FP16 amid INT8 ones."""
        if self._kind.get(name) == "half":
            return self._raw[name]
        return self._half(name, self._from_steps(name))

    def _kept_values(self, name: str) -> str:
        """What a node kept in FP16 reads: an INT8 node hands its result over in FP16, as in the Q/DQ form."""
        if name in self._unrounded or self._kind.get(name) == "half":
            return self._raw[name]
        return self._half(name, self._raw.get(name) or self._from_steps(name))

    def _half(self, name: str, source: str) -> str:
        output = f"{source}_half"
        return self._form(name, output, lambda: add_half(self.builder, source, self.builder.name(output)))

    def _form(self, name: str, form: str, make: Callable[[], str]) -> str:
        if (name, form) not in self._made:
            self._made[name, form] = make()
        return self._made[name, form]

    def _scale(self, name: str) -> np.float32:
        if name not in self._scales:
            self._scales[name] = dla_scale(self._scheme, name, self._amax)
        return self._scales[name]

    def _has_one_scale(self, node: Node) -> bool:
        names = [*data_inputs(self._graph, node), *data_outputs(self._graph, node)]
        return len({float(self._scale(name)) for name in names}) == 1

    # ------------------------------------------------------------------ nodes

    def _emit(self, node: Node, read: Callable[[str], str], kind: str) -> None:
        """The node on one form of its inputs; its outputs are stored as ``kind``."""
        outputs = tuple(self._place(node, name, kind) for name in node.outputs)
        self._append(node, read, outputs)
        self._settle(node)

    def _append(self, node: Node, read: Callable[[str], str], outputs: tuple[str, ...]) -> None:
        data = set(data_inputs(self._graph, node))
        if self._way[node.name] == "float":  # may read float32 tensors in any place
            data = {name for name in node.inputs if is_activation(self._graph, name)}
        inputs = tuple(read(name) if name in data else name for name in node.inputs)
        self.builder.nodes.append(replace(node, inputs=inputs, outputs=outputs))

    def _place(self, node: Node, name: str, kind: str) -> str:
        """The tensor that an output is computed into, before it is rounded."""
        if name not in data_outputs(self._graph, node):
            return name
        self._kind[name] = kind
        public = kind == "int8" and name in self._visible
        self._raw[name] = self.builder.name(f"{name}_raw") if public else name
        return self._raw[name]

    def _settle(self, node: Node) -> None:
        """Gives visible integer outputs their names at once."""
        for name in data_outputs(self._graph, node):
            if self._kind[name] == "int8" and name in self._visible:
                self._from_steps(name)

    def _move(self, node: Node) -> None:
        (source,) = data_inputs(self._graph, node)
        kind = self._kind.get(source, "real")
        if kind != "int8":
            self._emit(node, self._values, kind)
        elif self._has_one_scale(node):
            self._add_exact(node)
        else:
            self._emit(node, self._from_steps, "int8")

    def _add_integer(self, node: Node) -> None:
        names = data_inputs(self._graph, node)
        plain = all(is_activation(self._graph, name) for name in node.inputs if name) or node.op in _AVERAGING
        if names and self._unrounded.isdisjoint(names) and (plain or node.op == "ReduceMax"):
            if node.op in _EXACT | _AVERAGING and self._has_one_scale(node):
                return self._add_exact(node)
            if node.op in _SUMS and len(node.inputs) > 1:
                return self._add_sum(node)
        return self._emit(node, self._int8_values, "int8")

    def _add_exact(self, node: Node) -> None:
        """The node on integers, to integers of the same scale."""
        outputs = []
        for name in node.outputs:
            if name not in data_outputs(self._graph, node):
                outputs.append(name)
                continue
            self._kind[name] = "int8"
            outputs.append(self.builder.name(f"{name}_int8"))
            self._made[name, "int8"] = outputs[-1]
        self._append(node, self._steps, tuple(outputs))
        if node.op in _AVERAGING:
            (name,) = data_outputs(self._graph, node)
            self._made[name, "int8"] = self._round(outputs[0], np.float32(1), name)
        self._settle(node)

    def _add_sum(self, node: Node) -> None:
        """The node on integers of the coarsest scale among its operands, and the values of the result."""
        common = max((self._scale(name) for name in node.inputs), key=float)
        total = self.builder.name(f"{node.outputs[0]}_sum")
        self._append(node, lambda name: self._at(name, common), (total,))
        add_values(self.builder, total, common, self._place(node, node.outputs[0], "int8"))
        self._settle(node)

    def _at(self, name: str, scale: np.float32) -> str:
        """The steps of a tensor at a scale that is its own or coarser."""
        if scale == self._scale(name):
            return self._steps(name)
        return self._form(name, f"at {scale}", lambda: self._round(self._from_steps(name), scale, name))

    def _add_weighted(self, node: Node) -> None:
        weight = self._weight(node)
        inputs = [self._steps(node.inputs[0]), self.builder.store(weight.values, f"{node.inputs[1]}_int8")]
        if weight.bias is not None:
            inputs.append(self.builder.store(weight.bias, f"{node.inputs[2]}_int32"))
        total = self.builder.name(f"{node.outputs[0]}_sum")
        made = replace(node, inputs=tuple(inputs), outputs=(total,), attributes=weight.attributes)
        self.builder.nodes.append(made)
        add_values(self.builder, total, weight.steps, self._place(node, node.outputs[0], "int8"))
        self._settle(node)

    def _weight(self, node: Node) -> WeightedForm:
        input_scale = self._scale(node.inputs[0])
        return weighted_form(self._graph, node, input_scale, self._per_channel, self._rounded)

    def _add_curve(self, node: Node, kind: str) -> None:
        """A node computed in FP16 on integers' values."""
        (output,) = data_outputs(self._graph, node)
        exact = self.builder.name(f"{output}_exact")
        self._append(node, self._curve_values, (exact,))
        add_half(self.builder, exact, self._place(node, output, kind))
        self._settle(node)

    def _add_kept(self, node: Node) -> None:
        """A node on float16 values, its stored tensors too; float32 within a fused unit."""
        short = replace(node, inputs=tuple(self._half_constant(name) for name in node.inputs))
        if node.outputs[0] in self._unrounded:
            return self._emit(short, self._kept_values, "half")
        outputs = [self.builder.name(f"{name}_exact") if name in self._floats(node) else name for name in node.outputs]
        self._append(short, self._kept_values, tuple(outputs))
        for name, exact in zip(node.outputs, outputs, strict=True):
            if name in self._floats(node):
                add_half(self.builder, exact, self._place(node, name, "half"))
        return None

    def _floats(self, node: Node) -> tuple[str, ...]:
        return data_outputs(self._graph, node)

    def _half_constant(self, name: str) -> str:
        stored = self._graph.constants.get(name)
        if stored is None or stored.dtype != np.float32:
            return name
        with np.errstate(over="ignore"):
            return self.builder.store(stored.astype(np.float16).astype(np.float32), f"{name}_fp16")
