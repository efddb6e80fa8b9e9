"""Units of a network as fast as a board measured them, instead of what the cost model predicts.

Where layers were timed, a unit takes what the layers with its nodes took. A layer that has nodes of several units is
shared among them as the cost model would. What an engine took beyond its layers (launches, copies of inputs and
outputs) is spread in proportion, so that the units of an engine take together what the engine did; layers that reformat
tensors are left out of that where several accelerators were used, because a plan counts transitions by themselves.

Elsewhere all units on an accelerator that an engine used are scaled by one factor: what the engine took over what the
cost model predicts for the same nodes in the same places.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgert.bundle.measured_engines import GPU, MeasuredEngine
from edgert.placement.problem import Network

Place = tuple[int, str]
"""A unit's index and an accelerator."""


def scaled(network: Network, engines: Sequence[MeasuredEngine]) -> Network:
    """The network with its units as fast as they were measured.

    Args:
        network: with the times of the cost model.
        engines: of this model on this board in this power mode; without any, nothing changes.
    """
    factors, own = factors_of(network, engines), times_of(network, engines)
    units = []
    for index, unit in enumerate(network.units):
        costs = {
            name: replace(cost, time_ms=own.get((index, name), cost.time_ms * factors.get(name, 1.0)))
            for name, cost in unit.costs.items()
        }
        units.append(replace(unit, costs=costs))
    return replace(network, units=tuple(units)) if factors else network


def factors_of(network: Network, engines: Sequence[MeasuredEngine]) -> dict[str, float]:
    """Accelerator → measured over predicted; the median where several engines used it."""
    found: dict[str, list[float]] = defaultdict(list)
    for engine in engines:
        predicted = _predicted(network, engine)
        total = sum(predicted.values())
        for where in {where for _, where in predicted} if total > 0 else ():
            found[where].append(engine.median_ms / total)
    return {name: statistics.median(factors) for name, factors in found.items()}


def times_of(network: Network, engines: Sequence[MeasuredEngine]) -> dict[Place, float]:
    """Unit and accelerator → milliseconds, by timed layers; the median of several engines."""
    found: dict[Place, list[float]] = defaultdict(list)
    for engine in engines:
        for place, time_ms in _times(network, engine).items():
            found[place].append(time_ms)
    return {place: statistics.median(times) for place, times in found.items()}


def _times(network: Network, engine: MeasuredEngine) -> dict[Place, float]:
    """Times of units by one engine's layers; none where no layer has nodes of any."""
    predicted = _predicted(network, engine)
    timed = _shared(network, engine, predicted)
    basis = sum(predicted[place] for place in timed)
    if basis <= 0 or sum(timed.values()) <= 0:
        return {}
    usual = sum(timed.values()) / basis  # for units whose names TensorRT lost
    times = {place: timed.get(place, cost_ms * usual) for place, cost_ms in predicted.items()}
    # What the engine took, without its share of transitions where several accelerators were used.
    is_split = len({where for _, where in predicted}) > 1
    moved = sum(layer.median_ms for layer in engine.layers if layer.is_reformat) if is_split else 0.0
    ratio = engine.median_ms * (1 - moved / sum(layer.median_ms for layer in engine.layers)) / sum(times.values())
    return {place: time_ms * ratio for place, time_ms in times.items()}


def _shared(network: Network, engine: MeasuredEngine, predicted: Mapping[Place, float]) -> dict[Place, float]:
    """The layers' times, each shared among the units that it has nodes of."""
    owner = {node: place for place in predicted for node in network.units[place[0]].nodes}
    found: dict[Place, float] = defaultdict(float)
    for layer in engine.layers:
        places = list(dict.fromkeys(owner[node] for node in layer.nodes if node in owner))
        total = sum(predicted[place] for place in places)
        for place in places:
            found[place] += layer.median_ms * (predicted[place] / total if total > 0 else 1 / len(places))
    return found


def _predicted(network: Network, engine: MeasuredEngine) -> dict[Place, float]:
    """Each unit where the engine ran it, with the cost model's time; not those that the model does not know there."""
    found = {}
    for index, unit in enumerate(network.units):
        where = next((engine.placement[name] for name in unit.nodes if name in engine.placement), GPU)
        if where in unit.costs:
            found[index, where] = unit.costs[where].time_ms
    return found
