"""Recovery of the accuracy that INT8 costs a model, in order of the cost at run time.

Biases are corrected where that is more accurate: it nearly always is, but a network with large errors can lose its
remaining accuracy. Then activations are smoothed, which is free where the engine fuses them with the layers before, as
TensorRT does, and slow on ONNX Runtime. Last, as few units as possible get a higher precision.
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
from edgert.quantization.run import Run
from edgert.reporter import Bar

# The cost of a unit is the error that it makes when it alone is INT8. The error that is saved by keeping it alone says
# little where many units hurt, since the noise of the others hides it. Of YOLOX-nano's convolutions the eight of
# highest cost recovered 13 of 14 points of mAP, the eight by the other measure 3.

Costs = Mapping[str, float | None]
"""Errors with one unit in INT8 and all others in higher precision, by unit; None where time ran out before. Units to
keep first are at the front."""


def scan(
    units: Sequence[str],
    error: Callable[[Units], float],
    *,
    state: Path | None = None,
    key: str = "",
    budget_s: float | None = None,
    clock: Clock = REAL,
    bar: Bar | None = None,
) -> Costs:
    """Return units ranked by the error with all other units kept.

    Units of positive cost come first, by cost, then those that were not measured, then the others. Ties keep the order
    given. ``error`` is that of the model with the given units kept. Values in the file ``state`` survive the process; a
    file of another ``key``, the digest of model, data and settings, is started over. After ``budget_s`` no measurement
    begins. Raises CalibrationError: an error is not finite. Raises ArtifactError: ``state`` cannot be written.
    """
    end_ns = math.inf if budget_s is None else clock.now_ns() + budget_s * 1e9
    memo = Memo(error, state, "error", key)
    found: dict[str, float | None] = {}
    for unit in dict.fromkeys(units):
        if bar is not None:
            bar("ranking layers", len(found), len(units))
        others = frozenset(units) - {unit}
        in_time = others in memo.values or clock.now_ns() < end_ns
        found[unit] = memo(others) if in_time else None
    return dict(sorted(found.items(), key=lambda item: _rank(item[1])))


def _rank(cost: float | None) -> tuple[int, float]:
    return (1, 0.0) if cost is None else (0 if cost > 0 else 2, -cost)


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """Units to keep in higher precision.

    Attributes:
        met: whether ``value`` reaches the floor; if not, ``kept`` came closest.
        tried: measured values by units kept, in the order of measurement, those from the state file included.
        is_complete: whether the search ended before time ran out; if not, another set might be better.
    """

    kept: tuple[str, ...]
    value: float
    met: bool
    tried: Mapping[tuple[str, ...], float]
    is_complete: bool
    reason: str


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
    """Return as few units as possible to keep so that ``measure`` reaches the floor.

    First no unit is kept, then the first 1, 2, 4, … up to all. Bisection finds the shortest prefix. Then each kept unit
    that ``may_drop`` allows is left out in turn, the last one first, in rounds until none can be left out. For n units
    of which k are kept that takes about 2·log2(n) + k measurements. Values need be neither exact nor monotone: every
    returned set was measured. ``measure`` is the accuracy with the given units kept. ``state``, ``key`` and
    ``budget_s`` are those of :func:`scan`; with no units kept, it is always measured. ``may_drop`` gets the shortest
    prefix and a smaller set, and returns whether the smaller one is worth measuring. With a noisy ``measure`` some of
    many sets that are nearly good enough reach the floor by luck. Raises CalibrationError: a measured value is not
    finite. Raises ArtifactError: ``state`` cannot be written.
    """
    if floor != floor:
        raise CalibrationError("the accuracy floor is not a number", fix="give the lowest value that is good enough")
    run = _Search(tuple(dict.fromkeys(ranked)), Memo(measure, state, "value", key), floor, budget_s, clock)
    try:
        short = run.shortest_prefix()
        if short is not None:
            run.eliminate(short, may_drop or (lambda whole, rest: True))
    except _OutOfTimeError:
        return run.result(is_complete=False)
    return run.result(is_complete=True)


class _OutOfTimeError(Exception):
    """Signal that the time budget is used up; earlier measurements stay valid."""


class _Search:
    """Measurements of one search, in order, and its result."""

    def __init__(self, ranked: tuple[str, ...], memo: Memo, floor: float, budget_s: float | None, clock: Clock) -> None:
        self._ranked, self._memo, self._floor, self._clock = ranked, memo, floor, clock
        self._end_ns = math.inf if budget_s is None else clock.now_ns() + budget_s * 1e9
        self._tried: dict[Units, float] = {}

    def shortest_prefix(self) -> int | None:
        """Return the length of the shortest prefix found to meet the floor; None where none does."""
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
        """Leave out units of a prefix one by one while the floor is met, until a full round finds none."""
        kept = self._ranked[:length]
        whole, before = frozenset(kept), None
        while before != kept:
            before = kept
            for unit in reversed(before):
                rest = tuple(name for name in kept if name != unit)
                if may_drop(whole, frozenset(rest)) and self._meets(rest):
                    kept = rest

    def result(self, *, is_complete: bool) -> MixedPrecision:
        """Return the smallest and best set that meets the floor; otherwise the set of the highest value."""
        met = [kept for kept, value in self._tried.items() if value >= self._floor]
        if met:
            best = min(met, key=lambda kept: (len(kept), -self._tried[kept]))
        else:
            best = max(self._tried, key=lambda kept: (self._tried[kept], -len(kept)))
        ordered = {units: tuple(name for name in self._ranked if name in units) for units in self._tried}
        tried = {ordered[units]: value for units, value in self._tried.items()}
        reason = self._reason(best, is_complete)
        return MixedPrecision(ordered[best], self._tried[best], bool(met), tried, is_complete, reason)

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


SCAN_IMAGES = 4
"""Number of images for ranking layers by cost; only their order matters."""
_SCAN_SHARE = 0.5
"""Part of the time for finding units to keep that ranking may take."""
_NOISE_LIMIT = 1.05
"""Largest factor of the noise by which a smaller set is worth evaluating. The mAP of 128 images moves by half a point
at random, so that some of many sets that are nearly good enough reach the floor by luck."""


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """An INT8 model, and how it was recovered.

    Attributes:
        quantizer: quantizer of the original model, or of one with smoothed activations.
        result: result of the evaluator; None without one.
    """

    quantizer: Quantizer
    quantized: Quantized
    result: Result | None = None
    corrected: bool = True
    scan: Costs | None = None
    search: MixedPrecision | None = None


def recover(
    quantizer: Quantizer,
    evaluator: Evaluator | None,
    run: Run,
    *,
    smoothed: Callable[[], Quantizer | None] | None = None,
    budget_s: float | None = None,
    state: Path | None = None,
    key: str = "",
) -> Recovered:
    """Return the INT8 model, recovered by allowed steps until the evaluator finds it good enough.

    The best model found is returned even if it is not good enough; see its result. ``smoothed`` returns a quantizer of
    the model with smoothed activations, or None where smoothing changes nothing; without it the step is left out.
    ``budget_s`` are seconds for finding units to keep; None keeps none. That search survives an interruption in the
    file ``state`` and another beside it; ``key`` is the digest of all that the evaluation depends on. Raises
    EdgertError: the model cannot be made or run, or the evaluation was stopped.
    """
    if evaluator is None:
        return Recovered(quantizer, quantizer.finish())
    best = choose_correction(quantizer, evaluator)
    if _value(best) >= evaluator.floor:
        return best
    run.log(f"{evaluator.metric} {_value(best):.3f}, below the goal of {evaluator.goal:.3f}")
    if smoothed is not None:
        run.log("smoothing activations")
        other = smoothed()
        if other is not None:
            best = max(best, choose_correction(other, evaluator), key=_value)
    if _value(best) >= evaluator.goal or budget_s is None:
        return best
    run.log(f"looking for the layers that cost the accuracy, for at most {budget_s / 60:.0f} min")
    return _keep_units(best, evaluator, run, budget_s, state, key)


def choose_correction(quantizer: Quantizer, evaluator: Evaluator) -> Recovered:
    """Return the model with all units in INT8, with bias correction or without, whichever is better."""
    found = []
    for correct in (True, False) if quantizer.corrects_biases else (False,):
        made = quantizer.finish(correct=correct)
        found.append(Recovered(quantizer, made, evaluator.evaluate(made), correct))
    return max(found, key=_value)


def _keep_units(
    whole: Recovered, evaluator: Evaluator, run: Run, budget_s: float, state: Path | None, key: str
) -> Recovered:
    """Return the model with as few units kept in higher precision as possible."""
    quantizer = whole.quantizer
    key = f"{quantizer.model.digest} {quantizer.recipe} {key}"
    noise = cache(rounding_noise(quantizer, quantizer.feeds[:SCAN_IMAGES]))
    ranking = scan(
        quantizer.units,
        noise,
        state=None if state is None else state.with_name(f"{state.name}.scan"),
        key=key,
        budget_s=budget_s * _SCAN_SHARE,
        bar=run.bar,
    )
    made = {frozenset[str](): whole}

    def measured(kept: frozenset[str]) -> float:
        if kept not in made:
            model = quantizer.finish(kept, correct=whole.corrected)
            made[kept] = replace(whole, quantized=model, result=evaluator.evaluate(model))
            run.log(f"{evaluator.metric} {_value(made[kept]):.3f} with {len(kept)} of {len(ranking)} layers kept")
        return _value(made[kept])

    def may_drop(whole: frozenset[str], rest: frozenset[str]) -> bool:
        return noise(rest) <= _NOISE_LIMIT * noise(whole)

    found = search(tuple(ranking), measured, evaluator.goal, state=state, key=key, budget_s=budget_s, may_drop=may_drop)
    kept = frozenset(found.kept)
    measured(kept)  # a resumed search has the value, not the model
    best = made[kept]
    if quantizer.corrects_biases and not best.corrected:  # with less lost, bias correction may help now
        model = quantizer.finish(kept)
        best = max(best, replace(best, quantized=model, result=evaluator.evaluate(model), corrected=True), key=_value)
    return replace(best, scan=ranking, search=found)


def _value(made: Recovered) -> float:
    assert made.result is not None  # there was an evaluator
    return made.result.value
