"""Solver for the best placement of networks under limits: highest throughput, least latency, or least energy."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from edgert.errors import PlacementError
from edgert.placement import constraints
from edgert.placement.constraints import Limits, Objective, Placement, joint_placement, placed_network
from edgert.placement.contention import Contention, MemoryDemand, slowed_network, traffic_change
from edgert.placement.engine_selection import EngineSelector
from edgert.placement.exact import Condition, cheapest_plain_placement, exact_placement, keeps_limits
from edgert.placement.min_cut import cut
from edgert.placement.problem import Cost, Network, Transition, apart, merged
from edgert.placement.run_load import LATENCY, Price, accelerators, preferred_assignment, run_load, run_use
from edgert.placement.throughput import Resources, best_mix

_ROUNDS, _SETTLED = 5, 0.01  # solutions with contention, and the relative change of traffic at which they end


def solve(
    networks: Sequence[Network],
    objective: Objective,
    limits: Limits | None = None,
    *,
    contention: Contention | None = None,
    time_limit_s: float = 20.0,
) -> Placement:
    """Return the best placement; by the cost model it is never worse than a plain one on a single accelerator.

    ``throughput`` maximizes the common multiple of the requested rates. ``latency`` and ``energy`` minimize the sum
    over the networks, weighted by their rates, with one engine each. Energy includes the idle board's during a run.

    With ``contention`` the problem is solved repeatedly, each time with the slower times that the answer before leads
    to. The best answer is returned, with the slower times. A network with ``shares`` gets the engines of its shares.

    Args:
        networks: networks to place.
        objective: what to optimize.
        limits: limits of the board; None for none.
        contention: contention for the memory; None for none.
        time_limit_s: time limit of integer programs.

    Raises:
        PlacementError: no placement keeps the limits; the error says what is possible.
    """
    limits = limits or Limits()
    if not networks:
        raise PlacementError("there is no network to place")

    def solve_slowed(slowed: Sequence[Network]) -> Placement:
        find = _maximize_rates if objective == "throughput" else _minimize_cost
        return constraints.apply_given_shares(slowed, find(slowed, objective, limits, time_limit_s))

    return solve_slowed(networks) if contention is None else _solve_slowed(networks, contention, solve_slowed)


def _solve_slowed(
    networks: Sequence[Network], contention: Contention, solve: Callable[[Sequence[Network]], Placement]
) -> Placement:
    """Return the best of several answers, each with the memory traffic of the one before, until that hardly changes."""
    slowed, tried = tuple(networks), list[tuple[float, Placement]]()
    before: Mapping[str, MemoryDemand] = {}
    for _ in range(_ROUNDS):
        answer = solve(slowed)
        demand = constraints.memory_demand(networks, answer)
        slowed = tuple(slowed_network(network, demand, contention) for network in networks)
        tried.append((_score(slowed, answer), answer))
        if traffic_change(before, demand) <= _SETTLED:
            break
        before = demand
    return max(tried, key=lambda one: one[0])[1]


def _score(slowed: Sequence[Network], placement: Placement) -> float:
    """Return the score of a placement with the times that its own traffic leads to, higher is better.

    It is the multiple of the requested rates, or the negative latency or energy.
    """
    if placement.objective == "energy":
        return -placement.value
    busy_ms, latency_ms = Counter[str](), 0.0
    for network, one in zip(slowed, placement.networks, strict=True):
        runs = [(engine.weight, run_use(network, engine.assignment)) for engine in one.engines]
        latency_ms += max(run.latency_ms for _, run in runs)
        for weight, run in runs:
            busy_ms.update({name: network.rate_hz * weight * one_ms for name, one_ms in run.busy_ms.items()})
    return 1e3 / max(busy_ms.values()) if placement.objective == "throughput" else -latency_ms


def _maximize_rates(
    networks: Sequence[Network], objective: Objective, limits: Limits, time_limit_s: float
) -> Placement:
    resources = Resources.of(networks, limits)
    mixed = best_mix(networks, resources)
    multiplier, engines = EngineSelector(networks, resources, limits, time_limit_s).select(mixed)
    each = [placed_network(network, own) for network, own in zip(networks, engines, strict=True)]
    return joint_placement(objective, each, multiplier, max(0.0, 1 - multiplier / mixed.bound))


def _minimize_cost(networks: Sequence[Network], objective: Objective, limits: Limits, time_limit_s: float) -> Placement:
    """Return the cheapest placement, by a minimum cut if that keeps all limits, else by an integer program."""
    whole, own = merged(networks, [network.rate_hz for network in networks])
    price = LATENCY if objective == "latency" else Price(latency=limits.static_w, energy=1.0)
    names = accelerators(networks)
    conditions = [Condition(f"ms of {name} a second", Price(busy={name: 1.0}), 1e3) for name in names]
    if limits.traffic_bytes_s is not None:
        conditions.append(Condition("bytes a second", Price(traffic=1.0), limits.traffic_bytes_s))
    best = undominated(whole, names)
    found = cut(whole, best[0], best[-1], price) if len(best) <= 2 and preferred_assignment(whole, best) else None
    if found is not None and keeps_limits(whole, found.assignment, conditions, limits.loadables):
        simple = cheapest_plain_placement(whole, names, price, conditions, limits.loadables)
        cost, assignment = min((found.cost, found.assignment), simple or (float("inf"), ()))
    else:
        found = exact_placement(whole, names, price, conditions, loadables=limits.loadables, time_limit_s=time_limit_s)
        cost, assignment = found.cost, found.assignment
    each = [
        placed_network(network, [(one, run_load(network, one), network.rate_hz)])
        for network, one in zip(networks, apart(assignment, own), strict=True)
    ]
    gap = max(0.0, cost - found.bound) / max(cost, 1e-12)
    return joint_placement(objective, each, cost, gap)


# Dominated accelerators can be left out without loss.
#
# One accelerator dominates another if every unit that the other can run costs no more time, energy and traffic on it,
# and no transition to or from it costs more. Then moving all of the other's units to it costs no more either:
# transitions between the two disappear, and a tensor that both read makes one transition. Only its busy time may exceed
# the limit, so code that leaves dominated accelerators out must check that limit.

_FREE = Transition(0.0)


def undominated(network: Network, among: Sequence[str]) -> tuple[str, ...]:
    """Return the accelerators that no other dominates, in order; of two that dominate each other the first."""
    kept: list[str] = []
    for name in among:
        if any(_dominates(network, other, name, among) for other in kept):
            continue
        kept = [other for other in kept if not _dominates(network, name, other, among)]
        kept.append(name)
    return tuple(kept)


def _dominates(network: Network, one: str, other: str, among: Sequence[str]) -> bool:
    if other == network.home:
        return False
    for unit in network.units:
        if other in unit.costs and (one not in unit.costs or not _costs_no_more(unit.costs[one], unit.costs[other])):
            return False
    rest = [name for name in among if name not in (one, other)]
    pairs = [((name, one), (name, other)) for name in rest] + [((one, name), (other, name)) for name in rest]
    return all(
        _costs_no_more(edge.transitions.get(mine, _FREE), edge.transitions.get(theirs, _FREE))
        for edge in network.edges
        for mine, theirs in pairs
    )


def _costs_no_more(one: Cost | Transition, other: Cost | Transition) -> bool:
    return all(getattr(one, name) <= getattr(other, name) for name in one.__slots__)
