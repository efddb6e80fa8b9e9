"""The ONNX Runtime form: what moves or bounds values works on stored integers, the rest stands between DQ and Q.

ONNX Runtime turns DQ → node → Q into one integer kernel. It takes a Relu between the node and the Q into that kernel
only when the zero point is the smallest stored value; with 128, as signed values need it in uint8, the whole group
stays in floating point (``IsClipMadeRedundantByQ`` in its qdq_util.cc). So the Relu is done behind the Q here, as a
Clip of the stored integers: the same numbers, and the kernel is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edgert.graph.node import Graph, Node
from edgert.quantize.build import Array, Builder, Rounding, store_dequantized
from edgert.quantize.operator import CLIPS, clip_bounds, is_activation
from edgert.quantize.point import Point, Scheme
from edgert.quantize.sign import never_negative
from edgert.quantize.weight import LIMIT, channel_axis, fit_bias, quantize_bias, quantize_weight, weight_scales

Amax = Callable[[tuple[str, ...]], float]

_STEPS = 255
"""Steps of a uint8 whose zero point is 0."""


def lower_ort(
    graph: Graph,
    scheme: Scheme,
    amax: Amax,
    storage: str,
    activation: str,
    per_channel: bool,
    rounded: Mapping[str, Array],
) -> Graph:
    """See :func:`edgert.quantize.lower.lower`."""
    roundings = _roundings(graph, scheme, amax, storage, activation)
    form = _Form(graph, scheme, roundings, per_channel, rounded, absorbs=activation == "unsigned")
    for spec in graph.inputs:
        form.computed(spec.name, spec.name)
    for node in graph.nodes:
        form.add(node)
    form.outputs()
    return form.builder.finish()


def _roundings(graph: Graph, scheme: Scheme, amax: Amax, storage: str, activation: str) -> Mapping[str, Rounding]:
    positive = never_negative(graph) if activation == "unsigned" else frozenset()
    return {
        name: _rounding(point, amax, scheme.groups[name], storage, set(scheme.groups[name]) <= positive)
        for name, point in scheme.points.items()
    }


def _rounding(point: Point, amax: Amax, group: tuple[str, ...], storage: str, unsigned: bool) -> Rounding:
    threshold = np.float32(point.amax or amax(group))
    if unsigned or point.amax:
        zero = np.uint8(0) if storage == "uint8" else np.int8(-128)
        return Rounding(threshold / np.float32(_STEPS), zero)
    return Rounding(threshold / np.float32(LIMIT), np.uint8(128) if storage == "uint8" else np.int8(0))


class _Form:
    """Adds nodes in order, and knows in which forms each tensor exists: as computed, stored, read back."""

    def __init__(
        self,
        graph: Graph,
        scheme: Scheme,
        roundings: Mapping[str, Rounding],
        per_channel: bool,
        rounded: Mapping[str, Array],
        *,
        absorbs: bool,
    ) -> None:
        self.builder = Builder(graph)
        self._graph, self._scheme, self._roundings = graph, scheme, roundings
        self._per_channel, self._rounded, self._absorbs = per_channel, rounded, absorbs
        self._stored: dict[str, str] = {}
        self._read: dict[str, str] = {}
        self._raw: set[str] = set()

    def add(self, node: Node) -> None:
        """A node in the form that the scheme has for it."""
        if node.name in self._scheme.direct and not self._is_absorbed(node):
            self._add_direct(node)
            return
        inputs = [self._value(name) for name in node.inputs]
        if node.name in self._scheme.weighted:
            inputs[1:] = self._parameters(node)
        outputs = tuple(self._output(name) for name in node.outputs)
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        for raw, name in zip(outputs, node.outputs, strict=True):
            self.computed(raw, name)

    def computed(self, raw: str, name: str) -> None:
        """A tensor exists in floating point: adds its Q where it has a point."""
        if name in self._roundings and not self._is_passed_on(name):
            stored = self.builder.name(f"{name}_quantized")
            self._stored[name] = self._roundings[name].quantize(self.builder, raw, stored, self._label(name))
            if raw == name:
                self._raw.add(name)

    def outputs(self) -> None:
        """Graph outputs that exist only as integers so far."""
        for spec in self._graph.outputs:
            if spec.name in self._stored and spec.name not in self._raw:
                self._value(spec.name)

    def _add_direct(self, node: Node) -> None:
        moved = [name for name in node.inputs if is_activation(self._graph, name) and name in self._roundings]
        inputs = [self._stored[name] if name in moved else name for name in node.inputs]
        outputs = tuple(self.builder.name(f"{name}_quantized") if name else "" for name in node.outputs)
        rounding = self._roundings[moved[0]]
        if node.op in CLIPS:
            self._add_clip(node, inputs[0], outputs[0], rounding)
        else:
            inputs = self._filled(node, inputs, rounding)
            self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        self._stored.update(zip(node.outputs, outputs, strict=True))

    def _add_clip(self, node: Node, stored: str, output: str, rounding: Rounding) -> None:
        low, high = clip_bounds(self._graph, node) or (0.0, np.inf)
        bounds = [
            self.builder.store(rounding.integer(value), f"{output}_{end}")
            for value, end in ((low, "min"), (high, "max"))
        ]
        self.builder.nodes.append(Node("Clip", (stored, *bounds), (output,), {}, node.name))

    def _filled(self, node: Node, inputs: list[str], rounding: Rounding) -> list[str]:
        """The inputs of a Pad with the stored form of 0 in place of its value."""
        if node.op != "Pad":
            return inputs
        zero = self.builder.store(np.asarray(rounding.zero), f"{node.outputs[0]}_zero_point")
        return [*inputs[:2], zero, *inputs[3:]]

    def _is_absorbed(self, node: Node) -> bool:
        """Whether a Relu or Clip is left to the kernel in front of it."""
        return self._absorbs and node.op in CLIPS and self._is_passed_on(node.inputs[0])

    def _is_passed_on(self, name: str) -> bool:
        """Whether a tensor is not rounded because an unsigned Q behind the next Relu or Clip does it all."""
        point = self._scheme.points[name]
        return (
            self._absorbs
            and point.is_hidden
            and int(self._roundings[name].zero) == np.iinfo(self._roundings[name].zero.dtype).min
        )

    def _value(self, name: str) -> str:
        """The tensor to read in floating point."""
        if name not in self._stored:
            return name
        if name not in self._read:
            free = name not in self._raw
            output = name if free else self.builder.name(f"{name}_dequantized")
            self._read[name] = self._roundings[name].dequantize(
                self.builder, self._stored[name], output, self._label(name)
            )
        return self._read[name]

    def _output(self, name: str) -> str:
        point = self._scheme.points.get(name)
        hidden = point is not None and point.is_output and not self._is_passed_on(name)
        return self.builder.name(f"{name}_raw") if hidden else name

    def _label(self, name: str) -> str:
        """Tensors of one scale use one stored scale, named after the first of them."""
        return (self._scheme.groups[name] or (name,))[0]

    def _parameters(self, node: Node) -> list[str]:
        """The weight and bias of a node, as integers behind DQ nodes."""
        label, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
        weight = self._graph.constants[label]
        axis = channel_axis(node, weight) if self._per_channel else None
        wanted = weight_scales(weight, axis)
        step = float(self._roundings[node.inputs[0]].scale)
        scales = fit_bias(wanted, self._graph.constants[bias].reshape(-1), step) if bias else wanted
        values = quantize_weight(weight, scales, axis).values
        if label in self._rounded:
            same = np.reshape(scales == wanted, [-1 if dim == axis else 1 for dim in range(weight.ndim)])
            values = np.where(same, self._rounded[label], values).astype(np.int8)
        found = [store_dequantized(self.builder, values, scales, axis, label)]
        if bias:
            found.append(self._bias(bias, scales, step))
        return found

    def _bias(self, name: str, scales: Array, step: float) -> str:
        values, steps = quantize_bias(self._graph.constants[name].reshape(-1), scales, step)
        return store_dequantized(self.builder, values, steps, 0 if steps.ndim else None, name)
