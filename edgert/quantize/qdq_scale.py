"""Scales carried to where none was given: a DLA wants one on every tensor, and Q/DQ models have them on few."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from edgert.graph.node import Graph
from edgert.graph.operators import about
from edgert.quantize.dla_scale import dla_groups, hidden
from edgert.quantize.emulate_region import unrounded, ways
from edgert.quantize.operator import data_inputs
from edgert.quantize.prepare import calibrated
from edgert.quantize.scheme import scheme
from edgert.quantize.weight import LIMIT

_UNIT = float(np.float32(1) / np.float32(LIMIT))
"""Of what lies within ±1 whatever goes in and has no range of its own."""
_SAME = 1e-6
"""Relative difference that a scale stored twice may show."""


def spread_scales(graph: Graph, given: Mapping[str, float]) -> tuple[Mapping[str, float], tuple[str, ...]]:
    """Scales of all tensors that have one or must have a neighbour's, and a sentence for each that has none.

    A scale holds for everything that moves, pools, concatenates or bounds values, both ways, as a DLA needs it
    (:func:`~edgert.quantize.dla_scale.dla_groups`); of several the largest holds. What a fused convolution hands to the
    addition behind it is never rounded, and gets the addition's.

    Args:
        graph: the float graph.
        given: tensor → scale.
    """
    found, problems, silent = dict[str, float](), list[str](), hidden(graph)
    for members in dict.fromkeys(dla_groups(graph).values()):
        scale, problem = _common(graph, members, silent, given)
        problems += [problem] if problem else []
        found.update(dict.fromkeys(members, scale) if scale else {})
    _hand_back(graph, found)
    names = calibrated(graph)
    problems += [_gap(graph, name) for name in names if name not in found]
    return {name: found[name] for name in names if name in found}, tuple(problems)


def _common(
    graph: Graph, members: Collection[str], silent: Collection[str], given: Mapping[str, float]
) -> tuple[float, str]:
    """The scale of a set, 0 where nothing tells it, and what is lost by it."""
    scales = {name: given[name] for name in members if name in given and name not in silent}
    scales = scales or {name: given[name] for name in members if name in given}
    if not scales:
        return (_UNIT if _is_bounded(graph, members) else 0.0), ""
    largest, least = max(scales.values()), min(scales.values())
    if largest <= least * (1 + _SAME):
        return largest, ""
    return largest, (
        f"tensors {', '.join(map(repr, scales))} must share a scale on a DLA and have several: "
        f"the largest, {largest:.6g}, is {largest / least:.3g} times the least"
    )


def _is_bounded(graph: Graph, members: Collection[str]) -> bool:
    """Whether every tensor of the set comes from a bounded function, directly or from another one of the set."""
    for name in members:
        maker = graph.producers.get(name)
        if maker is None or maker.domain:
            return False
        if not about(maker.op).is_bounded and not set(data_inputs(graph, maker)) <= set(members):
            return False
    return True


def _hand_back(graph: Graph, found: dict[str, float]) -> None:
    """Gives tensors inside a fused unit the scale of what reads them, last ones first."""
    whole = scheme(graph, "dla")
    inside = unrounded(graph, whole, ways(graph, whole))
    for node in reversed(graph.nodes):
        for name in node.outputs:
            if name in inside and name not in found:
                (reader,) = graph.consumers[name]
                found.update({name: found[reader.outputs[0]]} if reader.outputs[0] in found else {})


def _gap(graph: Graph, name: str) -> str:
    maker = graph.producers.get(name)
    what = f"input {name!r}" if maker is None else f"tensor {name!r} (from {maker.op} {maker.name!r})"
    return f"{what} has no scale: no Q/DQ is on it or on what shares one with it, and the DLA will not run it in INT8"
