"""The most frames that several networks get out of a board, when frames of one network may run on different engines.

A column is one placement of one network. A linear program mixes columns; its prices show which placement of each
network would help most, and a minimum cut finds that. When none helps, no mix is better: Gilmore and Gomory, "A linear
programming approach to the cutting-stock problem", Operations Research 1961, https://doi.org/10.1287/opre.9.6.849.
Any prices bound what can be reached, so that the gap is known all the time.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.errors import PlacementError
from edgert.placement.columns import Column, Offer, Resources, Search
from edgert.placement.constraints import Limits
from edgert.placement.integer import optional
from edgert.placement.problem import Assignment, Network
from edgert.placement.run_load import Load, Price, accelerators

F64 = npt.NDArray[np.float64]

_ROUNDS = 60
_RATIOS = (0.35, 0.6, 1.0)  # of prices of the second accelerator to the first's, to begin with
_HELPS = 1e-7
_PROVEN_UNITS = 200


@dataclass(frozen=True, slots=True)
class Demand:
    """Runs per second of one network: ``base + multiplier · slope``."""

    base: float
    slope: float


@dataclass(frozen=True, slots=True)
class Blend:
    """Columns and how often they run.

    Attributes:
        multiplier: the demand that is met.
        bound: no placements meet more.
        columns: all that were looked at.
        runs_hz: of each column.
        prices: what the whole of each resource is worth, with the multiplier as money.
    """

    multiplier: float
    bound: float
    columns: tuple[Column, ...]
    runs_hz: tuple[float, ...]
    prices: tuple[float, ...]

    @property
    def gap(self) -> float:
        """How far the best may be above, as a share of it."""
        return max(0.0, self.bound - self.multiplier) / max(self.bound, 1e-300)


def demands(networks: Sequence[Network]) -> list[Demand]:
    """What is maximized: a common multiple of the rates asked for; of 1 Hz for all if none asks for one.

    Networks without a rate get nothing here if others have one: see :func:`mix`.
    """
    rates = [network.rate_hz for network in networks]
    asked = [1.0 if not any(rates) else rate or 0.0 for rate in rates]
    return [Demand(0.0, rate) for rate in asked]


def blend(
    networks: Sequence[Network],
    resources: Resources,
    wanted: Sequence[Demand],
    limits: Limits,
    gap: float = 5e-4,
    time_limit_s: float = 4.0,
) -> Blend:
    """The best mix, stopped when it is proven to be within ``gap`` of the best there is.

    Integer programs, which prove the last bit where cuts cannot, are not begun after ``time_limit_s``.
    Keeps to accelerators' time, traffic, power, and the latency of every column; memory and loadables belong to engines
    (see :mod:`edgert.placement.engine_selection`).

    Raises:
        PlacementError: a network can run nowhere, or nothing meets the base demands or the latency.
    """
    return _Mixer(networks, resources, wanted, limits).run(gap, time.monotonic() + time_limit_s)


def board_of(networks: Sequence[Network], limits: Limits) -> Resources:
    """The resources of the accelerators that the networks' units know."""
    return Resources.of(networks, accelerators(networks), limits)


