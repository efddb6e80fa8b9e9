"""What cannot be had better in one way without being worse in another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from edgert.place.cut import Cutter, Found
from edgert.place.load import Price, Use, accelerators, preferring, stranded
from edgert.place.problem import Assignment, Network

T = TypeVar("T")

_TIE = 1e-6  # weight of the other objective at either end, so that an end is not beaten by its neighbour
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Point:
    """One placement of the front.

    Attributes:
        assignment: of the units.
        use: of one run.
        latency_ms, energy_mj: the two objectives; energy with what the board draws anyway during the run.
    """

    assignment: Assignment
    use: Use
    latency_ms: float
    energy_mj: float


def pareto(rows: Iterable[T], *keys: Callable[[T], float]) -> list[T]:
    """The rows that no other row is at least as good as in every key and better in one; all keys are minimised.

    Of equal rows the first stays. The order is by the first key, then the second, and so on.
    """
    front: list[tuple[tuple[float, ...], T]] = []
    for row in sorted(rows, key=lambda row: tuple(key(row) for key in keys)):
        values = tuple(key(row) for key in keys)
        if not any(all(map(float.__le__, map(float, other), map(float, values))) for other, _ in front):
            front.append((values, row))
    return [row for _, row in front]


def front(network: Network, among: Sequence[str] | None = None, *, static_w: float = 0.0) -> list[Point]:
    """Latency against energy: every corner of the convex hull, found by minimum cuts, from quick to frugal.

    Placements on any two of the accelerators are looked at. ``static_w``: what the board draws whatever runs.

    Raises:
        PlacementError: no two accelerators can run the network.
    """
    names = among or accelerators([network])
    pairs = [pair for pair in combinations(names, 2) if preferring(network, pair)] or [(names[0], names[0])]
    if not preferring(network, pairs[0]):
        raise stranded(network, names)
    points = [point for pair in pairs for point in _swept(Cutter((network,), *pair), static_w)]
    return pareto(points, lambda point: point.latency_ms, lambda point: point.energy_mj)


def _swept(cutter: Cutter, static_w: float) -> list[Point]:
    """Between two corners lies another or none: a cut at the slope that joins them tells."""

    def corner(time: float, energy: float) -> Point:
        found: Found = cutter.solve(Price(latency=time + energy * static_w, energy=energy))[0]
        use = found.use
        return Point(found.assignment, use, use.latency_ms, use.energy_mj + static_w * use.latency_ms)

    quick, frugal = corner(1.0, _TIE), corner(_TIE, 1.0)
    done, open_pairs = [quick, frugal], [(quick, frugal)]
    while open_pairs:
        one, other = open_pairs.pop()
        time, energy = one.energy_mj - other.energy_mj, other.latency_ms - one.latency_ms
        if time <= _SAME * one.energy_mj or energy <= _SAME * other.latency_ms:
            continue
        between = corner(time, energy)
        level = time * one.latency_ms + energy * one.energy_mj
        if time * between.latency_ms + energy * between.energy_mj < level * (1 - 1e-6):
            done.append(between)
            open_pairs += [(one, between), (between, other)]
    return done
