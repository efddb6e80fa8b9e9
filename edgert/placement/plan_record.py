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
"""Result of a check: kept for sure, too close to decide, not known (which is neither), or missed for sure."""
VERDICTS: tuple[Verdict, ...] = ("kept", "close", "unknown", "missed")
"""Verdicts from the best to the worst; a row is as good as its worst check."""
_HAIR = 1 + 1e-6  # rounding must not make a row miss a budget


@dataclass(frozen=True, slots=True)
class Check:
    """A budget or limit, and the predicted use of it.

    Attributes:
        name: ``rate``, ``power``, ``latency`` or ``memory``.
        used: predicted share of the limit; infinite where the use grows without end, None where nothing is known.
        error: relative error of ``used`` to expect; None where nobody has compared such a prediction.
        text: the figure and its limit.
        change: what the limit would have to be for it to be kept for sure.
        more: possible additional use, in words, where the error bar goes up only; empty: it goes both ways.
    """

    name: str
    used: float | None
    error: float | None
    text: str
    change: str
    more: str = ""

    @property
    def verdict(self) -> Verdict:
        """Verdict; kept or missed only where that holds at either end of the error bar."""
        if self.used is None or self.error is None:
            return "unknown"
        if self.used * (1 + self.error) <= _HAIR:
            return "kept"
        near = 1.0 if self.more else 1 + self.error
        return "missed" if self.used > _HAIR * near or not self.used < math.inf else "close"

    @property
    def margin(self) -> float:
        """Share of the limit that is left at the far end of the error bar; negative where it is exceeded there."""
        if self.used is None or self.error is None:
            return -math.inf
        return 1 - self.used * (1 + self.error)

    @property
    def words(self) -> str:
        """``"p99 49 of 50 ms ± 33 %: too close to tell"``."""
        if self.verdict == "close":
            bar = f", up to + {self.more}" if self.more else f" ± {self.error:.0%}"
            return f"{self.text}{bar}: too close to tell"
        unknown = self.verdict == "unknown" and self.used is not None
        return f"{self.text} ±?: not known" if unknown else self.text


@dataclass(frozen=True, slots=True)
class EngineRow:
    """An engine of a model: which unit runs where, and its share of the model's frames, 0 to 1."""

    assignment: Assignment
    share: float

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Accelerators it uses, in order of first use."""
        return tuple(dict.fromkeys(self.assignment))


@dataclass(frozen=True, slots=True, eq=False)
class ModelRow:
    """A model in one placement.

    Attributes:
        name: in the file.
        network: what was solved, with every unit's costs.
        engines: those it runs on; more than one where frames are dispatched to several.
        rate_hz: requested.
        latency_ms: of one run alone on the board.
        p50_ms: median latency with everything else running.
        p99_ms: 99th percentile of the latency with everything else running.
        dla_share: of its multiply-adds, 0 to 1.
        loadables: DLA core → how many of its 16 it occupies.
        measured: which measurements its times rest on, in words; empty: on none of this network.
    """

    name: str
    network: Network
    engines: tuple[EngineRow, ...]
    rate_hz: float
    latency_ms: float
    p50_ms: float
    p99_ms: float
    dla_share: float
    loadables: Mapping[str, int]
    measured: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A pipeline in one power mode and one placement.

    Attributes:
        board: name.
        mode: name.
        name: of the placement: ``gpu``, ``dla``, ``mixed``.
        models: every model's part.
        headroom: multiple of the requested rates that it sustains, by simulating it with as many frames as it accepts.
        fps: frames per second of output at the requested rates.
        p99_ms: from a frame's capture to the end of its last stage, at the requested rates; infinite where no frame
            reaches the end.
        power_w: of the whole module at the requested rates, or at the sustained rates where those are lower; None where
            nothing is known of it.
        memory_bytes: of all that :mod:`edgert.planner.plan_rows` counts.
        energy_mj: of one frame, with the board's idle power.
        busy: accelerator → share of its time at the requested rates, 0 to 1; of CPU cores, how many are busy.
        error: relative error to expect of times: the 90th percentile on networks that the cost model had not seen;
            None where nothing was compared.
        power_error: of watts.
        wall_w: at the plug of the board's developer kit while the module draws ``power_w``; None: not known.
        requested_fps: frames per second of all sources.
        p50_ms: as ``p99_ms``.
        cores: CPU cores that the mode has; 0 where that is not known.
        memory_error: share of ``memory_bytes`` that programs may use on top of it, as some were measured to. What is
            uncertain is counted at its maximum, so this bar goes up only.
        checks: every budget and limit.
        memory: its parts.
        steps: what is changed in the pipeline so that it fits, in words.
        estimated: of the mode's clocks and counts, those that nobody has published: they follow from ratios.
        is_best: whether no other row of its board is better or equal in speed, latency, power and memory.
        fallback_models: those that it runs instead of the models of the file; empty: those of the file.
        fallbacks: the same pipeline in the same mode with more and more of its fallback models, which a governor
            may choose. All are loaded, so ``memory`` of each row counts those of all.
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
        """Checks that are not kept for sure, in words, the worst first."""
        found = [check for check in self.checks if check.verdict != "kept"]
        return tuple(one.words for one in sorted(found, key=lambda one: -VERDICTS.index(one.verdict)))


@dataclass(frozen=True, slots=True, eq=False)
class BoardPlan:
    """All rows of one board and the one to use.

    Attributes:
        board: its name.
        title: its name in full, for people.
        rows: best first.
        chosen: index of the one to use, which keeps every budget or is too close to decide; None where there is none.
        advice: why the others were not chosen, or what would have to be relaxed.
        skipped: modes that could not be planned, with the reason.
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
        """Row to use, or the one that comes closest to keeping every budget; None without rows."""
        return self.rows[self.chosen or 0] if self.rows else None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A pipeline planned on one board or several.

    Attributes:
        pipeline: its name.
        objective: what was optimized.
        boards: in the order requested.
        smallest: the smallest of the planned boards that keeps every budget for sure; None where none does.
        notes: what was assumed.
    """

    pipeline: str
    objective: Objective
    boards: tuple[BoardPlan, ...]
    smallest: str | None
    notes: tuple[str, ...]
