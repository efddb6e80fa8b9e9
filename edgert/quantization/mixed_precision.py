"""The fewest units in higher precision with which a model is accurate enough."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgert.clock import REAL, Clock
from edgert.errors import CalibrationError
from edgert.quantization.calibration.checkpoint import Memo, Progress, Units, describe

# Which units cost the accuracy: what error each makes when it alone is INT8.
#
# The other way round, what keeping one alone in higher precision saves, is no measure where many units hurt: all the
# noise of the others hides it. Of YOLOX-nano's convolutions the eight that cost most by this measure gave back 13
# of 14 points of mAP, the eight by the other 3.


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What one unit costs.

    Attributes:
        unit: its name.
        cost: the error with this unit in INT8 and all others in higher precision; None where time was over before it
            was measured.
    """

    unit: str
    cost: float | None

    @property
    def is_measured(self) -> bool:
        """Whether it was measured, not only ranked by a guess."""
        return self.cost is not None


@dataclass(frozen=True, slots=True)
class Scan:
    """Units by how much they hurt.

    Attributes:
        baseline: the error with all of them in INT8.
        ranked: every unit once, the one to keep first first.
        resumed: how many values came from the state file.
        note: why the state file was not used, if it was not.
    """

    baseline: float
    ranked: tuple[Sensitivity, ...]
    resumed: int = 0
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The units in ranked order."""
        return tuple(item.unit for item in self.ranked)

    @property
    def is_complete(self) -> bool:
        """Whether every unit was measured."""
        return all(item.is_measured for item in self.ranked)


def scan(
    units: Sequence[str],
    error: Callable[[Units], float],
    *,
    prior: Mapping[str, float] | None = None,
    state: Path | None = None,
    key: str = "",
    budget_s: float | None = None,
    clock: Clock = REAL,
    progress: Progress | None = None,
) -> Scan:
    """Measures the error with nothing kept, and then with all units kept but one, the most suspicious first.

    The order depends on the values only: equal errors give equal rankings. Units that cost something come first, by
    cost; then those that were not measured, which may, by ``prior``; then those that cost nothing. Ties keep the order
    of measuring.

    Args:
        units: what can be kept.
        error: error of the model with the given units in higher precision; lower is better, any scale.
        prior: a guess of each unit's cost, of which only the order counts: units are measured in this order, so that
            the time goes to those that matter. Units it does not name come last, in the order given.
        state: file in which measured values survive the process: an interrupted scan (Ctrl-C too) goes on there.
        key: digest of model, data and settings; a state file of another key is started over, with a warning.
        budget_s: no measurement begins after this many seconds; what was known from the state file costs none.
        progress: see :data:`~edgert.quantization.calibration.checkpoint.Progress`.

    Raises:
        CalibrationError: an error is not finite; ``state`` is some other file.
        ArtifactError: ``state`` cannot be written.
    """
    start_ns, guess = clock.now_ns(), prior or {}
    order = sorted(dict.fromkeys(units), key=lambda unit: -guess.get(unit, -float("inf")))
    memo = Memo(error, state, "error", key)
    baseline = memo(frozenset())
    found = []
    for position, unit in enumerate(order):
        others = frozenset(order) - {unit}
        if others not in memo.values and budget_s is not None and clock.now_ns() - start_ns >= budget_s * 1e9:
            found.append(Sensitivity(unit, None))
            continue
        found.append(Sensitivity(unit, memo(others)))
        if progress is not None:
            progress(position + 1, len(order), f"{unit}: {memo(others):.3g} alone, {baseline:.3g} with all")
    return Scan(baseline, tuple(sorted(found, key=_place)), memo.resumed, memo.note)


def _place(item: Sensitivity) -> tuple[int, float]:
    if item.cost is None:
        return 1, 0.0
    return (0 if item.cost > 0 else 2), -item.cost


@dataclass(frozen=True, slots=True)
class Tried:
    """One measurement: the units kept, in ranked order, and the value with them."""

    kept: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """What to keep in higher precision.

    Attributes:
        kept: the units, in ranked order.
        value: what was measured with exactly these kept.
        met: whether ``value`` reaches the floor. If not, ``kept`` is what came closest.
        tried: every measurement of this search, in order; also those that the state file knew.
        is_complete: False where time was over: then fewer units might do, or more might have met the floor.
        reason: one sentence for the reader: why it ended as it did.
        note: why the state file was not used, if it was not.
    """

    kept: tuple[str, ...]
    value: float
    met: bool
    tried: tuple[Tried, ...]
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
    progress: Progress | None = None,
    spares: Callable[[Units, Units], bool] | None = None,
) -> MixedPrecision:
    """Keeps ever more of the ranking until ``measure`` reaches the floor, and then gives back what is not needed.

    First nothing is kept; then the first 1, 2, 4, … units up to all; then the shortest prefix is found by halving; at
    last each kept unit is left out in turn, those ranked last first, until none can be missed: no single unit of the
    result can be left out, of those that ``spares`` lets be tried. For n units of which k are kept that takes about
    2·log2(n) + k measurements, the last part again for every round in which it found something. The measurement need
    be neither exact nor monotone: only sets that were themselves measured are ever returned.

    Args:
        ranked: units, the most harmful first (:attr:`Scan.names`).
        measure: value (accuracy) of the model with the given units kept; higher is better.
        floor: the value that is good enough.
        state: file in which measured values survive the process: an interrupted search (Ctrl-C too) goes on there.
            They do not depend on the floor, so another floor uses them as well.
        key: digest of model, data and settings; a state file of another key is started over, with a warning.
        budget_s: no measurement begins after this many seconds, except the one with nothing kept.
        progress: see :data:`~edgert.quantization.calibration.checkpoint.Progress`.
        spares: given the shortest prefix and a smaller set, whether leaving that much out is worth measuring. For a
            noisy ``measure``: among many sets that are nearly good enough some reach the floor by luck.

    Raises:
        CalibrationError: a measured value is not finite; ``state`` is some other file.
        ArtifactError: ``state`` cannot be written.
    """
    if floor != floor:
        raise CalibrationError("the accuracy floor is not a number", fix="give the lowest value that is good enough")
    run = _Run(tuple(dict.fromkeys(ranked)), Memo(measure, state, "value", key), floor, budget_s, clock, progress)
    try:
        short = run.shortest_prefix()
        if short is not None:
            run.eliminate(short, spares or (lambda whole, rest: True))
    except _OutOfTimeError:
        return run.result(is_complete=False)
    return run.result(is_complete=True)


class _OutOfTimeError(Exception):
    """The time box is used up; what was measured stands."""


class _Run:
    """The measurements of one search, in order, and what they lead to."""

    def __init__(
        self,
        ranked: tuple[str, ...],
        memo: Memo,
        floor: float,
        budget_s: float | None,
        clock: Clock,
        progress: Progress | None,
    ) -> None:
        self._ranked, self._memo, self._floor = ranked, memo, floor
        self._clock, self._progress = clock, progress
        self._end_ns = math.inf if budget_s is None else clock.now_ns() + budget_s * 1e9
        self._tried: dict[Units, float] = {}

    def shortest_prefix(self) -> int | None:
        """Length of the shortest prefix of the ranking that was found to meet the floor; None if none does."""
        failed, length = -1, 0
        while not self._meets(self._ranked[:length]):
            if length == len(self._ranked):
                return None
            failed, length = length, min(max(1, 2 * length), len(self._ranked))
        while length - failed > 1:
            middle = (failed + length) // 2
            if self._meets(self._ranked[:middle]):
                length = middle
            else:
                failed = middle
        return length

    def eliminate(self, length: int, spares: Callable[[Units, Units], bool]) -> None:
        """Leaves out what can be missed of a prefix, unit by unit, until a whole round finds nothing."""
        kept = self._ranked[:length]
        whole = frozenset(kept)
        before = None
        while before != kept:
            before = kept
            for unit in reversed(before):
                rest = tuple(name for name in kept if name != unit)
                if spares(whole, frozenset(rest)) and self._meets(rest):
                    kept = rest

    def result(self, *, is_complete: bool) -> MixedPrecision:
        """The smallest set that meets the floor, of those the one with the highest value; else the highest value."""
        met = [kept for kept, value in self._tried.items() if value >= self._floor]
        if met:
            best = min(met, key=lambda kept: (len(kept), -self._tried[kept]))
        else:
            best = max(self._tried, key=lambda kept: (self._tried[kept], -len(kept)))
        tried = tuple(Tried(self._ordered(kept), value) for kept, value in self._tried.items())
        reason = self._reason(best, is_complete)
        kept, value = self._ordered(best), self._tried[best]
        return MixedPrecision(kept, value, bool(met), tried, is_complete, reason, self._memo.note)

    def _meets(self, kept: Sequence[str]) -> bool:
        units = frozenset(kept)
        if units not in self._memo.values and units and self._clock.now_ns() >= self._end_ns:
            raise _OutOfTimeError
        value = self._memo(units)
        if units not in self._tried:
            self._tried[units] = value
            if self._progress is not None:
                self._progress(len(self._tried), self._most(), f"{value:.4g} with {describe(units)} kept")
        return value >= self._floor

    def _most(self) -> int:
        """Measurements that are still to come at most, one round of leaving out included, and those made."""
        met = [len(kept) for kept, value in self._tried.items() if value >= self._floor]
        length = min(met, default=len(self._ranked))
        return len(self._tried) + length.bit_length() + length

    def _ordered(self, kept: Units) -> tuple[str, ...]:
        return tuple(name for name in self._ranked if name in kept)

    def _reason(self, best: Units, is_complete: bool) -> str:
        value, total = self._tried[best], len(self._ranked)
        if value >= self._floor:
            enough = f"{value:.4g} reaches {self._floor:.4g} with {len(best)} of {total} units kept"
            return enough if is_complete else f"{enough}; time was over before fewer were tried"
        missed = f"{value:.4g} with {len(best)} of {total} units kept is the best found, below {self._floor:.4g}"
        return f"{missed}, and keeping all does not reach it either" if is_complete else f"{missed}; time was over"
