"""Which tensors of a graph are rounded to 8 bits, for whom, and which of them share a scale.

A scheme is a decision without numbers: :func:`~edgert.quantization.lowering.lower.lower` puts it into a graph once
ranges are known.
"""

from collections.abc import Collection

from dla import Target as Dla
from edgert.errors import ModelError, nearest
from edgert.graph import Graph
from edgert.quantization.scheme.ort_scheme import plan_ort
from edgert.quantization.scheme.trt_scheme import plan_dla, plan_gpu
from edgert.quantization.scheme.units import USUAL_DLA, Point, Scheme, Skipped, Target, Unit

__all__ = ["USUAL_DLA", "Dla", "Point", "Scheme", "Skipped", "Target", "Unit", "scheme", "units"]


def scheme(
    graph: Graph, target: Target, keep: Collection[str] = (), dla: Dla = USUAL_DLA, whole: Scheme | None = None
) -> Scheme:
    """Decides what becomes INT8.

    Args:
        graph: cleaned, with types of tensors known; opset 13 or later.
        target: who will run it.
        keep: names of units that stay in higher precision.
        dla: whose rules decide what a DLA runs, for target ``dla``.
        whole: the scheme with nothing kept, from callers that have it.

    Raises:
        ModelError: ``keep`` names a unit that there is not.
    """
    whole = whole or _plan(graph, target, frozenset(), dla)
    if not keep:
        return whole
    _check(graph, keep, whole)
    return _plan(graph, target, frozenset(keep), dla)


def units(graph: Graph, target: Target, dla: Dla = USUAL_DLA) -> tuple[Unit, ...]:
    """What would run in INT8 if nothing were kept in higher precision."""
    return scheme(graph, target, dla=dla).units


def _plan(graph: Graph, target: Target, keep: frozenset[str], dla: Dla) -> Scheme:
    match target:
        case "ort":
            return plan_ort(graph, keep)
        case "gpu":
            return plan_gpu(graph, keep)
        case "dla":
            return plan_dla(graph, keep, dla)


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
