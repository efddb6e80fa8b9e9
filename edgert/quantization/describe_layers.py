"""Layers and tensors of a quantized model as rows of a report."""

from collections import Counter
from collections.abc import Iterator, Mapping

from edgert.graph import Graph, Node, operators, read
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.threshold import METHODS, threshold
from edgert.quantization.int8_model import QuantizationResult
from edgert.quantization.scheme.units import Scheme, Target, is_weighted
from edgert.report.quantization_record import LayerRow, Note, TensorRow

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
    costs = outcome.scan or {}
    plan, made = outcome.quantized.scheme, outcome.quantized.graph
    quantized = {unit.name for unit in plan.units}
    # weighted nodes whose rounded weights are stored in floating point
    halfway = {node.name for node in made.nodes if node.op in operators.WEIGHTED and node.inputs[1] in made.constants}
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

    Raises CalibrationError: a tensor is not in the table.
    """
    # tensors that decide the scale of each
    groups = {name: group for group in scheme.groups.values() for name in group}
    needed = set(scheme.needed) & groups.keys()
    known: dict[str, Mapping[str, float]] = {}
    rows = []
    for name in (name for name in scheme.points if name in needed):
        histogram = table.histograms[name]
        thresholds = known.get(histogram.digest) or {method: threshold(histogram, method) for method in METHODS}
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
