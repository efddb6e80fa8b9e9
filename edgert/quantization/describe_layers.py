"""Layers and tensors of a quantized model as rows of a report."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.config import ModelConfig
from edgert.graph import Graph, Model, Node, read
from edgert.graph.operators import WEIGHTED, about
from edgert.quantization.calibrated import prepared
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.threshold import METHODS, threshold
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.equalization import scalings
from edgert.quantization.int8_model import QuantizationResult
from edgert.quantization.lowering.weights import along_axis, bias_factor, quantize_weight, scale_axis, weight_scales
from edgert.quantization.quantizer import matching
from edgert.quantization.scheme.units import Scheme, Target, is_weighted
from edgert.report import Correction, LayerRow, Note, TensorRow

COST_MEANING = "part of the outputs that is noise when it alone is INT8"
"""What a scan measures; see :func:`layer_rows`."""

HIGHER: Mapping[Target, str] = {"ort": "FP32", "gpu": "FP32", "dla": "FP16"}
"""What layers compute in that are not INT8."""

_HALFWAY = "its weights are rounded to INT8, but nothing rounds its output: ONNX Runtime would not compute it faster"


def layer_rows(outcome: QuantizationResult) -> tuple[LayerRow, ...]:
    """One row for each node with weights, and for every other that was kept in higher precision, in graph order.

    ``cost`` is how much of the graph's outputs is noise with this layer alone in INT8, where a scan measured it.
    """
    graph = read(outcome.prepared)
    costs = {item.unit: item.cost for item in outcome.scan.ranked} if outcome.scan else {}
    return tuple(_layer(outcome, node, costs.get(node.name)) for node in graph.nodes if _is_layer(graph, node, outcome))


def floating_notes(outcome: QuantizationResult) -> tuple[Note, ...]:
    """One note for each reason why nodes without weights stay in floating point."""
    graph = read(outcome.prepared)
    layers = {node.name for node in graph.nodes if _is_layer(graph, node, outcome)}
    nodes = {node.name: node for node in graph.nodes}
    reasons: dict[str, list[Node]] = {}
    for skipped in outcome.quantized.scheme.skipped:
        if skipped.node in nodes and skipped.node not in layers:
            reasons.setdefault(skipped.reason, []).append(nodes[skipped.node])
    return tuple(Note(_floating(reason, some), level="note") for reason, some in reasons.items())


def tensor_rows(table: RangeTable, scheme: Scheme) -> tuple[TensorRow, ...]:
    """One row for each tensor whose range a scheme needs. Up to about 20 ms per different histogram.

    Raises:
        CalibrationError: a tensor is not in the table.
    """
    known: dict[str, Mapping[str, float]] = {}
    return tuple(_tensor(table, name, group, known) for name, group in _groups(scheme).items())


def _is_layer(graph: Graph, node: Node, outcome: QuantizationResult) -> bool:
    return is_weighted(graph, node) or any(unit.name == node.name for unit in outcome.quantized.scheme.kept)


def _layer(outcome: QuantizationResult, node: Node, cost: float | None) -> LayerRow:
    plan = outcome.quantized.scheme
    noise = outcome.sqnr_db.get(node.outputs[0])
    if all(node.name != unit.name for unit in plan.units):
        return LayerRow(node.name, node.op, noise, HIGHER[plan.target], outcome.kept.get(node.name, ""), cost)
    if plan.target == "ort" and _multiplies_floats(outcome.quantized.graph, node.name):
        return LayerRow(node.name, node.op, noise, HIGHER["ort"], _HALFWAY, cost)
    return LayerRow(node.name, node.op, noise, cost=cost)


def _multiplies_floats(graph: Graph, name: str) -> bool:
    """Whether a weighted node is among those whose rounded weights are stored in floating point."""
    node = next((node for node in graph.nodes if node.name == name), None)
    return node is not None and node.op in WEIGHTED and node.inputs[1] in graph.constants


def _floating(reason: str, nodes: list[Node]) -> str:
    """``"3 nodes without weights stay in floating point (2 Resize, 1 Softmax), each because …"``."""
    if len(nodes) == 1:
        return f"{nodes[0].op} {nodes[0].name} stays in floating point: {reason}."
    ops = ", ".join(f"{count} {op}" for op, count in Counter(node.op for node in nodes).most_common())
    return f"{len(nodes)} nodes without weights stay in floating point ({ops}), each because {reason}."


def _groups(scheme: Scheme) -> Mapping[str, tuple[str, ...]]:
    """Tensor whose range is needed → those that decide on its scale, itself among them."""
    needed, found = set(scheme.needed), dict[str, tuple[str, ...]]()
    for group in scheme.groups.values():
        found |= {name: group for name in group if name in needed}
    return {name: found[name] for name in scheme.points if name in found}


def _tensor(table: RangeTable, name: str, group: tuple[str, ...], known: dict[str, Mapping[str, float]]) -> TensorRow:
    histogram = table.histograms[name]
    key = histogram.digest
    if key not in known:
        known[key] = dict(_thresholds(histogram, table.percentile))
    chosen, used = table.chosen.get(name, table.method), table.amax(group)
    return TensorRow(
        name,
        histogram.counts,
        histogram.exponent,
        histogram.amax,
        known[key],
        chosen,
        None if used == known[key][chosen] else used,
        tuple(other for other in group if other != name),
    )


def _thresholds(histogram: Histogram, percentile: float) -> Iterator[tuple[str, float]]:
    for method in METHODS:
        yield method, threshold(histogram, method, percentile=percentile)


# What was changed in a model's weights to win accuracy back, found by comparing them before and after.

Array = npt.NDArray[Any]

EQUALIZATION = "Cross-layer equalization"


def corrections(outcome: QuantizationResult, model: Model, config: ModelConfig) -> tuple[Correction, ...]:
    """All changes, in the order they were made; equalization is worked out anew from the file."""
    found: list[Correction] = []
    if config.quantize.equalize:
        found += _equalized(model, config)
    pair = _Pair(read(outcome.prepared), outcome.quantized.graph, outcome)
    if outcome.recipe.adaround:
        found += pair.rounded()
    if outcome.recipe.correct_bias:
        found += pair.shifted()
    return tuple(found)


def _equalized(model: Model, config: ModelConfig) -> Iterator[Correction]:
    plain = config.model_copy(update={"quantize": config.quantize.model_copy(update={"equalize": False})})
    for one in scalings(read(prepared(model, plain))):
        parts = [("outputs divided by", one.outputs), ("inputs multiplied by", one.inputs)]
        changes = [f"{verb} {_span(values)}" for verb, values in parts if (values != 1).any()]
        yield Correction(EQUALIZATION, (one.node,), ", ".join(changes))


def _span(values: Array) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


@dataclass(frozen=True, slots=True)
class _Pair:
    """A model before and after."""

    before: Graph
    after: Graph
    outcome: QuantizationResult

    def rounded(self) -> Iterator[Correction]:
        """Nodes whose weights AdaRound rounded, and how many of these the other way."""
        known = {node.name: node for node in self.after.nodes}
        weighted = sorted(self.outcome.quantized.scheme.weighted & known.keys())
        names = set(matching(self.outcome.recipe.adaround, weighted, "adaround"))
        for node in self.before.nodes:
            if node.name in names:
                share = self._turned(node, known[node.name])
                yield Correction("AdaRound", (node.name,), f"{share:.1%} of the weights rounded the other way")

    def shifted(self) -> Iterator[Correction]:
        """Nodes whose bias was corrected, and by how much of the largest output."""
        after = {node.name: node for node in self.after.nodes}
        for node in self.before.nodes:
            if about(node.op).work == "matmul" or node.name not in after or not is_weighted(self.before, node):
                continue  # a MatMul has no bias of its own
            shift = self._shift(node, after[node.name])
            if shift > 0:
                histogram = self.outcome.table.histograms.get(node.outputs[0])
                part = f", {shift / histogram.amax:.2%} of the largest output" if histogram and histogram.amax else ""
                yield Correction("Bias correction", (node.name,), f"by {shift:.3g} at most{part}")

    def _turned(self, node: Node, made: Node) -> float:
        weight = self.before.constants[node.inputs[1]]
        axis = scale_axis(node, weight) if self.outcome.recipe.per_channel else None
        scales = weight_scales(weight, axis)
        nearest = quantize_weight(weight, scales, axis).restored
        now, _ = _stored(self.after, made.inputs[1])
        return float(np.mean(np.abs(now - nearest) > along_axis(scales, axis, weight.ndim) / 2))

    def _shift(self, node: Node, made: Node) -> float:
        """The largest change of a bias that is more than its rounding to integers; 0 for none."""
        if len(made.inputs) < 3 or not made.inputs[2]:
            return 0.0
        now, step = _stored(self.after, made.inputs[2])
        old = self.before.constants[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
        change = np.abs(bias_factor(made) * now.reshape(-1) - bias_factor(node) * np.float64(old).reshape(-1))
        return float(np.where(change > step, change, 0.0).max(initial=0.0))


def _stored(graph: Graph, name: str) -> tuple[Array, Array]:
    """The values of a stored tensor, plain or behind a DQ, and the steps it is stored in; 0 for a plain one."""
    if name in graph.constants:
        return np.asarray(graph.constants[name], np.float64), np.zeros(())
    node = graph.producers[name]
    values = np.asarray(graph.constants[node.inputs[0]], np.float64)
    scales = np.asarray(graph.constants[node.inputs[1]], np.float64)
    axis = node.attributes.get("axis", 0) if scales.ndim else None
    return values * along_axis(scales, axis, values.ndim), scales
