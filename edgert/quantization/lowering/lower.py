"""Q/DQ form of a graph for each target, from a scheme and its ranges, and the form for ONNX Runtime.

ONNX Runtime turns DQ → node → Q into one integer kernel. A Relu between node and Q joins the kernel only when the zero
point is the smallest stored value. With 128, which uint8 needs for signed values, all of them stay in floating point
(``IsClipMadeRedundantByQ`` in its qdq_util.cc). So the Relu becomes a Clip of the stored integers behind the Q.

A Max of one input, which does nothing, stops two optimizations of ONNX Runtime. One moves a Q before a MaxPool, whose
integer kernel is many times slower than the float one. The other rounds float weights of a Conv, ConvTranspose or Gemm
behind a DQ, with one scale for all channels (weight_bias_quantization.cc).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np

from edgert.errors import ModelError
from edgert.graph import Graph, Node, draft, model, operators
from edgert.quantization.lowering import weights
from edgert.quantization.lowering.trt_form import Amax, lower_trt
from edgert.quantization.scheme.units import CLIPS, Scheme, Sharing, is_weighted

Storage = Literal["int8", "uint8"]
Activation = Literal["symmetric", "unsigned", "affine"]
Span = Callable[[tuple[str, ...]], tuple[float, float]]

_STEPS = 255
"""Number of steps of 8 bits with the smallest one as zero point."""
_DEAD = 2.0**-60
"""Smallest range of a live layer; the product of smaller scales with those of weights is 0 in float32."""
_OPSET = 13
"""First opset in which DequantizeLinear takes one scale per channel."""


def lower(
    graph: Graph,
    scheme: Scheme,
    amax: Amax,
    *,
    storage: Storage = "int8",
    activation: Activation = "symmetric",
    aligned: bool = False,
    rounded: Mapping[str, model.Array] = {},
    span: Span | None = None,
) -> Graph:
    """Return the graph with integer weights, and with activations rounded at the points of the scheme.

    Graph inputs and outputs keep their names, and so does the output of every weighted node, before its rounding. A
    rounded tensor ``x`` is stored as ``x_quantized`` and read as ``x_dequantized``, or as ``x`` where nothing computes
    ``x`` in floating point any more.

    Args:
        graph: graph of the scheme, or one with the same names and other values.
        scheme: scheme that states what becomes INT8, and for which target.
        amax: function that returns the threshold of tensors that share a scale, beyond which values are clipped.
        storage: stored type of activations for ONNX Runtime. ``uint8`` has zero point 128 and holds the same values as
            ``int8``; x86 multiplies uint8 by int8. TensorRT's forms are int8.
        activation: range of activations for ONNX Runtime. ``unsigned`` gives tensors that are never negative all 255
            steps, where TensorRT has 127. ``affine`` gives them to every tensor, from its smallest to its largest
            value, as ONNX Runtime's quantizer does; it needs ``span``.
        aligned: whether to add channels of zeros for fast kernels of ONNX Runtime (:func:`align_channels`); inner
            tensors are then wider than in ``graph``.
        rounded: int8 values by weight name, for the scales of
            :func:`~edgert.quantization.lowering.weights.weight_scales`; other weights are rounded to nearest.
        span: function that returns the smallest and largest value of tensors that share a scale.

    Raises:
        ValueError: ``affine`` without ``span``.
        ModelError: the graph is older than opset 13.
    """
    if graph.opset < _OPSET:
        raise ModelError(
            f"opset {graph.opset} cannot hold one weight scale per channel",
            why=f"DequantizeLinear takes them from opset {_OPSET} on",
            fix="convert the model first (edgert.quantization.calibrated.prepare)",
        )
    if scheme.target == "ort":
        if activation == "affine" and span is None:
            raise ValueError("affine storage needs the smallest and largest values: span")
        if aligned:
            graph, rounded = align_channels(graph, rounded)
        stored = roundings(graph, scheme, amax, storage, activation, span)
        return lower_ort(graph, absorb_clips(graph, scheme, stored), stored, rounded)
    return lower_trt(graph, scheme, amax, rounded)


def with_biases(
    lowered: Graph,
    before: Graph,
    after: Graph,
    scheme: Scheme,
    stored: Mapping[str, weights.Rounding],
    rounded: Mapping[str, model.Array],
) -> Graph:
    """Return a lowered graph with other biases; only their nodes are replaced.

    ``stored`` has the rounding of each tensor where biases are integers (:func:`roundings`); it is empty for TensorRT's
    forms, whose biases are float.
    """
    form = _OrtEmitter(after, scheme, stored, rounded, lowered)
    changed = {new.name: (old, new) for old, new in zip(before.nodes, after.nodes, strict=True) if new is not old}
    for node in lowered.nodes:
        if node.name in changed:
            old, new = changed[node.name]
            slots = zip_longest(node.inputs, old.inputs, new.inputs, fillvalue="")
            inputs = [given if name == former else name for given, former, name in slots]
            if stored and new.name in scheme.weighted:  # scales of weights may have grown with the bias
                inputs[1:] = form.parameters(new)
            node = replace(node, inputs=tuple(inputs), attributes=new.attributes)
        form.builder.nodes.append(node)
    added = {name: array for name, array in after.constants.items() if name not in before.constants}
    form.builder.store_values(added)
    made = form.builder.finish()
    return replace(made, nodes=draft.needed(made.nodes, made.output_names))


def roundings(
    graph: Graph, scheme: Scheme, amax: Amax, storage: Storage, activation: Activation, span: Span | None = None
) -> Mapping[str, weights.Rounding]:
    """Return the rounding of each point's tensor by name, in the form for ONNX Runtime.

    Arguments are those of :func:`lower`.
    """
    positive = operators.non_negative(graph) if activation == "unsigned" else frozenset()
    found = {}
    for name, point in scheme.points.items():
        group = scheme.groups[name]
        threshold = np.float32(point.amax or amax(group))
        if activation == "affine" and not point.amax:
            assert span is not None  # lower() checks it
            scale, zero = _affine(threshold, span(group))
        elif point.amax or set(group) <= positive:  # point.amax is that of a sigmoid
            scale, zero = threshold / np.float32(_STEPS), 0
        else:
            scale, zero = threshold / np.float32(weights.LIMIT), 128
        found[name] = weights.Rounding(np.float32(scale), np.uint8(zero) if storage == "uint8" else np.int8(zero - 128))
    return found


def _affine(threshold: np.float32, span: tuple[float, float]) -> tuple[np.float32, int]:
    """Return scale and zero point that use all 255 steps; zero is stored exactly."""
    low = max(-float(threshold), min(0.0, span[0]))
    high = min(float(threshold), max(0.0, span[1]))
    if high - low < _DEAD:  # a tensor of zeros or nearly so
        low, high = -float(threshold), float(threshold)
    scale = np.float32((high - low) / _STEPS)
    return scale, int(np.clip(np.rint(-low / scale), 0, _STEPS))


def absorb_clips(graph: Graph, scheme: Scheme, stored: Mapping[str, weights.Rounding]) -> Scheme:
    """Return the scheme without points before a Relu or Clip that the Q behind makes redundant.

    The Q clips to the same bounds, since its zero point is the smallest stored value. ONNX Runtime then fuses node,
    Relu and Q.
    """
    points, direct = dict(scheme.points), set(scheme.direct)
    for node in graph.nodes:
        point = scheme.points.get(node.inputs[0]) if node.op in CLIPS else None
        bounds = operators.clip_bounds(graph, node)
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
    rounded: Mapping[str, model.Array],
) -> Graph:
    """Return the form of :func:`lower` for ONNX Runtime; ``stored`` has the rounding of each point."""
    form = _OrtEmitter(graph, scheme, stored, rounded)
    for spec in graph.inputs:
        form.computed(spec.name, spec.name)
    for node in graph.nodes:
        form.add(node)
    for spec in graph.outputs:
        form.restore_output(spec.name)
    return form.builder.finish()


class _OrtEmitter:
    """Emitter of the nodes in order, with the forms of each tensor: computed, stored and dequantized."""

    def __init__(
        self,
        graph: Graph,
        scheme: Scheme,
        roundings: Mapping[str, weights.Rounding],
        rounded: Mapping[str, model.Array],
        beside: Graph | None = None,
    ) -> None:
        self.builder = draft.Builder(beside or graph)
        self._graph, self._scheme, self._roundings = graph, scheme, roundings
        self._rounded = rounded
        self._labels = {name: group[0] for name, group in scheme.groups.items()}  # a scale is named after the first
        self._stored: dict[str, str] = {}
        self._read: dict[str, str] = {}
        self._holds: dict[str, str] = {}
        self._computed: set[str] = set()

    def add(self, node: Node) -> None:
        """Emit a node in its form."""
        if node.name in self._scheme.direct:
            self._add_direct(node)
            return
        inputs = [self._float_name(name) for name in node.inputs]
        if node.name in self._scheme.weighted:
            inputs[1:] = self.parameters(node)
        if node.op in operators.WEIGHTED and node.inputs[0] in self._stored and self._stays_float(node):
            inputs[0] = self._behind_max(inputs[0], node.inputs[0])
        outputs = weights.raw_output_names(self.builder, self._scheme, node)
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        for raw, name in zip(outputs, node.outputs, strict=True):
            self.computed(raw, name)

    def computed(self, raw: str, name: str) -> None:
        """Record that a tensor exists in floating point as ``raw``, and add its Q where it has a point."""
        if name in self._scheme.points:
            stored = self.builder.name(f"{name}_quantized")
            maker = self._graph.producers.get(name)
            source = self._behind_max(raw, name) if maker is not None and maker.op == "MaxPool" else raw
            self._stored[name] = self._roundings[name].quantize(self.builder, source, stored, self._labels[name])
            if raw == name:
                self._computed.add(name)

    def restore_output(self, name: str) -> None:
        """Dequantize a graph output that exists as integers only."""
        if name not in self._computed:
            self._float_name(name)

    def _behind_max(self, raw: str, name: str) -> str:
        """Return the tensor behind a Max, which is added once."""
        if raw not in self._holds:
            self._holds[raw] = self.builder.add("Max", [raw], self.builder.name(f"{name}_held"))
        return self._holds[raw]

    def _add_direct(self, node: Node) -> None:
        """Emit a node that works on stored integers; all its points have one scale."""
        rounding = self._roundings[node.inputs[0]]
        inputs = [self._stored.get(name, name) for name in node.inputs]
        outputs = tuple(self.builder.name(f"{name}_quantized") if name else "" for name in node.outputs)
        if node.op in CLIPS:  # a Clip of integers
            low, high = operators.clip_bounds(self._graph, node) or (0.0, np.inf)
            limits = {"min": rounding.integer(low), "max": rounding.integer(high)}
            names = [self.builder.share_constant(value, f"{node.outputs[0]}_{end}") for end, value in limits.items()]
            node, inputs = replace(node, op="Clip", attributes={}), [inputs[0], *names]
        elif node.op == "Pad":
            zero = self.builder.share_constant(np.asarray(rounding.zero), f"{self._labels[node.inputs[0]]}_zero_point")
            inputs[2:3] = [zero]
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        self._stored.update(zip(node.outputs, outputs, strict=True))

    def _float_name(self, name: str) -> str:
        """Return the name of a tensor in floating point, which is dequantized if needed."""
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

        ONNX Runtime would dequantize the weights of such a Conv in every run, so their values are stored.
        """
        if node.name not in self._scheme.weighted:
            return True
        return node.op == "Conv" and node.outputs[0] not in self._roundings

    def _weight(self, node: Node, step: float | None) -> weights.Weight:
        """Return the weight as integers, with scales that fit an integer bias where the step of the input is given."""
        own = weights.integer_weight(self._graph, node, self._rounded)
        if step is None or len(node.inputs) < 3:
            return own
        weight = self._graph.constants[node.inputs[1]]
        scales = weights.fit_bias(own.scales, self._graph.constants[node.inputs[2]].reshape(-1), step)
        same = weights.along_axis(scales == own.scales, own.axis, weight.ndim)
        grown = weights.quantize_weight(weight, scales, own.axis)
        return replace(grown, values=np.where(same, own.values, grown.values))


