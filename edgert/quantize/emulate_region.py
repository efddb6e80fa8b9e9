"""How a DLA would run each node: in INT8, in FP16, or not at all.

The scheme holds what the rules of :mod:`dla` say of every node, its parameters and its neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from dla import Form, fuses
from edgert.graph.node import Graph, Node
from edgert.graph.value import is_movement
from edgert.quantize.operator import data_inputs, data_outputs
from edgert.quantize.point import Scheme

Way = Literal["int8", "lookup", "half", "float", "moved"]
"""``int8``: integers in, integers out. ``lookup``: integers in and out, computed in FP16 in between. ``half``: in FP16,
because it was asked to be or because a DLA has it in nothing else. ``float``: not on the DLA. ``moved``: values pass as
they are."""


def ways(graph: Graph, scheme: Scheme) -> Mapping[str, Way]:
    """Node name → how it runs, for every node."""
    kept = frozenset(name for unit in scheme.kept for name in unit.nodes)
    able = frozenset(name for point in scheme.points.values() for name in point.readers)
    return {node.name: _way(graph, node, scheme.forms[node.name], kept, able) for node in graph.nodes}


def _way(graph: Graph, node: Node, form: Form, kept: Collection[str], able: Collection[str]) -> Way:
    if node.domain or node.captured or not data_inputs(graph, node) or not data_outputs(graph, node):
        return "float"
    if is_movement(graph, node):
        return "moved"
    if form != "none" and node.name in kept:
        return "half"
    match form:
        case "fp16":
            return "half"
        case "int8" | "lookup" if node.name in able:
            return form
    return "float"


def unrounded(graph: Graph, scheme: Scheme, way: Mapping[str, Way]) -> frozenset[str]:
    """Tensors inside a fused unit: the next node has them before they are rounded."""
    units = {name: unit.name for unit in (*scheme.units, *scheme.kept) for name in unit.nodes}
    return frozenset(node.outputs[0] for node in graph.nodes if _is_fused(graph, node, units, way))


def _is_fused(graph: Graph, node: Node, units: Mapping[str, str], way: Mapping[str, Way]) -> bool:
    """Whether the only reader of a convolution or addition belongs to the same kernel."""
    if not node.outputs or not graph.is_private(node.outputs[0]):
        return False
    (reader,) = graph.consumers[node.outputs[0]]
    if not fuses(node.op, reader.op):
        return False
    same = way[node.name] == way[reader.name] and way[node.name] in ("int8", "half")
    return same and node.name in units and units.get(reader.name) == units[node.name]
