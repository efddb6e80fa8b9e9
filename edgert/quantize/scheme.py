"""Which tensors of a graph are rounded to 8 bits, for whom, and which of them share a scale.

A scheme is a decision without numbers: :func:`~edgert.quantize.lower.lower` puts it into a graph once ranges are known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from edgert.errors import ModelError, nearest
from edgert.graph.node import Graph
from edgert.quantize.fuse import Unit
from edgert.quantize.point import Point, Scheme, Skipped, Target
from edgert.quantize.scheme_ort import plan_ort
from edgert.quantize.scheme_trt import plan_dla, plan_gpu

__all__ = ["Point", "Scheme", "Skipped", "Target", "Unit", "scheme", "units"]

_PLANS: Mapping[Target, Callable[[Graph, frozenset[str]], Scheme]] = {
    "ort": plan_ort,
    "gpu": plan_gpu,
    "dla": plan_dla,
}


def scheme(graph: Graph, target: Target, keep: Collection[str] = ()) -> Scheme:
    """Decides what becomes INT8.

    Args:
        graph: cleaned, with types of tensors known; opset 13 or later.
        target: who will run it.
        keep: names of units that stay in higher precision.

    Raises:
        ModelError: ``keep`` names a unit that there is not.
    """
    plan = _PLANS[target]
    if keep:
        _check(graph, keep, plan(graph, frozenset()))
    return plan(graph, frozenset(keep))


def units(graph: Graph, target: Target) -> tuple[Unit, ...]:
    """What would run in INT8 if nothing were kept in higher precision."""
    return scheme(graph, target).units


def _check(graph: Graph, keep: Collection[str], whole: Scheme) -> None:
    known = {unit.name for unit in whole.units}
    for name in sorted(set(keep) - known):
        raise ModelError(
            f"no unit {name!r} to keep in higher precision",
            why=_why_not(graph, name, whole) + nearest(name, known),
            fix="name a unit by its main node, a Conv rather than the Relu behind it",
        )


def _why_not(graph: Graph, name: str, whole: Scheme) -> str:
    owner = next((unit.name for unit in whole.units if name in unit.nodes), "")
    if owner:
        return f"that node belongs to unit {owner!r}"
    reason = next((item.reason for item in whole.skipped if item.node == name), "")
    if reason:
        return f"that node is in floating point anyway: {reason}"
    is_node = any(node.name == name for node in graph.nodes)
    return "that node is in floating point anyway" if is_node else "the graph has no node of that name"
