"""Contention of accelerators for one memory: the bandwidth that each gets, and placements that account for it.

The model is "what is left, with a floor". A unit that requests ``own`` while others request ``others`` gets
min(own, max(total − slope · others, floor + share · own)). Its form follows the measurements of PCCS: Xu et al.,
"PCCS: Processor-Centric Contention-aware Slowdown Model for Heterogeneous System-on-Chips", MICRO 2021,
https://doi.org/10.1145/3466752.3480101.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from edgert.placement.problem import Cost, Network, with_costs

T = TypeVar("T")

_ROUNDS, _SETTLED = 5, 0.01
_MANY = 6  # with more others than this only their mean demand counts


@dataclass(frozen=True, slots=True)
class Contention:
    """Coefficients of the contention model, fitted to a board.

    Attributes:
        total_bytes_s: bandwidth of the memory for all.
        slope: bandwidth lost per byte that others request.
        floor_bytes_s: bandwidth that is left in any case, plus the next.
        floor_share: share of the requested bandwidth that is left in any case.
    """

    total_bytes_s: float
    slope: float = 1.0
    floor_bytes_s: float = 0.0
    floor_share: float = 0.0

    def slowdown(self, own_bytes_s: float, others_bytes_s: float) -> float:
        """Return how many times longer the unit takes, at least 1."""
        floor = self.floor_bytes_s + self.floor_share * own_bytes_s
        left = max(self.total_bytes_s - self.slope * others_bytes_s, floor)
        return 1.0 if own_bytes_s <= left else own_bytes_s / max(left, 1e-9)


MEASURED = Contention(total_bytes_s=1.0)
"""Memory that profiled cores share: its bandwidth is 1, of which each core requests :func:`demand_of`."""


def demand_of(slowdown: float, accelerators: int) -> float:
    """Return what each accelerator requests of :data:`MEASURED` if all together slow one another down by this factor.

    It solves own / (1 - others) = slowdown; a single accelerator requests at most 1.
    """
    return min(slowdown / (1 + slowdown * (accelerators - 1)), 1.0)


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """Memory traffic that one accelerator requests.

    Attributes:
        busy: share of the time that it runs.
        bytes_s: while it runs.
    """

    busy: float
    bytes_s: float


def stretched(network: Network, demands: Mapping[str, MemoryDemand], contention: Contention) -> Network:
    """Return the network with the mean times of its units while the other accelerators use the memory.

    The others are assumed to run independently of one another, each for its share of the time.
    """
    names = {name for unit in network.units for name in unit.costs}
    others = {name: _mixed([demands[other] for other in demands if other != name]) for name in names}

    def slower(name: str, cost: Cost) -> Cost:
        own = 1e3 * cost.traffic_bytes / cost.time_ms if cost.time_ms > 0 else 0.0
        factor = sum(probability * contention.slowdown(own, bytes_s) for probability, bytes_s in others[name])
        return replace(cost, time_ms=cost.time_ms * factor)

    return with_costs(network, lambda unit: {name: slower(name, cost) for name, cost in unit.costs.items()})


def fixed_point(
    networks: Sequence[Network],
    contention: Contention,
    solve: Callable[[Sequence[Network]], T],
    demand_of: Callable[[T], Mapping[str, MemoryDemand]],
    score: Callable[[T], float],
) -> T:
    """Solve, compute the memory traffic of the answer, lengthen times by it, and solve again until little changes.

    Args:
        networks: with times alone on the board.
        contention: the memory's coefficients.
        solve: networks → answer.
        demand_of: answer → memory traffic of every accelerator.
        score: value of an answer, by simulation; the answer with the highest is returned.
    """
    current = tuple(networks)
    before: Mapping[str, MemoryDemand] = {}
    tried: list[tuple[float, T]] = []
    for _ in range(_ROUNDS):
        answer = solve(current)
        tried.append((score(answer), answer))
        demand = demand_of(answer)
        if _change(before, demand) <= _SETTLED:
            break
        current = tuple(stretched(network, demand, contention) for network in networks)
        before = demand
    return max(tried, key=lambda one: one[0])[1]


def _mixed(others: Sequence[MemoryDemand]) -> list[tuple[float, float]]:
    """Return (probability, bytes per second in total) of every combination that runs at once."""
    if len(others) > _MANY:
        return [(1.0, sum(one.busy * one.bytes_s for one in others))]
    mixed = []
    for running in product((False, True), repeat=len(others)):
        probability, bytes_s = 1.0, 0.0
        for one, runs in zip(others, running, strict=True):
            busy = min(max(one.busy, 0.0), 1.0)
            probability *= busy if runs else 1 - busy
            bytes_s += one.bytes_s if runs else 0.0
        mixed.append((probability, bytes_s))
    return mixed


def _change(before: Mapping[str, MemoryDemand], after: Mapping[str, MemoryDemand]) -> float:
    """Return the largest change of an accelerator's mean traffic, as a share of the total."""
    total = sum(one.busy * one.bytes_s for one in after.values())
    if total <= 0:
        return 0.0
    means = {name: one.busy * one.bytes_s for name, one in after.items()}
    old = {name: one.busy * one.bytes_s for name, one in before.items()}
    return max(abs(means.get(name, 0.0) - old.get(name, 0.0)) for name in {*means, *old}) / total