# Channels of zeros inside the network, added where that is faster.
#
# ONNX Runtime's fast integer convolutions take input channels in fours and depthwise channels in sixteens (MLAS,
# convsym.cpp). A network with 58 channels between convolutions computes the same with 64, six of them with weights of
# zero, and is faster.

_DEPTHWISE = 16
_DENSE = 4
_MOST = 0.5
"""Largest number of channels added per existing channel; more would cost more work than they save."""

_CHANNEL_BY_CHANNEL = operators.ACTIVATIONS | operators.COMBINING | operators.of_kind("pool")
"""Operators that make finite values of a channel of zeros, without reading other channels."""


@dataclass(frozen=True, slots=True)
class _ChannelGroup:
    """Tensors that must have the same number of channels, and the nodes that make and read them."""

    channels: int
    tensors: tuple[str, ...]
    makers: tuple[Node, ...]
    readers: tuple[Node, ...]


def align_channels(graph: Graph, rounded: Mapping[str, model.Array]) -> tuple[Graph, Mapping[str, model.Array]]:
    """Return the graph with channels of zeros added, and the rounded weights by name, widened to match.

    Both are returned unchanged where there is nothing to add. Graph inputs and outputs stay. Inner tensors and stored
    weights keep their names and get wider, where only convolutions and operators on single channels make and read them.
    """
    widened: dict[str, model.Array] = {}
    nodes = {node.name: node for node in graph.nodes}
    specs = dict(graph.specs)
    for span in _channel_groups(graph):
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


