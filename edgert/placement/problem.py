"""The placement problem as plain records: networks of units, accelerators they may run on, and transitions.

Times are milliseconds per run of the network (one batch), energy millijoules, traffic bytes. The records carry no
graph: where the numbers come from (a cost model, a measured profile) does not matter to the solvers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from edgert.errors import PlacementError

GPU = "gpu"
"""The accelerator that reformats tensors for others."""

Assignment = tuple[str, ...]
"""Accelerator of every unit, in order: ``("gpu", "dla0", "dla0")``."""


def is_asked_for(asked: str, accelerator: str) -> bool:
    """Whether a name in ``placement:`` means an accelerator; ``dla`` is any core of the DLA."""
    return asked == accelerator or (asked == "dla" and accelerator.startswith(asked))


@dataclass(frozen=True, slots=True)
class Cost:
    """One unit on one accelerator.

    Attributes:
        time_ms: how long it keeps the accelerator busy, alone on the board.
        energy_mj: drawn beyond what the board draws anyway.
        traffic_bytes: to and from DRAM.
    """

    time_ms: float
    energy_mj: float = 0.0
    traffic_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Transition:
    """One tensor moved from one accelerator to another; paid once, however many units read it there.

    Attributes:
        time_ms: added to the latency of a run.
        gpu_ms: how long it keeps the GPU busy, which reformats for the DLA.
        energy_mj, traffic_bytes: as in :class:`Cost`.
        from_ms, to_ms: how long it keeps the accelerator busy that gives the tensor away, and the one that takes it;
            these two and ``gpu_ms`` are parts of ``time_ms``.
    """

    time_ms: float
    gpu_ms: float = 0.0
    energy_mj: float = 0.0
    traffic_bytes: float = 0.0
    from_ms: float = 0.0
    to_ms: float = 0.0

    def busy(self, start: str, end: str) -> tuple[tuple[str, float], ...]:
        """Who is busy, one after the other, and for how long; the GPU may be one of the two ends."""
        return (start, self.from_ms), (GPU, self.gpu_ms), (end, self.to_ms)

    def mover(self, start: str) -> str:
        """Whose memory traffic it is: the GPU's where that reformats."""
        return GPU if self.gpu_ms else start


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that an accelerator runs as one.

    Attributes:
        name: of its first node.
        nodes: names of its ONNX nodes.
        costs: accelerator → cost; one that is missing cannot run it.
        weight_bytes: kept in memory by whoever runs it.
    """

    name: str
    nodes: tuple[str, ...]
    costs: Mapping[str, Cost]
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor between units, into the network or out of it.

    Attributes:
        name: of the tensor.
        producer: index of the unit that writes it; None for an input of the network.
        consumers: indices of the units that read it.
        is_output: whether it also leaves the network.
        transitions: (from, to) → what the transition costs; a pair that is missing costs nothing.
        size_bytes: of one run.
    """

    name: str
    producer: int | None
    consumers: tuple[int, ...]
    is_output: bool = False
    transitions: Mapping[tuple[str, str], Transition] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """One model to be placed.

    Attributes:
        name: of the model.
        units: in an order in which every unit follows those it reads.
        edges: every tensor between units, in or out.
        home: accelerator where inputs come from and outputs go to.
        rate_hz: how often it is to run, at least against the other networks.
        batch: frames per run.
        shares: accelerator → part of the frames, where the file dispatches them to engines that run the whole network;
            empty: the solvers choose.
    """

    name: str
    units: tuple[Unit, ...]
    edges: tuple[Edge, ...]
    home: str = "gpu"
    rate_hz: float = 1.0
    batch: int = 1
    shares: Mapping[str, float] = field(default_factory=dict)


def with_costs(network: Network, costs_of: Callable[[Unit], Mapping[str, Cost]]) -> Network:
    """The network with other costs of its units."""
    return replace(network, units=tuple(replace(unit, costs=costs_of(unit)) for unit in network.units))


# Several networks as one, so that what holds for one holds for all of them together.

_K = TypeVar("_K")
_P = TypeVar("_P", Cost, Transition)


def merged(networks: Sequence[Network], weights: Sequence[float]) -> tuple[Network, tuple[range, ...]]:
    """One network whose costs are the weighted ones of all, and which units are whose.

    Raises:
        PlacementError: the networks have different homes.
    """
    homes = sorted({network.home for network in networks})
    if len(homes) != 1:
        raise PlacementError(f"networks have different homes: {', '.join(homes)}", fix="place them one at a time")
    units: list[Unit] = []
    edges: list[Edge] = []
    own: list[range] = []
    for network, weight in zip(networks, weights, strict=True):
        start = len(units)
        units += [replace(unit, costs=_weighted(unit.costs, weight)) for unit in network.units]
        for edge in network.edges:
            producer = None if edge.producer is None else edge.producer + start
            consumers = tuple(unit + start for unit in edge.consumers)
            transitions = _weighted(edge.transitions, weight)
            edges.append(replace(edge, producer=producer, consumers=consumers, transitions=transitions))
        own.append(range(start, len(units)))
    return Network(" and ".join(network.name for network in networks), tuple(units), tuple(edges), homes[0]), tuple(own)


def _weighted(parts: Mapping[_K, _P], weight: float) -> dict[_K, _P]:
    return {key: type(part)(*(weight * getattr(part, name) for name in part.__slots__)) for key, part in parts.items()}


def apart(assignment: Assignment, own: Sequence[range]) -> list[Assignment]:
    """Back to the networks."""
    return [assignment[units.start : units.stop] for units in own]
