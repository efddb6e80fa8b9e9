"""The best placement of networks under limits: most frames, least latency, or least energy."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from edgert.errors import PlacementError
from edgert.placement.columns import Resources, classed
from edgert.placement.constraints import (
    Limits,
    Objective,
    Placed,
    Placement,
    asked,
    engine_bytes,
    placed,
    streams,
    together,
    with_given_shares,
)
from edgert.placement.contention import Contention, settle
from edgert.placement.engine_selection import EngineSelector
from edgert.placement.exact import Condition, exact, keeps, plain
from edgert.placement.frontier import undominated
from edgert.placement.min_cut import Found, cut
from edgert.placement.problem import Assignment, Network, apart, merged
from edgert.placement.run_load import Price, accelerators, loads, preferring
from edgert.placement.schedule import play
from edgert.placement.throughput import Demand, blend, demands

_PLAYED_MS, _PLAYED_RUNS = 4000.0, 200  # at most so long, and until every network has run so often
_REST = 1 - 1e-7  # of what the rates leave, for networks without one


def solve(
    networks: Sequence[Network],
    objective: Objective,
    limits: Limits | None = None,
    *,
    contention: Contention | None = None,
    time_limit_s: float = 20.0,
) -> Placement:
    """The best placement; never worse in the model than all on one accelerator as far as that can run them.

    ``throughput``: the largest common multiple of the rates asked for; networks without a rate share what the others
    leave, or all there is. ``latency`` and ``energy``: the least sum over the networks, weighted by their rates, with
    one engine each; energy counts what the board draws during a run.

    With ``contention`` the answer is found again with the times that it leads to, until they agree, and the one that
    plays best is kept; its numbers are those of the stretched times. A network with ``shares`` gets those engines.

    Raises:
        PlacementError: no placement keeps the limits; names them and what could be had.
    """
    limits = limits or Limits()
    if not networks:
        raise PlacementError("there is no network to place")
    if contention is None:
        return _solve(networks, objective, limits, time_limit_s)

    def score(answer: Placement) -> float:
        if objective == "energy":
            return -answer.value
        return _played(networks, answer, contention)

    return settle(
        networks,
        contention,
        lambda stretched: _solve(stretched, objective, limits, time_limit_s),
        lambda answer: asked(networks, answer),
        score,
    ).answer


def _solve(networks: Sequence[Network], objective: Objective, limits: Limits, time_limit_s: float) -> Placement:
    if objective == "throughput":
        return with_given_shares(networks, _most_frames(networks, limits, time_limit_s), limits)
    return with_given_shares(networks, _least(networks, objective, limits, time_limit_s), limits)


def _played(networks: Sequence[Network], placement: Placement, contention: Contention) -> float:
    """Frames against what is asked for, or latency against nothing, where accelerators do disturb one another."""
    frames = placement.objective == "throughput"
    slowest_hz = min(one.capacity_hz for one in placement.networks)
    duration_ms = min(_PLAYED_MS, 1e3 * _PLAYED_RUNS / max(slowest_hz, 1e-9))
    flows = play(streams(networks, placement, saturated=frames), duration_ms, contention).streams
    if not frames:
        return -sum(flow.p50_ms for flow in flows)
    pairs = zip(networks, flows, strict=True)
    return min(flow.fps * network.batch / ((network.rate_hz or 1.0) * network.batch) for network, flow in pairs)


def _most_frames(networks: Sequence[Network], limits: Limits, time_limit_s: float) -> Placement:
    resources = Resources.of(networks, accelerators(networks), limits)
    wanted = demands(networks)
    mixed = blend(networks, resources, wanted, limits)
    multiplier, engines = EngineSelector(networks, resources, wanted, limits, time_limit_s).select(mixed)
    if any(demand.slope == 0 for demand in wanted):
        share = min(1.0, multiplier) * _REST
        rest = [Demand(share * demand.slope, float(demand.slope == 0)) for demand in wanted]
        left = blend(networks, resources, rest, limits)
        _, engines = EngineSelector(networks, resources, rest, limits, time_limit_s).select(left)
    each: list[Placed] = []
    for index, network in enumerate(networks):
        own = [(one.assignment, one.load, one.runs_hz) for one in engines if one.network == index]
        each.append(placed(network, own))
    gap = max(0.0, 1 - multiplier / mixed.bound)
    return together("throughput", networks, each, limits, value=multiplier, gap=gap)


@dataclass(frozen=True, slots=True)
class _Question:
    """Networks merged, weighted by rate, and what has to hold of them."""

    network: Network
    own: tuple[range, ...]
    price: Price
    conditions: tuple[Condition, ...]


def _least(networks: Sequence[Network], objective: Objective, limits: Limits, time_limit_s: float) -> Placement:
    _check_memory(networks, limits)
    question = _asked_of(networks, objective, limits)
    names = accelerators(networks)
    if not any(network.rate_hz for network in networks) and not limits.loadables:
        names = tuple(
            members[0] for members in classed(networks, names)
        )  # no time to run out of: one of a kind will do
    cost, bound, assignment = _cheapest(question, names, limits, time_limit_s)
    each = [
        placed(network, [(one, load := loads(network, one), network.rate_hz or 1e3 / max(load.latency_ms, 1e-9))])
        for network, one in zip(networks, apart(assignment, question.own), strict=True)
    ]
    each = _sharing(networks, each)
    gap = max(0.0, cost - bound) / max(cost, 1e-12)
    return together(objective, networks, each, limits, value=cost, gap=gap)


def _sharing(networks: Sequence[Network], each: Sequence[Placed]) -> list[Placed]:
    """Networks without a rate slowed down alike until no accelerator is asked for more than all its time."""
    asked_ms: dict[tuple[str, bool], float] = defaultdict(float)
    for network, one in zip(networks, each, strict=True):
        for name, busy_ms in one.engines[0].load.busy_ms.items():
            asked_ms[name, network.rate_hz is None] += one.capacity_hz * busy_ms
    left = [
        (1e3 - asked_ms[name, False]) / free for (name, is_free), free in list(asked_ms.items()) if is_free and free
    ]
    share = max(0.0, min([1.0, *left]))
    return [
        one
        if network.rate_hz is not None
        else placed(network, [(one.engines[0].assignment, one.engines[0].load, share * one.capacity_hz)])
        for network, one in zip(networks, each, strict=True)
    ]


def _cheapest(
    question: _Question, names: Sequence[str], limits: Limits, time_limit_s: float
) -> tuple[float, float, Assignment]:
    """(cost, bound, assignment): by a cut if that keeps everything, else by an integer program."""
    network, price = question.network, question.price
    best = undominated(network, names)
    if len(best) <= 2 and preferring(network, best):
        found: Found = cut(network, best[0], best[-1], price)
        if keeps(network, found.assignment, question.conditions, limits.loadables):
            simple = plain(network, names, price, question.conditions, limits.loadables)
            cost, assignment = min((found.cost, found.assignment), simple or (float("inf"), ()))
            return cost, found.cost - found.slack, assignment
    solution = exact(network, names, price, question.conditions, loadables=limits.loadables, time_limit_s=time_limit_s)
    return solution.cost, solution.bound, solution.assignment


def _asked_of(networks: Sequence[Network], objective: Objective, limits: Limits) -> _Question:
    weights = [network.rate_hz or 1.0 for network in networks]
    network, own = merged(networks, weights)
    price = Price(latency=1.0) if objective == "latency" else Price(latency=limits.static_w, energy=1.0)
    conditions = []
    if limits.latency_ms is not None:
        for units, weight in zip(own, weights, strict=True):
            conditions.append(Condition("latency", Price(latency=1.0), weight * limits.latency_ms, units=units))
    if any(one.rate_hz for one in networks):
        conditions += _while_running(networks, limits)
    elif limits.dynamic_w is not None:
        power = Price(latency=-limits.dynamic_w, energy=1.0)
        conditions += [Condition("power", power, 0.0, units=units) for units in own]
    return _Question(network, own, price, tuple(conditions))


def _while_running(networks: Sequence[Network], limits: Limits) -> list[Condition]:
    """In every second: accelerators' time, power and traffic."""
    conditions = [Condition(f"ms of {name} a second", Price(busy={name: 1.0}), 1e3) for name in accelerators(networks)]
    if limits.dynamic_w is not None:
        conditions.append(Condition("mJ a second", Price(energy=1.0), 1e3 * limits.dynamic_w))
    if limits.traffic_bytes_s is not None:
        conditions.append(Condition("bytes a second", Price(traffic=1.0), limits.traffic_bytes_s))
    return conditions


def _check_memory(networks: Sequence[Network], limits: Limits) -> None:
    needed = sum(map(engine_bytes, networks))
    if limits.memory_bytes is not None and needed > limits.memory_bytes:
        raise PlacementError(
            f"{limits.memory_bytes / 2**20:.1f} MiB are too little",
            why=f"one engine of each network needs {needed / 2**20:.1f} MiB",
            fix="allow more memory, or run fewer or smaller models",
        )