def _channel_groups(graph: Graph) -> Iterator[_ChannelGroup]:
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
            yield _ChannelGroup(found, tensors, tuple(makers.values()), tuple(readers.values()))


def _is_enclosed(graph: Graph, span: _ChannelGroup) -> bool:
    """Return whether only convolutions and operators on single channels make and read the tensors.

    No other node may read weights and biases that get wider, either.
    """
    around = (*span.makers, *span.readers)
    between = [node for node in around if _keeps_channels(graph, node)]
    return (
        graph.output_names.isdisjoint(span.tensors)
        and all(len(graph.consumers[name]) == 1 for name, _axis in _stored(graph, span))
        and all(node in between or _groups(graph, node) == 1 for node in around)
        and all(name in span.tensors for node in between for name in _activations(graph, node))
    )


def _stored(graph: Graph, span: _ChannelGroup) -> Iterator[tuple[str, int]]:
    """Yield (name, dimension) of the stored tensors that get wider."""
    for node in span.makers:
        if operators.about(node.op).work == "conv":
            yield from ((name, 0) for name in node.inputs[1:] if name)
    yield from ((node.inputs[1], 1) for node in span.readers if _groups(graph, node) == 1)


def _keeps_channels(graph: Graph, node: Node) -> bool:
    """Return whether each output channel of a node depends on the same channel of its inputs only."""
    if _is_depthwise(graph, node):
        return True
    stored = (graph.constants[name] for name in node.inputs if name in graph.constants)
    return not node.domain and node.op in _CHANNEL_BY_CHANNEL and all(value.size == 1 for value in stored)


def _is_depthwise(graph: Graph, node: Node) -> bool:
    groups = _groups(graph, node)
    return groups > 1 and graph.constants[node.inputs[1]].shape[:2] == (groups, 1)


def _groups(graph: Graph, node: Node) -> int:
    """Return the groups of a convolution with stored weight and bias; 0 for other nodes."""
    stored = is_weighted(graph, node) and all(name in graph.constants for name in node.inputs[1:] if name)
    return int(node.attributes.get("group", 1)) if stored and operators.about(node.op).work == "conv" else 0


def _activations(graph: Graph, node: Node) -> list[str]:
    return [name for name in node.inputs if name and name not in graph.constants]
