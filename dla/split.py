"""Segments that are too large for the DLA's memory pools, cut into some that fit."""

from __future__ import annotations

from collections.abc import Sequence

from dla.footprint import Footprint
from dla.limit import GLOBAL_BYTES, LOCAL_BYTES
from dla.wiring import Wiring


def split(places: Sequence[int], wiring: Wiring, footprint: Footprint) -> list[list[int]]:
    """The segment, or parts that each stay below both pools where a single node does.

    A part is a run of a convex segment in an order in which every node follows those it reads, so it is convex.
    """
    if _fits(places, footprint):
        return [list(places)]
    runs: list[list[int]] = [[]]
    for place in places:
        if runs[-1] and not _fits([*runs[-1], place], footprint):
            runs.append([])
        runs[-1].append(place)
    return [part for run in runs for part in _connected(run, wiring)]


def _fits(places: Sequence[int], footprint: Footprint) -> bool:
    return footprint.weight_bytes(places) < GLOBAL_BYTES and footprint.inner_bytes(places) < LOCAL_BYTES


def _connected(run: Sequence[int], wiring: Wiring) -> list[list[int]]:
    """Parts of a run that hang together."""
    left, parts = set(run), []
    while left:
        part, waiting = [], [left.pop()]
        while waiting:
            place = waiting.pop()
            part.append(place)
            near = {*wiring.before[place], *wiring.after[place]} & left
            left -= near
            waiting.extend(near)
        parts.append(sorted(part))
    return sorted(parts)
