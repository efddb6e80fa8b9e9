"""A scheme and its ranges put into a graph: the Q/DQ form of each target, and the calibration cache of a model."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgert.errors import CalibrationError, ModelError
from edgert.graph import Graph, Model, Node, read
from edgert.graph.draft import Builder
from edgert.graph.model import Array
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.lowering.align import align
from edgert.quantization.lowering.ort_form import Activation, Span, Storage, absorb, lower_ort, roundings
from edgert.quantization.lowering.trt_cache import cache_of, dla_scales, parse_cache
from edgert.quantization.lowering.weights import (
    LIMIT,
    Rounding,
    quantize_weight,
    scale_axis,
    store_dequantized,
    weight_scales,
)
from edgert.quantization.scheme.scheme import Dla, scheme
from edgert.quantization.scheme.trt_scheme import fp16_exceptions, layer_precisions
from edgert.quantization.scheme.units import Point, Scheme

Amax = Callable[[tuple[str, ...]], float]


# The TensorRT form: int8 with zero point 0 everywhere, weights stored as int8 behind a DQ, biases in float.


def lower_trt(graph: Graph, scheme: Scheme, amax: Amax, per_channel: bool, rounded: Mapping[str, Array]) -> Graph:
    """See :func:`edgert.quantization.lowering.lower.lower`."""
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
        axis = scale_axis(node, weight) if self._per_channel else None
        key = (label, axis)
        if key not in self._weights:
            scales = weight_scales(weight, axis)
            values = self._rounded.get(label)
            if values is None:
                values = quantize_weight(weight, scales, axis).values
            self._weights[key] = store_dequantized(self.builder, values.astype(np.int8), scales, axis, label)
        return self._weights[key]


# The form of a target.

_OPSET = 13
"""The first in which DequantizeLinear takes one scale per channel."""


def lower(
    graph: Graph,
    scheme: Scheme,
    amax: Callable[[tuple[str, ...]], float],
    *,
    storage: Storage = "int8",
    activation: Activation = "symmetric",
    per_channel: bool = True,
    aligned: bool = False,
    rounded: Mapping[str, Array] = {},
    span: Span | None = None,
) -> Graph:
    """The graph with its weights as integers and its activations rounded where the scheme puts a point.

    Graph inputs and outputs keep their names, as does the output of every weighted node, in front of its rounding.
    A rounded tensor ``x`` is stored as ``x_quantized`` and read as ``x_dequantized``; where nothing computes ``x``
    itself in floating point any more, what is read is called ``x``.

    Args:
        graph: the one the scheme was made for, or one with the same names and other values.
        amax: threshold of the tensors that share a scale: values beyond it are clipped.
        storage: how ONNX Runtime's form stores activations. ``uint8`` has zero point 128 and so stands for the same
            numbers as ``int8``; x86 multiplies uint8 by int8. TensorRT's forms are int8.
        activation: ``unsigned`` gives uint8 tensors that are never negative all 255 steps, zero point 0, where
            TensorRT has 127. ``affine`` gives every tensor all of them, between its own ends, as ONNX Runtime's
            quantizer does; it needs ``span``. ONNX Runtime's form only.
        per_channel: one scale per output channel of a weight, else one per weight.
        aligned: adds channels of zeros where that lets ONNX Runtime use its fast kernels (see
            :mod:`edgert.quantization.lowering.align`): the same numbers, but inner tensors are wider than in ``graph``.
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


# A calibrated model in the form that a weakly typed TensorRT takes: a calibration cache, and what stays in FP16.


@dataclass(frozen=True, slots=True)
class CacheForm:
    """What TensorRT <= 10 needs besides the float model.

    Attributes:
        cache: text of the calibration cache.
        fp16: nodes that stay FP16, in the order they run.
        layer_precisions: the same for trtexec's option of that name; empty where a name cannot be written there.
    """

    cache: str
    fp16: tuple[str, ...]
    layer_precisions: str


def lower_to_cache(model: Model, table: RangeTable, keep: Collection[str], dla: Dla) -> CacheForm:
    """Lowers a float model.

    Args:
        model: prepared, the one the ranges were measured on.
        keep: units that stay in higher precision.
        dla: whose rules hold; its release will read the cache.

    Raises:
        CalibrationError: see :func:`~edgert.quantization.lowering.trt_cache.cache_of`.
    """
    graph = read(model)
    plan = scheme(graph, "dla", frozenset(keep), dla)
    fp16 = fp16_exceptions(graph, plan)
    try:
        text = layer_precisions(fp16)
    except CalibrationError:  # a comma or the like in a name: only the command line cannot have it
        text = ""
    return CacheForm(cache_of(graph, plan, table.amax, dla.tensorrt), fp16, text)


def scales_of(graph: Graph, table: RangeTable, keep: Collection[str], dla: Dla) -> Mapping[str, float]:
    """Tensor → its INT8 scale on a DLA."""
    return dla_scales(graph, scheme(graph, "dla", frozenset(keep), dla), table.amax)


def check_cache(cache: str, fp16: Collection[str], graph: Graph) -> str:
    """Holds a cache to its promise, a scale for every tensor that the graph computes, and returns a line about it.

    Raises:
        CalibrationError: the text does not read back, or names a tensor or node that the graph does not have.
    """
    found = parse_cache(cache)
    known = graph.names
    nodes = {node.name for node in graph.nodes}
    for name in (*(set(found.scales) - known), *(set(fp16) - nodes)):
        raise CalibrationError(f"the calibration cache names {name!r}", why="the model has no such tensor or node")
    return f"{len(found.scales)} scales for TensorRT {found.version}, {len(fp16)} nodes in FP16"
