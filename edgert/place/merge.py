"""Several networks as one, so that what holds for one holds for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from edgert.errors import PlacementError
from edgert.place.problem import Assignment, Cost, Crossing, Edge, Network, Unit


def merged(networks: Sequence[Network], weights: Sequence[float]) -> tuple[Network, tuple[range, ...]]:
    """One network without rate whose costs are the weighted ones of all, and which units are whose.

    Raises:
        PlacementError: the networks have different homes.
    """
    homes = sorted({network.home for network in networks})
    if len(homes) != 1:
        raise PlacementError(f"networks have different homes: {', '.join(homes)}", fix="place them one at a time")
    starts = [0, *accumulate(len(network.units) for network in networks)]
    own = tuple(range(start, end) for start, end in pairwise(starts))
    units = [_unit(unit, weight) for network, weight in zip(networks, weights, strict=True) for unit in network.units]
    edges = [
        _edge(edge, weight, start)
        for network, weight, start in zip(networks, weights, starts, strict=False)
        for edge in network.edges
    ]
    return Network(" and ".join(network.name for network in networks), tuple(units), tuple(edges), homes[0]), own


def apart(assignment: Assignment, own: Sequence[range]) -> list[Assignment]:
    """Back to the networks."""
    return [assignment[units.start : units.stop] for units in own]


def _unit(unit: Unit, weight: float) -> Unit:
    costs = {
        name: Cost(cost.time_ms * weight, cost.energy_mj * weight, cost.traffic_bytes * weight)
        for name, cost in unit.costs.items()
    }
    return replace(unit, costs=costs)


def _edge(edge: Edge, weight: float, start: int) -> Edge:
    crossings = {pair: _crossing(one, weight) for pair, one in edge.crossings.items()}
    producer = None if edge.producer is None else edge.producer + start
    consumers = tuple(unit + start for unit in edge.consumers)
    return replace(edge, producer=producer, consumers=consumers, crossings=crossings)


def _crossing(one: Crossing, weight: float) -> Crossing:
    loads = (one.time_ms, one.gpu_ms, one.energy_mj, one.traffic_bytes, one.from_ms, one.to_ms)
    return Crossing(*(weight * load for load in loads))
