"""Measured times, which replace predictions on the measured board and correct them on similar boards.

Where layers were timed, the time of a unit is that of the layers with its nodes. The time of a layer with nodes of
several units is divided among them in proportion to their predicted times. The engine's time beyond its layers, such as
launches and copies, is spread in proportion, so that units add up to the engine's time. Layers that reformat tensors do
not count if several accelerators were used, because a plan counts transitions separately.

Without timed layers, all units on an accelerator that an engine used are scaled by one factor: measured time over
predicted time of the same nodes in the same places.

In another mode of the board, and on other boards of its chip, the prediction is multiplied by a power of measured over
predicted time. The exponent is below 1, because part of the difference is specific to the measured board. Exponents are
in ``configs/costs/sisters.yaml``.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edgert.board.record import Board, board
from edgert.board.sections import Mode
from edgert.bundle import shared_profile
from edgert.bundle.measured_engines import GPU, MeasuredEngine
from edgert.errors import ArtifactError, ConfigError
from edgert.graph import load
from edgert.placement.cost.coefficients import RELATIONS, sisters
from edgert.placement.problem import Network
from edgert.planner.plan_rows import is_dla
from edgert.planner.planned_model import PlannedModel

Place = tuple[int, str]
"""Index of a unit, and the accelerator that runs it."""
Where = Literal["here", "mode", "board"]
"""Measured on this board in this mode, on this board in another mode, or on another board of its chip."""
_CLOCKS = 0.01
"""Relative difference below which clocks count as equal, because tables of clocks are rounded."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Nearest measurements of a model for one board in one mode; all engines were measured at the same ``where``."""

    where: Where
    engines: tuple[MeasuredEngine, ...]

    def weight(self, accelerator: str) -> float:
        """Return the exponent of measured over predicted time."""
        return 1.0 if self.where == "here" else sisters().weight(self.where, accelerator)

    def bar(self, plain: float | None, soc: str, accelerator: str, precision: str) -> float | None:
        """Return the expected relative error of corrected times; ``plain`` is the error without a measurement.

        Times measured here count with the error of times corrected by the nearest other measurement, at most.
        """
        nearer = RELATIONS[RELATIONS.index("mode" if self.where == "here" else self.where) :]
        bars = (sisters().bar(one, soc, accelerator, precision) for one in nearer)
        found = next((bar for bar in bars if bar is not None), None)
        return plain if found is None or plain is None else min(found, plain)


def nearest_measurements(
    subject: PlannedModel, at: Board, mode: Mode, *sources: Sequence[MeasuredEngine]
) -> Measured | None:
    """Return the nearest measurements of a model in its precision; None where there are none on the board's chip.

    Where several sources have equally near measurements, the first source counts.
    """
    found: dict[Where, list[MeasuredEngine]] = {"here": [], "mode": [], "board": []}
    for engines in sources:
        own: dict[Where, list[MeasuredEngine]] = {where: [] for where in found}
        for engine in engines:
            if (
                _matches_subject(engine, subject)
                and not _lacks_accelerator(engine, mode)
                and measured_place(engine, [at])[0].soc == at.soc
            ):
                own[_distance(engine, at, mode)].append(engine)
        found = {where: known or own[where] for where, known in found.items()}
    return next((Measured(where, tuple(known)) for where, known in found.items() if known), None)


def _matches_subject(engine: MeasuredEngine, subject: PlannedModel) -> bool:
    return engine.model == subject.demand.model and engine.precision in ("", subject.precision)


def _lacks_accelerator(engine: MeasuredEngine, mode: Mode) -> bool:
    """Return whether an engine used a DLA that this mode lacks, so that its time says nothing about the mode."""
    return not mode.dla_cores and any(map(is_dla, engine.placement))


def _distance(engine: MeasuredEngine, at: Board, mode: Mode) -> Where:
    if engine.board != at.name:
        return "board"
    there = measured_place(engine, [at])[1]
    same = there.name == mode.name and all(
        abs(value / (getattr(mode, key) or value) - 1) < _CLOCKS for key, value in engine.clocks.items()
    )
    return "here" if same else "mode"


