"""Pareto fronts: placements, rows and accelerators that no other beats in every respect."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from edgert.placement.min_cut import Cutter, Found
from edgert.placement.problem import Assignment, Cost, Network, Transition
from edgert.placement.run_load import Price, Use, accelerators, preferring, stranded

# Accelerators that another one beats in everything, so that nothing is lost by leaving them out.
#
# One beats another if every unit that the other can run costs it no more time, energy and traffic, and no
# transition to or from it costs more. Moving all of the other's units to it then costs no more either: transitions
# between the two go away, and a tensor that both read makes one transition. It is only time that may run out, so
# whoever leaves the beaten ones out has to check that it does not.

_FREE = Transition(0.0)


def undominated(network: Network, among: Sequence[str]) -> tuple[str, ...]:
    """The accelerators that no other beats, in order; of two that beat each other the first."""
    kept: list[str] = []
    for name in among:
        if any(_beats(network, other, name, among) for other in kept):
            continue
        kept = [other for other in kept if not _beats(network, name, other, among)]
        kept.append(name)
    return tuple(kept)


def _beats(network: Network, one: str, other: str, among: Sequence[str]) -> bool:
    if other == network.home:
        return False
    for unit in network.units:
        if other in unit.costs and (one not in unit.costs or not _no_more(unit.costs[one], unit.costs[other])):
            return False
    rest = [name for name in among if name not in (one, other)]
    return all(_crosses_no_more(edge.transitions, one, other, rest) for edge in network.edges)


def _crosses_no_more(
    transitions: Mapping[tuple[str, str], Transition], one: str, other: str, rest: Sequence[str]
) -> bool:
    pairs = [((name, one), (name, other)) for name in rest] + [((one, name), (other, name)) for name in rest]
    return all(_no_more(transitions.get(mine, _FREE), transitions.get(theirs, _FREE)) for mine, theirs in pairs)


def _no_more(one: Cost | Transition, other: Cost | Transition) -> bool:
    return all(mine <= theirs for mine, theirs in zip(_taken(one), _taken(other), strict=True))


def _taken(part: Cost | Transition) -> tuple[float, ...]:
    shares = (part.from_ms, part.gpu_ms, part.to_ms) if isinstance(part, Transition) else ()
    return (part.time_ms, part.energy_mj, part.traffic_bytes, *shares)


T = TypeVar("T")

_TIE = 1e-6  # weight of the other objective at either end, so that an end is not beaten by its neighbor
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
    """The rows that no other row is at least as good as in every key and better in one; all keys are minimized.

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
    """Between two corners lies another or none: a cut at the slope that joins them finds out."""

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
