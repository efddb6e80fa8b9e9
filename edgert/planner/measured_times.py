"""Measured times: they replace the cost model's on the measured board, and correct them on similar boards.

Where layers were timed, a unit takes the time of the layers with its nodes. A layer that has nodes of several units is
shared among them in proportion to the cost model. The engine's time beyond its layers (launches, copies of inputs and
outputs) is spread in proportion, so that the units add up to the engine's time. Layers that reformat tensors are left
out of that where several accelerators were used, because a plan counts transitions by themselves.

Elsewhere all units on an accelerator that an engine used are scaled by one factor: measured time over the cost model's
prediction for the same nodes in the same places.

In another mode of the board, and on other boards of its chip, the prediction is multiplied by measured over predicted
time. The power of that factor is below 1, as part of it is specific to the measured board:
``configs/costs/sisters.yaml``.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edgert.board.record import Board, board
from edgert.board.sections import Mode
from edgert.bundle import shared_profile
from edgert.bundle.measured_engines import GPU, MeasuredEngine, MeasuredLayer
from edgert.errors import ArtifactError, ConfigError
from edgert.graph import load
from edgert.placement.cost.coefficients import RELATIONS, sisters
from edgert.placement.problem import Network
from edgert.planner.plan_rows import is_dla
from edgert.planner.planned_model import PlannedModel

Place = tuple[int, str]
"""A unit's index and an accelerator."""
Where = Literal["here", "mode", "board"]
"""Measured on this board in this mode, on this board in another mode, or on another board of its chip."""
_CLOCKS = 0.01
"""Clocks that differ by less are the same: tables of clocks round."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The nearest measurements of a model for one board in one mode; engines of one ``where``."""

    where: Where
    engines: tuple[MeasuredEngine, ...]

    def weight(self, accelerator: str) -> float:
        """Return the power of measured over predicted time that counts."""
        return 1.0 if self.where == "here" else sisters().weight(self.where, accelerator)

    def bar(self, plain: float | None, soc: str, accelerator: str, precision: str) -> float | None:
        """Return the relative error to expect; ``plain`` without a measurement.

        Times measured here have no larger error than those corrected by the nearest other measurement.
        """
        nearer = RELATIONS[RELATIONS.index("mode" if self.where == "here" else self.where) :]
        bars = (sisters().bar(one, soc, accelerator, precision) for one in nearer)
        found = next((bar for bar in bars if bar is not None), None)
        return plain if found is None or plain is None else min(found, plain)


def nearest(subject: PlannedModel, at: Board, mode: Mode, *sources: Sequence[MeasuredEngine]) -> Measured | None:
    """Return the nearest measurements of a model in its precision; None where none were made on such a chip.

    Of several sources with equally near measurements the first counts.
    """
    found: dict[Where, list[MeasuredEngine]] = {"here": [], "mode": [], "board": []}
    for engines in sources:
        own: dict[Where, list[MeasuredEngine]] = {where: [] for where in found}
        for engine in engines:
            if _is_of(engine, subject) and not _lacks(engine, mode) and place_of(engine, [at])[0].soc == at.soc:
                own[_where(engine, at, mode)].append(engine)
        found = {where: known or own[where] for where, known in found.items()}
    return next((Measured(where, tuple(known)) for where, known in found.items() if known), None)


def _is_of(engine: MeasuredEngine, subject: PlannedModel) -> bool:
    return engine.model == subject.demand.model and engine.precision in ("", subject.precision)


def _lacks(engine: MeasuredEngine, mode: Mode) -> bool:
    """Return whether it used an accelerator that this mode lacks: the rest of its time would be too long."""
    return not mode.dla_cores and any(is_dla(name) for name in engine.placement.values())


def _where(engine: MeasuredEngine, at: Board, mode: Mode) -> Where:
    if engine.board != at.name:
        return "board"
    there = place_of(engine, [at])[1]
    same = there.name == mode.name and all(
        abs(value / (getattr(mode, key) or value) - 1) < _CLOCKS for key, value in engine.clocks.items()
    )
    return "here" if same else "mode"


def place_of(engine: MeasuredEngine, own: Iterable[Board] = ()) -> tuple[Board, Mode]:
    """Return the board and mode that an engine was measured in, with its clocks.

    Args:
        engine: the measured engine.
        own: boards that are known beside those that come with edgert.

    Raises:
        ConfigError: no such board or mode is known.
    """
    try:
        at = next((one for one in own if one.name == engine.board), None) or board(engine.board)
        return at, at.mode(engine.mode).model_copy(update=dict(engine.clocks))
    except ConfigError as error:
        raise ConfigError(
            f"the profile of {engine.model!r} is of a board or mode that edgert does not know",
            why=f"{error.what} ({error.why})" if error.why else error.what,
            where="--profile",
            fix="edgert boards lists those it knows; --board FILE takes a board file of your own",
        ) from error


