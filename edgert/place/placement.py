"""A placement of several networks: the engines, and what the model says they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edgert.place.contention import Asked
from edgert.place.limit import Limits, engine_bytes
from edgert.place.load import Load, handed
from edgert.place.problem import Assignment, Network
from edgert.place.schedule import Replica, Stream
from edgert.place.segment import Segment, segments
from edgert.place.step import steps

Objective = Literal["throughput", "latency", "energy"]
Form = Literal["whole", "split", "replicated"]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of a network.

    Attributes:
        assignment: accelerator of every unit.
        segments: in an order to run them in.
        weight: share of the network's frames.
        load: of one run.
    """

    assignment: Assignment
    segments: tuple[Segment, ...]
    weight: float
    load: Load


@dataclass(frozen=True, slots=True)
class Placed:
    """One network.

    Attributes:
        name: of the network.
        form: one engine on one accelerator, one engine on several, or several engines.
        engines: the one with most frames first.
        capacity_hz: runs per second that the placement has room for.
        fps: frames per second: of the rate asked for, as far as there is room; all there is room for without a rate.
        latency_ms: of one run alone on the board; of the slowest engine.
        power_w: what running adds to the board's.
        energy_mj: of one frame, without what the board draws anyway.
        loadables: accelerator → segments of all engines.
    """

    name: str
    form: Form
    engines: tuple[Engine, ...]
    capacity_hz: float
    fps: float
    latency_ms: float
    power_w: float
    energy_mj: float
    loadables: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Placement:
    """All networks.

    Attributes:
        objective: what was made best.
        networks: in the order given.
        value: of the objective: the multiple of the rates (or of one run per second) that there is room for;
            milliseconds; millijoules per run with what the board draws anyway. The latter two are summed over networks,
            each weighted by its rate, if it has one.
        gap: how far the best may be from it, as a share.
        power_w: of the board, at ``fps``.
        memory_bytes: of all engines.
        utilisation: accelerator → share of the time it is busy, at ``fps``.
    """

    objective: Objective
    networks: tuple[Placed, ...]
    value: float
    gap: float
    power_w: float
    memory_bytes: int
    utilisation: Mapping[str, float]


def placed(network: Network, engines: Sequence[tuple[Assignment, Load, float]]) -> Placed:
    """A network from its engines: (assignment, load of a run, runs per second there is room for)."""
    capacity = sum(runs for _, _, runs in engines)
    made = [
        Engine(assignment, segments(network, assignment), runs / capacity if capacity else 1 / len(engines), load)
        for assignment, load, runs in sorted(engines, key=lambda one: (-one[2], one[0]))
    ]
    runs_hz = capacity if network.rate_hz is None else min(capacity, network.rate_hz)
    energy = sum(engine.weight * engine.load.energy_mj for engine in made)
    counts: dict[str, int] = defaultdict(int)
    for engine in made:
        for name, count in engine.load.segments.items():
            counts[name] += count
    return Placed(
        network.name,
        _form(made),
        tuple(made),
        capacity,
        runs_hz * network.batch,
        max(engine.load.latency_ms for engine in made),
        runs_hz * energy / 1e3,
        energy / network.batch,
        dict(counts),
    )


def together(
    objective: Objective,
    networks: Sequence[Network],
    each: Sequence[Placed],
    limits: Limits,
    *,
    value: float,
    gap: float,
) -> Placement:
    """All of them, and what they take of the board."""
    busy: dict[str, float] = defaultdict(float)
    for network, one in zip(networks, each, strict=True):
        for engine in one.engines:
            for name, busy_ms in engine.load.busy_ms.items():
                busy[name] += one.fps / network.batch * engine.weight * busy_ms / 1e3
    memory = sum(engine_bytes(network) * len(one.engines) for network, one in zip(networks, each, strict=True))
    power_w = limits.static_w + sum(one.power_w for one in each)
    return Placement(objective, tuple(each), value, gap, power_w, memory, dict(busy))


def asked(networks: Sequence[Network], placement: Placement) -> dict[str, Asked]:
    """What every accelerator asks of the memory while the placement runs."""
    traffic: dict[str, float] = defaultdict(float)
    for network, one in zip(networks, placement.networks, strict=True):
        for engine in one.engines:
            often = one.fps / network.batch * engine.weight
            for unit, name in zip(network.units, engine.assignment, strict=True):
                traffic[name] += often * unit.costs[name].traffic_bytes
            for _, start, _, crossing in handed(network, engine.assignment):
                traffic[crossing.mover(start)] += often * crossing.traffic_bytes
    return {
        name: Asked(min(busy, 1.0), traffic[name] / busy if busy > 0 else 0.0)
        for name, busy in placement.utilisation.items()
    }


def streams(networks: Sequence[Network], placement: Placement, *, saturated: bool = False) -> tuple[Stream, ...]:
    """The placement to be played: at the rates asked for, or ``saturated``: as many frames as go through."""
    made = []
    for index, (network, one) in enumerate(zip(networks, placement.networks, strict=True)):
        replicas = tuple(Replica(steps(network, engine.assignment), engine.weight) for engine in one.engines)
        rate_hz = None if saturated else network.rate_hz
        start_ms = 0.0 if rate_hz is None else 1e3 / rate_hz * index / len(networks)
        made.append(Stream(network.name, replicas, rate_hz, start_ms=start_ms))
    return tuple(made)


def _form(engines: Sequence[Engine]) -> Form:
    if len(engines) > 1:
        return "replicated"
    return "split" if len(set(engines[0].assignment)) > 1 else "whole"
