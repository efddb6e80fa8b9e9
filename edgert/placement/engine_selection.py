"""Chooses engines for a throughput mix: which network runs on which accelerators, how often, within all limits."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from edgert.errors import PlacementError
from edgert.placement.columns import Resources, Search
from edgert.placement.constraints import Limits, engine_bytes
from edgert.placement.integer import Program
from edgert.placement.problem import Assignment, Network
from edgert.placement.run_load import Load, loads
from edgert.placement.throughput import Blend, Demand, FewSegments

_RARE = 1e-6  # an engine that runs a smaller share of its network's frames is not worth its memory


@dataclass(frozen=True, slots=True)
class Engine:
    """One network on its accelerators.

    Attributes:
        network: its index.
        assignment: of the units.
        load: of one run.
        runs_hz: how often it runs.
    """

    network: int
    assignment: Assignment
    load: Load
    runs_hz: float


class EngineSelector:
    """Turns a mix into engines that keep to all limits.

    Args:
        networks, resources, wanted, limits: what the mix was made for.
        time_limit_s: for the integer program that is needed where memory or loadables bind.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        resources: Resources,
        wanted: Sequence[Demand],
        limits: Limits,
        time_limit_s: float = 2.0,
    ) -> None:
        self._networks, self._resources, self._wanted, self._limits = networks, resources, wanted, limits
        self._time_limit_s = time_limit_s
        self._bytes = [engine_bytes(network) for network in networks]
        self._loads: dict[tuple[int, Assignment], Load] = {}

    def select(self, mixed: Blend) -> tuple[float, tuple[Engine, ...]]:
        """(multiplier met, engines): the mix as it is where that keeps the limits, the best engines for it otherwise.

        Raises:
            PlacementError: no engines keep the limits.
        """
        engines = self._engines(self._filled(mixed))
        if self._fits(engines):
            return mixed.multiplier, engines
        return self._chosen(mixed)

    def _filled(self, mixed: Blend) -> list[tuple[int, Assignment, float]]:
        """The columns that run, assigned to the members of their classes so that at most one is split between two."""
        pieces = [(column, runs) for column, runs in zip(mixed.columns, mixed.runs_hz, strict=True)]
        total: dict[int, float] = defaultdict(float)
        for column, runs in pieces:
            total[column.network] += runs
        kept = [(c.network, c.assignment, runs) for c, runs in pieces if runs > _RARE * max(total[c.network], 1e-12)]
        for members in self._resources.classes:
            if len(members) > 1:
                kept = list(self._spread(kept, members))
        return kept

    def _spread(
        self, pieces: Sequence[tuple[int, Assignment, float]], members: tuple[str, ...]
    ) -> Iterator[tuple[int, Assignment, float]]:
        """Fills one member after the other up to its share."""
        busy = [runs * self._load(network, names).busy_ms.get(members[0], 0.0) for network, names, runs in pieces]
        share = sum(busy) / len(members)
        member, room = 0, share
        for (network, names, runs), needed in zip(pieces, busy, strict=True):
            left = runs
            while needed > room * (1 + _RARE) + 1e-12 and member < len(members) - 1:
                part = left * room / needed
                if part > _RARE * runs:
                    yield network, _renamed(names, members[0], members[member]), part
                    left, needed = left - part, needed - room
                member, room = member + 1, share
            room -= needed
            yield network, _renamed(names, members[0], members[member]), left

    def _engines(self, pieces: Iterable[tuple[int, Assignment, float]]) -> tuple[Engine, ...]:
        runs: dict[tuple[int, Assignment], float] = defaultdict(float)
        for network, assignment, often in pieces:
            runs[network, assignment] += often
        return tuple(Engine(*key, self._load(*key), often) for key, often in sorted(runs.items()))

    def _load(self, network: int, assignment: Assignment) -> Load:
        if (network, assignment) not in self._loads:
            self._loads[network, assignment] = loads(self._networks[network], assignment)
        return self._loads[network, assignment]

    def _fits(self, engines: Sequence[Engine]) -> bool:
        memory = sum(self._bytes[engine.network] for engine in engines)
        counts = {name: sum(engine.load.segments.get(name, 0) for engine in engines) for name in self._limits.loadables}
        in_memory = self._limits.memory_bytes is None or memory <= self._limits.memory_bytes
        return in_memory and all(counts[name] <= most for name, most in self._limits.loadables.items())

    def _chosen(self, mixed: Blend) -> tuple[float, tuple[Engine, ...]]:
        """An integer program over the columns that run, plain ones, and some with fewer segments."""
        keys = list(dict.fromkeys(self._candidates(mixed)))
        program = Program()
        multiplier = program.variable(-1.0)
        most = [demand.base + demand.slope * mixed.bound for demand in self._wanted]
        share = {key: program.variable() for key in keys}
        kept = {key: program.variable(whole=True) for key in keys}
        for key in keys:
            program.at_most({share[key]: 1.0, kept[key]: -1.0}, 0.0)
        for network, demand in enumerate(self._wanted):
            own = {share[key]: most[network] for key in keys if key[0] == network}
            scale = max(most[network], 1e-12)
            terms = {variable: value / scale for variable, value in own.items()}
            program.equal({**terms, multiplier: -demand.slope * mixed.bound / scale}, demand.base / scale)
            program.at_most({kept[key]: -1.0 for key in keys if key[0] == network}, -1.0)
        self._limit(program, {key: (share[key], kept[key], most[key[0]]) for key in keys})
        answer = program.solve(time_limit_s=self._time_limit_s, gap=2e-4)
        if answer.values is None:
            raise self._impossible()
        runs = [
            (*key, float(answer.values[share[key]]) * most[key[0]]) for key in keys if answer.values[kept[key]] > 0.5
        ]
        engines = self._engines(piece for piece in runs if piece[2] > 0 or most[piece[0]] == 0)
        return float(answer.values[multiplier]) * mixed.bound, engines

    def _candidates(self, mixed: Blend) -> Iterator[tuple[int, Assignment]]:
        running = [column for column, runs in zip(mixed.columns, mixed.runs_hz, strict=True) if runs > 0]
        search = Search(self._networks, self._resources)
        found = [*running, *search.plain()]
        if self._limits.loadables:
            few = FewSegments(search, self._resources, self._wanted, self._limits, self._load)
            found += few.columns(found, mixed.bound)
        for column in found:
            if self._limits.latency_ms is None or column.use.latency_ms <= self._limits.latency_ms * (1 + 1e-9):
                classes = [members for members in self._resources.classes if len(members) > 1]
                used = [members for members in classes if members[0] in column.assignment]
                for chosen in product(*used):
                    names = column.assignment
                    for members, name in zip(used, chosen, strict=True):
                        names = _renamed(names, members[0], name)
                    yield column.network, names

    def _limit(self, program: Program, engines: Mapping[tuple[int, Assignment], tuple[int, int, float]]) -> None:
        """Rows of every accelerator's time, of traffic, energy, memory and loadables."""
        names = [name for members in self._resources.classes for name in members]
        runs = {key: (share, most, self._load(*key)) for key, (share, _, most) in engines.items()}
        for name in names:
            program.at_most({s: most * load.busy_ms.get(name, 0.0) / 1e3 for s, most, load in runs.values()}, 1.0)
        if self._limits.traffic_bytes_s is not None:
            amount = self._limits.traffic_bytes_s
            program.at_most({s: most * load.traffic_bytes / amount for s, most, load in runs.values()}, 1.0)
        if self._limits.dynamic_w is not None:
            amount = 1e3 * self._limits.dynamic_w
            program.at_most({s: most * load.energy_mj / amount for s, most, load in runs.values()}, 1.0)
        if self._limits.memory_bytes is not None:
            size = {kept: self._bytes[key[0]] / self._limits.memory_bytes for key, (_, kept, _) in engines.items()}
            program.at_most(size, 1.0)
        for name, count in self._limits.loadables.items():
            program.at_most({engines[key][1]: runs[key][2].segments.get(name, 0) for key in engines}, count)

    def _impossible(self) -> PlacementError:
        least = sum(self._bytes)
        memory = self._limits.memory_bytes
        needed = f"one engine of each needs {least / 2**20:.1f} MiB; " if memory is not None else ""
        return PlacementError(
            "no engines of these networks keep all limits",
            why=f"{needed}loadables left: {dict(self._limits.loadables)}",
            fix="allow more memory or fewer networks",
        )


def _renamed(assignment: Assignment, old: str, new: str) -> Assignment:
    return assignment if old == new else tuple(new if name == old else name for name in assignment)
