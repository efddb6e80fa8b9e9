"""Placement problem as plain records: networks of units, accelerators they may run on, and transitions.

Times are milliseconds per run of the network (one batch), energy millijoules, traffic bytes. The records contain no
graph. The solvers need not know whether the numbers come from a cost model or a measured profile.
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
    """Return whether a name in ``placement:`` means an accelerator; ``dla`` is any core of the DLA."""
    return requested == accelerator or (requested == "dla" and accelerator.startswith(requested))


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one unit on one accelerator.

    Attributes:
        time_ms: how long it keeps the accelerator busy, alone on the board.
        energy_mj: drawn beyond what the board draws when idle.
        traffic_bytes: to and from DRAM.
    """

    time_ms: float
    energy_mj: float = 0.0
    traffic_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Transition:
    """Move of one tensor from one accelerator to another; paid once, however many units read it there.

    Attributes:
        time_ms: added to the latency of a run.
        gpu_ms: how long it keeps the GPU busy, which reformats for the DLA.
        energy_mj: as in :class:`Cost`.
        traffic_bytes: as in :class:`Cost`.
        from_ms: how long it keeps the source accelerator busy; part of ``time_ms``, as are the next and ``gpu_ms``.
        to_ms: how long it keeps the target accelerator busy.
    """

    time_ms: float
    gpu_ms: float = 0.0
    energy_mj: float = 0.0
    traffic_bytes: float = 0.0
    from_ms: float = 0.0
    to_ms: float = 0.0

    def busy(self, start: str, end: str) -> tuple[tuple[str, float], ...]:
        """Return the accelerators that are busy, one after the other, and for how long.

        The GPU may be one of the two ends.
        """
        return (start, self.from_ms), (GPU, self.gpu_ms), (end, self.to_ms)

    def mover(self, start: str) -> str:
        """Return the accelerator that the memory traffic counts for: the GPU where it reformats."""
        return GPU if self.gpu_ms else start


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that an accelerator runs as one kernel.

    Attributes:
        name: of its first node.
        nodes: names of its ONNX nodes.
        costs: accelerator → cost; one that is missing cannot run it.
        weight_bytes: memory of the weights, on the accelerator that runs it.
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
        transitions: (from, to) → cost of the transition; a pair that is missing costs nothing.
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
    """A model to be placed.

    Attributes:
        name: of the model.
        units: in an order in which every unit follows those it reads.
        edges: every tensor between units, in or out.
        home: accelerator where inputs come from and outputs go to.
        rate_hz: requested runs per second, at least relative to the other networks.
        batch: frames per run.
        shares: accelerator → share of the frames, where the file dispatches them to engines that run the whole network;
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
    """Return the network with other costs of its units."""
    return replace(network, units=tuple(replace(unit, costs=costs_of(unit)) for unit in network.units))


# Several networks become one, so that one solver places all of them together.

_K = TypeVar("_K")
_P = TypeVar("_P", Cost, Transition)


def merged(networks: Sequence[Network], weights: Sequence[float]) -> tuple[Network, tuple[range, ...]]:
    """Return one network whose costs are the weighted costs of all, and the range of units of each network.

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
    """Return the assignment of each network out of the merged one."""
    return [assignment[units.start : units.stop] for units in own]
