"""How a DLA would run each node: in INT8, in FP16, or not at all.

The scheme knows what a DLA has in INT8, by operator and not by parameters: a kernel that is too wide, or a resize by an
odd factor, counts as one that fits. What is told apart here are operators that are computed in FP16 even so (NVIDIA,
DLA layer support and restrictions), and what is fused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from edgert.graph.node import Graph, Node
from edgert.quantize.operator import WEIGHTED, data_inputs, data_outputs, is_movement, is_weighted
from edgert.quantize.point import Scheme

Way = Literal["int8", "lookup", "half", "float", "moved"]
"""``int8``: integers in, integers out. ``lookup``: integers in and out, computed in FP16 in between. ``half``: in FP16,
because it was asked to be or because a DLA has it in nothing else. ``float``: not on the DLA. ``moved``: values pass as
they are."""

LOOKUP_OPERATORS = frozenset({"Sigmoid", "Tanh"})
"""Promoted to FP16 inside, as the documentation has it."""

HALF_OPERATORS = frozenset({"Softmax", "LRN"})

FUSED = frozenset({"Add", "Relu", "Clip", "LeakyRelu", "PRelu"})
"""What works on the results of a convolution, the activations on those of an addition too, before they are rounded."""


def ways(graph: Graph, scheme: Scheme) -> Mapping[str, Way]:
    """Node name → how it runs, for every node."""
    kept = frozenset(name for unit in scheme.kept for name in unit.nodes)
    able = frozenset(name for point in scheme.points.values() for name in point.readers)
    return {node.name: _way(graph, node, kept, able) for node in graph.nodes}


def _way(graph: Graph, node: Node, kept: Collection[str], able: Collection[str]) -> Way:
    if node.domain or node.captured or not data_inputs(graph, node) or not data_outputs(graph, node):
        return "float"
    if is_movement(graph, node):
        return "moved"
    if node.name in kept or node.op in HALF_OPERATORS:
        return "half"
    if node.name not in able or (node.op in WEIGHTED and not _is_layer(graph, node)):
        return "float"
    return "lookup" if node.op in LOOKUP_OPERATORS else "int8"


def _is_layer(graph: Graph, node: Node) -> bool:
    """Whether weight and bias are there when the engine is built."""
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    return is_weighted(graph, node) and (not bias or bias in graph.constants)


def unrounded(graph: Graph, scheme: Scheme, way: Mapping[str, Way]) -> frozenset[str]:
    """Tensors inside a fused unit: the next node has them before they are rounded."""
    units = {name: unit.name for unit in (*scheme.units, *scheme.kept) for name in unit.nodes}
    return frozenset(node.outputs[0] for node in graph.nodes if _is_fused(graph, node, units, way))


def _is_fused(graph: Graph, node: Node, units: Mapping[str, str], way: Mapping[str, Way]) -> bool:
    """Whether the only reader of a convolution or addition belongs to the same kernel."""
    if node.op not in WEIGHTED | {"Add"} or not graph.is_private(node.outputs[0]):
        return False
    (reader,) = graph.consumers[node.outputs[0]]
    if reader.op not in FUSED or (reader.op == "Add" and node.op == "Add"):
        return False
    same = way[node.name] == way[reader.name] and way[node.name] in ("int8", "half")
    return same and node.name in units and units.get(reader.name) == units[node.name]
