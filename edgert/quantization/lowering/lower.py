"""The Q/DQ form of a graph for each target, ONNX Runtime's included, from a scheme and its ranges.

ONNX Runtime turns DQ → node → Q into one integer kernel. It takes a Relu between the node and the Q into that kernel
only when the zero point is the smallest stored value. With 128, as signed values need it in uint8, the whole group
stays in floating point (``IsClipMadeRedundantByQ`` in its qdq_util.cc). So the Relu is done behind the Q here, as a
Clip of the stored integers: the same numbers, and the kernel is formed.

A Max of one input, which does nothing, keeps ONNX Runtime from two things. It moves a Q from behind a MaxPool in front
of it, where the float kernel is many times faster than the integer one. And it rounds the float weights of a Conv,
ConvTranspose or Gemm behind a DQ by itself, with one scale for all channels (weight_bias_quantization.cc). A node left
in floating point must not be rounded so.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np

from edgert.errors import ModelError
from edgert.graph import Graph, Node
from edgert.graph.draft import Builder, needed
from edgert.graph.model import Array
from edgert.graph.operators import ACTIVATIONS, COMBINING, WEIGHTED, about, clip_bounds, non_negative, of_kind
from edgert.quantization.lowering import weights
from edgert.quantization.lowering.trt_form import Amax, lower_trt
from edgert.quantization.scheme.units import CLIPS, Scheme, Sharing, is_weighted

Storage = Literal["int8", "uint8"]
Activation = Literal["symmetric", "unsigned", "affine"]
Span = Callable[[tuple[str, ...]], tuple[float, float]]

_STEPS = 255
"""Steps of 8 bits whose zero point is the smallest of them."""
_DEAD = 2.0**-60
"""Values in less than this come from layers that are dead; steps of theirs times those of weights are 0 in float32."""
_OPSET = 13
"""The first in which DequantizeLinear takes one scale per channel."""


def lower(
    graph: Graph,
    scheme: Scheme,
    amax: Amax,
    *,
    storage: Storage = "int8",
    activation: Activation = "symmetric",
    per_channel: bool = True,
    aligned: bool = False,
    rounded: Mapping[str, Array] = {},
    span: Span | None = None,
) -> Graph:
    """Return the graph with integer weights, and activations rounded where the scheme puts a point.

    Graph inputs and outputs keep their names, as does the output of every weighted node, in front of its rounding. A
    rounded tensor ``x`` is stored as ``x_quantized`` and read as ``x_dequantized``. Where nothing computes ``x`` itself
    in floating point any more, the tensor read is called ``x``.

    Args:
        graph: the one the scheme was made for, or one with the same names and other values.
        scheme: what becomes INT8, and for which target.
        amax: threshold of the tensors that share a scale: values beyond it are clipped.
        storage: how ONNX Runtime's form stores activations. ``uint8`` has zero point 128 and represents the same
            numbers as ``int8``; x86 multiplies uint8 by int8. TensorRT's forms are int8.
        activation: ``unsigned`` gives uint8 tensors that are never negative all 255 steps, zero point 0, where TensorRT
            has 127. ``affine`` gives every tensor all of them, between its own ends, as ONNX Runtime's quantizer does;
            it needs ``span``. ONNX Runtime's form only.
        per_channel: one scale per output channel of a weight, else one per weight.
        aligned: adds channels of zeros where that lets ONNX Runtime use its fast kernels (see :func:`align`): the same
            numbers, but inner tensors are wider than in ``graph``.
        rounded: weight name → int8 values of its shape decided elsewhere, for the scales of
            :func:`~edgert.quantization.lowering.weights.weight_scales`.
        span: smallest and largest value of the tensors that share a scale.

    Raises:
        ValueError: ``affine`` without ``span``.
        ModelError: the graph is older than opset 13.
    """
    if graph.opset < _OPSET:
        raise ModelError(
            f"opset {graph.opset} cannot hold one weight scale per channel",
            why=f"DequantizeLinear takes them from opset {_OPSET} on",
            fix="convert the model first (prepare does)",
        )
    if scheme.target == "ort":
        if activation == "affine" and span is None:
            raise ValueError("affine storage needs the smallest and largest values: span")
        if aligned:
            graph, rounded = align(graph, rounded)
        stored = roundings(graph, scheme, amax, storage, activation, span)
        return lower_ort(graph, absorb(graph, scheme, stored), stored, per_channel, rounded)
    return lower_trt(graph, scheme, amax, per_channel, rounded)


def with_biases(
    lowered: Graph,
    before: Graph,
    after: Graph,
    scheme: Scheme,
    stored: Mapping[str, weights.Rounding],
    per_channel: bool,
    rounded: Mapping[str, Array],
) -> Graph:
    """Return a lowered graph with other biases: only their nodes are written again.

    Args:
        lowered: what :func:`lower` made of ``before``.
        before: the float graph that was lowered.
        after: the same nodes as ``before``, some with another stored bias.
        scheme: as ``lowered`` was made with.
        stored: how each rounded tensor is stored where biases are integers (:func:`roundings`); empty for TensorRT's
            forms, whose biases are float.
        per_channel: as ``lowered`` was made with.
        rounded: likewise.
    """
    form = _Form(after, scheme, stored, per_channel, rounded, lowered)
    changed = {new.name: (old, new) for old, new in zip(before.nodes, after.nodes, strict=True) if new is not old}
    for node in lowered.nodes:
        if node.name in changed:
            old, new = changed[node.name]
            slots = zip_longest(node.inputs, old.inputs, new.inputs, fillvalue="")
            inputs = [given if name == former else name for given, former, name in slots]
            if stored and new.name in scheme.weighted:  # the weights, too: their scales may have grown with the bias
                inputs[1:] = form.parameters(new)
            node = replace(node, inputs=tuple(inputs), attributes=new.attributes)
        form.builder.nodes.append(node)
    form.builder.store_values({name: after.constants[name] for name in after.constants.keys() - before.constants})
    made = form.builder.finish()
    return replace(made, nodes=needed(made.nodes, made.output_names))


# How ONNX Runtime's form stores each tensor: type, zero point, scale.


def roundings(
    graph: Graph, scheme: Scheme, amax: Amax, storage: Storage, activation: Activation, span: Span | None = None
) -> Mapping[str, weights.Rounding]:
    """Return tensor of a point → how it is stored.

    Args:
        graph: the float graph.
        scheme: its points and groups.
        amax: threshold of the tensors that share a scale.
        storage: as :func:`lower` takes it.
        activation: likewise.
        span: the smallest and largest value of the tensors that share a scale; ``affine`` needs it.
    """
    positive = non_negative(graph) if activation == "unsigned" else frozenset()
    found = {}
    for name, point in scheme.points.items():
        group = scheme.groups[name]
        threshold = np.float32(point.amax or amax(group))
        if activation == "affine" and not point.amax:
            assert span is not None  # lower() asks for it
            scale, zero = _affine(threshold, span(group))
        elif point.amax or set(group) <= positive:  # what is known is a sigmoid's, which TensorRT does not round
            scale, zero = threshold / np.float32(_STEPS), 0
        else:
            scale, zero = threshold / np.float32(weights.LIMIT), 128
        found[name] = weights.Rounding(np.float32(scale), np.uint8(zero) if storage == "uint8" else np.int8(zero - 128))
    return found


def _affine(threshold: np.float32, span: tuple[float, float]) -> tuple[np.float32, int]:
    """Return scale and zero point that use all 255 steps; zero is stored exactly, wherever it lies in the range."""
    low = max(-float(threshold), min(0.0, span[0]))
    high = min(float(threshold), max(0.0, span[1]))
    if high - low < _DEAD:  # a tensor of zeros, or as good as that
        low, high = -float(threshold), float(threshold)
    scale = np.float32((high - low) / _STEPS)
    return scale, int(np.clip(np.rint(-low / scale), 0, _STEPS))


def absorb(graph: Graph, scheme: Scheme, stored: Mapping[str, weights.Rounding]) -> Scheme:
    """Return the scheme without roundings in front of a Relu or Clip that the Q behind it makes redundant.

    The Q saturates at the same bounds, as its zero point is the smallest stored value. ONNX Runtime then fuses node,
    Relu and Q.
    """
    points, direct = dict(scheme.points), set(scheme.direct)
    for node in graph.nodes:
        point = scheme.points.get(node.inputs[0]) if node.op in CLIPS else None
        bounds = clip_bounds(graph, node)
        if point is not None and point.is_hidden and bounds is not None:
            rounding = stored[node.outputs[0]]
            if (
                rounding.zero == np.iinfo(rounding.zero.dtype).min
                and bounds[0] >= 0
                and bounds[1] >= (_STEPS - 0.5) * rounding.scale
            ):
                del points[point.tensor]
                direct.discard(node.name)
    return replace(scheme, points=points, direct=frozenset(direct))


def lower_ort(
    graph: Graph,
    scheme: Scheme,
    stored: Mapping[str, weights.Rounding],
    per_channel: bool,
    rounded: Mapping[str, Array],
) -> Graph:
    """Lower for ONNX Runtime; ``stored`` has the rounding of each point.

    See :func:`edgert.quantization.lowering.lower.lower`.
    """
    form = _Form(graph, scheme, stored, per_channel, rounded)
    for spec in graph.inputs:
        form.computed(spec.name, spec.name)
    for node in graph.nodes:
        form.add(node)
    for spec in graph.outputs:
        form.give_out(spec.name)
    return form.builder.finish()


class _Form:
    """Emitter of nodes in order, with the forms in which each tensor exists: as computed, stored, read back."""

    def __init__(
        self,
        graph: Graph,
        scheme: Scheme,
        roundings: Mapping[str, weights.Rounding],
        per_channel: bool,
        rounded: Mapping[str, Array],
        beside: Graph | None = None,
    ) -> None:
        self.builder = Builder(beside or graph)
        self._graph, self._scheme, self._roundings = graph, scheme, roundings
        self._per_channel, self._rounded = per_channel, rounded
        self._labels = {name: group[0] for name, group in scheme.groups.items()}  # a scale is named after the first
        self._stored: dict[str, str] = {}
        self._read: dict[str, str] = {}
        self._holds: dict[str, str] = {}
        self._computed: set[str] = set()

    def add(self, node: Node) -> None:
        """Emit a node in the form that the scheme has for it."""
        if node.name in self._scheme.direct:
            self._add_direct(node)
            return
        inputs = [self._value(name) for name in node.inputs]
        if node.name in self._scheme.weighted:
            inputs[1:] = self.parameters(node)
        if node.op in WEIGHTED and node.inputs[0] in self._stored and self._stays_float(node):
            inputs[0] = self._held(inputs[0], node.inputs[0])
        outputs = weights.outputs_of(self.builder, self._scheme, node)
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        for raw, name in zip(outputs, node.outputs, strict=True):
            self.computed(raw, name)

    def computed(self, raw: str, name: str) -> None:
        """Record a tensor that exists in floating point as ``raw``, and add its Q where it has a point."""
        if name in self._scheme.points:
            stored = self.builder.name(f"{name}_quantized")
            maker = self._graph.producers.get(name)
            source = self._held(raw, name) if maker is not None and maker.op == "MaxPool" else raw
            self._stored[name] = self._roundings[name].quantize(self.builder, source, stored, self._labels[name])
            if raw == name:
                self._computed.add(name)

    def give_out(self, name: str) -> None:
        """Read back a graph output that exists only as integers so far."""
        if name not in self._computed:
            self._value(name)

    def _held(self, raw: str, name: str) -> str:
        """Return the tensor behind a Max of its own."""
        if raw not in self._holds:
            self._holds[raw] = self.builder.add("Max", [raw], self.builder.name(f"{name}_held"))
        return self._holds[raw]

    def _add_direct(self, node: Node) -> None:
        """Emit a node that works on stored integers; all its points have one scale."""
        rounding = self._roundings[node.inputs[0]]
        inputs = [self._stored.get(name, name) for name in node.inputs]
        outputs = tuple(self.builder.name(f"{name}_quantized") if name else "" for name in node.outputs)
        if node.op in CLIPS:  # a Clip of integers
            low, high = clip_bounds(self._graph, node) or (0.0, np.inf)
            limits = {"min": rounding.integer(low), "max": rounding.integer(high)}
            names = [self.builder.share_constant(value, f"{node.outputs[0]}_{end}") for end, value in limits.items()]
            node, inputs = replace(node, op="Clip", attributes={}), [inputs[0], *names]
        elif node.op == "Pad":
            zero = self.builder.share_constant(np.asarray(rounding.zero), f"{self._labels[node.inputs[0]]}_zero_point")
            inputs[2:3] = [zero]
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        self._stored.update(zip(node.outputs, outputs, strict=True))

    def _value(self, name: str) -> str:
        """Return the name of the tensor to read in floating point; its own name where that is free."""
        if name not in self._stored:
            return name
        if name not in self._read:
            output = self.builder.name(f"{name}_dequantized") if name in self._computed else name
            rounding = self._roundings[name]
            self._read[name] = rounding.dequantize(self.builder, self._stored[name], output, self._labels[name])
        return self._read[name]

    def parameters(self, node: Node) -> list[str]:
        """Return the weight and bias of a node, as integers behind DQ nodes."""
        label, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
        if self._stays_float(node):
            restored = self._weight(node, None).restored
            return [self.builder.share_constant(restored, f"{label}_restored"), *([bias] if bias else [])]
        step = float(self._roundings[node.inputs[0]].scale)
        weight = self._weight(node, step)
        found = [weights.store_dequantized(self.builder, weight.values, weight.scales, weight.axis, label)]
        if bias:
            values, steps = weights.quantize_bias(self._graph.constants[bias].reshape(-1), weight.scales, step)
            found.append(weights.store_dequantized(self.builder, values, steps, 0 if steps.ndim else None, bias))
        return found

    def _stays_float(self, node: Node) -> bool:
        """Return whether a weighted node runs in floating point: by the scheme, or as a Conv with an unrounded output.

        For such a Conv ONNX Runtime would restore the integers anew on every run: their values are stored instead.
        """
        if node.name not in self._scheme.weighted:
            return True
        return node.op == "Conv" and node.outputs[0] not in self._roundings

    def _weight(self, node: Node, step: float | None) -> weights.Weight:
        """Return the weight as integers; its scales are grown for an integer bias where the input's step is given."""
        own = weights.integer_weight(self._graph, node, self._per_channel, self._rounded)
        if step is None or len(node.inputs) < 3:
            return own
        weight = self._graph.constants[node.inputs[1]]
        scales = weights.fit_bias(own.scales, self._graph.constants[node.inputs[2]].reshape(-1), step)
        same = weights.along_axis(scales == own.scales, own.axis, weight.ndim)
        grown = weights.quantize_weight(weight, scales, own.axis)
        return replace(grown, values=np.where(same, own.values, grown.values))


