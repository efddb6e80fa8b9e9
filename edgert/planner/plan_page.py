"""Plan as one HTML file: verdict, chart and table of modes and placements, and drawings of the chosen one."""

from collections.abc import Iterator, Sequence

from edgert.placement.plan_record import BoardPlan, ModelRow, Plan, Row, Verdict
from edgert.planner import pareto, plan_text
from edgert.planner.unit_section import model_section
from edgert.report import page, scatter
from edgert.report.numbers import counted, significant, size
from edgert.report.page import Cell, Chart, Column, Figure, Part, Table


def render(plan: Plan) -> str:
    """Return the plan as an HTML document; equal plans give equal text."""
    several = len(plan.boards) > 1  # eighteen unfolded boards would fill forty screens
    shown = {
        "contents": dict(_contents(plan)),
        "overview": _overview(plan) if several else None,
        "boards": [_board(board, is_whole=not several) for board in plan.boards],
        "notes": plan.notes,
    }
    return page.render("plan.html.j2", _head(plan), shown)


def _contents(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield id and title of every section in the table of contents."""
    if len(plan.boards) > 1:  # only one link for each board; fifty would be too many
        yield "boards", "Boards"
        yield from ((board.board, board.title) for board in plan.boards)
    else:
        (board,) = plan.boards
        yield board.board, f"{board.title}: modes and placements"
        if board.best:
            yield f"{board.board}-memory", f"Memory on {board.title}"
        yield from ((name, title) for name, title, _ in _models(board))
    if plan.notes:
        yield "notes", "What was assumed"


def _head(plan: Plan) -> page.Head:
    first = plan.boards[0]
    is_one = len(plan.boards) == 1
    row = first.rows[first.chosen] if is_one and first.chosen is not None else None
    return page.Head(
        f"{plan.pipeline}: plan",
        f"Plan for {plan.objective} · {plan_text.basis(first)}",
        plan.pipeline,
        plan_text.headline(plan),
        figures=tuple(_figures(row)) if row else (),
        advice=tuple(first.advice) if is_one else (),
    )


def _figures(row: Row) -> Iterator[Figure]:
    error = "error unknown" if row.error is None else f"±\N{NO-BREAK SPACE}{row.error:.0%} of times"
    most = f"at most {significant(row.most_fps)}, {significant(row.headroom)} × what is asked; {error}"
    yield Figure("Frames per second", significant(row.fps), most)
    p50 = f"capture to last stage; p50 {significant(row.p50_ms)} ms"
    yield Figure("p99", f"{significant(row.p99_ms)} ms", p50)
    if row.power_w is not None and row.energy_mj is not None:
        bar = "error unknown" if row.power_error is None else f"±\N{NO-BREAK SPACE}{row.power_error:.0%}"
        wall = "" if row.wall_w is None else f"; about {significant(row.wall_w, 2)} W at the plug of a developer kit"
        about = f"of the module, {significant(row.energy_mj)} mJ a frame; {bar}{wall}"
        yield Figure("Power", f"{significant(row.power_w)} W", about)
    more = f"up to + {plan_text.more_memory(row)}; engines and frames"
    yield Figure("Memory", size(row.memory_bytes), "; ".join((more, *row.steps)))


def _overview(plan: Plan) -> Part:
    picked = [board.best for board in plan.boards]
    titles = [
        Cell(board.title, below=_estimated(board.best), look="strong" if board.board == plan.smallest else "")
        for board in plan.boards
    ]
    columns = (
        Column("Nr.", list(range(1, len(plan.boards) + 1)), "rank"),
        Column("Board", titles, "wrap"),
        Column("Budgets", [_marked(board.verdict, plan_text.verdict_text(board)) for board in plan.boards], "prose"),
        Column("Mode, placement", [Cell(row.mode, below=row.name) if row else "–" for row in picked], "wrap"),
        *_numbers(picked),
    )
    about = "The best mode and placement of each board, numbered as in the table; small dots are all others."
    table = Table("Boards", columns, head=1, sortable=True, stacked=True)
    return Part(charts=tuple(_chart(pareto.plan_points(plan), about)), tables=(table,))


def _board(board: BoardPlan, *, is_whole: bool) -> dict[str, object]:
    """Return the contents about a board; a click on the text ``summary`` unfolds them, unless the page ``is_whole``."""
    about = "Modes and placements, numbered as in the table."
    folded = f"{counted(len(board.rows), 'row')} of modes and placements, memory, and where nodes run"
    return {
        "name": board.board,
        "title": board.title,
        "rows": Part(charts=tuple(_chart(pareto.board_points(board), about)), tables=(_rows(board),)),
        "advice": [*board.advice, *(f"{text}: not planned" for text in board.skipped)],
        "memory": _memory(board.best) if board.best else None,
        "models": [model_section(model, name, title, is_whole=is_whole) for name, title, model in _models(board)],
        "summary": "" if is_whole else folded,
    }


def _models(board: BoardPlan) -> Iterator[tuple[str, str, ModelRow]]:
    """Yield the id and title of the section about each model of the best row, and the model."""
    row = board.best
    mode = f", {row.mode}" if row and row.mode else ""
    for model in row.models if row else ():
        yield f"{board.board}-{model.name}", f"{model.name} on {board.title}{mode}", model


def _chart(points: Sequence[pareto.Point], about: str) -> Iterator[Chart]:
    if len(points) < 2:
        return
    rows = [point.row for point in points]
    requested = {row.requested_fps for row in rows}
    title = "Frames a second at most against watts at the asked rates"
    drawn = scatter.scatter_chart(
        pareto.dots(points),
        title=title,
        names=("frames a second at most", "W of the module"),
        show=significant,
        limits=(min(requested) if len(requested) == 1 else None, pareto.watts_limit(points)),
        strip="W not known",
    )
    marks = {point.row.verdict for point in points}
    signs = [words for verdict, words in scatter.SIGNS.items() if verdict in marks]
    if any(row.estimated for row in rows):
        signs.append("~ estimated")
    about += " Bars hold nine of ten; what has none is not known. Dotted steps join those that no other beats in both."
    keys = pareto.heat_of(points).keys(significant)
    yield Chart(drawn, title, keys, "p99 in ms", " · ".join(signs), about)


def _estimated(row: Row | None) -> str:
    return "~ estimated" if row is not None and row.estimated else ""


def _marked(verdict: Verdict, text: str) -> Cell:
    mark, kind = page.VERDICTS[verdict]
    return Cell(f"{mark} {text}", look=kind)


def _rows(board: BoardPlan) -> Table:
    heads, rows = [head for head, _ in plan_text.listed_rows(board)], [row for _, row in plan_text.listed_rows(board)]
    chosen = None if board.chosen is None else board.rows[board.chosen]
    marks = ["chosen" if row is chosen else "Pareto" if row.is_best else "" for row in rows]
    numbers = {id(row): str(number) for number, row in enumerate(board.rows, 1)}
    modes = [Cell(mode, below=_estimated(row)) for (mode, _), row in zip(heads, rows, strict=True)]
    names = [Cell(name, below=mark) for (_, name), mark in zip(heads, marks, strict=True)]
    columns = (
        Column("Nr.", [numbers.get(id(row), "") for row in rows], "rank"),
        Column("Mode", modes, "wrap"),
        Column("Placement", names, "wrap"),
        Column("Budgets", [_marked(row.verdict, plan_text.row_text(row)) for row in rows], "prose"),
        *_numbers(rows),
    )
    return Table(f"{board.title}: modes and placements", columns, head=1, sortable=True, stacked=True)


def _memory(row: Row) -> Table:
    parts = sorted(row.memory, key=lambda part: -part.size_bytes)
    columns = (
        Column("Part", [part.name for part in parts]),
        Column("On", [part.on for part in parts]),
        Column("For", [part.kind for part in parts]),
        Column("Memory", [Cell(size(part.size_bytes), part.size_bytes) for part in parts], "number"),
        Column("What", [part.note for part in parts], "prose"),
    )
    return Table("Memory", columns, sortable=True, stacked=True)


def _numbers(rows: Sequence[Row | None]) -> Iterator[Column]:
    unknown = (plan_text.Number("–", 0.0),) * len(plan_text.NUMBERS)
    cells = [plan_text.numbers(row) if row else unknown for row in rows]
    for place, name in enumerate(plan_text.NUMBERS):
        shown = [Cell(one.text, one.order, below=one.bar) for one in (texts[place] for texts in cells)]
        yield Column(name, shown, "number")
