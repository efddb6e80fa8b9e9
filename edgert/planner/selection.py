"""Rows against budgets: which budgets each row misses, which row is taken, and what would have to be relaxed."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from edgert.config import InferStage, PipelineConfig, SourceStage
from edgert.config.flow import inputs_of, order
from edgert.config.pipeline_file import BudgetConfig
from edgert.placement.plan_record import BoardPlan, Objective, Row
from edgert.planner.plan_text import where
from edgert.simulator.design import ASSUMED_HZ
from edgert.units import format_bytes

# A frame's path through a pipeline: how often one comes, and how long models keep it.


def frame_rate_hz(config: PipelineConfig) -> float:
    """Frames a second of all sources together."""
    return sum(stage.fps or ASSUMED_HZ for stage in config.stages.values() if isinstance(stage, SourceStage))


def longest_ms(config: PipelineConfig, latency_ms: Mapping[str, float]) -> float:
    """The longest chain of models that a frame passes, crops one after the other.

    Adding up what each model needs at worst is more than a frame needs at worst, so a plan is on the safe side.

    Args:
        latency_ms: of one run of every model.
    """
    ends: dict[str, float] = {}
    for name in order(config.stages):
        stage = config.stages[name]
        before = max((ends[other] for other in inputs_of(stage)), default=0.0)
        own = 0.0
        if isinstance(stage, InferStage):
            own = latency_ms.get(stage.infer, math.nan) * (stage.crop.limit if stage.crop is not None else 1)
        ends[name] = before + own
    return max(ends.values(), default=0.0)


_KEYS: Mapping[Objective, Callable[[Row], tuple[float, ...]]] = {
    "throughput": lambda row: (-round(row.headroom, 6), _or_none(row.power_w)),
    "latency": lambda row: (row.p99_ms, _or_none(row.power_w)),
    "energy": lambda row: (_or_none(row.energy_mj), row.p99_ms),
}
_CLOSEST = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Machine:
    """What is planned for: its name, what people call it, and the most memory that programs can have there."""

    name: str
    title: str
    memory_bytes: int


_HAIR = 1 + 1e-6  # rounding is no reason to miss a budget


def _or_none(value: float | None) -> float:
    """For sorting: what is not known counts as nothing, and rows of one plan know the same things."""
    return 0.0 if value is None else value


def pareto(rows: Iterable[T], *keys: Callable[[T], float]) -> list[T]:
    """The rows that no other row is at least as good as in every key and better in one; all keys are minimized.

    Of equal rows the first stays. The order is by the first key, then the second, and so on.
    """
    front: list[tuple[tuple[float, ...], T]] = []
    for values, row in sorted(((tuple(key(row) for key in keys), row) for row in rows), key=lambda pair: pair[0]):
        if not any(all(map(float.__le__, map(float, other), map(float, values))) for other, _ in front):
            front.append((values, row))
    return [row for _, row in front]


def judged(
    board: Machine, rows: Sequence[Row], budgets: BudgetConfig, objective: Objective, skipped: tuple[str, ...] = ()
) -> BoardPlan:
    """The rows best first, with what each misses; the first that misses nothing is taken."""
    rated = [_rated(row, budgets, board) for row in rows]
    best = pareto(
        rated,
        lambda row: -row.headroom,
        lambda row: row.p99_ms,
        lambda row: _or_none(row.power_w),
        lambda row: float(row.memory_bytes),
    )
    marked = [replace(row, is_best=any(row is one for one in best)) for row in rated]
    ordered = sorted(
        marked,
        key=lambda row: (
            bool(row.misses),
            *(_KEYS[objective](row) if not row.misses else (_far(row, budgets, board),)),
        ),
    )
    chosen = 0 if ordered and not ordered[0].misses else None
    advice = () if chosen is not None else tuple(_relaxed(row, budgets, board) for row in ordered[:_CLOSEST])
    return BoardPlan(board.name, board.title, tuple(ordered), chosen, advice, skipped)


def _rated(row: Row, budgets: BudgetConfig, board: Machine) -> Row:
    factors = _factors(row, budgets, board)
    tightest = max(factors, key=factors.__getitem__)
    misses = tuple(_misses(row, budgets, board))
    fallbacks = tuple(_rated(one, budgets, board) for one in row.fallbacks)
    return replace(row, misses=misses, tightest=tightest, margin=1 - factors[tightest], fallbacks=fallbacks)


def _misses(row: Row, budgets: BudgetConfig, board: Machine) -> Iterator[str]:
    if row.headroom * _HAIR < 1:
        yield f"{row.fps:.3g} of {row.fps / row.headroom:.3g} fps"
    if budgets.power is not None and row.power_w is None:
        yield "power unknown"
    if budgets.power is not None and _or_none(row.power_w) > budgets.power * _HAIR:
        yield f"{_or_none(row.power_w):.3g} of {budgets.power:g} W"
    if row.mode_w is not None and _or_none(row.power_w) > row.mode_w * _HAIR:
        yield f"{_or_none(row.power_w):.3g} W in a mode of {row.mode_w:g} W"
    if budgets.latency is not None and not row.p99_ms <= 1e3 * budgets.latency * _HAIR:
        yield f"p99 {row.p99_ms:.3g} of {1e3 * budgets.latency:g} ms"
    most = _memory(budgets, board)
    if row.memory_bytes > most:
        yield f"{format_bytes(row.memory_bytes)} of {format_bytes(most)}"


def _memory(budgets: BudgetConfig, board: Machine) -> int:
    return min(budgets.memory or board.memory_bytes, board.memory_bytes)


def _far(row: Row, budgets: BudgetConfig, board: Machine) -> float:
    """How far a row is from keeping its budgets: the largest of the factors by which they are missed."""
    return max(_factors(row, budgets, board).values())


def _factors(row: Row, budgets: BudgetConfig, board: Machine) -> dict[str, float]:
    """Of each limit that there is, the part that is used."""
    factors = {"rate": 1 / max(row.headroom, 1e-9), "memory": row.memory_bytes / _memory(budgets, board)}
    limits = [watts for watts in (budgets.power, row.mode_w) if watts is not None]
    if limits:
        factors["power"] = _or_none(row.power_w) / min(limits)
    if budgets.latency is not None:
        factors["latency"] = row.p99_ms / (1e3 * budgets.latency)
    return factors


def _up(number: float) -> str:
    """Three digits, rounded up, so that a budget of that much is kept."""
    if not 0 < number < math.inf:
        return f"{number:g}"
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / step / _HAIR) * step:g}"


def _relaxed(row: Row, budgets: BudgetConfig, board: Machine) -> str:
    """What would have to change for a row to be taken."""
    changes = []
    if row.headroom * _HAIR < 1:
        changes.append(f"at most {row.headroom:.0%} of the frames (every:, or fps: of the source)")
    if budgets.power is not None and row.power_w is None:
        changes.append("no power budget, since nothing is known of what this machine draws")
    elif budgets.power is not None and _or_none(row.power_w) > budgets.power * _HAIR:
        changes.append(f"power: {_up(_or_none(row.power_w))}W")
    if row.mode_w is not None and _or_none(row.power_w) > row.mode_w * _HAIR:
        changes.append("fewer frames, since the mode would slow its clocks")
    if budgets.latency is not None and not row.p99_ms <= 1e3 * budgets.latency * _HAIR:
        changes.append(f"latency: {_up(row.p99_ms)}ms")
    if row.memory_bytes > board.memory_bytes:
        changes.append(f"a board with {format_bytes(row.memory_bytes)} of memory for programs")
    elif row.memory_bytes > _memory(budgets, board):
        changes.append(f"memory: {format_bytes(row.memory_bytes)}")
    return f"closest: {where(row)}: {'; '.join(row.misses)}. It would do with {', '.join(changes)}"
