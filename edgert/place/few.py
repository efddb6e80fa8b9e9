"""Columns worth having where loadables are scarce: a mix in which every segment has a price too.

An engine takes its loadables however seldom it runs; the linear program here lets it take them in proportion to its
share of the frames, and a cut pays for every tensor handed to the DLA instead of for every segment. Neither is exact:
what comes out are candidates for the integer program of :mod:`edgert.place.deal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.place.column import Column, Resources, Search
from edgert.place.limit import Limits
from edgert.place.load import Load
from edgert.place.mix import Demand
from edgert.place.problem import Assignment
from edgert.place.solver import optional

F64 = npt.NDArray[np.float64]

_ROUNDS = 12
_ENTRIES = (0.0, 0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.3, 1.0)  # what handing over costs on top, in runs


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
        for _ in range(_ROUNDS):
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
        """What is cheapest, with handing over at the price of segments and at higher ones."""
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
