"""Highest frame rates of several networks on a board, where each network may have several engines.

A column is one placement of one network. A linear program mixes columns, and a minimum cut finds the column of each
network that would help most at the program's prices. When no column helps, the mix is the best: Gilmore and Gomory, "A
linear programming approach to the cutting-stock problem", Operations Research 1961,
https://doi.org/10.1287/opre.9.6.849. All prices give an upper bound, so the gap is known at any time.

Interchangeable accelerators, such as two DLA cores, form one class with the sum of their time. At equal prices no
network gains by using two of a class: moving its units to one of them removes transitions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from edgert.errors import PlacementError
from edgert.placement.constraints import Limits
from edgert.placement.exact import exact_placement
from edgert.placement.integer import import_scipy
from edgert.placement.min_cut import Cutter
from edgert.placement.problem import GPU, Assignment, Network
from edgert.placement.run_load import Price, Use, accelerators, preferred_assignment, run_use, stranded_error

F64 = npt.NDArray[np.float64]

_ROUNDS = 60
_TIME_LIMIT_S = 4.0  # no integer program starts after this time; they close the gap where cuts cannot
_EXACT_S = 5.0  # time limit of one integer program, needed where more than two classes make a cut inexact
_RATIOS = (0.35, 0.6, 1.0)  # first prices of the second accelerator, relative to the first's
_MIN_GAIN = 1e-7  # smallest relative saving for which a column is added


@dataclass(frozen=True, slots=True)
class Column:
    """A placement of one network.

    Attributes:
        assignment: accelerator of every unit; the first of each class represents all.
        cost: cost at the price for which the column was found.
        bound: lower bound on the cost of such columns at that price.
    """

    network: int
    assignment: Assignment
    use: Use
    cost: float = math.inf
    bound: float = -math.inf


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources available per second: time of each accelerator class, and memory traffic where it is limited.

    Attributes:
        classes: classes of interchangeable accelerators.
        amounts: milliseconds of each class, then bytes.
    """

    classes: tuple[tuple[str, ...], ...]
    amounts: tuple[float, ...]

    @classmethod
    def of(cls, networks: Sequence[Network], limits: Limits) -> Resources:
        """Return the resources of the accelerators that the networks' units can use."""
        classes = interchangeable_classes(networks, accelerators(networks))
        traffic = [] if limits.traffic_bytes_s is None else [limits.traffic_bytes_s]
        return cls(classes, (*(1000.0 * len(members) for members in classes), *traffic))

    def used(self, run: Use) -> F64:
        """Return the share of each resource that one run per second uses."""
        used = [sum(run.busy_ms.get(name, 0.0) for name in members) for members in self.classes]
        return np.array([*used, run.traffic_bytes][: len(self.amounts)]) / self.amounts

    def price(self, worth: Sequence[float] | F64) -> Price:
        """Return the price of a run if each complete resource costs ``worth``."""
        each = (np.asarray(worth) / self.amounts).tolist()
        busy = {name: value for members, value in zip(self.classes, each, strict=False) for name in members}
        return Price(traffic=sum(each[len(self.classes) :]), busy=busy)


