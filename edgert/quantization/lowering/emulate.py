"""A model as a DLA would compute it, as a float32 graph that runs anywhere.

It models the arithmetic that public sources describe, and was never compared with a real DLA. docs/quantization.md
lists what is modeled, what is assumed, and what is left out.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgert.graph import Graph, Node
from edgert.graph.draft import Builder
from edgert.graph.model import Array
from edgert.graph.operators import SUMS, about, of_values
from edgert.quantization.lowering.emulated_tensors import Kind, Tensors, add_fp16, add_values, away, modes, unrounded
from edgert.quantization.lowering.trt_form import Amax, DlaScales
from edgert.quantization.lowering.weights import bias_factor, integer_weight, with_plain_bias
from edgert.quantization.scheme.units import Scheme, data_inputs, data_outputs, is_activation, is_weighted

_EXACT = of_values("picked") | {"Relu"}
"""On integers of one scale these give integers of that scale."""

_AVERAGING = frozenset({"AveragePool", "Resize"})
"""On integers of one scale these give fractions, which are rounded as they are: exact halves stay exact halves."""


def emulate_dla(
    graph: Graph, scheme: Scheme, amax: Amax, *, per_channel: bool = True, rounded: Mapping[str, Array] = {}
) -> Graph:
    """Return the graph with every float32 tensor as a DLA would have it; what no DLA can run stays float32.

    INT8 nodes work on integers, held in float32: sums of products are exact up to 2**24. A fused activation or residual
    addition sees them unrounded. Results are rounded once, halves away from zero, and clipped to -128 and 127. Units
    that the scheme keeps compute on values rounded to float16, with float32 sums. Outputs of INT8 nodes to other nodes
    and to the graph are rounded to float16. Run it unfused: :class:`~edgert.backend.ort.Function` with ``fused=False``.

    Graph inputs and outputs keep their names. The output of every weighted node keeps its name too. It holds the result
    before rounding, or, where it is a graph output, that result in float16.

    Args:
        graph: of a prepared model, or one with the same names and other values.
        scheme: for target ``dla``; its kept units are the FP16 islands.
        amax: threshold of the tensors that share a scale.
        per_channel: one scale per output channel of a weight, else one per weight.
        rounded: weight name → int8 values of its shape decided elsewhere, for the scales of
            :func:`~edgert.quantization.lowering.weights.weight_scales`.

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
    """Emitter of node after node, each with the forms of its inputs that it reads."""

    def __init__(
        self, graph: Graph, scheme: Scheme, amax: Amax, per_channel: bool, rounded: Mapping[str, Array]
    ) -> None:
        self.builder = Builder(graph)
        self._graph, self._per_channel, self._rounded = graph, per_channel, rounded
        self._scales = DlaScales(graph, scheme, amax)
        self._mode = modes(graph, scheme)
        self._unrounded = unrounded(graph, scheme, self._mode)
        self._able = frozenset(name for point in scheme.points.values() for name in point.readers)
        self._tensors = Tensors(graph, self.builder, self._scales.__getitem__, self._unrounded)

    def add(self, node: Node) -> None:
        """Emit a node, with whatever its inputs and outputs need around it."""
        mode = self._mode[node.name]
        if mode == "float":
            self._emit(node, self._tensors.outside, "real")
        elif mode == "moved":
            self._move(node)
        elif mode == "fp16":
            self._add_fp16(self._in_fp16(node), self._tensors.fp16, "fp16")
        elif mode == "lookup":
            self._add_fp16(node, self._tensors.fp16_from_steps, "int8")
        elif is_weighted(self._graph, node) and all(name in self._graph.constants for name in node.inputs[2:] if name):
            self._add_weighted(node)
        else:
            self._add_integer(node)
        for name in data_outputs(self._graph, node):
            self._tensors.close(name)

    def _emit(self, node: Node, read: Callable[[str], str], kind: Kind) -> None:
        """Emit the node on one form of its inputs; its outputs are stored as ``kind``."""
        floats = data_outputs(self._graph, node)
        outputs = [self._tensors.place(name, kind) if name in floats else name for name in node.outputs]
        self._append(node, read, outputs)

    def _append(self, node: Node, read: Callable[[str], str], outputs: list[str]) -> None:
        data: Collection[str] = data_inputs(self._graph, node)
        if self._mode[node.name] == "float":  # may read float32 tensors in any place
            data = [name for name in node.inputs if is_activation(self._graph, name)]
        inputs = tuple(read(name) if name in data else name for name in node.inputs)
        self.builder.nodes.append(replace(node, inputs=inputs, outputs=tuple(outputs)))

    def _move(self, node: Node) -> None:
        (source,) = data_inputs(self._graph, node)
        if self._tensors.kind(source) != "int8":
            self._emit(node, self._tensors.outside, self._tensors.kind(source))
        elif node.name not in self._able:
            self._emit(node, self._tensors.outside, "fp16")
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
        alone = node.op in _AVERAGING or about(node.op).kind == "reduction"  # further inputs are parameters
        if self._unrounded.isdisjoint(data) and (alone or set(filter(None, node.inputs)) <= set(data)):
            if node.op in _EXACT | _AVERAGING and self._has_one_scale(node):
                return self._add_exact(node)
            if node.op in SUMS and len(node.inputs) > 1:  # integers of the coarsest scale among the operands
                common = max((self._scales[name] for name in node.inputs), key=float)
                total = self.builder.name(f"{node.outputs[0]}_sum")
                self._append(node, lambda name: self._tensors.steps_at(name, common), [total])
                add_values(self.builder, total, common, self._tensors.place(node.outputs[0], "int8"))
                return None
        return self._emit(node, self._tensors.inside, "int8")

    def _add_exact(self, node: Node) -> None:
        """Emit the node on integers, to integers of the same scale."""
        floats = data_outputs(self._graph, node)
        outputs = [self.builder.name(f"{name}_steps") if name in floats else name for name in node.outputs]
        self._append(node, self._tensors.steps, outputs)
        for name, steps in zip(node.outputs, outputs, strict=True):
            if name in floats:
                fractional = node.op in _AVERAGING and self._mode[node.name] == "int8"
                found = self._tensors.rounded(steps, np.float32(1), name) if fractional else steps
                self._tensors.set_steps(name, found)

    def _add_weighted(self, node: Node) -> None:
        """Emit products of integers, their sum with the bias, and the value that the sum represents.

        The bias is rounded to multiples of the input's scale times the weight's, as int32 would hold it. Int32
        overflows where weights are tiny beside their bias; this graph does not.
        """
        weight = integer_weight(self._graph, node, self._per_channel, self._rounded)
        values = weight.values.astype(np.float32)
        inputs = [self._tensors.steps(node.inputs[0]), self.builder.store(values, f"{node.inputs[1]}_int8")]
        steps = np.asarray(self._scales[node.inputs[0]] * weight.scales, np.float32)
        attributes: Mapping[str, Any] = node.attributes
        if name := "".join(node.inputs[2:3]):
            exact = self._graph.constants[name].astype(np.float64) * bias_factor(node) / steps.astype(np.float64)
            inputs.append(self.builder.store(away(exact).astype(np.float32), f"{name}_int32"))
            attributes = with_plain_bias(node)
        if steps.ndim and about(node.op).kind == "conv":  # a channel's value stands before the spatial dimensions
            steps = steps.reshape([-1, *[1] * (values.ndim - 2)])
        total = self.builder.name(f"{node.outputs[0]}_sum")
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=(total,), attributes=attributes))
        add_values(self.builder, total, steps, self._tensors.place(node.outputs[0], "int8"))

    def _add_fp16(self, node: Node, read: Callable[[str], str], kind: Kind) -> None:
        """Emit a node on float16 values, its results rounded to float16 unless the next node is fused with it."""
        if not self._unrounded.isdisjoint(node.outputs):
            return self._emit(node, read, kind)
        floats = data_outputs(self._graph, node)
        outputs = [self.builder.name(f"{name}_exact") if name in floats else name for name in node.outputs]
        self._append(node, read, outputs)
        for name, exact in zip(node.outputs, outputs, strict=True):
            if name in floats:
                add_fp16(self.builder, exact, self._tensors.place(name, kind))
        return None

    def _in_fp16(self, node: Node) -> Node:
        """Return the node with its stored float32 inputs rounded to float16."""
        inputs = list(node.inputs)
        for place, name in enumerate(inputs):
            stored = self._graph.constants.get(name)
            if stored is not None and stored.dtype == np.float32:
                with np.errstate(over="ignore"):
                    inputs[place] = self.builder.store(stored.astype(np.float16).astype(np.float32), f"{name}_fp16")
        return replace(node, inputs=tuple(inputs))
