"""What a float16 graph computes, on processors that have no float16 arithmetic."""

from dataclasses import replace

import numpy as np

from edgert.graph import Graph, Names, Node
from edgert.quantization.fp16.magnitudes import Array
from edgert.quantization.fp16.rules import SCALE_ERROR, as_fp16
from edgert.quantization.lowering.weights import F64, arranged, kernel_of

# Scales of stored INT8 weights that float16 can hold.

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
    # a zero point that is computed may be anything
    if any(np.any(graph.constants.get(name, np.ones(1))) for name in filter(None, node.inputs[2:])):
        return False
    return bool(scale.min() < SMALLEST_SCALE and scale.max() * SCALE_ERROR >= SMALLEST_SCALE / 2)


def _raised(graph: Graph, node: Node) -> tuple[Array, Array]:
    values, scale = (graph.constants[name] for name in node.inputs[:2])
    raised = np.maximum(scale, np.float32(SMALLEST_SCALE))
    factor = scale.astype(np.float64) / raised
    if scale.ndim == 1 and scale.size > 1:
        axis = int(node.attributes.get("axis", 1)) % values.ndim
        factor = factor.reshape([-1 if at == axis else 1 for at in range(values.ndim)])
    return np.rint(values * factor).astype(np.int8), raised


# Weights in float16 whose filters keep their sums.
#
# Filters of small networks find edges: weights of opposite sign that nearly cancel. What is left of a flat area is
# the filter's sum times its brightness, and there the rounding errors of all weights add up. Rounding some of them
# the other way makes the sum right at no cost while running.

LONGEST = 8192
"""Weights of a filter above which errors are left to cancel by chance, which takes less time."""
_MOST_FLIPS = 512  # candidates per filter; the errors of 8192 weights add up to some fifty steps
_AT_ONCE = 1_000_000  # weights in memory at a time, in some ten float64 copies


def fp16_weight(graph: Graph, name: str) -> Array:
    """A stored float32 tensor in float16: filters with their sums kept, anything else rounded to nearest."""
    stored = graph.constants[name]
    readers = graph.consumers.get(name, ())
    is_weight = readers and all(node.inputs[1:2] == (name,) for node in readers)
    kernel = kernel_of(graph, readers[0]) if is_weight and np.isfinite(stored).all() else None
    if kernel is None or kernel.values.size > LONGEST * kernel.outputs:
        return as_fp16(stored)
    rows = kernel.values.reshape(kernel.outputs, -1)
    parts = np.array_split(rows, 1 + rows.size // _AT_ONCE)
    values = np.concatenate([balanced(part) for part in parts]).reshape(kernel.values.shape)
    return arranged(values, kernel.node, kernel.stored).astype(np.float16)


def balanced(rows: F64) -> F64:
    """Float16 values next below or above ``rows`` (filters, weights), their sum per row as near as flipping brings it.

    Starting from the nearest values, those are flipped first that cost the least squared error for what they move the
    sum.
    """
    nearest = as_fp16(rows)
    error = nearest.astype(np.float64) - rows
    total = error.sum(axis=1)
    away = np.where(error > 0, -np.inf, np.inf).astype(np.float16)
    step = np.where(error == 0, 0.0, np.nextafter(nearest, away).astype(np.float64) - nearest)
    helps = step * total[:, None] < 0
    cost = np.divide((error + step) ** 2 - error**2, np.abs(step), out=np.full_like(step, np.inf), where=helps)
    order, each = np.argsort(cost, axis=1, kind="stable")[:, :_MOST_FLIPS], np.arange(len(rows))
    values: F64 = nearest.astype(np.float64)
    for column in order.T:
        move = step[each, column]
        flip = np.abs(total + move) < np.abs(total)
        values[each, column] += np.where(flip, move, 0.0)
        total += np.where(flip, move, 0.0)
    return values