def measured_place(engine: MeasuredEngine, own: Iterable[Board] = ()) -> tuple[Board, Mode]:
    """Return the board and the mode, with its clocks, in which an engine was measured.

    Args:
        engine: measured engine.
        own: boards that are known in addition to those that come with edgert.

    Raises:
        ConfigError: no such board or mode is known.
    """
    try:
        at = next((one for one in own if one.name == engine.board), None) or board(engine.board)
        return at, at.mode(engine.mode).model_copy(update=engine.clocks)
    except ConfigError as error:
        raise ConfigError(
            f"the profile of {engine.model!r} names a board or mode that edgert does not know",
            why=f"{error.what} ({error.why})" if error.why else error.what,
            where="--profile",
            fix="edgert boards lists known boards; --board FILE takes your own board file",
        ) from error


def refuse_useless(
    engines: Sequence[MeasuredEngine], subjects: Sequence[PlannedModel], boards: Sequence[Board], path: str
) -> None:
    """Raise ConfigError if all measurements are for other models, precisions or chips."""
    reasons = [_why_useless(engine, subjects, boards) for engine in engines] or [
        f"{path} has other models than {', '.join(dict.fromkeys(subject.demand.model for subject in subjects))}"
    ]
    if all(reasons):
        raise ConfigError(
            "this plan can use no part of the profile",
            why=reasons[0],
            where="--profile",
            fix="give a profile of this model, in the same precision, on a board with the same chip (edgert boards)",
        )


def _why_useless(engine: MeasuredEngine, subjects: Sequence[PlannedModel], boards: Sequence[Board]) -> str:
    at = measured_place(engine, boards)[0]
    named = [subject for subject in subjects if subject.demand.model == engine.model]
    if not named:
        return f"it measures model {engine.model!r}, which the pipeline does not run"
    if not any(_matches_subject(engine, subject) for subject in named):
        planned = " and ".join(dict.fromkeys(subject.precision.upper() for subject in named))
        return f"{engine.model!r} was measured in {engine.precision.upper()} and is planned in {planned}"
    if not any(at.soc == one.soc for one in boards):
        return f"it was measured on {at.name} ({at.soc}); the plan is for {boards[0].name} ({boards[0].soc})"
    if all(_lacks_accelerator(engine, mode) for one in boards for mode in one.modes if one.soc == at.soc):
        return f"{engine.model!r} was measured partly on a DLA, which {boards[0].name} lacks"
    return ""


def engines_of_profile(
    profile: shared_profile.SharedProfile, subjects: Sequence[PlannedModel], where: str
) -> tuple[MeasuredEngine, ...]:
    """Return the engines of a shared profile for those models of a pipeline that it covers.

    If the model file is the same but this version rewrites its graph differently, only times of the complete model
    count.

    Raises:
        ArtifactError: the profile and the model have the same structure but different amounts of work.
    """
    found = []
    for model in profile.models:
        for subject in subjects:
            digest = load(subject.config.onnx).digest
            is_same = model.structure == subject.structure
            macs = sum(subject.macs.values())
            if is_same and (model.nodes, model.macs) != (len(subject.graph.nodes), macs):
                what = f"the profile counts {model.macs} multiply-adds for a model that has {macs}"
                raise ArtifactError(what, why="their structure is the same", where=where, fix="measure the model again")
            if is_same or model.digest == digest:
                names = {number: node.name for number, node in enumerate(subject.graph.nodes)}
                found += [
                    MeasuredEngine(
                        **{**shared_profile.with_nodes(one, names), **({} if is_same else {"layers": []})},
                        model=subject.demand.model,
                        digest=digest,
                        board=profile.board,
                        mode=profile.mode,
                        precision=model.precision,
                        frames=model.frames,
                        clocks=profile.clocks,
                    )
                    for one in model.engines
                    if is_same or not one.placement
                ]
    return tuple(found)


# Measured and corrected times of units.


def scale_units(
    network: Network,
    engines: Sequence[MeasuredEngine],
    there: Callable[[MeasuredEngine], Network] | None = None,
    weight: Callable[[str], float] = lambda accelerator: 1.0,
) -> Network:
    """Return the network with measured times of its units, or times corrected by measurements elsewhere.

    Args:
        network: network with predicted times.
        engines: measured engines of this model; the median of several counts.
        there: engine → network with predicted times for the place where it was measured; None if that is here.
        weight: accelerator → exponent of measured over predicted time.
    """
    found: dict[Place, list[float]] = defaultdict(list)
    for engine in engines:
        base = network if there is None else there(engine)
        factors, own = factors_of(base, engine), times_of(base, engine)
        for index, unit in enumerate(network.units):
            for name, cost in unit.costs.items():
                like = name if name in factors else _same_kind(name, factors)
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


