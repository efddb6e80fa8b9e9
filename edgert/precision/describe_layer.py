"""Layers and tensors of a quantised model as rows of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from edgert.graph.node import Graph, Node, read
from edgert.graph.operators import WEIGHTED
from edgert.precision.outcome import Outcome
from edgert.quantize.histogram import Histogram
from edgert.quantize.operator import is_weighted
from edgert.quantize.point import Scheme, Target
from edgert.quantize.table import RangeTable
from edgert.quantize.threshold import METHODS, threshold
from edgert.report import LayerRow, Note, TensorRow

COST_MEANING = "part of the outputs that is noise when it alone is INT8"
"""What a scan measures; see :func:`layer_rows`."""

HIGHER: Mapping[Target, str] = {"ort": "FP32", "gpu": "FP32", "dla": "FP16"}
"""What layers compute in that are not INT8."""

_HALFWAY = "its weights are rounded to INT8, but nothing rounds its output: ONNX Runtime would not compute it faster"


def layer_rows(outcome: Outcome) -> tuple[LayerRow, ...]:
    """One row for each node with weights, and for every other that was kept in higher precision, in graph order.

    ``cost`` is how much of the graph's outputs is noise with this layer alone in INT8, where a scan measured it.
    """
    graph = read(outcome.prepared)
    costs = {item.unit: item.cost for item in outcome.scan.ranked} if outcome.scan else {}
    return tuple(_layer(outcome, node, costs.get(node.name)) for node in graph.nodes if _is_layer(graph, node, outcome))


def floating_notes(outcome: Outcome) -> tuple[Note, ...]:
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


def _is_layer(graph: Graph, node: Node, outcome: Outcome) -> bool:
    return is_weighted(graph, node) or any(unit.name == node.name for unit in outcome.quantized.scheme.kept)


def _layer(outcome: Outcome, node: Node, cost: float | None) -> LayerRow:
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
