"""What a plan finds, as plain records: one row for each power mode and placement, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgert.budget.footprint import Part
from edgert.placement.constraints import Objective as Objective
from edgert.placement.problem import Assignment, Network

OBJECTIVES: tuple[Objective, ...] = ("throughput", "latency", "energy")


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


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A whole pipeline in one power mode and one placement.

    Attributes:
        board, mode: names.
        name: of the placement: ``gpu``, ``dla``, ``mixed``.
        models: every model's part.
        headroom: how many times the asked rates it sustains.
        fps: frames a second that its sources could send: the asked rate times the headroom.
        p99_ms: from a frame's first engine to its last result; engines only, without the host's work around them.
        is_simulated: whether the whole pipeline was simulated for ``p99_ms``, with queues and dispatchers; otherwise it
            is the sum of what each model needs at worst.
        power_w: of the whole module at the asked rates, or at what it sustains where that is less;
            None where nothing is known of it.
        memory_bytes: of all that :mod:`edgert.planner.plan_rows` knows.
        energy_mj: of one frame, with the board's idle power.
        busy: accelerator → part of its time at that rate, 0 to 1.
        error: relative error to expect of times: the 90th percentile on networks that the cost model had not seen.
        mode_w: what the power mode is named for; None for one without a limit.
        misses: budgets it breaks, in words; empty if none.
        tightest: the budget or limit with the least to spare: ``rate``, ``power``, ``latency`` or ``memory``.
        margin: the part of it that is to spare; negative where it is exceeded.
        memory: its parts.
        steps: what is changed in the pipeline so that it fits, in words.
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
    mode_w: float | None = None
    is_simulated: bool = False
    misses: tuple[str, ...] = ()
    tightest: str = ""
    margin: float = 0.0
    memory: tuple[Part, ...] = ()
    steps: tuple[str, ...] = ()
    is_best: bool = False
    fallback_models: tuple[str, ...] = ()
    fallbacks: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class BoardPlan:
    """All rows of one board and which to take.

    Attributes:
        board, title: its name and what people call it.
        rows: best first.
        chosen: index of the one to take; None where no row keeps every budget.
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
        smallest: the least board that keeps every budget, of those planned; None where none does.
        notes: what was assumed.
    """

    pipeline: str
    objective: Objective
    boards: tuple[BoardPlan, ...]
    smallest: str | None
    notes: tuple[str, ...]
