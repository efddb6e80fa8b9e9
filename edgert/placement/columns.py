"""Placements of one network as columns of a linear program, and the search for those worth having at given prices.

Accelerators that are interchangeable (two DLA cores) are one class with as much time as they have together.
With equal prices no network gains by using two of a class: moving its units to one of them drops transitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from edgert.placement.constraints import Limits
from edgert.placement.exact import Condition, exact
from edgert.placement.min_cut import Cutter
from edgert.placement.problem import GPU, Assignment, Network
from edgert.placement.run_load import LATENCY, Price, Use, preferring, use

F64 = npt.NDArray[np.float64]

_HALVINGS = 14  # of the range of prices of latency
_EXACT_S = 5.0  # for one network and price, where more than two classes make a cut inexact


@dataclass(frozen=True, slots=True)
class Column:
    """One placement of one network.

    Attributes:
        network: its index.
        assignment: with the first of each class standing for all.
        use: of one run.
    """

    network: int
    assignment: Assignment
    use: Use


@dataclass(frozen=True, slots=True)
class Offer:
    """A column found at a price.

    Attributes:
        column: the cheapest found.
        cost: at the price.
        bound: no column of its kind costs less.
    """

    column: Column
    cost: float
    bound: float


@dataclass(frozen=True, slots=True)
class Resources:
    """What runs use up, per second: classes of accelerators, then traffic and energy where they are limited.

    Attributes:
        classes: interchangeable accelerators.
        amounts: milliseconds of each class, bytes, millijoules.
        has_traffic, has_energy: whether these rows are there.
    """

    classes: tuple[tuple[str, ...], ...]
    amounts: tuple[float, ...]
    has_traffic: bool
    has_energy: bool

    @classmethod
    def of(cls, networks: Sequence[Network], among: Sequence[str], limits: Limits) -> Resources:
        """Those of a board."""
        classes = classed(networks, among)
        amounts = [1000.0 * len(members) for members in classes]
        amounts += [] if limits.traffic_bytes_s is None else [limits.traffic_bytes_s]
        amounts += [] if limits.dynamic_w is None else [1000 * limits.dynamic_w]
        return cls(classes, tuple(amounts), limits.traffic_bytes_s is not None, limits.dynamic_w is not None)

    def used(self, run: Use) -> F64:
        """Shares of everything that one run a second takes."""
        used = [sum(run.busy_ms.get(name, 0.0) for name in members) for members in self.classes]
        used += [run.traffic_bytes] * self.has_traffic + [run.energy_mj] * self.has_energy
        return np.array(used) / self.amounts

    def price(self, worth: Sequence[float]) -> Price:
        """What a run pays when the whole of each resource is worth this much."""
        each = [value / amount for value, amount in zip(worth, self.amounts, strict=True)]
        busy = {name: value for members, value in zip(self.classes, each, strict=False) for name in members}
        traffic = each[len(self.classes)] if self.has_traffic else 0.0
        return Price(energy=each[-1] if self.has_energy else 0.0, traffic=traffic, busy=busy)


def classed(networks: Sequence[Network], among: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Accelerators by class, in order: two are of one if every network looks the same with their names swapped."""
    classes: list[list[str]] = []
    for name in among:
        same = next((members for members in classes if _alike(networks, members[0], name, among)), None)
        if same:
            same.append(name)
        else:
            classes.append([name])
    return tuple(map(tuple, classes))


def _alike(networks: Sequence[Network], one: str, other: str, among: Sequence[str]) -> bool:
    if GPU in (one, other) or any(network.home in (one, other) for network in networks):
        return False
    swap = {one: other, other: one}
    units = (unit for network in networks for unit in network.units)
    edges = (edge for network in networks for edge in network.edges)
    places = [(one, name) for name in among if name != one] + [(name, one) for name in among if name != one]
    swapped = [(swap.get(start, start), swap.get(end, end)) for start, end in places]
    return all(unit.costs.get(one) == unit.costs.get(other) for unit in units) and all(
        edge.transitions.get(place) == edge.transitions.get(twin)
        for edge in edges
        for place, twin in zip(places, swapped, strict=True)
    )


