"""Accuracy recovery of a model that INT8 spoils, in the order of what it costs at run time.

Biases are corrected only where that is more accurate. It takes the mean error off each channel, which nearly always
helps, but a network with large errors can lose its remaining accuracy. Then activations are smoothed. That is free
where the engine fuses activations with what makes them, as TensorRT does, and slow on ONNX Runtime. At last units stay
in higher precision, as few as possible.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from edgert.clock import REAL, Clock
from edgert.errors import CalibrationError
from edgert.quantization.calibration.ranges import Memo, Units
from edgert.quantization.evaluator import Evaluator, Result
from edgert.quantization.quantizer import Quantized, Quantizer, rounding_noise
from edgert.quantization.run import Log
from edgert.reporter import Bar

# Which units cost the accuracy: what error each makes when it alone is INT8.
#
# The other way round, what keeping one alone in higher precision saves, is no measure where many units hurt: all the
# noise of the others hides it. Of YOLOX-nano's convolutions the eight that cost most by this measure gave back 13
# of 14 points of mAP, the eight by the other 3.


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The cost of one unit.

    Attributes:
        unit: its name.
        cost: the error with this unit in INT8 and all others in higher precision; None where time ran out before it was
            measured.
    """

    unit: str
    cost: float | None


@dataclass(frozen=True, slots=True)
class Scan:
    """Units ranked by the quantization error they cause.

    Attributes:
        baseline: the error with all of them in INT8.
        ranked: every unit once, the first to keep comes first.
        note: why the state file was not used, if it was not.
    """

    baseline: float
    ranked: tuple[Sensitivity, ...]
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The units in ranked order."""
        return tuple(item.unit for item in self.ranked)

    @property
    def is_complete(self) -> bool:
        """Whether every unit was measured."""
        return all(item.cost is not None for item in self.ranked)


def scan(
    units: Sequence[str],
    error: Callable[[Units], float],
    *,
    state: Path | None = None,
    key: str = "",
    budget_s: float | None = None,
    clock: Clock = REAL,
    bar: Bar | None = None,
) -> Scan:
    """Measure the error with nothing kept, and then with all units kept but one, in the order given.

    Units that cost something come first, by cost; then those that were not measured, which may; then those that cost
    nothing. Ties keep the order given.

    Args:
        units: what can be kept.
        error: error of the model with the given units in higher precision; lower is better, any scale.
        state: file in which measured values survive the process; an interrupted scan (Ctrl-C too) resumes from it.
        key: digest of model, data and settings; a state file of another key is started over, with a warning.
        budget_s: no measurement begins after this many seconds; values from the state file cost none.
        clock: for the budget.
        bar: called with each unit that is measured.

    Raises:
        CalibrationError: an error is not finite; ``state`` is some other file.
        ArtifactError: ``state`` cannot be written.
    """
    end_ns = math.inf if budget_s is None else clock.now_ns() + budget_s * 1e9
    memo = Memo(error, state, "error", key)
    baseline = memo(frozenset())
    found: list[Sensitivity] = []
    for unit in dict.fromkeys(units):
        if bar is not None:
            bar("ranking layers", len(found), len(units))
        others = frozenset(units) - {unit}
        in_time = others in memo.values or clock.now_ns() < end_ns
        found.append(Sensitivity(unit, memo(others) if in_time else None))
    found.sort(key=lambda item: (1, 0.0) if item.cost is None else (0 if item.cost > 0 else 2, -item.cost))
    return Scan(baseline, tuple(found), memo.note)


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """The units to keep in higher precision.

    Attributes:
        kept: the units, in ranked order.
        value: what was measured with exactly these kept.
        met: whether ``value`` reaches the floor. If not, ``kept`` is what came closest.
        tried: units kept, in ranked order → the value with them: every measurement of this search, in order; also those
            from the state file.
        is_complete: False where time ran out: then fewer units might do, or more might have met the floor.
        reason: one sentence for the reader: why it ended as it did.
        note: why the state file was not used, if it was not.
    """

    kept: tuple[str, ...]
    value: float
    met: bool
    tried: Mapping[tuple[str, ...], float]
    is_complete: bool
    reason: str
    note: str = ""


def search(
    ranked: Sequence[str],
    measure: Callable[[Units], float],
    floor: float,
    *,
    state: Path | None = None,
    key: str = "",
    budget_s: float | None = None,
    clock: Clock = REAL,
    may_drop: Callable[[Units, Units], bool] | None = None,
) -> MixedPrecision:
    """Keep ever more of the ranking until ``measure`` reaches the floor, then give back what is not needed.

    First nothing is kept; then the first 1, 2, 4, … units up to all. The shortest prefix is found by halving. At last
    each kept unit is left out in turn, those ranked last first, until no single unit can be left out, of those that
    ``may_drop`` allows. For n units of which k are kept that takes about 2·log2(n) + k measurements. The last part is
    repeated after every round in which it found something. The measurement need be neither exact nor monotone: only
    sets that were themselves measured are ever returned.

    Args:
        ranked: units, the most harmful first (:attr:`Scan.names`).
        measure: value (accuracy) of the model with the given units kept; higher is better.
        floor: the value that is good enough.
        state: file in which measured values survive the process; an interrupted search (Ctrl-C too) resumes from it.
            They do not depend on the floor, so another floor uses them as well.
        key: digest of model, data and settings; a state file of another key is started over, with a warning.
        budget_s: no measurement begins after this many seconds, except the one with nothing kept.
        clock: for the budget.
        may_drop: given the shortest prefix and a smaller set, whether leaving that much out is worth measuring. For a
            noisy ``measure``: among many sets that are nearly good enough some reach the floor by luck.

    Raises:
        CalibrationError: a measured value is not finite; ``state`` is some other file.
        ArtifactError: ``state`` cannot be written.
    """
    if floor != floor:
        raise CalibrationError("the accuracy floor is not a number", fix="give the lowest value that is good enough")
    run = _Run(tuple(dict.fromkeys(ranked)), Memo(measure, state, "value", key), floor, budget_s, clock)
    try:
        short = run.shortest_prefix()
        if short is not None:
            run.eliminate(short, may_drop or (lambda whole, rest: True))
    except _OutOfTimeError:
        return run.result(is_complete=False)
    return run.result(is_complete=True)


class _OutOfTimeError(Exception):
    """The time budget is used up; earlier measurements remain valid."""


class _Run:
    """The measurements of one search, in order, and its result."""

    def __init__(self, ranked: tuple[str, ...], memo: Memo, floor: float, budget_s: float | None, clock: Clock) -> None:
        self._ranked, self._memo, self._floor, self._clock = ranked, memo, floor, clock
        self._end_ns = math.inf if budget_s is None else clock.now_ns() + budget_s * 1e9
        self._tried: dict[Units, float] = {}

    def shortest_prefix(self) -> int | None:
        """Return the length of the shortest prefix found to meet the floor; None if none does."""
        failed, length = -1, 0
        while not self._meets(self._ranked[:length]):
            if length == len(self._ranked):
                return None
            failed, length = length, min(max(1, 2 * length), len(self._ranked))
        while length - failed > 1:
            middle = (failed + length) // 2
            failed, length = (failed, middle) if self._meets(self._ranked[:middle]) else (middle, length)
        return length

    def eliminate(self, length: int, may_drop: Callable[[Units, Units], bool]) -> None:
        """Leave out units of a prefix one by one where the floor still holds, until a whole round finds none."""
        kept = self._ranked[:length]
        whole, before = frozenset(kept), None
        while before != kept:
            before = kept
            for unit in reversed(before):
                rest = tuple(name for name in kept if name != unit)
                if may_drop(whole, frozenset(rest)) and self._meets(rest):
                    kept = rest

    def result(self, *, is_complete: bool) -> MixedPrecision:
        """Return the smallest set that meets the floor, at equal size the best; else the set of the highest value."""
        met = [kept for kept, value in self._tried.items() if value >= self._floor]
        if met:
            best = min(met, key=lambda kept: (len(kept), -self._tried[kept]))
        else:
            best = max(self._tried, key=lambda kept: (self._tried[kept], -len(kept)))
        ordered = {units: tuple(name for name in self._ranked if name in units) for units in self._tried}
        tried = {ordered[units]: value for units, value in self._tried.items()}
        reason = self._reason(best, is_complete)
        return MixedPrecision(ordered[best], self._tried[best], bool(met), tried, is_complete, reason, self._memo.note)

    def _meets(self, kept: Sequence[str]) -> bool:
        units = frozenset(kept)
        if units not in self._memo.values and units and self._clock.now_ns() >= self._end_ns:
            raise _OutOfTimeError
        self._tried[units] = self._memo(units)
        return self._tried[units] >= self._floor

    def _reason(self, best: Units, is_complete: bool) -> str:
        value, total = self._tried[best], len(self._ranked)
        if value >= self._floor:
            enough = f"{value:.4g} reaches {self._floor:.4g} with {len(best)} of {total} units kept"
            return enough if is_complete else f"{enough}; time ran out before fewer were tried"
        missed = f"{value:.4g} with {len(best)} of {total} units kept is the best found, below {self._floor:.4g}"
        return f"{missed}, and keeping all does not reach it either" if is_complete else f"{missed}; time ran out"


# What is tried on a spoiled model, in order.

SCAN_IMAGES = 4
"""Images for ranking layers by what they cost: only their order matters."""
_SCAN_SHARE = 0.5
"""Share of the time for finding units to keep that ranking them may take."""
_NOISE_LIMIT = 1.05
"""How much noise may grow by giving units back, to be evaluated at all. mAP of 128 images moves by half a point with
anything: of many sets that are nearly good enough some get there by luck."""


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """An INT8 model, and how it was recovered.

    Attributes:
        quantizer: what made it, of the model as it was or of one with smoothed activations.
        quantized: the model.
        result: of the evaluator; None where there was none.
        corrected: whether its biases are corrected.
        scan, search: which units cost most, and which stay in higher precision; None where none had to.
    """

    quantizer: Quantizer
    quantized: Quantized
    result: Result | None = None
    corrected: bool = True
    scan: Scan | None = None
    search: MixedPrecision | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RecoveryOptions:
    """The steps that are allowed.

    Attributes:
        smoothed: makes a quantizer of the model with smoothed activations, None where that changes nothing; None where
            it must not be tried.
        budget_s: seconds for finding units to keep in higher precision; None keeps none.
        state: a file in which that survives an interruption, with another one beside it.
        key: digest of whatever the evaluation depends on, for that file.
        bar: called with each layer that is ranked; None where nobody looks.
    """

    smoothed: Callable[[], Quantizer | None] | None = None
    budget_s: float | None = None
    state: Path | None = None
    key: str = ""
    bar: Bar | None = None


def recover(quantizer: Quantizer, evaluator: Evaluator | None, options: RecoveryOptions, log: Log) -> Recovered:
    """Make the INT8 model, and a better one where the evaluator needs it.

    A model that is not good enough after all allowed steps is returned too: its result has the value.

    Args:
        quantizer: makes the model.
        evaluator: measures it; None returns the first model.
        options: the steps that are allowed.
        log: called with each step.

    Raises:
        EdgertError: the model cannot be made or run; the evaluation was stopped.
    """
    if evaluator is None:
        return Recovered(quantizer, quantizer.finish())
    best = corrected(quantizer, evaluator)
    if _value(best) >= evaluator.floor:
        return best
    log(f"{evaluator.metric} {_value(best):.3f}, and {evaluator.goal:.3f} is wanted")
    if options.smoothed is not None:
        log("smoothing activations")
        other = options.smoothed()
        if other is not None:
            best = max(best, corrected(other, evaluator), key=_value)
    if _value(best) >= evaluator.goal or options.budget_s is None:
        return best
    log(f"looking for the layers that cost the accuracy, for at most {options.budget_s / 60:.0f} min")
    return _kept(best, evaluator, options, options.budget_s, log)


def corrected(quantizer: Quantizer, evaluator: Evaluator) -> Recovered:
    """Return the model with everything in INT8, with or without bias correction, whichever is better."""
    found = []
    for correct in (True, False) if quantizer.corrects else (False,):
        made = quantizer.finish(correct=correct)
        found.append(Recovered(quantizer, made, evaluator.evaluate(made), correct))
    return max(found, key=_value)


def _kept(whole: Recovered, evaluator: Evaluator, options: RecoveryOptions, budget_s: float, log: Log) -> Recovered:
    """Return the model with as few units in higher precision as possible."""
    quantizer = whole.quantizer
    key = f"{quantizer.model.digest} {quantizer.recipe} {options.key}"
    noise = cache(rounding_noise(quantizer, quantizer.feeds[:SCAN_IMAGES]))
    ranking = scan(
        quantizer.units,
        noise,
        state=None if options.state is None else options.state.with_name(f"{options.state.name}.scan"),
        key=key,
        budget_s=budget_s * _SCAN_SHARE,
        bar=options.bar,
    )
    made = {frozenset[str](): whole}

    def measured(kept: frozenset[str]) -> float:
        if kept not in made:
            one = quantizer.finish(kept, correct=whole.corrected)
            made[kept] = replace(whole, quantized=one, result=evaluator.evaluate(one))
            log(f"{evaluator.metric} {_value(made[kept]):.3f} with {len(kept)} of {len(ranking.ranked)} layers kept")
        return _value(made[kept])

    def may_drop(whole: frozenset[str], rest: frozenset[str]) -> bool:
        return noise(rest) <= _NOISE_LIMIT * noise(whole)

    found = search(
        ranking.names, measured, evaluator.goal, state=options.state, key=key, budget_s=budget_s, may_drop=may_drop
    )
    kept = frozenset(found.kept)
    measured(kept)  # a resumed search knows the value, not the model
    best = made[kept]
    if quantizer.corrects and not best.corrected:  # now that less is lost, correcting its biases may be better
        one = quantizer.finish(kept)
        best = max(best, replace(best, quantized=one, result=evaluator.evaluate(one), corrected=True), key=_value)
    return replace(best, scan=ranking, search=found)


def _value(made: Recovered) -> float:
    assert made.result is not None  # there was an evaluator
    return made.result.value