class _Mixer:
    def __init__(
        self, networks: Sequence[Network], resources: Resources, wanted: Sequence[Demand], limits: Limits
    ) -> None:
        self._networks, self._resources, self._wanted = networks, resources, wanted
        self._latency_ms = limits.latency_ms
        self._search = Search(networks, resources)
        self._columns: list[Column] = []
        self._used: list[F64] = []
        self._known: set[tuple[int, tuple[str, ...]]] = set()
        self._bound = np.inf
        self._unit = 1.0
        units = sum(len(network.units) for network in networks)
        # Where more than two classes or a limited latency keep cuts from being exact, integer programs prove the rest.
        self._may_be_exact = not self._search.is_exact or (limits.latency_ms is not None and units <= _PROVEN_UNITS)

    def run(self, gap: float, end: float) -> Blend:
        """Rounds of prices and columns."""
        self._start()
        for _ in range(_ROUNDS):
            multiplier, runs, worth, prices = self._master()
            if self._is_done(multiplier, gap):
                break
            price = self._resources.price(prices)
            fresh = self._priced(self._cheapest(price), prices, worth, self._search.is_exact)
            if not fresh and not self._is_done(multiplier, gap) and self._may_be_exact and time.monotonic() < end:
                fresh = self._priced(self._search.exactly(price, self._latency_ms), prices, worth, True)
            if not fresh:
                break
        multiplier, runs, _, prices = self._master()
        bound = max(self._bound, multiplier)
        return Blend(multiplier, bound, tuple(self._columns), tuple(runs.tolist()), tuple(prices))

    def _cheapest(self, price: Price) -> Iterable[Offer]:
        if self._latency_ms is None:
            return self._search.cuts(price)
        return self._search.quick_cuts(price, self._latency_ms)

    def _is_done(self, multiplier: float, gap: float) -> bool:
        return bool(np.isfinite(self._bound)) and self._bound - multiplier <= gap * self._bound

    def _start(self) -> None:
        """Plain placements, cuts at a few prices, and where latency is limited the quickest."""
        offered = [*self._search.plain()]
        for ratio in _RATIOS:
            worth = [ratio ** min(index, 1) for index in range(len(self._resources.classes))]
            rest = len(self._resources.amounts) - len(worth)
            offered += [offer.column for offer in self._search.cuts(self._resources.price([*worth, *[0.0] * rest]))]
        if self._latency_ms is not None:
            offered += [offer.column for offer in self._search.cuts(Price(latency=1.0))]
        self._take(offered)
        missing = {*range(len(self._networks))} - {column.network for column in self._columns}
        if missing:
            name = self._networks[min(missing)].name
            raise PlacementError(
                f"no placement of {name} runs in {self._latency_ms:g} ms", fix="allow more latency or a quicker mode"
            )
        first = {column.network: used for column, used in zip(self._columns[::-1], self._used[::-1], strict=True)}
        together = np.sum([used * self._wanted[network].slope for network, used in first.items()], axis=0)
        self._unit = 1.0 / max(float(np.max(together)), 1e-300)

    def _take(self, columns: Iterable[Column]) -> int:
        """Those that are new and quick enough; how many."""
        count = 0
        for column in columns:
            key = (column.network, column.assignment)
            is_quick = self._latency_ms is None or column.use.latency_ms <= self._latency_ms * (1 + 1e-9)
            if key not in self._known and is_quick:
                self._known.add(key)
                self._columns.append(column)
                self._used.append(self._resources.used(column.use))
                count += 1
        return count

    def _priced(self, offers: Iterable[Offer], prices: Sequence[float], worth: F64, is_bound: bool) -> int:
        """Takes the offers that are cheaper than what their networks pay now; notes the bound."""
        offers = list(offers)
        if is_bound:
            least: dict[int, float] = {}  # of several offers to one network the last has the best bound
            for offer in offers:
                least[offer.column.network] = offer.bound
            base = sum(self._wanted[network].base * bound for network, bound in least.items())
            slope = sum(self._wanted[network].slope * bound for network, bound in least.items())
            self._bound = min(self._bound, (sum(prices) - base) / max(slope, 1e-300))
        cheaper = [offer.column for offer in offers if offer.cost < worth[offer.column.network] * (1 - _HELPS)]
        return self._take(cheaper)

    def _master(self) -> tuple[float, F64, F64, list[float]]:
        """Multiplier, runs per second, what each network pays per run, prices of the resources."""
        count = len(self._columns)
        network = np.array([column.network for column in self._columns])
        asked = np.array([(demand.base, demand.slope) for demand in self._wanted])
        meets = np.zeros((len(self._networks), count + 1))
        meets[network, np.arange(count)] = 1.0
        meets[:, count] = -asked[:, 1] * self._unit
        within = np.column_stack([*self._used, np.zeros(len(self._resources.amounts))])
        gain = np.zeros(count + 1)
        gain[count] = -1.0
        found = optional("optimize").linprog(
            gain, within, np.ones(len(within)), meets, asked[:, 0], bounds=(0, None), method="highs"
        )
        if found.x is None:
            raise PlacementError("the board cannot keep up with the rates asked for", fix="lower them")
        prices = np.maximum(-found.ineqlin.marginals, 0.0) * self._unit
        return float(found.x[count]) * self._unit, found.x[:count], found.eqlin.marginals * self._unit, prices.tolist()


# Columns for scarce loadables: a mix in which every segment has a price too.
#
# An engine takes its loadables however seldom it runs; the linear program here lets it take them in proportion to
# its share of the frames, and a cut pays for every transition to the DLA instead of for every segment. Neither
# is exact: what comes out are candidates for the integer program of :mod:`edgert.placement.engine_selection`.

_FEW_ROUNDS = 12
_ENTRIES = (0.0, 0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.3, 1.0)  # what a transition costs on top, in runs


