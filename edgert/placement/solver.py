"""Solver for the best placement of networks under limits: most frames, least latency, or least energy."""

from collections.abc import Sequence
from functools import partial

from edgert.errors import PlacementError
from edgert.placement import constraints
from edgert.placement.constraints import Limits, Objective, Placement, placed, together
from edgert.placement.contention import Contention, fixed_point
from edgert.placement.engine_selection import EngineSelector
from edgert.placement.exact import Condition, exact, keeps, plain
from edgert.placement.min_cut import cut
from edgert.placement.problem import Cost, Network, Transition, apart, merged
from edgert.placement.run_load import LATENCY, Price, accelerators, loads, preferring
from edgert.placement.schedule import play
from edgert.placement.throughput import Resources, blend

_PLAYED_MS, _PLAYED_RUNS = 4000.0, 200  # longest simulated time, and runs of every network that suffice


def solve(
    networks: Sequence[Network],
    objective: Objective,
    limits: Limits | None = None,
    *,
    contention: Contention | None = None,
    time_limit_s: float = 20.0,
) -> Placement:
    """Return the best placement, by the model never worse than all on one accelerator where that can run the units.

    ``throughput``: the largest common multiple of the requested rates. ``latency`` and ``energy``: the least sum over
    the networks, weighted by their rates, with one engine each; energy includes what the board draws during a run.

    With ``contention`` the problem is solved again with the times that an answer leads to, until they agree. The answer
    that does best in simulation is returned; its numbers are those of the lengthened times. A network with ``shares``
    gets those engines.

    Args:
        networks: to place.
        objective: what to optimize.
        limits: of the board; None for none.
        contention: of the memory; None for none.
        time_limit_s: for integer programs.

    Raises:
        PlacementError: no placement keeps the limits; names them and what is possible.
    """
    limits = limits or Limits()
    if not networks:
        raise PlacementError("there is no network to place")

    def solved(slowed: Sequence[Network]) -> Placement:
        find = _most_frames if objective == "throughput" else _least
        return constraints.with_given_shares(slowed, find(slowed, objective, limits, time_limit_s), limits)

    if contention is None:
        return solved(networks)
    played = partial(_played, networks, contention)
    best: Placement = fixed_point(
        networks, contention, solved, lambda answer: constraints.memory_demand(networks, answer), played
    )
    return best


def _played(networks: Sequence[Network], contention: Contention, placement: Placement) -> float:
    """Return the simulated score: frames relative to the requested rate, or negative latency or energy.

    Accelerators do slow one another down in it.
    """
    if placement.objective == "energy":
        return -placement.value
    frames = placement.objective == "throughput"
    slowest_hz = min(one.capacity_hz for one in placement.networks)
    duration_ms = min(_PLAYED_MS, 1e3 * _PLAYED_RUNS / max(slowest_hz, 1e-9))
    flows = play(constraints.streams(networks, placement, saturated=frames), duration_ms, contention).streams
    if not frames:
        return -sum(flow.p50_ms for flow in flows)
    return min(flow.fps / network.rate_hz for network, flow in zip(networks, flows, strict=True))


def _most_frames(networks: Sequence[Network], objective: Objective, limits: Limits, time_limit_s: float) -> Placement:
    resources = Resources.of(networks, limits)
    mixed = blend(networks, resources)
    multiplier, engines = EngineSelector(networks, resources, limits, time_limit_s).select(mixed)
    each = [placed(network, own) for network, own in zip(networks, engines, strict=True)]
    return together(objective, networks, each, limits, multiplier, max(0.0, 1 - multiplier / mixed.bound))


def _least(networks: Sequence[Network], objective: Objective, limits: Limits, time_limit_s: float) -> Placement:
    """Return the placement of least cost, by a cut if that keeps all limits, else by an integer program."""
    whole, own = merged(networks, [network.rate_hz for network in networks])
    price = LATENCY if objective == "latency" else Price(latency=limits.static_w, energy=1.0)
    names = accelerators(networks)
    conditions = [Condition(f"ms of {name} a second", Price(busy={name: 1.0}), 1e3) for name in names]
    if limits.traffic_bytes_s is not None:
        conditions.append(Condition("bytes a second", Price(traffic=1.0), limits.traffic_bytes_s))
    best = undominated(whole, names)
    found = cut(whole, best[0], best[-1], price) if len(best) <= 2 and preferring(whole, best) else None
    if found is not None and keeps(whole, found.assignment, conditions, limits.loadables):
        simple = plain(whole, names, price, conditions, limits.loadables)
        cost, assignment = min((found.cost, found.assignment), simple or (float("inf"), ()))
    else:
        found = exact(whole, names, price, conditions, loadables=limits.loadables, time_limit_s=time_limit_s)
        cost, assignment = found.cost, found.assignment
    each = [
        placed(network, [(one, loads(network, one), network.rate_hz)])
        for network, one in zip(networks, apart(assignment, own), strict=True)
    ]
    gap = max(0.0, cost - found.bound) / max(cost, 1e-12)
    return together(objective, networks, each, limits, cost, gap)


# Accelerators that another one beats in everything can be left out without loss.
#
# One beats another if every unit that the other can run costs it no more time, energy and traffic, and no
# transition to or from it costs more. Moving all of the other's units to it then costs no more either: transitions
# between the two go away, and a tensor that both read makes one transition. Only the busy time may exceed its limit,
# so code that leaves the beaten ones out must check that limit.

_FREE = Transition(0.0)


def undominated(network: Network, among: Sequence[str]) -> tuple[str, ...]:
    """Return the accelerators that no other beats, in order; of two that beat each other the first."""
    kept: list[str] = []
    for name in among:
        if any(_beats(network, other, name, among) for other in kept):
            continue
        kept = [other for other in kept if not _beats(network, name, other, among)]
        kept.append(name)
    return tuple(kept)


def _beats(network: Network, one: str, other: str, among: Sequence[str]) -> bool:
    if other == network.home:
        return False
    for unit in network.units:
        if other in unit.costs and (one not in unit.costs or not _no_more(unit.costs[one], unit.costs[other])):
            return False
    rest = [name for name in among if name not in (one, other)]
    pairs = [((name, one), (name, other)) for name in rest] + [((one, name), (other, name)) for name in rest]
    return all(
        _no_more(edge.transitions.get(mine, _FREE), edge.transitions.get(theirs, _FREE))
        for edge in network.edges
        for mine, theirs in pairs
    )


def _no_more(one: Cost | Transition, other: Cost | Transition) -> bool:
    return all(mine <= theirs for mine, theirs in zip(_taken(one), _taken(other), strict=True))


def _taken(part: Cost | Transition) -> tuple[float, ...]:
    shares = (part.from_ms, part.gpu_ms, part.to_ms) if isinstance(part, Transition) else ()
    return (part.time_ms, part.energy_mj, part.traffic_bytes, *shares)