# Channels of zeros that nothing outside sees, added where that is faster.
#
# ONNX Runtime's fast integer convolutions take input channels in fours and depthwise channels in sixteens (MLAS,
# convsym.cpp). Between convolutions the number of channels is free: a network with 58 of them computes the same
# with 64, six of them with weights of zero, and does so faster.

_DEPTHWISE = 16
_DENSE = 4
_MOST = 0.5
"""Channels added per channel there is, at most: beyond that the added work costs more than it saves."""

_CHANNEL_BY_CHANNEL = ACTIVATIONS | COMBINING | of_kind("pool")
"""What makes a finite number of a channel of zeros, without a look at others."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Tensors that must have the same channels, and the nodes around and between them."""

    channels: int
    tensors: tuple[str, ...]
    makers: tuple[Node, ...]
    readers: tuple[Node, ...]


def align(graph: Graph, rounded: Mapping[str, Array]) -> tuple[Graph, Mapping[str, Array]]:
    """Return the graph with channels of zeros added, and the rounded weights (name → values) widened to match.

    Both are returned unchanged where there is nothing to add. Graph inputs and outputs stay; inner tensors and stored
    weights keep their names and get wider. A tensor is widened where only convolutions and operators that treat each
    channel alike make and read it.
    """
    widened: dict[str, Array] = {}
    nodes = {node.name: node for node in graph.nodes}
    specs = dict(graph.specs)
    for span in _spans(graph):
        depthwise = any(_is_depthwise(graph, node) for node in (*span.makers, *span.readers))
        added = -span.channels % (_DEPTHWISE if depthwise else _DENSE)
        if not 0 < added <= _MOST * span.channels or not _is_enclosed(graph, span):
            continue
        for name, axis in _stored(graph, span):
            stored = widened.get(name, graph.constants[name])
            widened[name] = np.pad(stored, [(0, added * (dim == axis)) for dim in range(stored.ndim)])
        for node in (*span.makers, *span.readers):
            if _is_depthwise(graph, node):
                nodes[node.name] = replace(node, attributes={**node.attributes, "group": span.channels + added})
        for name in span.tensors:
            shape = specs[name].shape
            specs[name] = replace(specs[name], shape=(shape[0], span.channels + added, *shape[2:]))
    if not widened:
        return graph, rounded
    fitted = {}
    for name, values in rounded.items():
        shape = widened.get(name, values).shape
        fitted[name] = np.pad(values, [(0, new - old) for old, new in zip(values.shape, shape, strict=True)])
    constants = {**graph.constants, **widened}
    return replace(graph, nodes=tuple(nodes[n.name] for n in graph.nodes), constants=constants, specs=specs), fitted


