"""The ONNX Runtime form: what moves or bounds values works on stored integers, the rest stands between DQ and Q.

ONNX Runtime turns DQ → node → Q into one integer kernel. It takes a Relu between the node and the Q into that kernel
only when the zero point is the smallest stored value; with 128, as signed values need it in uint8, the whole group
stays in floating point (``IsClipMadeRedundantByQ`` in its qdq_util.cc). So the Relu is done behind the Q here, as a
Clip of the stored integers: the same numbers, and the kernel is formed.

A Max of one input, which does nothing, keeps ONNX Runtime from two things. It moves a Q from behind a MaxPool in front
of it, where the float kernel is many times faster than the integer one that comes of it. And it rounds the float
weights of a Conv, ConvTranspose or Gemm behind a DQ by itself, with one scale for all channels
(weight_bias_quantization.cc), which is not what leaving a node in floating point is meant to do.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from edgert.graph import Graph, Node
from edgert.graph.draft import Builder
from edgert.graph.model import Array
from edgert.graph.operators import WEIGHTED, clip_bounds, non_negative
from edgert.quantization.lowering.weights import (
    LIMIT,
    Rounding,
    Weight,
    along_axis,
    fit_bias,
    quantize_bias,
    quantize_weight,
    scale_axis,
    store_dequantized,
    weight_scales,
)
from edgert.quantization.scheme.units import CLIPS, Point, Scheme

# How ONNX Runtime's form stores each tensor: type, zero point, scale.

Amax = Callable[[tuple[str, ...]], float]
Storage = Literal["int8", "uint8"]
Activation = Literal["symmetric", "unsigned", "affine"]
Span = Callable[[tuple[str, ...]], tuple[float, float]]

_STEPS = 255
"""Steps of 8 bits whose zero point is the smallest of them."""


def roundings(
    graph: Graph, scheme: Scheme, amax: Amax, storage: Storage, activation: Activation, span: Span | None = None
) -> Mapping[str, Rounding]:
    """Tensor of a point → how it is stored.

    Args:
        span: the smallest and largest value of the tensors that share a scale; what ``affine`` needs.
    """
    positive = non_negative(graph) if activation == "unsigned" else frozenset()
    found = {}
    for name, point in scheme.points.items():
        group = scheme.groups[name]
        if activation == "affine" and not point.amax:
            assert span is not None  # lower() asks for it
            found[name] = _affine(np.float32(amax(group)), span(group), storage)
            continue
        found[name] = _rounding(point, amax, group, storage, unsigned=set(group) <= positive)
    return found


def _rounding(point: Point, amax: Amax, group: tuple[str, ...], storage: Storage, *, unsigned: bool) -> Rounding:
    threshold = np.float32(point.amax or amax(group))
    if unsigned or point.amax:  # a known range is that of a sigmoid, which TensorRT does not round: all steps for it
        return Rounding(threshold / np.float32(_STEPS), np.uint8(0) if storage == "uint8" else np.int8(-128))
    return Rounding(threshold / np.float32(LIMIT), np.uint8(128) if storage == "uint8" else np.int8(0))


def _affine(threshold: np.float32, span: tuple[float, float], storage: Storage) -> Rounding:
    """All 255 steps for the values there are: zero is stored exactly, wherever it lies between the two ends."""
    low = max(-float(threshold), min(0.0, span[0]))
    high = min(float(threshold), max(0.0, span[1]))
    if high <= low:  # a tensor of zeros
        low, high = -float(threshold), float(threshold)
    scale = np.float32((high - low) / _STEPS)
    zero = int(np.clip(np.rint(-low / scale), 0, _STEPS))
    return Rounding(scale, np.uint8(zero) if storage == "uint8" else np.int8(zero - 128))


def absorb(graph: Graph, scheme: Scheme, stored: Mapping[str, Rounding]) -> Scheme:
    """The scheme without the roundings in front of a Relu or Clip that the Q behind it does in one: that saturates
    where they bound, as its zero point is the smallest stored value. ONNX Runtime fuses node, Relu and Q then."""
    clips = [node for node in graph.nodes if node.op in CLIPS and _is_absorbed(graph, node, scheme, stored)]
    gone = {node.inputs[0] for node in clips}
    return replace(
        scheme,
        points={name: point for name, point in scheme.points.items() if name not in gone},
        direct=scheme.direct - {node.name for node in clips},
    )


def _is_absorbed(graph: Graph, node: Node, scheme: Scheme, stored: Mapping[str, Rounding]) -> bool:
    point = scheme.points.get(node.inputs[0])
    bounds = clip_bounds(graph, node)
    if point is None or not point.is_hidden or bounds is None:
        return False
    rounding = stored[node.outputs[0]]
    smallest = np.iinfo(rounding.zero.dtype).min
    return int(rounding.zero) == smallest and bounds[0] >= 0 and bounds[1] >= (_STEPS - 0.5) * rounding.scale


def lower_ort(
    graph: Graph, scheme: Scheme, stored: Mapping[str, Rounding], per_channel: bool, rounded: Mapping[str, Array]
) -> Graph:
    """See :func:`edgert.quantization.lowering.lower.lower`; ``stored`` has the rounding of each point."""
    form = _Form(graph, scheme, stored, per_channel, rounded)
    for spec in graph.inputs:
        form.computed(spec.name, spec.name)
    for node in graph.nodes:
        form.add(node)
    form.give_out()
    return form.builder.finish()


class _Form:
    """Adds nodes in order, and knows in which forms each tensor exists: as computed, stored, read back."""

    def __init__(
        self,
        graph: Graph,
        scheme: Scheme,
        roundings: Mapping[str, Rounding],
        per_channel: bool,
        rounded: Mapping[str, Array],
    ) -> None:
        self.builder = Builder(graph)
        self._graph, self._scheme, self._roundings = graph, scheme, roundings
        self._per_channel, self._rounded = per_channel, rounded
        self._stored: dict[str, str] = {}
        self._read: dict[str, str] = {}
        self._holds: dict[str, str] = {}
        self._computed: set[str] = set()

    def add(self, node: Node) -> None:
        """A node in the form that the scheme has for it."""
        if node.name in self._scheme.direct:
            self._add_direct(node)
            return
        inputs = [self._value(name) for name in node.inputs]
        if node.name in self._scheme.weighted:
            inputs[1:] = self._parameters(node)
        if node.op in WEIGHTED and node.inputs[0] in self._stored and self._stays_float(node):
            inputs[0] = self._held(inputs[0], node.inputs[0])
        outputs = tuple(map(self._output, node.outputs))
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        for raw, name in zip(outputs, node.outputs, strict=True):
            self.computed(raw, name)

    def computed(self, raw: str, name: str) -> None:
        """A tensor exists in floating point, as ``raw``: adds its Q where it has a point."""
        if name in self._scheme.points:
            stored = self.builder.name(f"{name}_quantized")
            maker = self._graph.producers.get(name)
            source = self._held(raw, name) if maker is not None and maker.op == "MaxPool" else raw
            self._stored[name] = self._roundings[name].quantize(self.builder, source, stored, self._label(name))
            if raw == name:
                self._computed.add(name)

    def give_out(self) -> None:
        """Reads back the graph outputs that exist only as integers so far."""
        for spec in self._graph.outputs:
            if spec.name in self._stored and spec.name not in self._computed:
                self._value(spec.name)

    def _held(self, raw: str, name: str) -> str:
        """The tensor behind a Max of its own."""
        if raw not in self._holds:
            self._holds[raw] = self.builder.add("Max", [raw], self.builder.name(f"{name}_held"))
        return self._holds[raw]

    def _add_direct(self, node: Node) -> None:
        """A node that works on stored integers. All its points have one scale."""
        rounding = self._roundings[node.inputs[0]]
        inputs = [self._stored.get(name, name) for name in node.inputs]
        outputs = tuple(self.builder.name(f"{name}_quantized") if name else "" for name in node.outputs)
        if node.op in CLIPS:
            node, inputs = self._bounded(node, inputs[0], rounding)
        elif node.op == "Pad":
            zero = self.builder.store(np.asarray(rounding.zero), f"{self._label(node.inputs[0])}_zero_point")
            inputs[2:3] = [zero]
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        self._stored.update(zip(node.outputs, outputs, strict=True))

    def _bounded(self, node: Node, stored: str, rounding: Rounding) -> tuple[Node, list[str]]:
        """A Relu or Clip as a Clip of integers."""
        low, high = clip_bounds(self._graph, node) or (0.0, np.inf)
        limits = {"min": rounding.integer(low), "max": rounding.integer(high)}
        names = [self.builder.store(value, f"{node.outputs[0]}_{end}") for end, value in limits.items()]
        return replace(node, op="Clip", attributes={}), [stored, *names]

    def _value(self, name: str) -> str:
        """The tensor to read in floating point; its own name where that is free."""
        if name not in self._stored:
            return name
        if name not in self._read:
            output = self.builder.name(f"{name}_dequantized") if name in self._computed else name
            rounding = self._roundings[name]
            self._read[name] = rounding.dequantize(self.builder, self._stored[name], output, self._label(name))
        return self._read[name]

    def _output(self, name: str) -> str:
        """What a node is to call an output; a graph output given out rounded leaves its name to that."""
        point = self._scheme.points.get(name)
        return self.builder.name(f"{name}_raw") if point is not None and point.is_output else name

    def _label(self, name: str) -> str:
        """What a stored scale is named after: the first of the tensors that share it."""
        return self._scheme.groups[name][0]

    def _parameters(self, node: Node) -> list[str]:
        """The weight and bias of a node, as integers behind DQ nodes."""
        label, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
        if self._stays_float(node):
            restored = self._weight(node, None).restored
            return [self.builder.store(restored, f"{label}_restored"), *([bias] if bias else [])]
        step = float(self._roundings[node.inputs[0]].scale)
        weight = self._weight(node, step)
        found = [store_dequantized(self.builder, weight.values, weight.scales, weight.axis, label)]
        if bias:
            values, steps = quantize_bias(self._graph.constants[bias].reshape(-1), weight.scales, step)
            found.append(store_dequantized(self.builder, values, steps, 0 if steps.ndim else None, bias))
        return found

    def _stays_float(self, node: Node) -> bool:
        """Whether a weighted node runs in floating point: it is to, or it is a Conv whose output is not rounded.

        For the latter ONNX Runtime would restore the integers anew on every run: their values are stored instead.
        """
        if node.name not in self._scheme.weighted:
            return True
        return node.op == "Conv" and node.outputs[0] not in self._roundings

    def _weight(self, node: Node, step: float | None) -> Weight:
        """The weight as integers; with scales grown for an integer bias where the input's step is given."""
        label = node.inputs[1]
        weight = self._graph.constants[label]
        axis = scale_axis(node, weight) if self._per_channel else None
        wanted = scales = weight_scales(weight, axis)
        if step is not None and len(node.inputs) > 2:
            scales = fit_bias(wanted, self._graph.constants[node.inputs[2]].reshape(-1), step)
        found = quantize_weight(weight, scales, axis)
        if label not in self._rounded:
            return found
        same = along_axis(scales == wanted, axis, weight.ndim)
        return replace(found, values=np.where(same, self._rounded[label], found.values).astype(np.int8))
