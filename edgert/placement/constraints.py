"""What a placement of several networks has to keep to, and what it comes to: engines, rates, power and memory."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgert.errors import PlacementError
from edgert.placement.contention import Asked
from edgert.placement.cutting import Segment, segments
from edgert.placement.problem import Assignment, Network, is_asked_for
from edgert.placement.run_load import Load, loads, transitions_of
from edgert.placement.schedule import Replica, Stream
from edgert.placement.segment_engines import steps

# What a placement has to keep to.


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit.

    Attributes:
        power_w: of the whole board.
        static_w: drawn whatever runs; counts against ``power_w`` and, for the energy of a frame, with its latency.
        traffic_bytes_s: what the memory gives.
        memory_bytes: of all engines together: weights, and the most that their tensors need at once.
        latency_ms: of one run of every network, alone on the board.
        loadables: accelerator → segments it can still take, over all engines.
    """

    power_w: float | None = None
    static_w: float = 0.0
    traffic_bytes_s: float | None = None
    memory_bytes: int | None = None
    latency_ms: float | None = None
    loadables: Mapping[str, int] = field(default_factory=dict)

    @property
    def dynamic_w(self) -> float | None:
        """What is left for running.

        Raises:
            PlacementError: nothing is.
        """
        if self.power_w is None:
            return None
        if self.power_w <= self.static_w:
            raise PlacementError(
                f"{self.power_w:g} W is too little for any placement",
                why=f"the board draws {self.static_w:g} W before anything runs",
                fix="raise the power budget, or choose a power mode that draws less",
            )
        return self.power_w - self.static_w


def engine_bytes(network: Network) -> int:
    """Memory of one engine: the weights, and the most that tensors need at once when units run in order."""
    size = [0] * (len(network.units) + 1)
    for edge in network.edges:
        start = 0 if edge.producer is None else edge.producer
        end = len(network.units) - 1 if edge.is_output else max(edge.consumers, default=start)
        size[start] += edge.size_bytes
        size[end + 1] -= edge.size_bytes
    live = peak = 0
    for change in size:
        live += change
        peak = max(peak, live)
    return peak + sum(unit.weight_bytes for unit in network.units)


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
        utilization: accelerator → share of the time it is busy, at ``fps``.
    """

    objective: Objective
    networks: tuple[Placed, ...]
    value: float
    gap: float
    power_w: float
    memory_bytes: int
    utilization: Mapping[str, float]


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
            for _, start, _, transition in transitions_of(network, engine.assignment):
                traffic[transition.mover(start)] += often * transition.traffic_bytes
    return {
        name: Asked(min(busy, 1.0), traffic[name] / busy if busy > 0 else 0.0)
        for name, busy in placement.utilization.items()
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


# Networks whose engines, and their shares of the frames, are given in the pipeline file.


def with_given_shares(networks: Sequence[Network], found: Placement, limits: Limits) -> Placement:
    """The placement with the engines of networks that have ``shares`` in place of those that were found for them."""
    if not any(network.shares for network in networks):
        return found
    pairs = zip(networks, found.networks, strict=True)
    each = [dispatched(network) if network.shares else one for network, one in pairs]
    made = together(found.objective, networks, each, limits, value=found.value, gap=found.gap)
    return replace(made, value=_multiple(networks, made)) if found.objective == "throughput" else made


def dispatched(network: Network) -> Placed:
    """The network as its shares ask for, with as many runs as the accelerator that is busiest with it has time for."""
    engines = [(share, _whole(network, name)) for name, share in network.shares.items()]
    found: list[tuple[float, Assignment, Load]] = [(share, one, loads(network, one)) for share, one in engines]
    busy_ms: dict[str, float] = defaultdict(float)
    for share, _, load in found:
        for name, time_ms in load.busy_ms.items():
            busy_ms[name] += share * time_ms
    runs_hz = 1e3 / max(*busy_ms.values(), 1e-9)
    return placed(network, [(assignment, load, share * runs_hz) for share, assignment, load in found])


def _whole(network: Network, name: str) -> Assignment:
    """All that an accelerator can run on it, ``dla`` being its first core, and the rest where else it may be."""
    return tuple(
        next((able for able in sorted(unit.costs) if is_asked_for(name, able)), next(iter(unit.costs)))
        for unit in network.units
    )


def _multiple(networks: Sequence[Network], made: Placement) -> float:
    """How many times the rates asked for there is room for."""
    pairs = zip(networks, made.networks, strict=True)
    met = min(one.fps / ((network.rate_hz or 1.0) * network.batch) for network, one in pairs)
    return met / max(*made.utilization.values(), 1e-9)
