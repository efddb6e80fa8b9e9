"""Networks whose engines, and what part of the frames each gets, stand in the pipeline file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from edgert.place.limit import Limits
from edgert.place.load import Load, loads
from edgert.place.placement import Placed, Placement, placed, together
from edgert.place.problem import Assignment, Network


def kept(networks: Sequence[Network], found: Placement, limits: Limits) -> Placement:
    """The placement with the engines of networks that have ``shares`` in place of those that were found for them."""
    if not any(network.shares for network in networks):
        return found
    pairs = zip(networks, found.networks, strict=True)
    each = [dealt(network) if network.shares else one for network, one in pairs]
    made = together(found.objective, networks, each, limits, value=found.value, gap=found.gap)
    return replace(made, value=_multiple(networks, made)) if found.objective == "throughput" else made


def dealt(network: Network) -> Placed:
    """The network as its shares say, with as many runs as the accelerator that is busiest with it has time for."""
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
        next((able for able in sorted(unit.costs) if _means(name, able)), next(iter(unit.costs)))
        for unit in network.units
    )


def _means(asked: str, able: str) -> bool:
    return asked == able or (asked == "dla" and able.startswith(asked))


def _multiple(networks: Sequence[Network], made: Placement) -> float:
    """How many times the rates asked for there is room for."""
    pairs = zip(networks, made.networks, strict=True)
    met = min(one.fps / ((network.rate_hz or 1.0) * network.batch) for network, one in pairs)
    return met / max(*made.utilisation.values(), 1e-9)
