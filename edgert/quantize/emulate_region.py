"""How a DLA would run each node: in INT8, in FP16, or not at all.

After NVIDIA's operator matrix (github.com/NVIDIA/Deep-Learning-Accelerator-SW, operators/README.md) and the layer rules
in TensorRT's DLA chapter. Only operators are looked at here, not their parameters: a kernel that is too wide, or a
resize by an odd factor, counts as one that fits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from edgert.graph.node import Graph, Node
from edgert.quantize.operator import WEIGHTED, data_inputs, data_outputs, is_activation, is_movement, is_weighted
from edgert.quantize.point import Scheme

Way = Literal["int8", "lookup", "half", "kept", "float", "moved"]
"""``int8``: integers in, integers out. ``lookup``: integers in and out, computed in FP16 in between. ``half``: the DLA
has it in FP16 only. ``kept``: asked to stay in FP16. ``float``: not on the DLA. ``moved``: values pass as they are."""

INT8_OPERATORS = frozenset(
    {
        *("Relu", "Clip", "LeakyRelu", "PRelu", "Abs", "BatchNormalization"),
        *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum"),
        *("MaxPool", "AveragePool", "GlobalMaxPool", "ReduceMax", "Concat", "Resize", "Upsample"),
    }
)
"""Weighted operators and those that move data come on top."""

LOOKUP_OPERATORS = frozenset({"Sigmoid", "Tanh", "LRN"})
"""Promoted to FP16 inside, as the documentation has it."""

HALF_OPERATORS = frozenset({"Softmax"})

FUSED = frozenset({"Add", "Relu", "Clip", "LeakyRelu", "PRelu"})
"""What works on the results of a convolution or an addition before they are rounded."""


def ways(graph: Graph, scheme: Scheme) -> Mapping[str, Way]:
    """Node name → how it runs, for every node."""
    kept = {name for unit in scheme.kept for name in unit.nodes}
    return {node.name: _way(graph, node, kept) for node in graph.nodes}


def unrounded(graph: Graph, scheme: Scheme, way: Mapping[str, Way]) -> frozenset[str]:
    """Tensors inside a fused unit: the next node has them before they are rounded."""
    units = {name: unit.name for unit in (*scheme.units, *scheme.kept) for name in unit.nodes}
    return frozenset(
        node.outputs[0]
        for node in graph.nodes
        if node.op in (WEIGHTED | {"Add"}) and way[node.name] in ("int8", "kept") and _is_fused(graph, node, units)
    )


def _is_fused(graph: Graph, node: Node, units: Mapping[str, str]) -> bool:
    output = node.outputs[0]
    if not graph.is_private(output) or not is_activation(graph, output):
        return False
    (reader,) = graph.consumers[output]
    if reader.op == "Add" and node.op == "Add":
        return False
    return reader.op in FUSED and node.name in units and units.get(reader.name) == units[node.name]


def _way(graph: Graph, node: Node, kept: Collection[str]) -> Way:
    if node.domain or node.captured or not data_inputs(graph, node) or not data_outputs(graph, node):
        return "float"
    if is_movement(graph, node):
        return "moved"
    found = _native_way(graph, node)
    return "kept" if node.name in kept and found != "float" else found


def _native_way(graph: Graph, node: Node) -> Way:
    if node.op in HALF_OPERATORS:
        return "half"
    if node.op in LOOKUP_OPERATORS:
        return "lookup"
    if node.op in WEIGHTED:
        return "int8" if is_weighted(graph, node) and _has_stored_bias(graph, node) else "float"
    return "int8" if node.op in INT8_OPERATORS else "float"


def _has_stored_bias(graph: Graph, node: Node) -> bool:
    """Or none."""
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    return not bias or bias in graph.constants