@dataclass(frozen=True, slots=True)
class _Prices:
    """A program's answer: the share of ``top`` that is met, the columns' shares, prices; what networks pay per run."""

    share: float
    shares: F64
    worth: F64
    segment: float
    paid: F64


class FewSegments:
    """The search.

    Args:
        search, resources, wanted, limits: of the mix.
        load: of a network's assignment.
    """

    def __init__(
        self,
        search: Search,
        resources: Resources,
        wanted: Sequence[Demand],
        limits: Limits,
        load: Callable[[int, Assignment], Load],
    ) -> None:
        self._search, self._resources, self._wanted, self._load = search, resources, wanted, load
        self._latency_ms = limits.latency_ms or np.inf
        every = float("inf")
        rooms = [sum(limits.loadables.get(name, every) for name in members) for members in resources.classes]
        self._rooms = [(index, room) for index, room in enumerate(rooms) if room < every]
        self._most = [max(limits.loadables.get(name, every) for name in members) for members in resources.classes]

    def columns(self, start: Sequence[Column], top: float) -> list[Column]:
        """Those that some round ran; ``top``: no placement meets more."""
        known = {(column.network, column.assignment): column for column in start if self._fits(column)}
        chosen: dict[tuple[int, Assignment], Column] = {}
        for _ in range(_FEW_ROUNDS):
            pool = list(known.values())
            found = self._priced(pool, top)
            chosen |= {(pool[at].network, pool[at].assignment): pool[at] for at in np.flatnonzero(found.shares > 1e-6)}
            for column in self._offered(found, top):
                known.setdefault((column.network, column.assignment), column)
            before, top = top, top * min(1.0, max(found.share, 1e-3))
            if len(known) == len(pool) and top > before * 0.999:
                break
        return list(chosen.values())

    def _offered(self, found: _Prices, top: float) -> Iterator[Column]:
        """What is cheapest, with transitions at the price of segments and at higher ones."""
        price = self._resources.price(found.worth.tolist())
        segment = found.segment / self._runs(top)
        for entry in _ENTRIES:
            offers = self._search.cuts(price, entry=segment + entry * found.paid)
            yield from (offer.column for offer in offers if self._fits(offer.column))

    def _fits(self, column: Column) -> bool:
        """Whether one core takes all its segments, and whether it is quick enough."""
        counts = self._load(column.network, column.assignment).segments
        held = [sum(counts.get(name, 0) for name in members) for members in self._resources.classes]
        few = all(count <= most for count, most in zip(held, self._most, strict=True))
        return few and column.use.latency_ms <= self._latency_ms

    def _runs(self, top: float) -> F64:
        return np.array([max(demand.base + demand.slope * top, 1e-12) for demand in self._wanted])

    def _priced(self, pool: Sequence[Column], top: float) -> _Prices:
        if not pool:
            return self._unpriced(pool)
        network = np.array([column.network for column in pool])
        runs = self._runs(top)
        used = np.array([self._resources.used(column.use) for column in pool]).T * runs[network]
        segments = np.array([self._segments(column) for column in pool]).reshape(len(pool), -1).T
        meets = np.zeros((len(runs), len(pool) + 1))
        meets[network, np.arange(len(pool))] = 1.0
        meets[:, -1] = [-demand.slope * top / often for demand, often in zip(self._wanted, runs, strict=True)]
        base = [demand.base / often for demand, often in zip(self._wanted, runs, strict=True)]
        within = np.column_stack((np.concatenate((used, segments)), np.zeros(len(used) + len(segments))))
        most = [1.0] * len(used) + [room for _, room in self._rooms]
        gain = np.append(np.zeros(len(pool)), -1.0)
        found = optional("optimize").linprog(gain, within, most, meets, base, bounds=(0, None), method="highs")
        if found.x is None:
            return self._unpriced(pool)
        prices = np.maximum(-found.ineqlin.marginals, 0.0)
        segment = float(prices[len(used) :].max(initial=0))
        return _Prices(float(found.x[-1]), found.x[:-1], prices[: len(used)], segment, found.eqlin.marginals / runs)

    def _unpriced(self, pool: Sequence[Column]) -> _Prices:
        """Where no mix of the columns runs every network: all costs alike, for others to be looked for."""
        return _Prices(1.0, np.zeros(len(pool)), np.ones(len(self._resources.amounts)), 1.0, np.ones(len(self._wanted)))

    def _segments(self, column: Column) -> list[int]:
        counts = self._load(column.network, column.assignment).segments
        return [sum(counts.get(name, 0) for name in self._resources.classes[index]) for index, _ in self._rooms]
