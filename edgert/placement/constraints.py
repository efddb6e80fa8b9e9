"""Limits on a placement of several networks, and its figures: engines, rates, power and memory."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgert.placement.contention import MemoryDemand
from edgert.placement.problem import Assignment, Network, names_accelerator
from edgert.placement.run_load import Load, loads, transitions_of
from edgert.placement.schedule import Replica, Stream
from edgert.placement.segment_engines import steps

Objective = Literal["throughput", "latency", "energy"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a board; None is no limit.

    Attributes:
        static_w: drawn whatever runs; counts for the energy of a frame, with its latency.
        traffic_bytes_s: bandwidth of the memory.
        loadables: accelerator → segments it can still load, over all engines.
    """

    static_w: float = 0.0
    traffic_bytes_s: float | None = None
    loadables: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of a network: accelerator of every unit, share of the network's frames, and load of a run."""

    assignment: Assignment
    weight: float
    load: Load


@dataclass(frozen=True, slots=True)
class Placed:
    """A network on its engines.

    Attributes:
        name: of the network.
        engines: the one with most frames first.
        capacity_hz: most runs per second in this placement.
        fps: frames per second, at most those of the requested rate.
        latency_ms: of one run alone on the board; of the slowest engine.
        power_w: that running adds to the board's power.
        loadables: accelerator → segments of all engines.
    """

    name: str
    engines: tuple[Engine, ...]
    capacity_hz: float
    fps: float
    latency_ms: float
    power_w: float
    loadables: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Placement:
    """All networks on their engines.

    Attributes:
        objective: what was optimized.
        networks: in the order given.
        value: of the objective: the possible multiple of the requested rates; milliseconds; or millijoules per run,
            including what the board draws when idle. The latter two are summed over networks, weighted by their rates.
        gap: upper bound on the relative distance to the best value.
        power_w: of the board, at ``fps``.
        utilization: accelerator → share of the time it is busy, at ``fps``.
    """

    objective: Objective
    networks: tuple[Placed, ...]
    value: float
    gap: float
    power_w: float
    utilization: Mapping[str, float]


def placed(network: Network, engines: Sequence[tuple[Assignment, Load, float]]) -> Placed:
    """Return a network on its engines, given as (assignment, load of a run, runs per second)."""
    capacity = sum(runs for _, _, runs in engines)
    made = [
        Engine(assignment, runs / capacity if capacity else 1 / len(engines), load)
        for assignment, load, runs in sorted(engines, key=lambda one: (-one[2], one[0]))
    ]
    runs_hz = min(capacity, network.rate_hz)
    return Placed(
        network.name,
        tuple(made),
        capacity,
        runs_hz * network.batch,
        max(engine.load.latency_ms for engine in made),
        runs_hz * sum(engine.weight * engine.load.energy_mj for engine in made) / 1e3,
        sum((Counter(engine.load.segments) for engine in made), Counter()),
    )


def together(
    objective: Objective, networks: Sequence[Network], each: Sequence[Placed], limits: Limits, value: float, gap: float
) -> Placement:
    """Return the placement of all networks, with the power and utilization of the board."""
    busy: dict[str, float] = defaultdict(float)
    for network, one in zip(networks, each, strict=True):
        for engine in one.engines:
            for name, busy_ms in engine.load.busy_ms.items():
                busy[name] += one.fps / network.batch * engine.weight * busy_ms / 1e3
    return Placement(objective, tuple(each), value, gap, limits.static_w + sum(one.power_w for one in each), dict(busy))


def memory_demand(networks: Sequence[Network], placement: Placement) -> dict[str, MemoryDemand]:
    """Return the memory traffic and busy time of every accelerator while the placement runs."""
    traffic: dict[str, float] = defaultdict(float)
    for network, one in zip(networks, placement.networks, strict=True):
        for engine in one.engines:
            often = one.fps / network.batch * engine.weight
            for unit, name in zip(network.units, engine.assignment, strict=True):
                traffic[name] += often * unit.costs[name].traffic_bytes
            for _, start, _, transition in transitions_of(network, engine.assignment):
                traffic[transition.mover(start)] += often * transition.traffic_bytes
    return {
        name: MemoryDemand(min(busy, 1.0), traffic[name] / busy if busy > 0 else 0.0)
        for name, busy in placement.utilization.items()
    }


def streams(networks: Sequence[Network], placement: Placement, *, saturated: bool = False) -> tuple[Stream, ...]:
    """Return the placement's streams for a simulation, at the requested rates.

    With ``saturated`` each stream runs as many frames as it can.
    """
    made = []
    for index, (network, one) in enumerate(zip(networks, placement.networks, strict=True)):
        replicas = tuple(Replica(steps(network, engine.assignment), engine.weight) for engine in one.engines)
        start_ms = 1e3 / network.rate_hz * index / len(networks)
        memory_demand = Stream(network.name, replicas, network.rate_hz, start_ms=start_ms)
        made.append(Stream(network.name, replicas) if saturated else memory_demand)
    return tuple(made)


# Networks whose engines and shares of the frames the pipeline file states.


def with_given_shares(networks: Sequence[Network], found: Placement, limits: Limits) -> Placement:
    """Return the placement in which networks with ``shares`` use those instead of the engines found for them."""
    if not any(network.shares for network in networks):
        return found
    pairs = zip(networks, found.networks, strict=True)
    each = [_dispatched(network) if network.shares else one for network, one in pairs]
    made = together(found.objective, networks, each, limits, found.value, found.gap)
    if found.objective != "throughput":
        return made
    pairs = zip(networks, made.networks, strict=True)
    met = min(one.fps / (network.rate_hz * network.batch) for network, one in pairs)
    return replace(made, value=met / max(*made.utilization.values(), 1e-9))


def _dispatched(network: Network) -> Placed:
    """Return the network on the accelerators of its shares, with as many runs as the busiest accelerator has time for.

    Each engine runs every unit that its accelerator can run there (``dla`` is the first core), and the rest elsewhere.
    """
    found: list[tuple[float, Assignment, Load]] = []
    busy_ms: dict[str, float] = defaultdict(float)
    for name, share in network.shares.items():
        assignment = tuple(
            next((able for able in sorted(unit.costs) if names_accelerator(name, able)), next(iter(unit.costs)))
            for unit in network.units
        )
        load = loads(network, assignment)
        found.append((share, assignment, load))
        for able, time_ms in load.busy_ms.items():
            busy_ms[able] += share * time_ms
    runs_hz = 1e3 / max(*busy_ms.values(), 1e-9)
    return placed(network, [(assignment, load, share * runs_hz) for share, assignment, load in found])
