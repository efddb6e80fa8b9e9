"""Accelerators share one memory: what each of them gets when others ask too, and placements that take that in.

The model is "what is left, with a floor": a unit that asks for ``own`` while others ask for ``others`` gets
min(own, max(total − slope · others, floor + share · own)). Its form follows what was measured for PCCS: Xu et al.,
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
_MANY = 6  # of more others than this only the mean demand is looked at


@dataclass(frozen=True, slots=True)
class Contention:
    """Coefficients, fitted to a board.

    Attributes:
        total_bytes_s: what the memory gives to all.
        slope: how much of it others take per byte they ask for.
        floor_bytes_s, floor_share: what is left in any case: this plus this share of what is asked for.
    """

    total_bytes_s: float
    slope: float = 1.0
    floor_bytes_s: float = 0.0
    floor_share: float = 0.0

    def slowdown(self, own_bytes_s: float, others_bytes_s: float) -> float:
        """How many times longer it takes, at least 1."""
        floor = self.floor_bytes_s + self.floor_share * own_bytes_s
        left = max(self.total_bytes_s - self.slope * others_bytes_s, floor)
        return 1.0 if own_bytes_s <= left else own_bytes_s / max(left, 1e-9)


MEASURED = Contention(total_bytes_s=1.0)
"""What cores that were profiled share: a memory that has 1 to give, of which each asks for :func:`demand_of`."""


def demand_of(slowdown: float, accelerators: int) -> float:
    """What each of so many accelerators asks of :data:`MEASURED` if all at once slow one another down by this factor.

    It solves own / (1 - others) = slowdown; one by itself asks for no more than there is.
    """
    return min(slowdown / (1 + slowdown * (accelerators - 1)), 1.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """What one accelerator asks of the memory.

    Attributes:
        busy: share of the time that it runs.
        bytes_s: while it runs.
    """

    busy: float
    bytes_s: float


def stretched(network: Network, asked: Mapping[str, Asked], contention: Contention) -> Network:
    """The network with the times that its units take on average while the other accelerators ask for memory.

    The others are taken to run independently of one another, each for its share of the time.
    """
    names = {name for unit in network.units for name in unit.costs}
    others = {name: _mixed([asked[other] for other in asked if other != name]) for name in names}

    def slower(name: str, cost: Cost) -> Cost:
        own = 1e3 * cost.traffic_bytes / cost.time_ms if cost.time_ms > 0 else 0.0
        factor = sum(probability * contention.slowdown(own, bytes_s) for probability, bytes_s in others[name])
        return replace(cost, time_ms=cost.time_ms * factor)

    return with_costs(network, lambda unit: {name: slower(name, cost) for name, cost in unit.costs.items()})


def settle(
    networks: Sequence[Network],
    contention: Contention,
    solve: Callable[[Sequence[Network]], T],
    asked: Callable[[T], Mapping[str, Asked]],
    score: Callable[[T], float],
) -> T:
    """Solves, asks what the answer demands of the memory, stretches times, solves again, until little changes.

    Args:
        solve: networks → answer.
        asked: answer → what every accelerator asks for.
        score: what an answer is worth, by simulation; the answer with the highest is kept.
    """
    current = tuple(networks)
    before: Mapping[str, Asked] = {}
    tried: list[tuple[float, T]] = []
    for _ in range(_ROUNDS):
        answer = solve(current)
        tried.append((score(answer), answer))
        demand = asked(answer)
        if _change(before, demand) <= _SETTLED:
            break
        current = tuple(stretched(network, demand, contention) for network in networks)
        before = demand
    return max(tried, key=lambda one: one[0])[1]


def _mixed(others: Sequence[Asked]) -> list[tuple[float, float]]:
    """(probability, bytes per second asked for together) of every combination that run at once."""
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


def _change(before: Mapping[str, Asked], after: Mapping[str, Asked]) -> float:
    """The largest change of what an accelerator asks for on average, as a share of what all ask for."""
    total = sum(one.busy * one.bytes_s for one in after.values())
    if total <= 0:
        return 0.0
    means = {name: one.busy * one.bytes_s for name, one in after.items()}
    old = {name: one.busy * one.bytes_s for name, one in before.items()}
    return max(abs(means.get(name, 0.0) - old.get(name, 0.0)) for name in {*means, *old}) / total
