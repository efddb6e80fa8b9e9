"""Records of a plan: one row for each power mode and placement, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgert.budget.footprint import Part
from edgert.placement.constraints import Objective as Objective
from edgert.placement.problem import Assignment, Network

OBJECTIVES: tuple[Objective, ...] = ("throughput", "latency", "energy")

Verdict = Literal["kept", "close", "unknown", "missed"]
"""Result of a check: kept for sure, too close to decide, unknown, or missed for sure."""
VERDICTS: tuple[Verdict, ...] = ("kept", "close", "unknown", "missed")
"""Verdicts from the best to the worst; a row is as good as its worst check."""
_ROUNDING = 1 + 1e-6  # rounding must not make a row miss a budget


@dataclass(frozen=True, slots=True)
class Check:
    """A budget or limit, and the predicted use of it.

    Attributes:
        name: ``rate``, ``power``, ``latency`` or ``memory``.
        used: predicted share of the limit; infinite where the use grows without end, None if unknown.
        error: expected relative error of ``used``; None where such predictions were never compared to measurements.
        text: figure and limit, in words.
        change: limit that would be kept for sure, in words.
        more: possible additional use, in words, where the error only goes up; empty where it goes both ways.
    """

    name: str
    used: float | None
    error: float | None
    text: str
    change: str
    more: str = ""

    @property
    def verdict(self) -> Verdict:
        """Verdict; kept or missed only where this holds at both ends of the error bar."""
        if self.used is None or self.error is None:
            return "unknown"
        if self.used * (1 + self.error) <= _ROUNDING:
            return "kept"
        near = 1.0 if self.more else 1 + self.error
        return "missed" if self.used > _ROUNDING * near or not self.used < math.inf else "close"

    @property
    def margin(self) -> float:
        """Share of the limit that is left at the upper end of the error bar; negative where it is exceeded."""
        if self.used is None or self.error is None:
            return -math.inf
        return 1 - self.used * (1 + self.error)

    @property
    def words(self) -> str:
        """Check in words, such as ``"p99 49 of 50 ms ± 33 %: too close to tell"``."""
        if self.verdict == "close":
            bar = f", up to + {self.more}" if self.more else f" ± {self.error:.0%}"
            return f"{self.text}{bar}: too close to tell"
        unknown = self.verdict == "unknown" and self.used is not None
        return f"{self.text} ±?: not known" if unknown else self.text


@dataclass(frozen=True, slots=True)
class EngineRow:
    """Engine of a model: the accelerator of each unit, and its share of the model's frames, 0 to 1."""

    assignment: Assignment
    share: float

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Accelerators of the engine, in order of first use."""
        return tuple(dict.fromkeys(self.assignment))


@dataclass(frozen=True, slots=True, eq=False)
class ModelRow:
    """A model in one placement.

    Attributes:
        network: placement problem that was solved, with every unit's costs.
        engines: engines of the model; more than one where frames are dispatched to several.
        rate_hz: requested frames per second.
        latency_ms: latency of one run alone on the board.
        dla_share: share of its multiply-adds on the DLA, 0 to 1.
        loadables: DLA core → number of its 16 loadables that the model occupies.
        measured: measurements that the times are based on, in words; empty where there are none of this network.
    """

    name: str
    network: Network
    engines: tuple[EngineRow, ...]
    rate_hz: float
    latency_ms: float
    dla_share: float
    loadables: Mapping[str, int]
    measured: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A pipeline in one power mode and one placement.

    Attributes:
        name: name of the placement: ``gpu``, ``dla`` or ``mixed``.
        models: every model in this placement.
        headroom: simulated multiple of the requested rates that can be sustained.
        fps: frames per second of output at the requested rates.
        p99_ms: 99th percentile of the time from a frame's capture to the end of its last stage, at the requested
            rates; infinite where no frame reaches the end.
        power_w: power of the module at the requested rates, or at the sustained rates if lower; None if unknown.
        memory_bytes: memory use, as counted by :mod:`edgert.planner.plan_rows`.
        energy_mj: energy of one frame, with the board's idle power.
        busy: accelerator → share of its time at the requested rates, 0 to 1; for CPU cores, the number that is busy.
        error: expected relative error of times, the 90th percentile on networks that the cost model had not seen;
            None if unknown.
        power_error: expected relative error of ``power_w``.
        wall_w: power at the plug of the board's developer kit while the module draws ``power_w``; None if unknown.
        requested_fps: frames per second of all sources.
        p50_ms: median of the same time.
        cores: CPU cores of the mode; 0 if unknown.
        memory_error: share of ``memory_bytes`` that a program may use in addition, from measured programs. Uncertain
            parts are counted at their maximum, so the error only goes up.
        checks: check of every budget and limit.
        memory: parts of ``memory_bytes``.
        steps: changes of the pipeline that make it fit, in words.
        estimated: clocks and counts of the mode that are not published but estimated by ratios.
        is_best: whether no other row of its board is better or equal in speed, latency, power and memory.
        fallback_models: models that run instead of those of the file; empty where none does.
        fallbacks: rows of the same pipeline and mode with more and more of its fallback models, which a governor may
            choose. All models stay loaded, so ``memory`` of each row counts all of them.
    """

    board: str
    mode: str
    name: str
    models: tuple[ModelRow, ...]
    headroom: float
    fps: float
    p99_ms: float
    power_w: float | None
    memory_bytes: int
    energy_mj: float | None
    busy: Mapping[str, float]
    error: float | None
    power_error: float | None = None
    wall_w: float | None = None
    requested_fps: float = 0.0
    p50_ms: float = math.nan
    cores: int = 0
    memory_error: float = 0.0
    checks: tuple[Check, ...] = ()
    memory: tuple[Part, ...] = ()
    steps: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    is_best: bool = False
    fallback_models: tuple[str, ...] = ()
    fallbacks: tuple[Row, ...] = ()

    @property
    def most_fps(self) -> float:
        """Frames per second that its sources could send before something is fully used."""
        return self.requested_fps * self.headroom

    @property
    def verdict(self) -> Verdict:
        """Combined verdict of all checks."""
        return max((check.verdict for check in self.checks), key=VERDICTS.index, default="unknown")

    @property
    def tightest(self) -> Check:
        """Check with the smallest margin."""
        return min(self.checks, key=lambda check: check.margin)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Checks that are not surely kept, in words, the worst first."""
        found = [check for check in self.checks if check.verdict != "kept"]
        return tuple(one.words for one in sorted(found, key=lambda one: -VERDICTS.index(one.verdict)))


@dataclass(frozen=True, slots=True, eq=False)
class BoardPlan:
    """All rows of one board and the one to use.

    Attributes:
        title: full name of the board, for people.
        rows: rows, best first.
        chosen: index of the row to use, which keeps every budget or is too close to decide; None if no row does.
        advice: reasons against the other rows, or limits that would have to be relaxed.
        skipped: modes that could not be planned, each with the reason.
    """

    board: str
    title: str
    rows: tuple[Row, ...]
    chosen: int | None
    advice: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Verdict of its first row."""
        return self.rows[0].verdict if self.rows else "unknown"

    @property
    def best(self) -> Row | None:
        """Row to use, or else the row that comes closest to keeping every budget; None without rows."""
        return self.rows[self.chosen or 0] if self.rows else None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A pipeline planned on one board or several.

    Attributes:
        objective: what was optimized.
        boards: plans of the boards, in the order requested.
        smallest: smallest planned board that surely keeps every budget; None where none does.
        notes: assumptions of the plan.
    """

    pipeline: str
    objective: Objective
    boards: tuple[BoardPlan, ...]
    smallest: str | None
    notes: tuple[str, ...]
