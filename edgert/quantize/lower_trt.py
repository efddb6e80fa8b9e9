"""The TensorRT form: int8 with zero point 0 everywhere, weights stored as int8 behind a DQ, biases in float."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edgert.graph.draft import Builder
from edgert.graph.node import Graph, Node
from edgert.graph.proto import Array
from edgert.quantize.point import Point, Scheme
from edgert.quantize.rounding import Rounding, store_dequantized
from edgert.quantize.weight import LIMIT, channel_axis, quantize_weight, weight_scales

Amax = Callable[[tuple[str, ...]], float]


def lower_trt(graph: Graph, scheme: Scheme, amax: Amax, per_channel: bool, rounded: Mapping[str, Array]) -> Graph:
    """See :func:`edgert.quantize.lower.lower`."""
    form = _Form(graph, scheme, amax, per_channel, rounded)
    for spec in graph.inputs:
        form.round(spec.name, spec.name)
    for node in graph.nodes:
        form.add(node)
    return form.builder.finish()


class _Form:
    def __init__(
        self, graph: Graph, scheme: Scheme, amax: Amax, per_channel: bool, rounded: Mapping[str, Array]
    ) -> None:
        self.builder = Builder(graph)
        self._graph, self._scheme, self._amax = graph, scheme, amax
        self._per_channel, self._rounded = per_channel, rounded
        self._read: dict[tuple[str, str], str] = {}
        self._weights: dict[tuple[str, int | None], str] = {}

    def add(self, node: Node) -> None:
        """The node with its rounded inputs, and the rounding of its outputs."""
        inputs = [self._read.get((node.name, name), name) for name in node.inputs]
        if node.name in self._scheme.weighted:
            inputs[1] = self._weight(node)
        outputs = [self._raw(name) for name in node.outputs]
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=tuple(outputs)))
        for raw, name in zip(outputs, node.outputs, strict=True):
            self.round(raw, name)

    def round(self, raw: str, name: str) -> None:
        """Adds Q and DQ of a tensor that has a point."""
        point = self._scheme.points.get(name)
        if point is None:
            return
        amax = point.amax or self._amax(self._scheme.groups[name])
        rounding = Rounding(np.float32(amax) / np.float32(LIMIT), np.int8(0))
        stored = rounding.quantize(self.builder, raw, self.builder.name(f"{name}_quantized"), name)
        back = name if point.is_output else self.builder.name(f"{name}_dequantized")
        rounding.dequantize(self.builder, stored, back, name)
        self._read.update({(reader, name): back for reader in point.readers})

    def _raw(self, name: str) -> str:
        point: Point | None = self._scheme.points.get(name)
        return self.builder.name(f"{name}_raw") if point is not None and point.is_output else name

    def _weight(self, node: Node) -> str:
        label = node.inputs[1]
        weight = self._graph.constants[label]
        axis = channel_axis(node, weight) if self._per_channel else None
        key = (label, axis)
        if key not in self._weights:
            scales = weight_scales(weight, axis)
            values = self._rounded.get(label)
            if values is None:
                values = quantize_weight(weight, scales, axis).values
            self._weights[key] = store_dequantized(self.builder, values.astype(np.int8), scales, axis, label)
        return self._weights[key]
