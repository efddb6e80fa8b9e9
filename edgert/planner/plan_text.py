"""Plan as sentences and as JSON values, and checks of the options of ``edgert plan``."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from dla import ORIN, supported_by
from edgert.board.record import Board
from edgert.errors import ConfigError, nearest
from edgert.placement.dla_share import target_of
from edgert.placement.plan_record import OBJECTIVES, BoardPlan, EngineRow, ModelRow, Plan, Row
from edgert.report.numbers import counted, fixed, share, significant, size

_ROOMY = 1.1  # headroom from which a sentence mentions it


def headline(plan: Plan) -> str:
    """Return a sentence that says which board fits, if any, and how well."""
    if len(plan.boards) == 1:
        return board_headline(plan.boards[0])
    count = Counter(board.verdict for board in plan.boards)
    among = counted(len(plan.boards), "board")
    title = next((board.title for board in plan.boards if board.board == plan.smallest), None)
    others = [f"{count['close']} too close to tell"] if count["close"] else []
    others += [f"{count['unknown']} not known"] if count["unknown"] else []
    more = f" ({', '.join(others)})" if others else ""
    if title is None:
        return f"None of {among} is sure to keep every budget{more}."
    return f"{title} is the smallest of {count['kept']} that keep every budget, of {among}{more}."


def basis(board: BoardPlan) -> str:
    """Return a phrase that says what the numbers are based on."""
    if board.board == "host":
        return "predicted from times that were measured on this machine, part by part"
    if any(model.measured for row in board.rows for model in row.models):
        return "predicted by a model fitted to published measurements, models as measured or corrected by measurements"
    return "predicted by a model fitted to published measurements, not measured"


def board_headline(board: BoardPlan) -> str:
    """Return a sentence about one board."""
    if not board.rows:
        return f"{board.title} cannot be predicted."
    row = board.rows[board.chosen or 0]
    mode = f" in {row.mode}" if row.mode else ""
    if row.verdict == "unknown":
        return f"Whether {board.title} keeps every budget is not known."
    if board.chosen is None:
        return f"{board.title} keeps every budget in no power mode."
    if row.verdict == "close":
        return f"Whether {board.title}{mode} keeps every budget is too close to tell."
    room = f", with room for {significant(row.headroom)} times as many" if row.headroom >= _ROOMY else ""
    watts = "" if row.power_w is None else f"at {significant(row.power_w, 2)} W, "
    fps = significant(row.requested_fps)
    return f"{board.title}{mode} keeps up with {fps} frames a second, {watts}on {_used_accelerators(row)}{room}."


def _used_accelerators(row: Row) -> str:
    """Return the accelerators that a row uses, such as ``"dla0, dla1 and gpu"``."""
    names = sorted({name for model in row.models for engine in model.engines for name in engine.accelerators})
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else row.name


def share_text(engine: EngineRow) -> str:
    """Return an engine's share, such as ``"60 % of the frames on gpu and dla0"``."""
    return f"{share(engine.share)} of the frames on {' and '.join(engine.accelerators)}"


def reason_against(row: Row, chosen: Row) -> str:
    """Return the reason why a row was not chosen."""
    if row.doubts:
        return f"{row_label(row)}: {'; '.join(row.doubts)}"
    worse = []
    if row.most_fps < chosen.most_fps * (1 - 1e-3):
        worse.append(f"{share(1 - row.most_fps / chosen.most_fps)} slower")
    if row.cores < chosen.cores:
        worse.append(f"{row.cores} processor cores of {chosen.cores}")
    if (row.power_w or 0) > (chosen.power_w or 0) * (1 + 1e-3):
        worse.append(f"{significant((row.power_w or 0) - (chosen.power_w or 0))} W more")
    if row.p99_ms > chosen.p99_ms * (1 + 1e-3):
        worse.append(f"p99 {significant(row.p99_ms - chosen.p99_ms)} ms longer")
    if (row.energy_mj or 0) > (chosen.energy_mj or 0) * (1 + 1e-3):
        worse.append(f"{significant((row.energy_mj or 0) - (chosen.energy_mj or 0))} mJ a frame more")
    return f"{row_label(row)}: {', '.join(worse) or 'no better'}"