def _same_kind(name: str, known: Iterable[str]) -> str:
    """Return a known core of the same kind, else the name itself; DLA cores differ only in their clocks."""
    return next((one for one in known if one.rstrip("01") == name.rstrip("01")), name)


def factors_of(network: Network, engine: MeasuredEngine) -> dict[str, float]:
    """Return accelerator → measured over predicted time, for each accelerator that an engine used."""
    predicted = _predicted_times(network, engine)
    total = sum(predicted.values())
    return {where: engine.median_ms / total for _, where in predicted} if total > 0 else {}


def times_of(network: Network, engine: MeasuredEngine) -> dict[Place, float]:
    """Return place → milliseconds from an engine's layers; empty where no layer has nodes of the network."""
    predicted = _predicted_times(network, engine)
    timed = _layer_times(network, engine, predicted)
    basis = sum(predicted[place] for place in timed)
    if basis <= 0 or sum(timed.values()) <= 0:
        return {}
    factor = sum(timed.values()) / basis  # for units whose names TensorRT lost
    times = {place: timed.get(place, cost_ms * factor) for place, cost_ms in predicted.items()}
    # Units add up to the engine's time, without transitions where several accelerators were used.
    is_split = len({where for _, where in predicted}) > 1
    moved = sum(layer.median_ms for layer in engine.layers if layer.reformat) if is_split else 0.0
    ratio = engine.median_ms * (1 - moved / sum(layer.median_ms for layer in engine.layers)) / sum(times.values())
    return {place: time_ms * ratio for place, time_ms in times.items()}


def _layer_times(network: Network, engine: MeasuredEngine, predicted: Mapping[Place, float]) -> dict[Place, float]:
    """Return place → sum of its layers' times; the time of a layer is divided among the units whose nodes it has."""
    owner = {node: place for place in predicted for node in network.units[place[0]].nodes}
    found: dict[Place, float] = defaultdict(float)
    for layer in engine.layers:
        places = list(dict.fromkeys(owner[node] for node in layer.nodes if node in owner))
        total = sum(predicted[place] for place in places)
        for place in places:
            found[place] += layer.median_ms * (predicted[place] / total if total > 0 else 1 / len(places))
    return found


def _predicted_times(network: Network, engine: MeasuredEngine) -> dict[Place, float]:
    """Return place → predicted time, for each unit where the engine ran it, if the cost model knows that place."""
    found, placed = {}, {node: where for where, nodes in engine.placement.items() for node in nodes}
    for index, unit in enumerate(network.units):
        where = next((placed[name] for name in unit.nodes if name in placed), GPU)
        if where in unit.costs:
            found[index, where] = unit.costs[where].time_ms
    return found


@dataclass(frozen=True, slots=True)
class Correction:
    """Measurements that correct a model's predicted times.

    Attributes:
        kinds: measured kinds of accelerators, ``gpu`` and ``dla``.
        words: description for people of what was measured, and of how it changes predictions elsewhere.
    """

    measured: Measured
    kinds: frozenset[str]
    words: str


def correction(found: Measured, there: Callable[[MeasuredEngine], Network]) -> Correction:
    """Return a description of how :func:`scale_units` uses these measurements."""
    texts, kinds = [], set[str]()
    for one in found.engines:
        factors = factors_of(there(one), one)
        kinds |= {name.rstrip("01") for name in factors}
        layers = f", {len(one.layers)} layers timed" if one.layers else ""
        text = f"{one.median_ms:.2f} ms measured ({one.runs} runs{layers})"
        if found.where != "here":
            times = ", ".join(f"{name} × {factor ** found.weight(name):.2f}" for name, factor in factors.items())
            ratio = next(iter(factors.values()), 1.0)
            text = f"{times}, as {one.board} in {one.mode} took {ratio:.2f} × its prediction: {text}"
        texts.append(text)
    return Correction(found, frozenset(kinds), "; ".join(texts))
