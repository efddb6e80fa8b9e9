"""Placement problem as plain records: networks of units, accelerators that can run them, and transitions.

Times are milliseconds per run of the network (one batch), energy is in millijoules, traffic in bytes. The records
contain no graph, and solvers do not know whether the numbers come from a cost model or a measured profile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from edgert.errors import PlacementError

GPU = "gpu"
"""Name of the accelerator that reformats tensors for others."""

Assignment = tuple[str, ...]
"""Accelerator of every unit, in order: ``("gpu", "dla0", "dla0")``."""


def names_accelerator(requested: str, accelerator: str) -> bool:
    """Return whether a name in ``placement:`` matches an accelerator; ``dla`` matches every DLA core."""
    return requested == accelerator or (requested == "dla" and accelerator.startswith(requested))


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one unit on one accelerator.

    Attributes:
        time_ms: time for which the unit keeps the accelerator busy, alone on the board.
        energy_mj: energy beyond the idle board's.
        traffic_bytes: bytes to and from DRAM.
    """

    time_ms: float
    energy_mj: float = 0.0
    traffic_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Transition:
    """Cost of moving one tensor to another accelerator, paid once for all units that read it there.

    Attributes:
        time_ms: time added to the latency of a run; includes the other three.
        gpu_ms: time for which it keeps the GPU busy, which reformats tensors for the DLA.
        energy_mj: energy beyond the idle board's.
        traffic_bytes: bytes to and from DRAM.
        from_ms: time for which it keeps the source accelerator busy.
        to_ms: time for which it keeps the target accelerator busy.
    """

    time_ms: float
    gpu_ms: float = 0.0
    energy_mj: float = 0.0
    traffic_bytes: float = 0.0
    from_ms: float = 0.0
    to_ms: float = 0.0

    def busy(self, start: str, end: str) -> tuple[tuple[str, float], ...]:
        """Return (accelerator, milliseconds busy) in order: source, GPU, target.

        The GPU may also be the source or the target.
        """
        return (start, self.from_ms), (GPU, self.gpu_ms), (end, self.to_ms)

    def mover(self, start: str) -> str:
        """Return the accelerator that causes the memory traffic: the GPU if it reformats, else the source."""
        return GPU if self.gpu_ms else start


@dataclass(frozen=True, slots=True)
class Unit:
    """ONNX nodes that an accelerator runs as one kernel.

    Attributes:
        name: name of its first node.
        nodes: names of its nodes.
        costs: accelerator → cost; only accelerators that can run the unit.
        weight_bytes: memory of the weights.
    """

    name: str
    nodes: tuple[str, ...]
    costs: Mapping[str, Cost]
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor between units, into the network or out of it.

    Attributes:
        producer: index of the unit that writes it; None for an input of the network.
        consumers: indices of the units that read it.
        is_output: whether it also leaves the network.
        transitions: (from, to) → cost of the transition; a missing pair costs nothing.
        size_bytes: size of the tensor of one run.
    """

    name: str
    producer: int | None
    consumers: tuple[int, ...]
    is_output: bool = False
    transitions: Mapping[tuple[str, str], Transition] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """A model to be placed.

    Attributes:
        units: units, each after those whose results it reads.
        edges: tensors between units, into the network and out of it.
        home: accelerator where inputs come from and outputs go to.
        rate_hz: requested runs per second; some solvers use only the ratio to the other networks' rates.
        shares: accelerator → share of the frames, where the file dispatches them to engines that each run the complete
            network; empty where the solvers choose.
    """

    name: str
    units: tuple[Unit, ...]
    edges: tuple[Edge, ...]
    home: str = "gpu"
    rate_hz: float = 1.0
    shares: Mapping[str, float] = field(default_factory=dict)


def with_costs(network: Network, costs_of: Callable[[Unit], Mapping[str, Cost]]) -> Network:
    """Return the network with the units' costs replaced by those of ``costs_of``."""
    return replace(network, units=tuple(replace(unit, costs=costs_of(unit)) for unit in network.units))


# Several networks are merged into one, so that a solver places them together.

_K = TypeVar("_K")
_P = TypeVar("_P", Cost, Transition)


def merged(networks: Sequence[Network], weights: Sequence[float]) -> tuple[Network, tuple[range, ...]]:
    """Return one network with the weighted costs of all, and the range of units that each network has in it.

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
        units += [replace(unit, costs=weighted(unit.costs, weight)) for unit in network.units]
        for edge in network.edges:
            producer = None if edge.producer is None else edge.producer + start
            consumers = tuple(unit + start for unit in edge.consumers)
            transitions = weighted(edge.transitions, weight)
            edges.append(replace(edge, producer=producer, consumers=consumers, transitions=transitions))
        own.append(range(start, len(units)))
    return Network(" and ".join(network.name for network in networks), tuple(units), tuple(edges), homes[0]), tuple(own)


def weighted(parts: Mapping[_K, _P], weight: float) -> dict[_K, _P]:
    """Return the costs or transitions with all their amounts multiplied by a number."""
    return {key: type(part)(*(weight * getattr(part, name) for name in part.__slots__)) for key, part in parts.items()}


def apart(assignment: Assignment, own: Sequence[range]) -> list[Assignment]:
    """Return the assignment of each network, from that of the merged network."""
    return [assignment[units.start : units.stop] for units in own]