def listed_rows(board: BoardPlan) -> list[tuple[tuple[str, str], Row]]:
    """Return ((mode, placement), row) for all rows; fallbacks follow the best row."""
    found: list[tuple[tuple[str, str], Row]] = []
    for place, row in enumerate(board.rows):
        found.append(((row.mode, row.name), row))
        if place == (board.chosen or 0):
            found += [
                (("", f"with {' and '.join(one.fallback_models)}, {_used_accelerators(one)}"), one)
                for one in row.fallbacks
            ]
    return found


def row_label(row: Row) -> str:
    """Return a row's mode and placement as text."""
    return f"{row.mode}, {row.name}" if row.mode else row.name


NUMBERS = ("fps", "at most", "p99 ms", "W", "memory", "mJ/frame", "DLA")
"""Headers of :func:`numbers`."""
ESTIMATED = "~ estimated by ratios of what is published"
"""Explanation of the sign for boards and modes whose clocks are not published."""


class Number(NamedTuple):
    """Number as text, its sort value, and its error bar as text; the bar is empty where there is none."""

    text: str
    order: float
    bar: str = ""


def numbers(row: Row) -> tuple[Number, ...]:
    """Return the numbers of a row in the order of ``NUMBERS``; a dash and 0 where one is unknown."""

    def known(value: float | None, show: Callable[[float], str], bar: str = "") -> Number:
        return Number("–", 0.0) if value is None else Number(show(value), value, bar)

    return (
        known(row.fps, significant),
        known(row.most_fps, significant, error_text(row.error)),
        known(row.p99_ms, significant, error_text(row.error)),
        known(row.power_w, lambda value: fixed(value, 1), error_text(row.power_error)),
        Number(short_size(row.memory_bytes), row.memory_bytes, f"+{more_memory(row)}"),
        known(row.energy_mj, significant),
        Number(_dla_text(row), max((model.dla_share for model in row.models), default=0.0)),
    )


def error_text(error: float | None) -> str:
    """Return a relative error, such as ``"±20%"``, or ``"±?"`` if unknown."""
    return "±?" if error is None else f"±{error:.0%}"


def more_memory(row: Row) -> str:
    """Return the memory that programs may take in addition to the plan, such as ``"341 MiB"``."""
    return short_size(round(row.memory_bytes * row.memory_error))


def short_size(count: int) -> str:
    """Return a size in three digits, such as ``"296 MiB"``, for sizes with an error bar and for error bars."""
    number, unit = size(count).split()
    return f"{significant(float(number))}\N{NO-BREAK SPACE}{unit}"


def _dla_text(row: Row) -> str:
    """Return the models' shares on the DLA: ``"79 %"``, or ``"find 79 %, read none"`` where they differ."""
    shares = {model.name: share(model.dla_share) for model in row.models}
    if len(set(shares.values())) <= 1:
        return next(iter(shares.values()), "none")
    return ", ".join(f"{name} {one}" for name, one in shares.items())


def verdict_text(board: BoardPlan) -> str:
    """Return the verdict on a board's first row, or the reason why it has no rows."""
    return row_text(board.rows[0]) if board.rows else f"not known: {'; '.join(board.skipped) or 'nothing can run'}"


def row_text(row: Row) -> str:
    """Return a row's verdict, such as ``"kept, 40 % of latency to spare"``, or the checks that are not surely kept."""
    spare = row.tightest
    return "; ".join(row.doubts) or f"kept, {share(spare.margin)} of {spare.name} to spare"


# A plan as plain data.

