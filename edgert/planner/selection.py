"""Rows compared with budgets: which of them each row keeps, which row is taken, and what would have to be relaxed."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from edgert.board.record import Board
from edgert.config.pipeline_file import BudgetConfig
from edgert.placement.plan_record import VERDICTS, BoardPlan, Check, Objective, Row
from edgert.planner.plan_text import more_memory, where
from edgert.runtime.metrics import Percentiles
from edgert.units import format_bytes

_SAME = 0.05
"""Energies that differ by less are a tie: no prediction of watts is that good."""


def _frugal(row: Row, least_mj: float) -> tuple[float, ...]:
    """Return a sort key: least energy, then most cores, fewest engines, lowest printed energy, shortest p99."""
    energy_mj = _or_none(row.energy_mj)
    rank = math.floor(math.log(energy_mj / least_mj) / _SAME) if least_mj and energy_mj else 0
    return rank, -row.cores, sum(len(model.engines) for model in row.models), float(f"{energy_mj:.3g}"), row.p99_ms


_KEYS: Mapping[Objective, Callable[[Row, float], tuple[float, ...]]] = {
    "energy": _frugal,
    "throughput": lambda row, _: (-round(row.headroom, 6), _or_none(row.power_w), -row.cores),
    "latency": lambda row, _: (row.p99_ms, _or_none(row.power_w), -row.cores),
}
_CLOSEST = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine to plan for: its name, its title, and the most memory that programs can have there."""

    name: str
    title: str
    memory_bytes: int


def _or_none(value: float | None) -> float:
    """Return a sort value: an unknown value counts as 0, as rows of one plan know the same things."""
    return 0.0 if value is None else value


def pareto(rows: Iterable[T], *keys: Callable[[T], float]) -> list[T]:
    """Return the Pareto front: rows that no other row matches in every key and beats in one; keys are minimized.

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
    """Return the rows best first, with their checks; the first is taken unless it misses a budget or is not known."""
    rated = [_rated(row, budgets, board) for row in rows]
    best = pareto(
        rated,
        lambda row: -row.headroom,
        lambda row: row.p99_ms,
        lambda row: _or_none(row.power_w),
        lambda row: float(row.memory_bytes),
    )
    marked = [replace(row, is_best=any(row is one for one in best)) for row in rated]

    best_verdict = min((VERDICTS.index(row.verdict) for row in marked), default=0)
    near = [row.energy_mj for row in marked if VERDICTS.index(row.verdict) == best_verdict and row.energy_mj]
    least_mj = min(near, default=0.0)

    def order(row: Row) -> tuple[float, ...]:
        """Return a sort key: the objective among rows that keep their budgets, else the distance from keeping them.

        Equally distant rows are sorted by the objective, too.
        """
        distance = (-round(row.tightest.margin, 6),) if row.verdict in ("close", "missed") else ()
        return VERDICTS.index(row.verdict), *distance, *_KEYS[objective](row, least_mj)

    ordered = sorted(marked, key=order)
    chosen = 0 if ordered and ordered[0].verdict in ("kept", "close") else None
    is_kept = bool(ordered) and ordered[0].verdict == "kept"
    advice = () if is_kept else tuple(_relaxed(row) for row in ordered[:_CLOSEST])
    return BoardPlan(board.name, board.title, tuple(ordered), chosen, advice, skipped)


def _rated(row: Row, budgets: BudgetConfig, board: Machine) -> Row:
    fallbacks = tuple(_rated(one, budgets, board) for one in row.fallbacks)
    return replace(row, checks=tuple(checks_of(row, budgets, board)), fallbacks=fallbacks)


def as_seen(
    row: Row,
    budgets: BudgetConfig,
    board: Board,
    fps: float,
    latency_ms: Percentiles,
    power_w: float | None,
    busy: Mapping[str, float],
) -> Row:
    """Return a row with its simulated or emulated figures, and the checks of every limit.

    The rate that the board sustains, and the memory, are as planned.

    Args:
        row: as planned.
        budgets: of the file.
        board: the board.
        fps: of the run.
        latency_ms: of the frames that came out.
        power_w: of the run; None: not known.
        busy: accelerator → share of the time that it worked.
    """
    has_ended = latency_ms.count > 0
    seen = replace(
        row,
        fps=fps,
        p50_ms=latency_ms.p50 if has_ended else math.inf,
        p99_ms=latency_ms.p99 if has_ended else math.inf,
        power_w=power_w,
        energy_mj=1e3 * power_w / fps if power_w is not None and fps else None,
        busy=busy,
        fallbacks=(),
    )
    return _rated(seen, budgets, Machine(board.name, board.title, board.memory.most_bytes))


def checks_of(row: Row, budgets: BudgetConfig, board: Machine) -> Iterable[Check]:
    """Return every limit of a row; the watts in a power mode's name are none: they only name a set of clocks."""
    rate = 1 / max(row.headroom, 1e-9)
    text = f"{row.most_fps:.3g} of {row.requested_fps:.3g} fps"
    share = row.headroom / (1 + (row.error or 0.0))
    yield Check("rate", rate, row.error, text, f"at most {share:.0%} of the frames (every:, or fps: of the source)")
    if budgets.power is not None and row.power_w is None:
        change = "no power budget, since nothing is known of what this machine draws"
        yield Check("power", None, None, "power unknown", change)
    elif budgets.power is not None and row.power_w is not None:
        text, change = f"{row.power_w:.3g} of {budgets.power:g} W", f"power: {_most(row.power_w, row.power_error)}W"
        yield Check("power", row.power_w / budgets.power, row.power_error, text, change)
    if budgets.latency is not None:
        used = row.p99_ms / (1e3 * budgets.latency)
        text, change = f"p99 {row.p99_ms:.3g} of {1e3 * budgets.latency:g} ms", _most(row.p99_ms, row.error)
        yield Check("latency", used, row.error, text, f"latency: {change}ms")
    most, size = min(budgets.memory or board.memory_bytes, board.memory_bytes), format_bytes(row.memory_bytes)
    would_do = row.memory_bytes * (1 + row.memory_error)
    step = 2**20 if would_do < 2**30 else 2**30 / 10  # as it is printed, rounded up, so that a budget of that is kept
    enough = format_bytes(math.ceil(math.ceil(would_do / step) * step))
    is_too_small = would_do > board.memory_bytes
    change = f"a board with {enough} of memory for programs" if is_too_small else f"memory: {enough}"
    text, more = f"{size} of {format_bytes(most)}", more_memory(row)
    yield Check("memory", row.memory_bytes / most, row.memory_error, text, change, more)


def _most(number: float, error: float | None) -> str:
    """Return the far end of its error bar as three digits, rounded up, so that a budget of that much is kept."""
    number *= 1 + (error or 0.0)
    if not 0 < number < math.inf:
        return f"{number:g}"
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / step / (1 + 1e-6)) * step:g}"


def _relaxed(row: Row) -> str:
    """Return what would have to change for a row to be taken; where an error is not known, that is a measurement."""
    changes = [check.change for check in row.checks if check.verdict in ("close", "missed")]
    changes += [check.change for check in row.checks if check.verdict == "unknown" and check.used is None]
    unknown = [check.name for check in row.checks if check.verdict == "unknown" and check.used is not None]
    changes += ["times measured there (--profile)"] if {"rate", "latency"} & set(unknown) else []
    changes += ["watts measured there"] if "power" in unknown else []
    return f"closest: {where(row)}: {'; '.join(row.doubts)}. It would do with {', '.join(changes)}"
