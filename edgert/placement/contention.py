"""Contention of accelerators for one memory: the bandwidth that each gets, and the slower times that follow.

A unit gets the bandwidth that others leave, but at least a floor. If it requests ``own``, and the others ``others``:
min(own, max(total − others, floor)). Its form follows the measurements of PCCS: Xu et al.,
"PCCS: Processor-Centric Contention-aware Slowdown Model for Heterogeneous System-on-Chips", MICRO 2021,
https://doi.org/10.1145/3466752.3480101.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from edgert.placement.problem import Cost, Network, with_costs

_MAX_COMBINED = 6  # with more other accelerators than this, their mean traffic is used


@dataclass(frozen=True, slots=True)
class Contention:
    """Coefficients of the contention model, fitted to a board.

    Attributes:
        total_bytes_s: memory bandwidth.
        floor_bytes_s: guaranteed bandwidth.
    """

    total_bytes_s: float
    floor_bytes_s: float = 0.0

    def slowdown(self, own_bytes_s: float, others_bytes_s: float) -> float:
        """Return the factor, at least 1, by which a unit takes longer than alone on the board."""
        left = max(self.total_bytes_s - others_bytes_s, self.floor_bytes_s)
        return 1.0 if own_bytes_s <= left else own_bytes_s / max(left, 1e-9)


MEASURED = Contention(total_bytes_s=1.0)
"""Memory shared by profiled cores, in relative units: its bandwidth is 1."""


def requested_share(slowdown: float, accelerators: int) -> float:
    """Return the share of :data:`MEASURED` that each accelerator requests if all together run slower by this factor.

    This solves own / (1 - others) = slowdown. A single accelerator requests at most 1.
    """
    return min(slowdown / (1 + slowdown * (accelerators - 1)), 1.0)


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """Memory traffic that one accelerator requests.

    Attributes:
        busy: share of the time that the accelerator runs.
        bytes_s: bytes per second while it runs.
    """

    busy: float
    bytes_s: float


def slowed_network(network: Network, demands: Mapping[str, MemoryDemand], contention: Contention) -> Network:
    """Return the network with its units' mean times while other accelerators use the memory.

    The others are assumed to run independently of one another, each for its share of the time.
    """
    names = {name for unit in network.units for name in unit.costs}
    others = {name: _combined_traffic([demands[other] for other in demands if other != name]) for name in names}

    def slowed_cost(name: str, cost: Cost) -> Cost:
        own = 1e3 * cost.traffic_bytes / cost.time_ms if cost.time_ms > 0 else 0.0
        factor = sum(probability * contention.slowdown(own, bytes_s) for probability, bytes_s in others[name])
        return replace(cost, time_ms=cost.time_ms * factor)

    return with_costs(network, lambda unit: {name: slowed_cost(name, cost) for name, cost in unit.costs.items()})


def _combined_traffic(others: Sequence[MemoryDemand]) -> list[tuple[float, float]]:
    """Return (probability, total bytes per second) for every combination of accelerators that run at once."""
    if len(others) > _MAX_COMBINED:
        return [(1.0, sum(one.busy * one.bytes_s for one in others))]
    combinations = []
    for running in product((False, True), repeat=len(others)):
        probability, bytes_s = 1.0, 0.0
        for one, runs in zip(others, running, strict=True):
            busy = min(max(one.busy, 0.0), 1.0)
            probability *= busy if runs else 1 - busy
            bytes_s += one.bytes_s if runs else 0.0
        combinations.append((probability, bytes_s))
    return combinations


def traffic_change(before: Mapping[str, MemoryDemand], after: Mapping[str, MemoryDemand]) -> float:
    """Return the largest change of an accelerator's mean traffic, as a share of the total."""
    total = sum(one.busy * one.bytes_s for one in after.values())
    if total <= 0:
        return 0.0
    means = {name: one.busy * one.bytes_s for name, one in after.items()}
    old = {name: one.busy * one.bytes_s for name, one in before.items()}
    return max(abs(means.get(name, 0.0) - old.get(name, 0.0)) for name in {*means, *old}) / total