SCHEMA = 2
_FIGURES = ("requested_fps", "fps", "most_fps", "headroom", "p50_ms", "p99_ms", "power_w", "memory_bytes", "cores")


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values; every number is predicted."""
    return {
        "schema": SCHEMA,
        "pipeline": plan.pipeline,
        "objective": plan.objective,
        "verdict": headline(plan),
        "smallest": plan.smallest,
        "predicted": True,
        "notes": list(plan.notes),
        "boards": [
            {
                "board": board.board,
                "title": board.title,
                "chosen": board.chosen,
                "verdict": board.verdict,
                "advice": list(board.advice),
                "skipped": list(board.skipped),
                "rows": [_row(row, place == board.chosen) for place, row in enumerate(board.rows)],
            }
            for board in plan.boards
        ],
    }


def figures(row: Row) -> dict[str, Any]:
    """Return the figures of a row, by their names in the JSON of plans, simulations and emulations."""
    return {
        **{name: getattr(row, name) for name in _FIGURES},
        "memory_at_most_bytes": round(row.memory_bytes * (1 + row.memory_error)),
        "energy_mj_per_frame": row.energy_mj,
        "busy": dict(row.busy),
        "relative_error": row.error,
        "relative_power_error": row.power_error,
        "verdict": row.verdict,
        "checks": [{**asdict(check), "verdict": check.verdict} for check in row.checks],
    }


def _row(row: Row, is_chosen: bool) -> dict[str, Any]:
    return {
        "mode": row.mode,
        "placement": row.name,
        **figures(row),
        "memory": [asdict(part) for part in row.memory] if is_chosen else [],
        "memory_steps": list(row.steps),
        "estimated": list(row.estimated),
        "wall_w": row.wall_w,
        "pareto": row.is_best,
        "models": [_model(model, is_chosen) for model in row.models],
        "fallback_models": list(row.fallback_models),
        "fallbacks": [_row(one, False) for one in row.fallbacks],
    }


def _model(model: ModelRow, with_units: bool) -> dict[str, Any]:
    engines: list[dict[str, Any]] = []
    for engine in model.engines:
        engines.append({"share": engine.share, "accelerators": list(engine.accelerators)})
        if with_units:
            engines[-1]["units"] = [
                {
                    "name": unit.name,
                    "nodes": list(unit.nodes),
                    "on": accelerator,
                    "ms": {name: cost.time_ms for name, cost in unit.costs.items()},
                    "mj": {name: cost.energy_mj for name, cost in unit.costs.items()},
                }
                for unit, accelerator in zip(model.network.units, engine.assignment, strict=True)
            ]
    numbers = ("rate_hz", "latency_ms", "dla_share")
    return {
        "model": model.name,
        **{name: getattr(model, name) for name in numbers},
        "loadables": dict(model.loadables),
        "measured": model.measured,
        "engines": engines,
    }


# Checks of ``--mode`` and ``--trt`` before anything is planned.


def check_objective(text: str) -> None:
    """Raise ConfigError for an unknown objective."""
    if text not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ConfigError(
            f"no objective {text!r}{nearest(text, OBJECTIVES)}", where="--objective", fix=f"one of {known}"
        )


def check_mode(boards: Sequence[Board], mode: str) -> None:
    """Raise ConfigError for a power mode that none of several boards has; a single board is checked later."""
    if len(boards) == 1 or any(board.has_mode(mode) for board in boards):
        return
    names = sorted({one.name for board in boards for one in board.modes})
    hint = nearest(mode.upper(), names)
    raise ConfigError(f"no board has a power mode {mode!r}{hint}", where="--mode", fix=f"modes: {', '.join(names)}")


def release_notes(boards: Sequence[Board], tensorrt: str | None) -> list[str]:
    """Return a note for each DLA generation of the boards that a TensorRT release may not support.

    Raises:
        ConfigError: the release is not a version number.
    """
    if tensorrt is None:
        return []
    target_of(ORIN, tensorrt, "int8")
    generations = {board.dla.generation for board in boards if board.dla.cores and board.dla.generation is not None}
    verdicts = [supported_by(tensorrt, generation) for generation in sorted(generations)]
    return [f"DLA: {verdict.reason}; {verdict.fix}" for verdict in verdicts if verdict.answer != "yes"]
