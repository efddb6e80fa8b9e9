"""Rows against budgets: which budgets each row misses, which row is taken, and what would have to be relaxed."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from edgert.config import InferStage, PipelineConfig
from edgert.config.flow import inputs_of, order
from edgert.config.pipeline_file import BudgetConfig
from edgert.placement.plan_record import BoardPlan, Objective, Row
from edgert.planner.plan_text import where
from edgert.units import format_bytes


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
    ordered = (
        sorted(  # those that keep their budgets by the objective, then by how far the others are from keeping them
            marked, key=lambda row: (bool(row.misses), *((-row.margin,) if row.misses else _KEYS[objective](row)))
        )
    )
    chosen = 0 if ordered and not ordered[0].misses else None
    advice = () if chosen is not None else tuple(_relaxed(row, budgets, board) for row in ordered[:_CLOSEST])
    return BoardPlan(board.name, board.title, tuple(ordered), chosen, advice, skipped)


def _rated(row: Row, budgets: BudgetConfig, board: Machine) -> Row:
    limits = _limits(row, budgets, board)
    tightest = max(limits, key=lambda limit: limit.used)
    misses = tuple(limit.miss for limit in limits if limit.is_missed)
    fallbacks = tuple(_rated(one, budgets, board) for one in row.fallbacks)
    return replace(row, misses=misses, tightest=tightest.name, margin=1 - tightest.used, fallbacks=fallbacks)


class _Limit(NamedTuple):
    """The part of a limit that is used; where it is missed, how, and what would have to change."""

    name: str
    used: float
    is_missed: bool
    miss: str
    change: str


def _limits(row: Row, budgets: BudgetConfig, board: Machine) -> list[_Limit]:
    """Every limit that there is for a row."""
    rate, watts, fps = 1 / max(row.headroom, 1e-9), _or_none(row.power_w), f"{row.fps:.3g} of"
    less = f"at most {row.headroom:.0%} of the frames (every:, or fps: of the source)"
    found = [_Limit("rate", rate, row.headroom * _HAIR < 1, f"{fps} {row.fps / row.headroom:.3g} fps", less)]
    if budgets.power is not None:
        used, miss, change = watts / budgets.power, f"{watts:.3g} of {budgets.power:g} W", f"power: {_up(watts)}W"
        if row.power_w is None:
            miss, change = "power unknown", "no power budget, since nothing is known of what this machine draws"
        found.append(_Limit("power", used, row.power_w is None or used > _HAIR, miss, change))
    if row.mode_w is not None:
        miss, change = f"W in a mode of {row.mode_w:g} W", "fewer frames, since the mode would slow its clocks"
        found.append(_Limit("power", watts / row.mode_w, watts > row.mode_w * _HAIR, f"{watts:.3g} {miss}", change))
    if budgets.latency is not None:
        used, miss = row.p99_ms / (1e3 * budgets.latency), f"p99 {row.p99_ms:.3g} of {1e3 * budgets.latency:g} ms"
        found.append(_Limit("latency", used, not used <= _HAIR, miss, f"latency: {_up(row.p99_ms)}ms"))
    most, size = min(budgets.memory or board.memory_bytes, board.memory_bytes), format_bytes(row.memory_bytes)
    is_too_small = row.memory_bytes > board.memory_bytes
    change = f"a board with {size} of memory for programs" if is_too_small else f"memory: {size}"
    is_missed = row.memory_bytes > most
    return [*found, _Limit("memory", row.memory_bytes / most, is_missed, f"{size} of {format_bytes(most)}", change)]


def _up(number: float) -> str:
    """Three digits, rounded up, so that a budget of that much is kept."""
    if not 0 < number < math.inf:
        return f"{number:g}"
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / step / _HAIR) * step:g}"


def _relaxed(row: Row, budgets: BudgetConfig, board: Machine) -> str:
    """What would have to change for a row to be taken."""
    changes = [limit.change for limit in _limits(row, budgets, board) if limit.is_missed]
    return f"closest: {where(row)}: {'; '.join(row.misses)}. It would do with {', '.join(changes)}"
