"""Scales of stored INT8 weights that float16 can hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from edgert.graph.node import Graph, Names, Node
from edgert.quantize.half.rule import SCALE_ERROR
from edgert.quantize.magnitude import Array

SMALLEST_SCALE = 2.0**-25 / SCALE_ERROR
"""Scales from here on are off by less than ``SCALE_ERROR``: float16 steps by 2^-24 near zero."""
_HALF_SCALES = 19
"""Opset in which Q/DQ took float16 scales: https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html."""


def with_holdable_scales(graph: Graph) -> Graph:
    """Raises the scales of channels whose weights are next to nothing, and rounds their integers anew.

    Channels that training has switched off have weights, and so scales, down to 1e-30. One such scale would leave the
    DequantizeLinear of the whole weight in float32. Done only where the error it makes, at most 2^-18 per weight, is
    below 1/128 of what rounding the largest channel to INT8 made.
    """
    if graph.opset < _HALF_SCALES:
        return graph
    names, stored, nodes = Names(graph), dict(graph.constants), []
    for node in graph.nodes:
        if node.op == "DequantizeLinear" and not node.domain and _can_be_raised(graph, node):
            values, scale = _raised(graph, node)
            named = tuple(names.new(f"{name}_raised") for name in node.inputs[:2])
            stored.update(zip(named, (values, scale), strict=True))
            node = replace(node, inputs=(*named, *node.inputs[2:]))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=stored)


def _can_be_raised(graph: Graph, node: Node) -> bool:
    values, scale = (graph.constants.get(name) for name in node.inputs[:2])
    if values is None or scale is None or values.dtype != np.int8 or scale.dtype != np.float32:
        return False
    if any(np.any(zero) for zero in _zero_points(graph, node)):
        return False
    return bool(scale.min() < SMALLEST_SCALE and scale.max() * SCALE_ERROR >= SMALLEST_SCALE / 2)


def _zero_points(graph: Graph, node: Node) -> Iterator[Array]:
    for name in filter(None, node.inputs[2:]):
        yield graph.constants.get(name, np.ones(1))  # one that is computed may be anything


def _raised(graph: Graph, node: Node) -> tuple[Array, Array]:
    values, scale = (graph.constants[name] for name in node.inputs[:2])
    raised = np.maximum(scale, np.float32(SMALLEST_SCALE))
    factor = scale.astype(np.float64) / raised
    if scale.ndim == 1 and scale.size > 1:
        axis = int(node.attributes.get("axis", 1)) % values.ndim
        factor = factor.reshape([-1 if at == axis else 1 for at in range(values.ndim)])
    return np.rint(values * factor).astype(np.int8), raised