def _spans(graph: Graph) -> Iterator[_Span]:
    sharing = Sharing()
    for node in graph.nodes:
        if _keeps_channels(graph, node):
            sharing.join([*_activations(graph, node), *node.outputs])
    made = [name for node in graph.nodes for name in node.outputs if name]
    for tensors in dict.fromkeys(sharing.groups(made).values()):
        shapes = [graph.specs[name].shape if name in graph.specs else () for name in tensors]
        channels = {shape[1] if len(shape) > 2 else None for shape in shapes}
        found = channels.pop()
        if not channels and isinstance(found, int):
            makers = {graph.producers[name].name: graph.producers[name] for name in tensors}
            readers = {node.name: node for name in tensors for node in graph.consumers.get(name, ())}
            yield _Span(found, tensors, tuple(makers.values()), tuple(readers.values()))


def _is_enclosed(graph: Graph, span: _Span) -> bool:
    """Return whether the tensors can be widened.

    Only convolutions and operators that keep channels apart may make and read them. No other node may read the weights
    and biases that get wider.
    """
    around = (*span.makers, *span.readers)
    between = [node for node in around if _keeps_channels(graph, node)]
    return (
        graph.output_names.isdisjoint(span.tensors)
        and all(len(graph.consumers[name]) == 1 for name, _axis in _stored(graph, span))
        and all(node in between or _groups(graph, node) == 1 for node in around)
        and all(name in span.tensors for node in between for name in _activations(graph, node))
    )