def interchangeable_classes(networks: Sequence[Network], among: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the accelerators in classes, in order.

    Two accelerators are in one class if swapping their names changes no network.
    """
    classes: list[list[str]] = []
    for name in among:
        same = next((members for members in classes if _are_interchangeable(networks, members[0], name, among)), None)
        if same:
            same.append(name)
        else:
            classes.append([name])
    return tuple(map(tuple, classes))


def _are_interchangeable(networks: Sequence[Network], one: str, other: str, among: Sequence[str]) -> bool:
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
    """Search for the cheapest column of every network at a price, with a lower bound."""

    def __init__(self, networks: Sequence[Network], resources: Resources) -> None:
        self._networks = networks
        self._names = [members[0] for members in resources.classes]
        pairs = list(combinations(self._names, 2)) or [(self._names[0], self._names[0])]
        self._cutters = [
            (index, Cutter(network, *pair))
            for pair in pairs
            for index, network in enumerate(networks)
            if preferred_assignment(network, pair)
        ]
        self.is_exact = len(pairs) == 1

    def plain_columns(self) -> Iterator[Column]:
        """Yield each network on each class where that can run its units, otherwise on its home.

        Raises:
            PlacementError: a unit can run nowhere.
        """
        for index, network in enumerate(self._networks):
            placed = [preferred_assignment(network, (name, network.home, *self._names)) for name in self._names]
            if None in placed:
                raise stranded_error(network, self._names)
            yield from (Column(index, one, run_use(network, one)) for one in dict.fromkeys(placed) if one)

    def cut_columns(self, price: Price, *, entry: F64 | float = 0.0) -> Iterator[Column]:
        """Yield the cheapest column of each network on each pair of classes.

        ``entry`` is the additional cost of every tensor that moves to the second class.
        """
        entries = np.broadcast_to(entry, len(self._networks)).tolist()
        for index, cutter in self._cutters:
            found = cutter.solve(price, entry=entries[index])
            yield Column(index, found.assignment, found.use, found.cost, found.bound)

    def exact_columns(self, price: Price) -> Iterator[Column]:
        """Yield the cheapest column of each network on any number of classes, by integer programs."""
        for index, network in enumerate(self._networks):
            found = exact_placement(network, self._names, price, time_limit_s=_EXACT_S)
            yield Column(index, found.assignment, found.use, found.cost, found.bound)


@dataclass(frozen=True, slots=True)
class Mix:
    """Mixture of placements, and how often each runs.

    Attributes:
        multiplier: multiple of the requested rates that is reached.
        bound: upper bound on the multiplier.
        columns: all columns that were considered.
        runs_hz: runs per second of each column.
    """

    multiplier: float
    bound: float
    columns: tuple[Column, ...]
    runs_hz: tuple[float, ...]

    @property
    def gap(self) -> float:
        """Upper bound on the distance to the best multiplier, as a share of it."""
        return max(0.0, self.bound - self.multiplier) / max(self.bound, 1e-300)


@dataclass(frozen=True, slots=True)
class PricedMix:
    """Best mixture of given columns, and the prices at which no other mixture of them is better.

    Attributes:
        multiplier: multiple of the requested rates that is reached.
        runs_hz: runs per second of each column.
        worth: price of each complete resource.
        paid: price of a run of each network.
    """

    multiplier: float
    runs_hz: F64
    worth: F64
    paid: F64


def priced_mix(
    columns: Sequence[Column], used: Sequence[F64], most: F64, rates_hz: Sequence[float], unit: float
) -> PricedMix | None:
    """Return the best mixture of columns by a linear program; None where a network has none.

    Args:
        columns: placements to mix.
        used: use of each resource by one run per second, for each column.
        most: available amount of each resource.
        rates_hz: requested runs per second of each network.
        unit: magnitude of the multiplier, which scales the program.
    """
    if not columns:
        return None
    count = len(columns)
    meets = np.zeros((len(rates_hz), count + 1))
    meets[[column.network for column in columns], np.arange(count)] = 1.0
    meets[:, count] = -np.array(rates_hz) * unit
    within = np.column_stack([*used, np.zeros(len(most))])
    gain = np.append(np.zeros(count), -1.0)
    found = import_scipy("optimize").linprog(
        gain, within, most, meets, np.zeros(len(meets)), bounds=(0, None), method="highs"
    )
    if found.x is None:
        return None
    worth = np.maximum(-found.ineqlin.marginals, 0.0) * unit
    return PricedMix(float(found.x[count]) * unit, found.x[:count], worth, found.eqlin.marginals * unit)


def best_mix(networks: Sequence[Network], resources: Resources, gap: float = 5e-4) -> Mix:
    """Return the mix with the largest common multiple of the requested rates, to within ``gap`` unless time runs out.

    It keeps limits of time and traffic; :mod:`edgert.placement.engine_selection` limits loadables.

    Raises:
        PlacementError: a unit of a network can run nowhere.
    """
    return _Mixer(networks, resources).run(gap)


class _Mixer:
    def __init__(self, networks: Sequence[Network], resources: Resources) -> None:
        self._resources, self._rates_hz = resources, [network.rate_hz for network in networks]
        self._search = Search(networks, resources)
        self._columns: list[Column] = []
        self._used: list[F64] = []
        self._known: set[tuple[int, Assignment]] = set()
        self._bound, self._unit = np.inf, 1.0

    def run(self, gap: float) -> Mix:
        """Compute prices and add columns in turn until no column helps, and return the mix."""
        end = time.monotonic() + _TIME_LIMIT_S
        self._add_columns(self._search.plain_columns())
        for ratio in _RATIOS:
            some = [ratio ** min(index, 1) for index in range(len(self._resources.classes))]
            rest = len(self._resources.amounts) - len(some)
            self._add_columns(self._search.cut_columns(self._resources.price([*some, *[0.0] * rest])))
        first = {column.network: used for column, used in zip(self._columns[::-1], self._used[::-1], strict=True)}
        together = np.sum([used * self._rates_hz[network] for network, used in first.items()], axis=0)
        self._unit = 1.0 / max(float(np.max(together)), 1e-300)
        for _ in range(_ROUNDS):
            found = self._best_known_mix()
            if self._is_done(found.multiplier, gap):
                break
            price, is_exact = self._resources.price(found.worth), self._search.is_exact
            fresh = self._add_cheaper_columns(self._search.cut_columns(price), found, is_exact)
            if not fresh and not is_exact and not self._is_done(found.multiplier, gap) and time.monotonic() < end:
                fresh = self._add_cheaper_columns(self._search.exact_columns(price), found, True)
            if not fresh:
                break
        found = self._best_known_mix()
        bound = max(self._bound, found.multiplier)
        return Mix(found.multiplier, bound, tuple(self._columns), tuple(found.runs_hz.tolist()))

    def _best_known_mix(self) -> PricedMix:
        found = priced_mix(self._columns, self._used, np.ones(len(self._resources.amounts)), self._rates_hz, self._unit)
        if found is None:
            raise PlacementError("no mix of placements was found")
        return found

    def _is_done(self, multiplier: float, gap: float) -> bool:
        return bool(np.isfinite(self._bound)) and self._bound - multiplier <= gap * self._bound

    def _add_columns(self, columns: Iterable[Column]) -> int:
        before = len(self._columns)
        for column in columns:
            if (column.network, column.assignment) not in self._known:
                self._known.add((column.network, column.assignment))
                self._columns.append(column)
                self._used.append(self._resources.used(column.use))
        return len(self._columns) - before

    def _add_cheaper_columns(self, columns: Iterable[Column], known: PricedMix, is_bound: bool) -> int:
        """Add columns that are cheaper than their networks' present runs, and update the bound; return their number."""
        columns = list(columns)
        if is_bound:
            least = sum(self._rates_hz[one.network] * one.bound for one in columns)
            self._bound = min(self._bound, float(known.worth.sum()) / max(least, 1e-300))
        return self._add_columns(one for one in columns if one.cost < known.paid[one.network] * (1 - _MIN_GAIN))
