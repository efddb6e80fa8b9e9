"""Layers, tensors and corrections of a quantized model as rows of a report."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.config import ModelConfig
from edgert.graph import Graph, Model, Node, read
from edgert.graph.operators import WEIGHTED, about
from edgert.quantization.calibrated import prepare_section_model
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.threshold import METHODS, threshold
from edgert.quantization.equalization import scalings
from edgert.quantization.int8_model import QuantizationResult
from edgert.quantization.lowering.weights import along_axis, bias_factor, quantize_weight, scale_axis, weight_scales
from edgert.quantization.quantizer import match_names
from edgert.quantization.scheme.units import Scheme, Target, is_weighted
from edgert.report.quantization_record import Correction, LayerRow, Note, TensorRow

COST_MEANING = "part of the outputs that is noise when it alone is INT8"
"""Meaning of ``cost`` in :func:`layer_rows`."""

HIGHER: Mapping[Target, str] = {"ort": "FP32", "gpu": "FP32", "dla": "FP16"}
"""Precision of layers that are not INT8, by target."""

_HALFWAY = "its weights are rounded to INT8, but nothing rounds its output: ONNX Runtime would not compute it faster"


def layer_rows(outcome: QuantizationResult) -> tuple[LayerRow, ...]:
    """Return a row for each node that has weights or is kept in higher precision, in graph order.

    ``cost`` is the noise share of the graph's outputs with this layer alone in INT8, where a scan measured it.
    """
    graph = read(outcome.prepared)
    costs = {item.unit: item.cost for item in outcome.scan.ranked} if outcome.scan else {}
    plan, made = outcome.quantized.scheme, outcome.quantized.graph
    quantized = {unit.name for unit in plan.units}
    # weighted nodes whose rounded weights are stored in floating point
    halfway = {node.name for node in made.nodes if node.op in WEIGHTED and node.inputs[1] in made.constants}
    rows = []
    for node in graph.nodes:
        if not _is_layer(graph, node, outcome):
            continue
        precision, reason = "INT8", ""
        if node.name not in quantized:
            precision, reason = HIGHER[plan.target], outcome.kept.get(node.name, "")
        elif plan.target == "ort" and node.name in halfway:
            precision, reason = HIGHER["ort"], _HALFWAY
        noise = outcome.sqnr_db.get(node.outputs[0])
        rows.append(LayerRow(node.name, node.op, noise, precision, reason, costs.get(node.name)))
    return tuple(rows)


def floating_notes(outcome: QuantizationResult) -> Iterator[Note]:
    """Yield a note for each reason why nodes without weights stay in floating point, with the operators counted."""
    graph = read(outcome.prepared)
    others = {node.name: node for node in graph.nodes if not _is_layer(graph, node, outcome)}
    reasons: dict[str, list[Node]] = {}
    for skipped in outcome.quantized.scheme.skipped:
        if skipped.node in others:
            reasons.setdefault(skipped.reason, []).append(others[skipped.node])
    for reason, nodes in reasons.items():
        ops = ", ".join(f"{count} {op}" for op, count in Counter(node.op for node in nodes).most_common())
        text = f"{len(nodes)} nodes without weights stay in floating point ({ops}), each because {reason}."
        if len(nodes) == 1:
            text = f"{nodes[0].op} {nodes[0].name} stays in floating point: {reason}."
        yield Note(text, level="note")


def tensor_rows(table: RangeTable, scheme: Scheme) -> tuple[TensorRow, ...]:
    """Return a row for each tensor whose range a scheme needs; each different histogram takes up to 20 ms.

    Raises:
        CalibrationError: a tensor is not in the table.
    """
    # tensors that decide the scale of each
    groups = {name: group for group in scheme.groups.values() for name in group}
    needed = set(scheme.needed) & groups.keys()
    known: dict[str, Mapping[str, float]] = {}
    rows = []
    for name in (name for name in scheme.points if name in needed):
        histogram = table.histograms[name]
        thresholds = known.get(histogram.digest) or {
            method: threshold(histogram, method, percentile=table.percentile) for method in METHODS
        }
        known[histogram.digest] = thresholds
        chosen, used = table.chosen.get(name, table.method), table.amax(groups[name])
        others = tuple(other for other in groups[name] if other != name)
        used_alone = None if used == thresholds[chosen] else used
        rows.append(
            TensorRow(
                name, histogram.counts, histogram.exponent, histogram.amax, thresholds, chosen, used_alone, others
            )
        )
    return tuple(rows)


def _is_layer(graph: Graph, node: Node, outcome: QuantizationResult) -> bool:
    return is_weighted(graph, node) or any(unit.name == node.name for unit in outcome.quantized.scheme.kept)


Array = npt.NDArray[Any]

EQUALIZATION = "Cross-layer equalization"


def corrections(outcome: QuantizationResult, model: Model, config: ModelConfig) -> tuple[Correction, ...]:
    """Return the corrections of a model's weights, in order; equalization is computed again from the file."""
    equalized = _equalization_corrections(model, config) if config.quantize.equalize else ()
    rounded = _adaround_corrections(outcome) if outcome.recipe.adaround else ()
    shifted = _bias_corrections(outcome) if outcome.recipe.correct_bias else ()
    return (*equalized, *rounded, *shifted)