def refuse_useless(
    engines: Sequence[MeasuredEngine], subjects: Sequence[PlannedModel], boards: Sequence[Board], path: str
) -> None:
    """Raise ConfigError if no measurement can be used: all are of other models, precisions or chips."""
    reasons = [_why_useless(engine, subjects, boards) for engine in engines] or [
        f"{path} is of other models than {', '.join(dict.fromkeys(subject.demand.model for subject in subjects))}"
    ]
    if all(reasons):
        raise ConfigError(
            "this plan can use no part of the profile",
            why=reasons[0],
            where="--profile",
            fix="a profile of this model, in the same precision, of a board with the same chip (edgert boards)",
        )


def _why_useless(engine: MeasuredEngine, subjects: Sequence[PlannedModel], boards: Sequence[Board]) -> str:
    at = place_of(engine, boards)[0]
    named = [subject for subject in subjects if subject.demand.model == engine.model]
    if not named:
        return f"it is of model {engine.model!r}, which the pipeline does not run"
    if not any(_is_of(engine, subject) for subject in named):
        planned = " and ".join(dict.fromkeys(subject.precision.upper() for subject in named))
        return f"{engine.model!r} was measured in {engine.precision.upper()} and is planned in {planned}"
    if not any(at.soc == one.soc for one in boards):
        return (
            f"it was measured on {at.name} with the chip {at.soc}; planned for is {boards[0].name} with {boards[0].soc}"
        )
    if all(_lacks(engine, mode) for one in boards for mode in one.modes if one.soc == at.soc):
        return f"{engine.model!r} was measured partly on a DLA, which {boards[0].name} has not"
    return ""


def of_shared(
    profile: shared_profile.SharedProfile, subjects: Sequence[PlannedModel], where: str
) -> tuple[MeasuredEngine, ...]:
    """Return engines of a shared profile for the models of a pipeline that it covers; none for other models.

    A model whose file is the same but whose graph this edgert rewrites in another way has its whole times only.

    Raises:
        ArtifactError: the profile counts other work in a model than that has.
    """
    found = []
    for model in profile.models:
        for subject in subjects:
            digest = load(subject.config.onnx).digest
            is_same = model.structure == subject.structure
            macs = sum(subject.macs.values())
            if is_same and (model.nodes, model.macs) != (len(subject.graph.nodes), macs):
                what = f"a profile with {model.macs} multiply-adds of a model that has {macs}"
                raise ArtifactError(what, why="its structure is the same", where=where, fix="measure it again")
            if is_same or model.digest == digest:
                found += [
                    _engine_of(profile, model, one, subject, digest, with_nodes=is_same)
                    for one in model.engines
                    if is_same or not one.placement
                ]
    return tuple(found)


def _engine_of(
    profile: shared_profile.SharedProfile,
    model: shared_profile.Model,
    engine: shared_profile.Engine,
    subject: PlannedModel,
    digest: str,
    *,
    with_nodes: bool,
) -> MeasuredEngine:
    names = [node.name for node in subject.graph.nodes]
    layers = [
        MeasuredLayer(tuple(names[number] for number in one.nodes), one.median_ms, one.reformat)
        for one in (engine.layers if with_nodes else ())
    ]
    return MeasuredEngine(
        subject.demand.model,
        digest,
        profile.board,
        profile.mode,
        {names[number]: name for name, numbers in engine.placement.items() for number in numbers},
        engine.median_ms,
        engine.runs,
        tuple(layers),
        model.precision,
        model.frames,
        profile.clocks,
    )


# Units as fast as they were measured.