def _stored(graph: Graph, span: _Span) -> Iterator[tuple[str, int]]:
    """Yield the stored tensors that get wider, and along which dimension."""
    for node in span.makers:
        if about(node.op).work == "conv":
            yield from ((name, 0) for name in node.inputs[1:] if name)
    yield from ((node.inputs[1], 1) for node in span.readers if _groups(graph, node) == 1)


def _keeps_channels(graph: Graph, node: Node) -> bool:
    """Return whether a node's output channels are functions of the same channels of its inputs."""
    if _is_depthwise(graph, node):
        return True
    stored = (graph.constants[name] for name in node.inputs if name in graph.constants)
    return not node.domain and node.op in _CHANNEL_BY_CHANNEL and all(value.size == 1 for value in stored)


def _is_depthwise(graph: Graph, node: Node) -> bool:
    groups = _groups(graph, node)
    return groups > 1 and graph.constants[node.inputs[1]].shape[:2] == (groups, 1)


def _groups(graph: Graph, node: Node) -> int:
    """Return the groups of a convolution whose weight and bias are stored; 0 for others."""
    stored = is_weighted(graph, node) and all(name in graph.constants for name in node.inputs[1:] if name)
    return int(node.attributes.get("group", 1)) if stored and about(node.op).work == "conv" else 0


def _activations(graph: Graph, node: Node) -> list[str]:
    return [name for name in node.inputs if name and name not in graph.constants]