def _equalization_corrections(model: Model, config: ModelConfig) -> Iterator[Correction]:
    plain = config.model_copy(update={"quantize": config.quantize.model_copy(update={"equalize": False})})
    for one in scalings(read(prepare_section_model(model, plain))):
        changes = []
        for verb, values in (("outputs divided by", one.outputs), ("inputs multiplied by", one.inputs)):
            if (values != 1).any():
                ends = dict.fromkeys((float(values.min()), float(values.max())))
                changes.append(f"{verb} {' to '.join(f'{end:.3g}' for end in ends)}")
        yield Correction(EQUALIZATION, (one.node,), ", ".join(changes))


def _adaround_corrections(outcome: QuantizationResult) -> Iterator[Correction]:
    """Yield the nodes that AdaRound changed, with the share of weights rounded the other way."""
    before, after = read(outcome.prepared), outcome.quantized.graph
    known = {node.name: node for node in after.nodes}
    weighted = sorted(outcome.quantized.scheme.weighted & known.keys())
    names = set(match_names(outcome.recipe.adaround, weighted, "adaround"))
    for node in before.nodes:
        if node.name in names:
            weight = before.constants[node.inputs[1]]
            axis = scale_axis(node, weight)
            scales = weight_scales(weight, axis)
            nearest = quantize_weight(weight, scales, axis).restored
            now, _ = _stored(after, known[node.name].inputs[1])
            share = float(np.mean(np.abs(now - nearest) > along_axis(scales, axis, weight.ndim) / 2))
            yield Correction("AdaRound", (node.name,), f"{share:.1%} of the weights rounded the other way")


def _bias_corrections(outcome: QuantizationResult) -> Iterator[Correction]:
    """Yield the nodes whose bias changed by more than its rounding to integers, relative to the largest output."""
    before, after = read(outcome.prepared), outcome.quantized.graph
    known = {node.name: node for node in after.nodes}
    for node in before.nodes:
        if about(node.op).work == "matmul" or node.name not in known or not is_weighted(before, node):
            continue  # a MatMul has no bias
        made = known[node.name]
        if not "".join(made.inputs[2:3]):
            continue
        now, step = _stored(after, made.inputs[2])
        old = before.constants[node.inputs[2]] if "".join(node.inputs[2:3]) else np.zeros(1)
        change = np.abs(bias_factor(made) * now.reshape(-1) - bias_factor(node) * np.float64(old).reshape(-1))
        shift = float(np.where(change > step, change, 0.0).max(initial=0.0))
        if shift > 0:
            histogram = outcome.table.histograms.get(node.outputs[0])
            part = f", {shift / histogram.amax:.2%} of the largest output" if histogram and histogram.amax else ""
            yield Correction("Bias correction", (node.name,), f"by {shift:.3g} at most{part}")


def _stored(graph: Graph, name: str) -> tuple[Array, Array]:
    """Return the values of a stored tensor, plain or behind a DQ, and its steps, 0 for a plain one."""
    if name in graph.constants:
        return np.asarray(graph.constants[name], np.float64), np.zeros(())
    node = graph.producers[name]
    values = np.asarray(graph.constants[node.inputs[0]], np.float64)
    scales = np.asarray(graph.constants[node.inputs[1]], np.float64)
    axis = node.attributes.get("axis", 0) if scales.ndim else None
    return values * along_axis(scales, axis, values.ndim), scales
