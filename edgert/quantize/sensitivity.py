"""Which units cost the accuracy: what error each makes when it alone is INT8.

The other way round, what keeping one alone in higher precision saves, says little where many units hurt: all the noise
of the others hides it. Of YOLOX-nano's convolutions the eight that cost most by this measure gave back 13 of 14 points
of mAP, the eight by the other 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgert.clock import REAL, Clock
from edgert.quantize.memo import Memo, Progress, Units


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
        progress: see :data:`~edgert.quantize.memo.Progress`.

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
