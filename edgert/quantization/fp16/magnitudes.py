"""The largest possible values of a tensor: measured, or implied by its operators."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.graph import Graph, Node
from edgert.graph.operators import SUMS, about, clip_bounds, data_of, is_copy, is_interpolation
from edgert.quantization.scheme.units import CLIPS

HEADROOM = 4.0
"""Factor by which values of other images may exceed the largest measured one."""

Array = npt.NDArray[Any]
Measured = Mapping[str, float]
"""Tensor → the largest |x| ever seen in it: of its histogram, not the threshold that INT8 clips at."""

_OPEN = 1e30
"""Exporters write the largest float32 where they mean that a Clip has no bound."""


def magnitudes(graph: Graph, measured: Measured) -> dict[str, float]:
    """Return tensor → largest |x| to expect; tensors without a known bound are left out.

    Stored tensors count as they are, measured ones with :data:`HEADROOM`. A bound that an operator implies holds for
    every image: a Sigmoid gives at most 1, a Clip at most its bounds. The least known bound is taken.

    Args:
        graph: the float graph.
        measured: see :data:`Measured`.
    """
    found = {name: largest(array) for name, array in graph.constants.items() if array.dtype.kind in "fiu"}
    found |= {spec.name: measured[spec.name] * HEADROOM for spec in graph.inputs if spec.name in measured}
    for node in graph.nodes:
        bound = None if node.domain else _bound(graph, node, found)
        for position, name in enumerate(filter(None, node.outputs)):
            known = [measured[name] * HEADROOM] if name in measured else []
            if bound is not None and (position == 0 or node.op == "Split"):
                known.append(bound)
            if known:
                found[name] = min(known)
    return found


def largest(array: Array) -> float:
    """Return the largest finite magnitude in an array; 0 for one that has none."""
    if array.dtype.kind != "f":
        return max(abs(int(array.max(initial=0))), abs(int(array.min(initial=0))))
    finite = array if np.isfinite(array).all() else array[np.isfinite(array)]
    return float(np.abs(finite).max(initial=0))


def _bound(graph: Graph, node: Node, known: Mapping[str, float]) -> float | None:
    """Return what a node's first output cannot exceed."""
    first = known.get(node.inputs[0]) if node.inputs else None
    info = about(node.op)
    if math.isfinite(info.largest):
        return info.largest
    if node.op == "LeakyRelu" and first is not None:
        return first * max(1.0, abs(float(node.attributes.get("alpha", 0.01))))
    if node.op in CLIPS:
        outer = max(map(abs, clip_bounds(graph, node) or (math.inf,)))
        least = min(math.inf if outer >= _OPEN else outer, math.inf if first is None else first)
        return least if math.isfinite(least) else None
    if node.op == "Pad" and first is not None and "".join(node.inputs[2:3]):
        value = known.get(node.inputs[2])
        return None if value is None else max(first, value)
    if node.op == "Pad" or is_copy(graph, node) or is_interpolation(node):
        return first
    if info.values != "new":
        values = [known.get(name) for name in data_of(node.op, node.inputs)]
        return None if None in values else max(value for value in values if value is not None)
    return _computed(graph, node, known, first)


def _computed(graph: Graph, node: Node, known: Mapping[str, float], first: float | None) -> float | None:
    second = known.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if about(node.op).kind == "dequantize":
        return _dequantized(graph, node, second)
    if node.op == "Exp" and first is not None:
        return math.exp(min(first, 700.0))  # beyond that float64 has no number for it
    if first is None or second is None:
        return None
    if node.op in SUMS:
        return first + second
    return first * second if node.op == "Mul" else None


def _dequantized(graph: Graph, node: Node, scale: float | None) -> float | None:
    """Return the integers' range times the largest scale; stored integers count with their own range."""
    zero = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    stored = graph.constants.get(node.inputs[0])
    dtype = stored.dtype if stored is not None else None if zero is None else zero.dtype
    if scale is None or dtype is None or dtype.kind not in "iu":
        return None
    offset = 0 if zero is None else largest(zero)
    if stored is not None:
        return (largest(stored) + offset) * scale
    limits = np.iinfo(dtype)
    return max(abs(limits.min - offset), abs(limits.max - offset)) * scale
