"""Limits on a placement of several networks, and its figures: engines, rates and memory."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgert.placement.contention import MemoryDemand
from edgert.placement.problem import Assignment, Network, names_accelerator
from edgert.placement.run_load import Load, run_load, transitions_of

Objective = Literal["throughput", "latency", "energy"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a board; None is no limit.

    Attributes:
        static_w: power of the idle board, in watts; the energy of a frame includes it for the frame's latency.
        traffic_bytes_s: memory bandwidth.
        loadables: accelerator → number of segments it can still load, over all engines.
    """

    static_w: float = 0.0
    traffic_bytes_s: float | None = None
    loadables: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Engine:
    """Engine of a network: the accelerator of every unit, its share of the network's frames, and the load of a run."""

    assignment: Assignment
    weight: float
    load: Load


@dataclass(frozen=True, slots=True)
class PlacedNetwork:
    """A network on its engines.

    Attributes:
        engines: engines of the network, the one with most frames first.
        fps: frames per second, capped at the requested rate.
        latency_ms: latency of one run of the slowest engine, alone on the board.
        loadables: accelerator → number of segments over all engines.
    """

    name: str
    engines: tuple[Engine, ...]
    fps: float
    latency_ms: float
    loadables: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Placement:
    """All networks on their engines.

    Attributes:
        objective: what was optimized.
        networks: placed networks, in the order given.
        value: value of the objective. It is the possible multiple of the requested rates, milliseconds, or millijoules
            per run with idle power. The latter two are summed over networks, weighted by their rates.
        gap: upper bound on the relative distance to the best value.
        utilization: accelerator → share of the time it is busy at ``fps``.
    """

    objective: Objective
    networks: tuple[PlacedNetwork, ...]
    value: float
    gap: float
    utilization: Mapping[str, float]


def placed_network(network: Network, engines: Sequence[tuple[Assignment, Load, float]]) -> PlacedNetwork:
    """Return a network on its engines, given as (assignment, load of a run, runs per second)."""
    capacity = sum(runs for _, _, runs in engines)
    sorted_engines = [
        Engine(assignment, runs / capacity if capacity else 1 / len(engines), load)
        for assignment, load, runs in sorted(engines, key=lambda one: (-one[2], one[0]))
    ]
    return PlacedNetwork(
        name=network.name,
        engines=tuple(sorted_engines),
        fps=min(capacity, network.rate_hz),
        latency_ms=max(engine.load.latency_ms for engine in sorted_engines),
        loadables=sum((Counter(engine.load.segments) for engine in sorted_engines), Counter()),
    )


def joint_placement(objective: Objective, placed: Sequence[PlacedNetwork], value: float, gap: float) -> Placement:
    """Return the placement of all networks, with the utilization of the board."""
    busy: dict[str, float] = defaultdict(float)
    for one in placed:
        for engine in one.engines:
            for name, busy_ms in engine.load.busy_ms.items():
                busy[name] += one.fps * engine.weight * busy_ms / 1e3
    return Placement(objective, tuple(placed), value, gap, dict(busy))


def memory_demand(networks: Sequence[Network], placement: Placement) -> dict[str, MemoryDemand]:
    """Return the memory traffic and busy time of every accelerator while the placement runs."""
    traffic: dict[str, float] = defaultdict(float)
    for network, one in zip(networks, placement.networks, strict=True):
        for engine in one.engines:
            runs_hz = one.fps * engine.weight
            for unit, name in zip(network.units, engine.assignment, strict=True):
                traffic[name] += runs_hz * unit.costs[name].traffic_bytes
            for _, start, _, transition in transitions_of(network, engine.assignment):
                traffic[transition.mover(start)] += runs_hz * transition.traffic_bytes
    return {
        name: MemoryDemand(min(busy, 1.0), traffic[name] / busy if busy > 0 else 0.0)
        for name, busy in placement.utilization.items()
    }


# Networks whose engines and shares of the frames the pipeline file states.


def apply_given_shares(networks: Sequence[Network], found: Placement) -> Placement:
    """Return the placement with each network on the engines of its ``shares``, where it has any."""
    if not any(network.shares for network in networks):
        return found
    pairs = zip(networks, found.networks, strict=True)
    placed = [_dispatched_network(network) if network.shares else one for network, one in pairs]
    placement = joint_placement(found.objective, placed, found.value, found.gap)
    if found.objective != "throughput":
        return placement
    pairs = zip(networks, placement.networks, strict=True)
    reached = min(one.fps / network.rate_hz for network, one in pairs)
    return replace(placement, value=reached / max(*placement.utilization.values(), 1e-9))


def _dispatched_network(network: Network) -> PlacedNetwork:
    """Return the network on the accelerators of its shares, at the rate that fully uses the busiest accelerator.

    An engine runs every unit on its own accelerator if that can run it, otherwise elsewhere. ``dla`` is the first core.
    """
    found: list[tuple[float, Assignment, Load]] = []
    busy_ms: dict[str, float] = defaultdict(float)
    for name, share in network.shares.items():
        assignment = tuple(
            next((able for able in sorted(unit.costs) if names_accelerator(name, able)), next(iter(unit.costs)))
            for unit in network.units
        )
        load = run_load(network, assignment)
        found.append((share, assignment, load))
        for able, time_ms in load.busy_ms.items():
            busy_ms[able] += share * time_ms
    runs_hz = 1e3 / max(*busy_ms.values(), 1e-9)
    return placed_network(network, [(assignment, load, share * runs_hz) for share, assignment, load in found])
