"""Load of one run of an assignment: segments, latency, busy time per accelerator, energy and traffic."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dla import convex_groups
from edgert.errors import PlacementError
from edgert.placement.problem import Assignment, Cost, Edge, Network, Transition

# Segments are connected pieces of one accelerator, each compiled and run separately.


@dataclass(frozen=True, slots=True)
class Segment:
    """Connected units on one accelerator.

    Attributes:
        accelerator: accelerator of all units.
        units: indices of the units, ascending.
    """

    accelerator: str
    units: tuple[int, ...]


def neighbors(network: Network) -> tuple[list[list[int]], list[list[int]]]:
    """Return (predecessors, successors) of every unit, as ascending indices."""
    before: list[set[int]] = [set() for _ in network.units]
    after: list[set[int]] = [set() for _ in network.units]
    for edge in network.edges:
        if edge.producer is not None:
            after[edge.producer].update(edge.consumers)
            for consumer in edge.consumers:
                before[consumer].add(edge.producer)
    return [sorted(units) for units in before], [sorted(units) for units in after]


def segments(network: Network, assignment: Assignment) -> tuple[Segment, ...]:
    """Return the segments, each after those whose results it reads.

    Units on the home accelerator join last, because additional segments cost least there.
    """
    groups = convex_groups(neighbors(network)[0], assignment, network.home)
    return tuple(Segment(assignment[units[0]], tuple(units)) for units in groups)


# Load of one run.


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of loads, none negative; a solver minimizes the priced sum.

    Attributes:
        latency: price per millisecond of a run.
        energy: price per millijoule.
        traffic: price per byte.
        busy: accelerator → price per millisecond that it is busy.
    """

    latency: float = 0.0
    energy: float = 0.0
    traffic: float = 0.0
    busy: Mapping[str, float] = field(default_factory=dict)

    def of_unit(self, cost: Cost, accelerator: str) -> float:
        """Return the price of a unit on an accelerator."""
        return self._flat(cost) + self.busy.get(accelerator, 0.0) * cost.time_ms

    def of_transition(self, transition: Transition, start: str, end: str) -> float:
        """Return the price of a transition from one accelerator to another."""
        busy = (self.busy.get(name, 0.0) * busy_ms for name, busy_ms in transition.busy(start, end))
        return self._flat(transition) + sum(busy)

    def _flat(self, part: Cost | Transition) -> float:
        return self.latency * part.time_ms + self.energy * part.energy_mj + self.traffic * part.traffic_bytes


LATENCY = Price(latency=1.0)
ENERGY = Price(energy=1.0)


@dataclass(frozen=True, slots=True)
class Use:
    """Load of one run of a network, alone on the board.

    Attributes:
        latency_ms: time of units and transitions one after the other, as an execution context runs them.
        busy_ms: accelerator → time it is busy, including its part of transitions.
        energy_mj: energy of units and transitions.
        traffic_bytes: memory traffic of units and transitions.
    """

    latency_ms: float
    busy_ms: Mapping[str, float]
    energy_mj: float
    traffic_bytes: float

    def cost(self, price: Price) -> float:
        """Return the priced sum."""
        busy = sum(price.busy.get(accelerator, 0.0) * busy_ms for accelerator, busy_ms in self.busy_ms.items())
        flat = price.latency * self.latency_ms + price.energy * self.energy_mj + price.traffic * self.traffic_bytes
        return flat + busy


@dataclass(frozen=True, slots=True)
class Load(Use):
    """Load of one run with ``segments``: accelerator → number of segments, which are loadables on a DLA."""

    segments: Mapping[str, int]


def accelerators(networks: Iterable[Network]) -> tuple[str, ...]:
    """Return all accelerators that some unit can run on, homes first, then in order of appearance."""
    networks = tuple(networks)
    able = dict.fromkeys(name for network in networks for unit in network.units for name in unit.costs)
    homes = dict.fromkeys(network.home for network in networks if network.home in able)
    return tuple({**homes, **able})


def transitions_of(network: Network, assignment: Assignment) -> Iterator[tuple[Edge, str, str, Transition]]:
    """Yield every (tensor, source accelerator, target accelerator, transition), in the order of the edges."""
    for edge in network.edges:
        source = network.home if edge.producer is None else assignment[edge.producer]
        wanted = {assignment[consumer] for consumer in edge.consumers}
        if edge.is_output:
            wanted.add(network.home)
        wanted.discard(source)
        for target in sorted(wanted):
            if transition := edge.transitions.get((source, target)):
                yield edge, source, target, transition


def run_use(network: Network, assignment: Assignment) -> Use:
    """Return the load of a run; each tensor makes one transition to each accelerator that reads it.

    Raises:
        PlacementError: a unit cannot run on its accelerator, or the assignment has another length than the units.
    """
    if len(assignment) != len(network.units):
        raise PlacementError(
            f"the assignment of {network.name} has {len(assignment)} accelerators for {len(network.units)} units"
        )
    busy: dict[str, float] = defaultdict(float)
    parts: list[Cost | Transition] = []
    for unit, accelerator in zip(network.units, assignment, strict=True):
        if accelerator not in unit.costs:
            raise PlacementError(
                f"{network.name}: unit {unit.name!r} cannot run on {accelerator}",
                why=f"it runs on {', '.join(unit.costs) or 'none'}",
                fix="put it on one of those",
            )
        busy[accelerator] += unit.costs[accelerator].time_ms
        parts.append(unit.costs[accelerator])
    for _, start, end, transition in transitions_of(network, assignment):
        for name, busy_ms in transition.busy(start, end):
            if busy_ms:
                busy[name] += busy_ms
        parts.append(transition)
    return Use(
        latency_ms=sum(part.time_ms for part in parts),
        busy_ms=dict(busy),
        energy_mj=sum(part.energy_mj for part in parts),
        traffic_bytes=sum(part.traffic_bytes for part in parts),
    )


def run_load(network: Network, assignment: Assignment) -> Load:
    """Return the load of a run with its segments; raise PlacementError as :func:`run_use` does."""
    run = run_use(network, assignment)
    counts = Counter(segment.accelerator for segment in segments(network, assignment))
    return Load(run.latency_ms, run.busy_ms, run.energy_mj, run.traffic_bytes, dict(counts))


def preferred_assignment(network: Network, order: Sequence[str]) -> Assignment | None:
    """Return the assignment of each unit to the first accelerator that can run it; None if a unit has none."""
    chosen = [next((name for name in order if name in unit.costs), None) for unit in network.units]
    return None if None in chosen else tuple(name for name in chosen if name is not None)


def stranded_error(network: Network, among: Sequence[str]) -> PlacementError:
    """Return the error for a network with units that none of these accelerators can run."""
    units = [unit.name for unit in network.units if not set(among) & set(unit.costs)]
    named = ", ".join(repr(name) for name in units[:5]) + (f" and {len(units) - 5} more" if len(units) > 5 else "")
    return PlacementError(
        f"{network.name} cannot run on {' and '.join(among)}",
        why=f"none of them can run {named}" if len(among) > 1 else f"it cannot run {named}",
        fix="allow another accelerator for these units",
    )
