"""A plan in sentences, for terminal and page alike."""

from __future__ import annotations

from edgert.plan.row import BoardPlan, EngineRow, Plan, Row
from edgert.report.number import counted, share, significant

_ROOMY = 1.1  # less headroom than this is not worth a word


def headline(plan: Plan) -> str:
    """One sentence: does it fit, where, and how well."""
    if len(plan.boards) > 1:
        fitting = sum(board.chosen is not None for board in plan.boards)
        if plan.smallest is None:
            return f"None of {counted(len(plan.boards), 'board')} keeps every budget."
        title = next(board.title for board in plan.boards if board.board == plan.smallest)
        return f"{title} is the smallest of {fitting} that keep every budget, of {counted(len(plan.boards), 'board')}."
    return board_headline(plan.boards[0])


def basis(board: BoardPlan) -> str:
    """What the numbers rest on."""
    if board.board == "host":
        return "predicted from times that were measured on this machine, part by part"
    return "predicted by a model fitted to published measurements, not measured"


def board_headline(board: BoardPlan) -> str:
    """One sentence about one board."""
    if board.chosen is None:
        if not board.rows:
            return f"{board.title} cannot be predicted."
        return f"{board.title} keeps every budget in no power mode."
    row = board.rows[board.chosen]
    room = f", with room for {significant(row.headroom, 2)} times as many" if row.headroom >= _ROOMY else ""
    watts = "" if row.power_w is None else f"at {significant(row.power_w, 2)} W, "
    mode = f" in {row.mode}" if row.mode else ""
    return (
        f"{board.title}{mode} keeps up with {significant(row.fps / row.headroom)} frames a second, models alone, "
        f"{watts}on {_used(row)}{room}."
    )


def _used(row: Row) -> str:
    """``"gpu"``, ``"dla0, dla1 and gpu"``."""
    names = sorted({name for model in row.models for engine in model.engines for name in engine.accelerators})
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else row.name


def share_text(engine: EngineRow) -> str:
    """``"60 % of the frames on gpu and dla0"``."""
    return f"{share(engine.share)} of the frames on {' and '.join(engine.accelerators)}"


def why_not(row: Row, chosen: Row) -> str:
    """Why another row was not taken instead of the chosen one."""
    if row.misses:
        return f"{where(row)}: {'; '.join(row.misses)}"
    worse = []
    if row.fps < chosen.fps * (1 - 1e-3):
        worse.append(f"{share(1 - row.fps / chosen.fps)} slower")
    if (row.power_w or 0) > (chosen.power_w or 0) * (1 + 1e-3):
        worse.append(f"{significant((row.power_w or 0) - (chosen.power_w or 0))} W more")
    if row.p99_ms > chosen.p99_ms * (1 + 1e-3):
        worse.append(f"p99 {significant(row.p99_ms - chosen.p99_ms)} ms longer")
    return f"{where(row)}: {', '.join(worse) or 'no better'}"


def listed(board: BoardPlan) -> list[tuple[tuple[str, str], Row]]:
    """All rows with mode and placement; below the one to take, or the closest, what a governor may make of it."""
    found: list[tuple[tuple[str, str], Row]] = []
    for place, row in enumerate(board.rows):
        found.append(((row.mode, row.name), row))
        if place == (board.chosen or 0):
            found += [(("", f"with {' and '.join(one.smaller)}, {_used(one)}"), one) for one in row.stand_ins]
    return found


def where(row: Row) -> str:
    """Mode and placement."""
    return f"{row.mode}, {row.name}" if row.mode else row.name
