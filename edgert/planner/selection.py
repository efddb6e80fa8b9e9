"""Comparison of rows with budgets: which budgets each row keeps, which row to take, and what to relax."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from edgert.board.record import Board
from edgert.config.pipeline_file import BudgetConfig
from edgert.placement.plan_record import VERDICTS, BoardPlan, Check, Objective, Row
from edgert.planner.plan_text import more_memory, row_label
from edgert.runtime.metrics import Percentiles
from edgert.units import format_bytes

_SAME = 0.05
"""Relative difference below which energies count as equal; no prediction of watts is better."""


def _energy_key(row: Row, least_mj: float) -> tuple[float, ...]:
    """Return a sort key: energy class, most cores, fewest engines, energy as printed, p99."""
    energy_mj = _zero_if_none(row.energy_mj)
    rank = math.floor(math.log(energy_mj / least_mj) / _SAME) if least_mj and energy_mj else 0
    return rank, -row.cores, sum(len(model.engines) for model in row.models), float(f"{energy_mj:.3g}"), row.p99_ms


_KEYS: Mapping[Objective, Callable[[Row, float], tuple[float, ...]]] = {
    "energy": _energy_key,
    "throughput": lambda row, _: (-round(row.headroom, 6), _zero_if_none(row.power_w), -row.cores),
    "latency": lambda row, _: (row.p99_ms, _zero_if_none(row.power_w), -row.cores),
}
_CLOSEST = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine to plan for: its name, its title, and the maximum memory for programs."""

    name: str
    title: str
    memory_bytes: int


def _zero_if_none(value: float | None) -> float:
    """Return a sort value, 0 for None; in one plan a value is unknown in all rows or in none."""
    return 0.0 if value is None else value


def pareto(rows: Iterable[T], *keys: Callable[[T], float]) -> list[T]:
    """Return the Pareto front for minimized keys, sorted by the first key, then the second, and so on.

    Of rows with equal keys only the first is part of it.
    """
    front: list[tuple[tuple[float, ...], T]] = []
    for values, row in sorted(((tuple(key(row) for key in keys), row) for row in rows), key=lambda pair: pair[0]):
        if not any(all(map(float.__le__, map(float, other), map(float, values))) for other, _ in front):
            front.append((values, row))
    return [row for _, row in front]


def judge_rows(
    board: Machine, rows: Sequence[Row], budgets: BudgetConfig, objective: Objective, skipped: tuple[str, ...] = ()
) -> BoardPlan:
    """Return the plan with rows sorted and checked; the first is chosen unless it misses a budget or is unknown."""
    rated = [_check_row(row, budgets, board) for row in rows]
    best = pareto(
        rated,
        lambda row: -row.headroom,
        lambda row: row.p99_ms,
        lambda row: _zero_if_none(row.power_w),
        lambda row: float(row.memory_bytes),
    )
    marked = [replace(row, is_best=any(row is one for one in best)) for row in rated]

    best_verdict = min((VERDICTS.index(row.verdict) for row in marked), default=0)
    near = [row.energy_mj for row in marked if VERDICTS.index(row.verdict) == best_verdict and row.energy_mj]
    least_mj = min(near, default=0.0)

    def order(row: Row) -> tuple[float, ...]:
        """Return a sort key: verdict, for close and missed rows the distance from keeping budgets, then objective."""
        distance = (-round(row.tightest.margin, 6),) if row.verdict in ("close", "missed") else ()
        return VERDICTS.index(row.verdict), *distance, *_KEYS[objective](row, least_mj)

    ordered = sorted(marked, key=order)
    chosen = 0 if ordered and ordered[0].verdict in ("kept", "close") else None
    is_kept = bool(ordered) and ordered[0].verdict == "kept"
    advice = () if is_kept else tuple(_relaxation_text(row) for row in ordered[:_CLOSEST])
    return BoardPlan(board.name, board.title, tuple(ordered), chosen, advice, skipped)


def _check_row(row: Row, budgets: BudgetConfig, board: Machine) -> Row:
    fallbacks = tuple(_check_row(one, budgets, board) for one in row.fallbacks)
    return replace(row, checks=tuple(checks_of(row, budgets, board)), fallbacks=fallbacks)


