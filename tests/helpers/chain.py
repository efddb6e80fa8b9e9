"""The best placement of a chain with few segments, by dynamic programming over unit, accelerator and segments used."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from edgert.errors import PlacementError
from edgert.placement.problem import Assignment, Edge, Network
from edgert.placement.run_load import Price, stranded_error

F64 = npt.NDArray[np.float64]


def is_chain(network: Network) -> bool:
    """Whether every tensor stays between two units that follow one another; inputs and outputs may be anywhere."""
    return all(max(units) - min(units) <= 1 for edge in network.edges if (units := _touched(edge)))


def best_chain(
    network: Network, among: Sequence[str], price: Price, most: Mapping[str, int] | None = None
) -> Assignment:
    """The cheapest assignment with at most so many segments on the accelerators of ``most``; exact."""
    if not is_chain(network):
        raise PlacementError(f"{network.name} is not a chain", fix="use the exact solver for networks with branches")
    units = [
        [price.of_unit(unit.costs[name], name) if name in unit.costs else float("inf") for name in among]
        for unit in network.units
    ]
    if any(np.isinf(row).all() for row in units):
        raise stranded_error(network, among)
    limited = [name for name in among if name in (most or {})]
    shape = tuple((most or {})[name] + 1 for name in limited)
    costs = np.full((len(among), *shape), np.inf)
    for label, name in enumerate(among):
        if _step(name, limited) in np.ndindex(shape):
            start = (label, *_step(name, limited))
            costs[start] = units[0][label]
    pairs = _between(network, among, price)
    costs += _shaped(pairs[0].diagonal(), costs)
    trail = []
    for index in range(1, len(units)):
        came = [_arrivals(costs, label, name, pairs[index], among, limited) for label, name in enumerate(among)]
        trail.append(np.stack([options.argmin(axis=0) for options in came]))
        costs = np.stack([options.min(axis=0) + units[index][label] for label, options in enumerate(came)])
    if np.isinf(costs.min()):
        raise PlacementError(f"{network.name} needs more segments than {dict(most or {})}")
    return _walked(np.unravel_index(int(costs.argmin()), costs.shape), trail, among, limited)


def _touched(edge: Edge) -> set[int]:
    return {*edge.consumers, *(() if edge.producer is None else (edge.producer,))}


def _step(name: str, limited: Sequence[str]) -> tuple[int, ...]:
    """How many segments of each limited accelerator one that starts here adds."""
    return tuple(int(name == other) for other in limited)


def _shaped(values: F64, like: F64) -> F64:
    return values.reshape(-1, *(1,) * (like.ndim - 1))


def _between(network: Network, among: Sequence[str], price: Price) -> list[F64]:
    """Per unit: what handing over costs, (accelerator of the unit before it, its own); of the first: its own twice."""
    tables = [np.zeros((len(among),) * 2) for _ in network.units]
    for edge in network.edges:
        if touched := _touched(edge):
            later = max(touched)
            for before, own in product(range(len(among)), repeat=2):
                names = (*(among[before],) * later, among[own])
                tables[later][before, own] += _handed(edge, names, network.home, price)
    return tables


def _handed(edge: Edge, assignment: Assignment, home: str, price: Price) -> float:
    source = home if edge.producer is None else assignment[edge.producer]
    wanted = {assignment[consumer] for consumer in edge.consumers} | ({home} if edge.is_output else set())
    others = wanted - {source}
    moves = ((other, edge.transitions.get((source, other))) for other in others)
    return sum(price.of_transition(transition, source, other) for other, transition in moves if transition)


def _arrivals(costs: F64, label: int, name: str, pairs: F64, among: Sequence[str], limited: Sequence[str]) -> F64:
    """(accelerator before, *segments used): the cost of coming to ``name``; a change starts a segment."""
    step = _step(name, limited)
    options = np.full_like(costs, np.inf)
    for before in range(len(among)):
        if before == label:
            options[before] = costs[before]
        else:
            into = tuple(slice(by, None) for by in step)
            out_of = tuple(slice(None, size - by) for by, size in zip(step, costs.shape[1:], strict=True))
            options[before, ...][into] = costs[before, ...][out_of]
    moved: F64 = options + _shaped(pairs[:, label], costs)
    return moved


def _walked(
    state: tuple[np.intp, ...], trail: Sequence[npt.NDArray[np.intp]], among: Sequence[str], limited: Sequence[str]
) -> Assignment:
    label, used = int(state[0]), tuple(int(count) for count in state[1:])
    labels = [label]
    for came in reversed(trail):
        before = int(came[label][used])
        if before != label:
            used = tuple(count - by for count, by in zip(used, _step(among[label], limited), strict=True))
        label = before
        labels.append(label)
    return tuple(among[label] for label in reversed(labels))
