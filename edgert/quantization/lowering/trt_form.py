"""What TensorRT takes: the Q/DQ form, or the float model with a calibration cache and what stays in FP16."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from dla import Target as Dla
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Node, read
from edgert.graph.draft import Builder
from edgert.graph.model import Array
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.lowering.trt_cache import Amax, cache_of, dla_scales, parse_cache
from edgert.quantization.lowering.weights import LIMIT, Rounding, integer_weight, outputs_of, store_dequantized
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.trt_scheme import fp16_exceptions, layer_precisions
from edgert.quantization.scheme.units import Scheme


def lower_trt(graph: Graph, scheme: Scheme, amax: Amax, per_channel: bool, rounded: Mapping[str, Array]) -> Graph:
    """See :func:`edgert.quantization.lowering.lower.lower`: int8 with zero point 0 everywhere, weights stored as int8
    behind a DQ, biases in float."""
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
        outputs = outputs_of(self.builder, self._scheme, node)
        self.builder.nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
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

    def _weight(self, node: Node) -> str:
        weight = integer_weight(self._graph, node, self._per_channel, self._rounded)
        label, key = node.inputs[1], (node.inputs[1], weight.axis)
        if key not in self._weights:
            self._weights[key] = store_dequantized(self.builder, weight.values, weight.scales, weight.axis, label)
        return self._weights[key]


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
        CalibrationError: a range is missing; or see :func:`~edgert.quantization.lowering.trt_cache.write_cache`.
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
