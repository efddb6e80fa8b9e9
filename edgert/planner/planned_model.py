"""A model to be planned: its graph at one size, rewritten for the DLA, its units as allowed and as measured."""

import fnmatch
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dla import Target
from edgert.board.sections import Precision
from edgert.bundle.measured_engines import GPU, MeasuredEngine
from edgert.config import ModelConfig, PipelineFile
from edgert.config.engine_choice import ReplicateConfig
from edgert.engine import default_profile
from edgert.errors import EdgertError, PlacementError
from edgert.graph import Graph, load, read
from edgert.graph.count import multiply_adds
from edgert.graph.dla_rewrites import fit, ready, without
from edgert.placement.cutting import no_node
from edgert.placement.dla_share import Survey, survey
from edgert.placement.problem import Network, Unit, is_asked_for
from edgert.simulator.design import Demand, demands

_DLA = "dla"


@dataclass(frozen=True, eq=False)
class PlannedModel:
    """One model of a pipeline, to be planned.

    Attributes:
        demand: how often it runs.
        config: its section.
        where: its place in the file, for errors.
        graph: static, clean, and rewritten for a DLA.
        precision: of its units.
    """

    demand: Demand
    config: ModelConfig
    where: str
    graph: Graph
    precision: Precision

    @property
    def wants_dla(self) -> bool:
        """Whether the file puts some of it on a DLA."""
        asked = self.config.placement
        return asked != "auto" and any(name.startswith(_DLA) for names in _rules(asked).values() for name in names)

    @cached_property
    def macs(self) -> Mapping[str, int]:
        """Node → multiply-adds."""
        return multiply_adds(self.graph)

    def survey(self, generation: int, tensorrt: str) -> Survey | None:
        """What of it a DLA can run; None for FP32, which no DLA knows."""
        if self.precision == "fp32":
            return None
        return survey(self.graph, Target(generation, tensorrt, self.precision), macs=self.macs)


def planned_models(file: PipelineFile) -> tuple[PlannedModel, ...]:
    """The models of a pipeline that some stage runs.

    Raises:
        EdgertError: a model cannot be read, or its size is open; with its place in the file.
    """
    found = []
    for demand in demands(file.config):
        config, where = file.config.models[demand.model], file.where("models", demand.model)
        try:
            model = load(config.onnx)
            shapes = next(iter((config.profiles or default_profile(model, config)).values()))
            names = without(config.skip_rewrites, f"{where}.skip_rewrites")
            graph = fit(read(ready(model, shapes)), names)[0]
        except EdgertError as error:
            raise error.at(where)  # noqa: B904 - the same error, with its place
        # What auto means on a board: INT8 where there are images to calibrate on, and FP16 otherwise, which every
        # Jetson's GPU and DLA is faster in than in FP32.
        auto: Precision = "int8" if config.calibrate is not None else "fp16"
        precision = auto if config.precision == "auto" else config.precision
        found.append(PlannedModel(demand, config, where, graph, precision))
    return tuple(found)


def bound_to(
    network: Network, config: ModelConfig, where: str, found: Survey | None = None, *, first_is_default: bool = False
) -> Network:
    """The network with its units allowed only where a model's section puts them.

    Args:
        where: of the section, for errors.
        found: what a DLA can run of it, to name the rule that forbids something.
        first_is_default: nodes that no glob fits go where the first glob puts them, as in a run; otherwise
            they are free.

    Raises:
        PlacementError: an accelerator that cannot run a unit, or a glob that fits no node.
    """
    if config.placement == "auto":
        return network
    rules = _rules(config.placement)
    names = [node for unit in network.units for node in unit.nodes]
    for glob in rules:
        if glob not in names and not fnmatch.filter(names, glob):
            raise no_node(glob, names).at(f"{where}.placement")
    if first_is_default and "*" not in rules:
        rules = {"*": next(iter(rules.values())), **rules}
    units = tuple(_bound(unit, rules, f"{where}.placement", found) for unit in network.units)
    weights = config.placement.replicate if isinstance(config.placement, ReplicateConfig) else {}
    return replace(network, units=units, shares={name: one / sum(weights.values()) for name, one in weights.items()})


def _rules(asked: str | ReplicateConfig | Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Node glob → the accelerators it may be on."""
    if isinstance(asked, ReplicateConfig):
        return {"*": tuple(asked.replicate)}
    globs = {"*": asked} if isinstance(asked, str) else asked
    return {glob: (name,) for glob, name in globs.items()}


def _bound(unit: Unit, rules: Mapping[str, Collection[str]], where: str, found: Survey | None) -> Unit:
    """A unit with the costs of the accelerators that are asked for, by the last rule of the first node that has one;
    with all its costs where none has."""
    asked = ([rules[glob] for glob in rules if node == glob or fnmatch.fnmatchcase(node, glob)] for node in unit.nodes)
    wanted = next((fitting[-1] for fitting in asked if fitting), None)
    if wanted is None:
        return unit
    costs = {name: cost for name, cost in unit.costs.items() if any(is_asked_for(one, name) for one in wanted)}
    if not costs:
        raise _forbidden(unit, wanted, where, found)
    return replace(unit, costs=costs)


def _forbidden(unit: Unit, wanted: Collection[str], place: str, found: Survey | None) -> PlacementError:
    names = " or ".join(wanted)
    if found is not None and any(name.startswith(_DLA) for name in wanted):
        for node, verdict in zip(found.nodes, found.verdicts, strict=True):
            if node.name in unit.nodes and verdict.answer in ("no", "verify"):
                return PlacementError(
                    f"node {node.name!r} cannot run on {names}",
                    why=f"{verdict.reason} (rule {verdict.rule})",
                    where=place,
                    fix=f"placement: auto{f', or {verdict.fix}' if verdict.fix else ''}",
                )
    return PlacementError(
        f"node {unit.nodes[0]!r} cannot run on {names}",
        why=f"here it runs on {', '.join(unit.costs) or 'nothing'}",
        where=place,
        fix="placement: auto, or a board and mode that has it (edgert boards)",
    )


# Units as fast as a board measured them, instead of what the cost model predicts.
#
# Where layers were timed, a unit takes what the layers with its nodes took. A layer that has nodes of several units
# is shared among them as the cost model would. What an engine took beyond its layers (launches, copies of inputs and
# outputs) is spread in proportion, so that the units of an engine take together what the engine did; layers that
# reformat tensors are left out of that where several accelerators were used, because a plan counts transitions by
# themselves.
#
# Elsewhere all units on an accelerator that an engine used are scaled by one factor: what the engine took over what the
# cost model predicts for the same nodes in the same places.

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
