"""Selection of engines for a throughput mix: where and how often each network runs, within all limits."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np

from edgert.errors import PlacementError
from edgert.placement.constraints import Limits
from edgert.placement.integer import Program
from edgert.placement.problem import Assignment, Network
from edgert.placement.run_load import Load, run_load
from edgert.placement.throughput import Column, Mix, PricedMix, Resources, Search, priced_mix

_RARE = 1e-6  # an engine that runs a smaller share of its network's frames is not worth its memory
_ROUNDS = 12
_ENTRIES = (0.0, 0.003, 0.006, 0.012, 0.025, 0.05, 0.1, 0.3, 1.0)  # additional costs of a transition, in costs of a run

Key = tuple[int, Assignment]
"""An engine: index of its network, and its assignment."""
Engines = list[tuple[Assignment, Load, float]]
"""Engines of one network: assignment, load of a run, and runs per second."""


class EngineSelector:
    """Conversion of a mix into engines that keep all limits.

    Args:
        networks: networks of the mix.
        resources: resources that the mix shares.
        limits: limits of the board.
        time_limit_s: time limit of the integer program, which runs where the mix has too many loadables.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        resources: Resources,
        limits: Limits,
        time_limit_s: float = 2.0,
    ) -> None:
        self._networks, self._resources, self._limits = networks, resources, limits
        self._time_limit_s = time_limit_s
        self._loads: dict[Key, Load] = {}

    def select(self, mixed: Mix) -> tuple[float, list[Engines]]:
        """Return (multiplier reached, engines of each network) for the mix, or for the best engines within the limits.

        Raises:
            PlacementError: no engines keep the limits.
        """
        engines = self._collect_engines(self._assign_class_members(mixed))
        for name, most in self._limits.loadables.items():
            if sum(load.segments.get(name, 0) for own in engines for _, load, _ in own) > most:
                return self._solve_integer_program(mixed)
        return mixed.multiplier, engines

    def _assign_class_members(self, mixed: Mix) -> list[tuple[int, Assignment, float]]:
        """Return the columns that run, with each class's work divided among its members, and few columns split."""
        pieces = [(column, runs) for column, runs in zip(mixed.columns, mixed.runs_hz, strict=True)]
        total: dict[int, float] = defaultdict(float)
        for column, runs in pieces:
            total[column.network] += runs
        kept = [(c.network, c.assignment, runs) for c, runs in pieces if runs > _RARE * max(total[c.network], 1e-12)]
        for members in self._resources.classes:
            if len(members) > 1:
                kept = list(self._split_over_members(kept, members))
        return kept

    def _split_over_members(
        self, pieces: Sequence[tuple[int, Assignment, float]], members: tuple[str, ...]
    ) -> Iterator[tuple[int, Assignment, float]]:
        """Yield the pieces with one member after the other filled up to an equal share of the work."""
        busy = [runs * self._load(network, names).busy_ms.get(members[0], 0.0) for network, names, runs in pieces]
        share = sum(busy) / len(members)
        member, room = 0, share
        for (network, names, runs), needed in zip(pieces, busy, strict=True):
            left = runs
            while needed > room * (1 + _RARE) + 1e-12 and member < len(members) - 1:
                part = left * room / needed
                if part > _RARE * runs:
                    yield network, _replace_accelerator(names, members[0], members[member]), part
                    left, needed = left - part, needed - room
                member, room = member + 1, share
            room -= needed
            yield network, _replace_accelerator(names, members[0], members[member]), left

    def _collect_engines(self, pieces: Iterable[tuple[int, Assignment, float]]) -> list[Engines]:
        total: dict[Key, float] = defaultdict(float)
        for network, assignment, runs_hz in pieces:
            total[network, assignment] += runs_hz
        found: list[Engines] = [[] for _ in self._networks]
        for (network, assignment), runs_hz in sorted(total.items()):
            found[network].append((assignment, self._load(network, assignment), runs_hz))
        return found

    def _load(self, network: int, assignment: Assignment) -> Load:
        if (network, assignment) not in self._loads:
            self._loads[network, assignment] = run_load(self._networks[network], assignment)
        return self._loads[network, assignment]

    def _solve_integer_program(self, mixed: Mix) -> tuple[float, list[Engines]]:
        """Return the best engines among the columns that run, plain columns, and columns with fewer segments."""
        keys = list(dict.fromkeys(self._candidates(mixed)))
        program = Program()
        multiplier = program.add_variable(-1.0)
        most = [one.rate_hz * mixed.bound for one in self._networks]
        share = {key: program.add_variable() for key in keys}
        kept = {key: program.add_variable(whole=True) for key in keys}
        for key in keys:
            program.add_upper_bound({share[key]: 1.0, kept[key]: -1.0}, 0.0)
        for network in range(len(self._networks)):
            program.add_equality({**{share[key]: 1.0 for key in keys if key[0] == network}, multiplier: -1.0}, 0.0)
            program.add_upper_bound({kept[key]: -1.0 for key in keys if key[0] == network}, -1.0)
        runs = {share[key]: (most[key[0]], self._load(*key)) for key in keys}
        for name in (name for members in self._resources.classes for name in members):
            program.add_upper_bound(
                {s: often * load.busy_ms.get(name, 0.0) / 1e3 for s, (often, load) in runs.items()}, 1.0
            )
        if (amount := self._limits.traffic_bytes_s) is not None:
            program.add_upper_bound({s: often * load.traffic_bytes / amount for s, (often, load) in runs.items()}, 1.0)
        for name, count in self._limits.loadables.items():
            program.add_upper_bound({kept[key]: self._load(*key).segments.get(name, 0) for key in keys}, count)
        values = program.solve(time_limit_s=self._time_limit_s, gap=2e-4).values
        if values is None:
            raise PlacementError(
                "no engines of these networks keep all limits",
                why=f"loadables left: {dict(self._limits.loadables)}",
                fix="place fewer networks",
            )
        pieces = [(*key, float(values[share[key]]) * most[key[0]]) for key in keys if values[kept[key]] > 0.5]
        engines = self._collect_engines(piece for piece in pieces if piece[2] > 0)
        return float(values[multiplier]) * mixed.bound, engines

    def _candidates(self, mixed: Mix) -> Iterator[Key]:
        """Yield candidate engines, on every combination of members of the classes they use."""
        running = [column for column, runs in zip(mixed.columns, mixed.runs_hz, strict=True) if runs > 0]
        search = Search(self._networks, self._resources)
        found = [*running, *search.plain_columns()]
        found += self._columns_with_few_segments(search, found, mixed.bound)
        classes = [members for members in self._resources.classes if len(members) > 1]
        for column in found:
            used = [members for members in classes if members[0] in column.assignment]
            for chosen in product(*used):
                names = column.assignment
                for members, name in zip(used, chosen, strict=True):
                    names = _replace_accelerator(names, members[0], name)
                yield column.network, names

    # Where loadables are scarce, further columns come from a mix in which segments have a price. An engine occupies its
    # loadables however seldom it runs. The linear program approximates them by the engine's share of the frames, and a
    # cut approximates segments by transitions to the DLA. So the results are only candidates for the integer program.

    def _columns_with_few_segments(self, search: Search, start: Sequence[Column], top: float) -> list[Column]:
        """Return the columns that were used in any round; ``top`` is an upper bound on the multiplier."""
        rooms = [[self._limits.loadables.get(name, np.inf) for name in members] for members in self._resources.classes]
        scarce = [index for index, each in enumerate(rooms) if sum(each) < np.inf]
        most = np.array([*np.ones(len(self._resources.amounts)), *(sum(rooms[index]) for index in scarce)])
        rates_hz = np.array([network.rate_hz for network in self._networks])

        def fits(column: Column) -> bool:
            return all(count <= max(each) for count, each in zip(self._segments(column), rooms, strict=True))

        known = {(column.network, column.assignment): column for column in start if fits(column)}
        chosen: dict[Key, Column] = {}
        for _ in range(_ROUNDS):
            pool, runs_hz = list(known.values()), np.maximum(rates_hz * top, 1e-12)
            used = [
                np.append(self._resources.used(one.use), np.array(self._segments(one))[scarce] / runs_hz[one.network])
                for one in pool
            ]
            found = priced_mix(pool, used, most, rates_hz.tolist(), top) or PricedMix(
                top, np.zeros(len(pool)), np.ones(len(most)), np.ones(len(rates_hz))
            )  # equal prices, while no mix of the known columns runs every network
            kept = (one for one, runs in zip(pool, found.runs_hz, strict=True) if runs > _RARE * runs_hz[one.network])
            chosen |= {(one.network, one.assignment): one for one in kept}
            worth, segment = np.split(found.worth, [len(self._resources.amounts)])
            for entry in _ENTRIES:  # a transition costs as much as a segment, or more
                each = segment.max(initial=0) / runs_hz + entry * found.paid
                for column in search.cut_columns(self._resources.price(worth), entry=each):
                    if fits(column):
                        known.setdefault((column.network, column.assignment), column)
            before, top = top, min(top, max(found.multiplier, 1e-3 * top))
            if len(known) == len(pool) and top > before * 0.999:
                break
        return list(chosen.values())

    def _segments(self, column: Column) -> list[int]:
        counts = self._load(column.network, column.assignment).segments
        return [sum(counts.get(name, 0) for name in members) for members in self._resources.classes]


def _replace_accelerator(assignment: Assignment, old: str, new: str) -> Assignment:
    return assignment if old == new else tuple(new if name == old else name for name in assignment)