def scaled(
    network: Network,
    engines: Sequence[MeasuredEngine],
    there: Callable[[MeasuredEngine], Network] | None = None,
    weight: Callable[[str], float] = lambda accelerator: 1.0,
) -> Network:
    """Return the network with its units as fast as measured, or corrected by times measured elsewhere.

    Args:
        network: with the times of the cost model.
        engines: of this model; without any, nothing changes. The median counts where there are several.
        there: the same with the cost model's times for where an engine was measured; None: that is here.
        weight: accelerator → the power of measured over predicted time that counts.
    """
    found: dict[Place, list[float]] = defaultdict(list)
    for engine in engines:
        base = network if there is None else there(engine)
        factors, own = factors_of(base, [engine]), times_of(base, [engine])
        for index, unit in enumerate(network.units):
            for name, cost in unit.costs.items():
                like = name if name in factors else _alike(name, factors)
                if like not in factors:
                    continue
                factor, predicted = factors[like], base.units[index].costs.get(like)
                ms = cost.time_ms * factor
                if predicted is not None and (index, like) in own:
                    ms = own[index, like] * (cost.time_ms / predicted.time_ms if predicted.time_ms > 0 else 1.0)
                found[index, name].append(ms * factor ** (weight(name) - 1))
    units = []
    for index, unit in enumerate(network.units):
        costs = {
            name: replace(cost, time_ms=statistics.median(found.get((index, name), [cost.time_ms])))
            for name, cost in unit.costs.items()
        }
        units.append(replace(unit, costs=costs))
    return replace(network, units=tuple(units)) if found else network


def _alike(name: str, known: Iterable[str]) -> str:
    """Return another core of the same kind: DLA cores differ in their clocks alone."""
    return next((one for one in known if one.rstrip("01") == name.rstrip("01")), name)


def factors_of(network: Network, engines: Sequence[MeasuredEngine]) -> dict[str, float]:
    """Return accelerator → measured over predicted; the median where several engines used it."""
    found: dict[str, list[float]] = defaultdict(list)
    for engine in engines:
        predicted = _predicted(network, engine)
        total = sum(predicted.values())
        for where in {where for _, where in predicted} if total > 0 else ():
            found[where].append(engine.median_ms / total)
    return {name: statistics.median(factors) for name, factors in found.items()}


def times_of(network: Network, engines: Sequence[MeasuredEngine]) -> dict[Place, float]:
    """Return unit and accelerator → milliseconds, by timed layers; the median of several engines."""
    found: dict[Place, list[float]] = defaultdict(list)
    for engine in engines:
        for place, time_ms in _times(network, engine).items():
            found[place].append(time_ms)
    return {place: statistics.median(times) for place, times in found.items()}


def _times(network: Network, engine: MeasuredEngine) -> dict[Place, float]:
    """Return times of units by one engine's layers; none where no layer has nodes of any."""
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
    """Return the layers' times, each shared among the units that it has nodes of."""
    owner = {node: place for place in predicted for node in network.units[place[0]].nodes}
    found: dict[Place, float] = defaultdict(float)
    for layer in engine.layers:
        places = list(dict.fromkeys(owner[node] for node in layer.nodes if node in owner))
        total = sum(predicted[place] for place in places)
        for place in places:
            found[place] += layer.median_ms * (predicted[place] / total if total > 0 else 1 / len(places))
    return found


def _predicted(network: Network, engine: MeasuredEngine) -> dict[Place, float]:
    """Return each unit where the engine ran it, with the cost model's time, as far as the model knows it there."""
    found = {}
    for index, unit in enumerate(network.units):
        where = next((engine.placement[name] for name in unit.nodes if name in engine.placement), GPU)
        if where in unit.costs:
            found[index, where] = unit.costs[where].time_ms
    return found


# The words of a plan on measured times.


@dataclass(frozen=True, slots=True)
class Correction:
    """Measurements that correct a model's predicted times.

    Attributes:
        measured: the measurements.
        kinds: accelerators that they are of, ``gpu`` and ``dla``.
        words: for people: what was measured, and what it changed elsewhere.
    """

    measured: Measured
    kinds: frozenset[str]
    words: str


def correction(found: Measured, there: Callable[[MeasuredEngine], Network]) -> Correction:
    """Return what :func:`scaled` does with these measurements."""
    each, kinds = [], set[str]()
    for one in found.engines:
        factors = factors_of(there(one), [one])
        kinds |= {name.rstrip("01") for name in factors}
        layers = f", {len(one.layers)} layers timed" if one.layers else ""
        taken = f"{one.median_ms:.2f} ms measured ({one.runs} runs{layers})"
        if found.where != "here":
            times = ", ".join(f"{name} × {factor ** found.weight(name):.2f}" for name, factor in factors.items())
            usual = next(iter(factors.values()), 1.0)
            taken = f"{times}, as {one.board} in {one.mode} took {usual:.2f} × its prediction: {taken}"
        each.append(taken)
    return Correction(found, frozenset(kinds), "; ".join(each))
