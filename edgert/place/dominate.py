"""Accelerators that another one beats in everything, so that nothing is lost by leaving them out.

One beats another if every unit that the other can run costs it no more time, energy and traffic, and handing tensors to
and from it costs no more. Moving all of the other's units to it then costs no more either: crossings between the two go
away, and a tensor that both read is handed over once. It is only time that may run out, so whoever leaves the beaten
ones out has to check that it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgert.place.problem import Cost, Crossing, Network

_FREE = Crossing(0.0)


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
    return all(_crosses_no_more(edge.crossings, one, other, rest) for edge in network.edges)


def _crosses_no_more(crossings: Mapping[tuple[str, str], Crossing], one: str, other: str, rest: Sequence[str]) -> bool:
    pairs = [((name, one), (name, other)) for name in rest] + [((one, name), (other, name)) for name in rest]
    return all(_no_more(crossings.get(mine, _FREE), crossings.get(theirs, _FREE)) for mine, theirs in pairs)


def _no_more(one: Cost | Crossing, other: Cost | Crossing) -> bool:
    return all(mine <= theirs for mine, theirs in zip(_taken(one), _taken(other), strict=True))


def _taken(part: Cost | Crossing) -> tuple[float, ...]:
    shares = (part.from_ms, part.gpu_ms, part.to_ms) if isinstance(part, Crossing) else ()
    return (part.time_ms, part.energy_mj, part.traffic_bytes, *shares)