class Search:
    """Finds the cheapest column of every network at a price, and a bound on it.

    Raises:
        PlacementError: a network can run on no two classes together.
    """

    def __init__(self, networks: Sequence[Network], resources: Resources) -> None:
        self._networks = networks
        self._names = [members[0] for members in resources.classes]
        pairs = list(combinations(self._names, 2)) or [(self._names[0], self._names[0])]
        self._cutters: list[tuple[list[int], Cutter]] = []
        for pair in pairs:
            able = [index for index, network in enumerate(networks) if preferring(network, pair)]
            if able:
                self._cutters.append((able, Cutter([networks[index] for index in able], *pair)))
        self.is_exact = len(pairs) == 1

    def plain(self) -> Iterator[Column]:
        """Every network on every class as far as that can run it, on its home otherwise."""
        for index, network in enumerate(self._networks):
            orders = [(name, network.home, *self._names) for name in self._names]
            placed = (preferring(network, order) for order in orders)
            yield from (self._column(index, assignment) for assignment in dict.fromkeys(placed) if assignment)

    def cuts(self, price: Price, *, entry: F64 | float = 0.0) -> Iterator[Offer]:
        """The best of every network on every two classes. ``entry``: paid for every tensor that goes to the second."""
        entries = np.broadcast_to(entry, len(self._networks))
        for able, cutter in self._cutters:
            for index, found in zip(able, cutter.solve(price, entry=entries[able]), strict=True):
                yield Offer(Column(index, found.assignment, found.use), found.cost, found.cost - found.slack)

    def quick_cuts(self, price: Price, most_ms: float) -> Iterator[Offer]:
        """The same among placements that run in ``most_ms``, as far as a price on latency, own to each network, finds.

        The bounds are Lagrange's: what is cheapest with latency priced, less the price of all the time allowed.
        """
        for able, cutter in self._cutters:
            yield from _quick(able, cutter, price, most_ms)

    def exactly(self, price: Price, most_ms: float | None = None) -> Iterator[Offer]:
        """The best of every network on any number of accelerators, by integer programs."""
        quick = [] if most_ms is None else [Condition("latency", LATENCY, most_ms)]
        for index, network in enumerate(self._networks):
            found = exact(network, self._names, price, quick, time_limit_s=_EXACT_S)
            yield Offer(Column(index, found.assignment, found.load), found.cost, found.bound)

    def _column(self, index: int, assignment: Assignment) -> Column:
        return Column(index, assignment, use(self._networks[index], assignment))


def _quick(able: Sequence[int], cutter: Cutter, price: Price, most_ms: float) -> Iterator[Offer]:
    """Halves the range of latency prices of all networks at once."""
    low, high = np.zeros(len(able)), np.full(len(able), np.inf)
    bounds = np.full(len(able), -np.inf)
    tried, step = low.copy(), 0.0
    for turn in range(_HALVINGS):
        results = cutter.solve(price, latency=tried)
        if turn == 0:
            step = max(found.cost for found in results) / most_ms / 8
        for at, (index, found) in enumerate(zip(able, results, strict=True)):
            is_quick = found.use.latency_ms <= most_ms * (1 + 1e-9)
            bounds[at] = max(bounds[at], found.cost - found.slack - tried[at] * most_ms)
            low[at], high[at] = (low[at], tried[at]) if is_quick else (tried[at], high[at])
            if is_quick:
                column = Column(index, found.assignment, found.use)
                yield Offer(column, found.use.cost(price), float(bounds[at]))
        if (high == 0).all():
            return
        tried = np.where(np.isinf(high), np.maximum(4 * low, step), (low + high) / 2)
