"""Weights in float16 whose filters keep their sums.

Filters of small networks find edges: weights of opposite sign that nearly cancel. What is left of a flat area is the
filter's sum times its brightness, and there the rounding errors of all weights add up. Rounding some of them the other
way makes the sum right at no cost while running.
"""

from __future__ import annotations

import numpy as np

from edgert.graph.node import Graph
from edgert.quantize.half.rule import halved
from edgert.quantize.kernel import F64, kernel_of
from edgert.quantize.magnitude import Array

LONGEST = 8192
"""Weights of a filter above which errors are left to cancel by chance, which takes less time."""
_MOST_FLIPS = 512  # candidates per filter; the errors of 8192 weights add up to some fifty steps
_AT_ONCE = 1_000_000  # weights in memory at a time, in some ten float64 copies


def halved_weight(graph: Graph, name: str) -> Array:
    """A stored float32 tensor in float16: filters with their sums kept, anything else rounded to nearest."""
    stored = graph.constants[name]
    readers = graph.consumers.get(name, ())
    if not readers or any(node.inputs[1:2] != (name,) for node in readers):
        return halved(stored)
    kernel = kernel_of(graph, readers[0])
    if kernel is None or not np.isfinite(stored).all():
        return halved(stored)
    rows = kernel.values.reshape(kernel.outputs, -1)
    if rows.shape[1] > LONGEST:
        return halved(stored)
    parts = np.array_split(rows, 1 + rows.size // _AT_ONCE)
    values = np.concatenate([balanced(part) for part in parts]).reshape(kernel.values.shape)
    return kernel.with_values(values).to_stored().astype(np.float16)


def balanced(rows: F64) -> F64:
    """Float16 values next below or above ``rows`` (filters, weights), their sum per row as near as flipping brings it.

    Starting from the nearest values, those are flipped first that cost the least squared error for what they move the
    sum.
    """
    nearest = halved(rows)
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
