"""What a plan finds, as plain records: one row for each power mode and placement, and the choice among them."""

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
"""Whether a budget is kept: for sure, too close to tell, not known (which is neither), or missed for sure."""
VERDICTS: tuple[Verdict, ...] = ("kept", "close", "unknown", "missed")
"""From the best to the worst: a row is as good as its worst check."""
_HAIR = 1 + 1e-6  # rounding is no reason to miss a budget


@dataclass(frozen=True, slots=True)
class Check:
    """One budget or limit, and how a row stands to it.

    Attributes:
        name: ``rate``, ``power``, ``latency`` or ``memory``.
        used: the part of it that is predicted to be used; infinite where that never settles, None where nothing is
            known.
        error: relative error of ``used`` to expect; None where nobody has compared such a prediction.
        text: the figure and its limit.
        change: what the limit would have to be for it to be kept for sure.
        more: how much more may be used, in words, where the error bar goes up only; empty: it goes both ways.
    """

    name: str
    used: float | None
    error: float | None
    text: str
    change: str
    more: str = ""

    @property
    def verdict(self) -> Verdict:
        """Kept or missed only where it stays so at either end of the error bar."""
        if self.used is None or self.error is None:
            return "unknown"
        if self.used * (1 + self.error) <= _HAIR:
            return "kept"
        near = 1.0 if self.more else 1 + self.error
        return "missed" if self.used > _HAIR * near or not self.used < math.inf else "close"

    @property
    def margin(self) -> float:
        """The part of it that is to spare at the far end of the error bar; negative where it is exceeded there."""
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
    """One engine of a model: which unit runs where, and its part of the model's frames, 0 to 1."""

    assignment: Assignment
    share: float

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Those it uses, in order of first use."""
        return tuple(dict.fromkeys(self.assignment))


@dataclass(frozen=True, slots=True, eq=False)
class ModelRow:
    """One model in one placement.

    Attributes:
        name: in the file.
        network: what was solved, with every unit's costs.
        engines: those it runs on; more than one where frames are dispatched to several.
        rate_hz: asked for.
        latency_ms: of one run alone on the board.
        p50_ms, p99_ms: with everything else running.
        dla_share: of its multiply-adds, 0 to 1.
        loadables: DLA core → how many of its 16 it takes.
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
    """A whole pipeline in one power mode and one placement.

    Attributes:
        board, mode: names.
        name: of the placement: ``gpu``, ``dla``, ``mixed``.
        models: every model's part.
        headroom: how many times the asked rates it sustains, by playing it with as many frames as are taken.
        fps: frames a second that come out at the asked rates.
        p99_ms: from a frame's capture to the end of its last stage, at the asked rates; infinite where none comes out.
        power_w: of the whole module at the asked rates, or at what it sustains where that is less;
            None where nothing is known of it.
        memory_bytes: of all that :mod:`edgert.planner.plan_rows` knows.
        energy_mj: of one frame, with the board's idle power.
        busy: accelerator → part of its time at the asked rates, 0 to 1; of processor cores, how many are busy.
        error: relative error to expect of times: the 90th percentile on networks that the cost model had not seen;
            None where nothing was compared.
        power_error: of watts.
        wall_w: at the plug of the board's developer kit while the module draws ``power_w``; None: not known.
        asked_fps: frames a second of all sources.
        p50_ms: as ``p99_ms``.
        cores: processor cores that the mode has; 0 where that is not known.
        memory_error: the part of ``memory_bytes`` that programs may take on top of it, as some were measured to; what
            is not sure is counted at its most, so this bar goes up only.
        checks: every budget and limit.
        memory: its parts.
        steps: what is changed in the pipeline so that it fits, in words.
        estimated: of the mode's clocks and counts, those that nobody has published: they follow from ratios.
        is_best: whether no other row of its board is better or equal in speed, latency, power and memory.
        fallback_models: those that it runs instead of the models of the file; empty: those of the file.
        fallbacks: the same pipeline in the same mode with more and more of its fallback models, which a governor
            may choose; all are loaded, so ``memory`` of each row counts those of all.
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
    asked_fps: float = 0.0
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
        """Frames a second that its sources could send before something is full."""
        return self.asked_fps * self.headroom

    @property
    def verdict(self) -> Verdict:
        """Of all checks together."""
        return max((check.verdict for check in self.checks), key=VERDICTS.index, default="unknown")

    @property
    def tightest(self) -> Check:
        """The check with the least to spare."""
        return min(self.checks, key=lambda check: check.margin)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Every check that is not kept for sure, in words, the worst first."""
        found = [check for check in self.checks if check.verdict != "kept"]
        return tuple(one.words for one in sorted(found, key=lambda one: -VERDICTS.index(one.verdict)))


@dataclass(frozen=True, slots=True, eq=False)
class BoardPlan:
    """All rows of one board and which to take.

    Attributes:
        board, title: its name and what people call it.
        rows: best first.
        chosen: index of the one to take, which keeps every budget or is too close to tell; None where there is none.
        advice: why the others were not taken, or what would have to be relaxed.
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
        """Of its first row."""
        return self.rows[0].verdict if self.rows else "unknown"

    @property
    def best(self) -> Row | None:
        """The row to take, or the one that comes closest to keeping every budget; None without rows."""
        return self.rows[self.chosen or 0] if self.rows else None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A pipeline planned on one board or several.

    Attributes:
        pipeline: its name.
        objective: what was optimized.
        boards: in the order asked for.
        smallest: the least board that keeps every budget for sure, of those planned; None where none does.
        notes: what was assumed.
    """

    pipeline: str
    objective: Objective
    boards: tuple[BoardPlan, ...]
    smallest: str | None
    notes: tuple[str, ...]
