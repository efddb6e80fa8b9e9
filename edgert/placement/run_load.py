"""What an assignment costs: latency, busy time per accelerator, energy, traffic, segments, weights."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edgert.errors import PlacementError
from edgert.placement.cutting import segments
from edgert.placement.problem import Assignment, Cost, Edge, Network, Transition


@dataclass(frozen=True, slots=True)
class Price:
    """What a unit of each load is worth; a solver minimizes the sum. None is negative.

    Attributes:
        latency: per millisecond of a run.
        energy: per millijoule.
        traffic: per byte.
        busy: accelerator → per millisecond it is kept busy.
    """

    latency: float = 0.0
    energy: float = 0.0
    traffic: float = 0.0
    busy: Mapping[str, float] = field(default_factory=dict)


LATENCY = Price(latency=1.0)
ENERGY = Price(energy=1.0)


def priced(cost: Cost | None, price: Price, accelerator: str) -> float:
    """What a unit on an accelerator is worth; infinite if it cannot be there."""
    return float("inf") if cost is None else _flat(cost, price) + price.busy.get(accelerator, 0.0) * cost.time_ms


def priced_transition(transition: Transition, price: Price, start: str, end: str) -> float:
    """The price of a transition from one accelerator to another."""
    busy = (price.busy.get(name, 0.0) * busy_ms for name, busy_ms in transition.busy(start, end))
    return _flat(transition, price) + sum(busy)


def _flat(part: Cost | Transition, price: Price) -> float:
    return price.latency * part.time_ms + price.energy * part.energy_mj + price.traffic * part.traffic_bytes


@dataclass(frozen=True, slots=True)
class Use:
    """What one run of a network takes, alone on the board.

    Attributes:
        latency_ms: units and transitions one after the other, as an execution context runs them.
        busy_ms: accelerator → how long it is busy, its shares of transitions included.
        energy_mj, traffic_bytes: of units and transitions.
    """

    latency_ms: float
    busy_ms: Mapping[str, float]
    energy_mj: float
    traffic_bytes: float

    def cost(self, price: Price) -> float:
        """The priced sum."""
        busy = sum(price.busy.get(accelerator, 0.0) * busy_ms for accelerator, busy_ms in self.busy_ms.items())
        flat = price.latency * self.latency_ms + price.energy * self.energy_mj + price.traffic * self.traffic_bytes
        return flat + busy


@dataclass(frozen=True, slots=True)
class Load(Use):
    """What an assignment takes per run, and what it keeps.

    Attributes:
        segments: accelerator → convex connected pieces it runs; a DLA's loadables.
        weight_bytes: accelerator → weights it keeps.
    """

    segments: Mapping[str, int]
    weight_bytes: Mapping[str, int]


def accelerators(networks: Iterable[Network]) -> tuple[str, ...]:
    """All that some unit can run on, homes first, then in order of appearance."""
    networks = tuple(networks)
    able = dict.fromkeys(name for network in networks for unit in network.units for name in unit.costs)
    homes = dict.fromkeys(network.home for network in networks if network.home in able)
    return tuple({**homes, **able})


def targets(edge: Edge, assignment: Assignment, home: str) -> set[str]:
    """The accelerators that need the tensor."""
    wanted = {assignment[consumer] for consumer in edge.consumers}
    return wanted | {home} if edge.is_output else wanted


def transitions_of(network: Network, assignment: Assignment) -> Iterator[tuple[Edge, str, str, Transition]]:
    """Every (tensor, accelerator it leaves, accelerator it goes to, transition), in the order of the edges."""
    for edge in network.edges:
        source = network.home if edge.producer is None else assignment[edge.producer]
        for target in sorted(targets(edge, assignment, network.home) - {source}):
            if transition := edge.transitions.get((source, target)):
                yield edge, source, target, transition


def check(network: Network, assignment: Assignment) -> None:
    """Whether every unit can run where it is put.

    Raises:
        PlacementError: one cannot, or there are more or fewer accelerators than units.
    """
    if len(assignment) != len(network.units):
        raise PlacementError(f"{network.name}: {len(network.units)} units, {len(assignment)} accelerators")
    for unit, accelerator in zip(network.units, assignment, strict=True):
        if accelerator not in unit.costs:
            raise PlacementError(
                f"{network.name}: unit {unit.name!r} cannot run on {accelerator}",
                why=f"it runs on {', '.join(unit.costs) or 'none'}",
                fix="put it on one of those",
            )


def use(network: Network, assignment: Assignment) -> Use:
    """Adds a run up; a transition is paid once per tensor and accelerator it goes to.

    Raises:
        PlacementError: a unit cannot run where it is put.
    """
    check(network, assignment)
    busy: dict[str, float] = defaultdict(float)
    parts: list[Cost | Transition] = []
    for unit, accelerator in zip(network.units, assignment, strict=True):
        cost = unit.costs[accelerator]
        busy[accelerator] += cost.time_ms
        parts.append(cost)
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


def loads(network: Network, assignment: Assignment) -> Load:
    """What a run takes, and what the engine keeps.

    Raises:
        PlacementError: a unit cannot run where it is put.
    """
    run = use(network, assignment)
    counts: dict[str, int] = defaultdict(int)
    weights: dict[str, int] = defaultdict(int)
    for segment in segments(network, assignment):
        counts[segment.accelerator] += 1
    for unit, accelerator in zip(network.units, assignment, strict=True):
        weights[accelerator] += unit.weight_bytes
    return Load(run.latency_ms, run.busy_ms, run.energy_mj, run.traffic_bytes, dict(counts), dict(weights))


def preferring(network: Network, order: Sequence[str]) -> Assignment | None:
    """Every unit on the first of these accelerators that can run it; None where one can run on none of them."""
    chosen: list[str] = []
    for unit in network.units:
        for name in order:
            if name in unit.costs:
                chosen.append(name)
                break
        else:
            return None
    return tuple(chosen)


def stranded(network: Network, among: Sequence[str]) -> PlacementError:
    """The error for a network with units that none of these accelerators can run."""
    units = [unit.name for unit in network.units if not set(among) & set(unit.costs)]
    named = ", ".join(repr(name) for name in units[:5]) + (f" and {len(units) - 5} more" if len(units) > 5 else "")
    return PlacementError(
        f"{network.name} cannot run on {' and '.join(among)}",
        why=f"neither can run {named}" if len(among) > 1 else f"it cannot run {named}",
        fix="allow another accelerator for them",
    )