def with_results(
    row: Row,
    budgets: BudgetConfig,
    board: Board,
    fps: float,
    latency_ms: Percentiles,
    power_w: float | None,
    busy: Mapping[str, float],
) -> Row:
    """Return a planned row with simulated or emulated figures, and the checks of every limit.

    Headroom and memory stay as planned.

    Args:
        row: planned row.
        budgets: budgets of the pipeline file.
        board: simulated or emulated board.
        fps: frames per second of the run.
        latency_ms: latencies of the frames that reached the end.
        power_w: power in the run; None if unknown.
        busy: accelerator → share of the time it worked.
    """
    has_frames = latency_ms.count > 0
    result = replace(
        row,
        fps=fps,
        p50_ms=latency_ms.p50 if has_frames else math.inf,
        p99_ms=latency_ms.p99 if has_frames else math.inf,
        power_w=power_w,
        energy_mj=1e3 * power_w / fps if power_w is not None and fps else None,
        busy=busy,
        fallbacks=(),
    )
    return _check_row(result, budgets, Machine(board.name, board.title, board.memory.most_bytes))


def checks_of(row: Row, budgets: BudgetConfig, board: Machine) -> Iterable[Check]:
    """Yield the check of every limit of a row; watts in a power mode's name are not a limit but a label."""
    rate = 1 / max(row.headroom, 1e-9)
    text = f"{row.most_fps:.3g} of {row.requested_fps:.3g} fps"
    share = row.headroom / (1 + (row.error or 0.0))
    yield Check("rate", rate, row.error, text, f"at most {share:.0%} of the frames (every:, or fps: of the source)")
    if budgets.power is not None and row.power_w is None:
        change = "no power budget, because the power of this machine is unknown"
        yield Check("power", None, None, "power unknown", change)
    elif budgets.power is not None and row.power_w is not None:
        text, change = (
            f"{row.power_w:.3g} of {budgets.power:g} W",
            f"power: {_upper_bound_text(row.power_w, row.power_error)}W",
        )
        yield Check("power", row.power_w / budgets.power, row.power_error, text, change)
    if budgets.latency is not None:
        used = row.p99_ms / (1e3 * budgets.latency)
        text, change = f"p99 {row.p99_ms:.3g} of {1e3 * budgets.latency:g} ms", _upper_bound_text(row.p99_ms, row.error)
        yield Check("latency", used, row.error, text, f"latency: {change}ms")
    most, size = min(budgets.memory or board.memory_bytes, board.memory_bytes), format_bytes(row.memory_bytes)
    would_do = row.memory_bytes * (1 + row.memory_error)
    step = 2**20 if would_do < 2**30 else 2**30 / 10  # rounded up as printed, so that such a budget is kept
    enough = format_bytes(math.ceil(math.ceil(would_do / step) * step))
    is_too_small = would_do > board.memory_bytes
    change = f"a board with {enough} of memory for programs" if is_too_small else f"memory: {enough}"
    text, more = f"{size} of {format_bytes(most)}", more_memory(row)
    yield Check("memory", row.memory_bytes / most, row.memory_error, text, change, more)


def _upper_bound_text(number: float, error: float | None) -> str:
    """Return the upper end of an error bar in three digits, rounded up so that such a budget is kept."""
    number *= 1 + (error or 0.0)
    if not 0 < number < math.inf:
        return f"{number:g}"
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / step / (1 + 1e-6)) * step:g}"


def _relaxation_text(row: Row) -> str:
    """Return the changes with which a row would be taken; where an error is unknown, that is a measurement."""
    changes = [check.change for check in row.checks if check.verdict in ("close", "missed")]
    changes += [check.change for check in row.checks if check.verdict == "unknown" and check.used is None]
    unknown = [check.name for check in row.checks if check.verdict == "unknown" and check.used is not None]
    changes += ["times measured there (--profile)"] if {"rate", "latency"} & set(unknown) else []
    changes += ["watts measured there"] if "power" in unknown else []
    return f"closest: {row_label(row)}: {'; '.join(row.doubts)}. It would do with {', '.join(changes)}"
