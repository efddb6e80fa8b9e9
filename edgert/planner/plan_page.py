"""A plan as one HTML file: verdict first, then the table of modes and placements, then the chosen one drawn."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from edgert.files import replace_text
from edgert.placement.plan_record import BoardPlan, Plan, Row, Verdict
from edgert.planner import pareto, plan_text
from edgert.planner.unit_section import model_section
from edgert.report import html, scatter
from edgert.report.numbers import counted, significant, size

_STYLES, _SCRIPTS = ("page.css", "series.css", "network.css"), ("page.js", "network.js")


def render(plan: Plan) -> str:
    """Return the plan as a whole HTML document; equal plans give equal text."""
    names = None
    if len(plan.boards) > 1:  # fifty links are too many: one for each board
        names = {"boards": "Boards", **{board.board: board.title for board in plan.boards}}
        names |= {"notes": "What was assumed"} if plan.notes else {}
    body = [_header(plan), html.columns(_sections(plan), names)]
    return html.document(f"{plan.pipeline}: plan", plan_text.headline(plan), body, styles=_STYLES, scripts=_SCRIPTS)


def save(plan: Plan, path: Path) -> None:
    """Write the page atomically. Raises ArtifactError: the page cannot be written."""
    replace_text(path, render(plan))


def _sections(plan: Plan) -> Iterator[tuple[str, str, html.Markup]]:
    """Yield the sections; of many boards one each, folded up: eighteen of them, open, are forty screens."""
    if len(plan.boards) > 1:
        yield "boards", "Boards", _boards(plan)
        for board in plan.boards:
            (_, _, rows), *others = _board(board, is_whole=False)
            parts = [part for name, title, content in others for part in (html.tag("h3", title, id=name), content)]
            summary = f"{counted(len(board.rows), 'row')} of modes and placements, memory, and where nodes run"
            folded = html.tag("details", html.tag("summary", summary), rows, *parts, class_="whole")
            yield board.board, board.title, folded
    else:
        yield from _board(plan.boards[0], is_whole=True)
    if plan.notes:
        yield "notes", "What was assumed", html.bullets(plan.notes)


def _board(board: BoardPlan, *, is_whole: bool) -> Iterator[tuple[str, str, html.Markup]]:
    yield board.board, f"{board.title}: modes and placements", _rows(board)
    if (row := board.best) is not None:
        yield f"{board.board}-memory", f"Memory on {board.title}", _memory(row)
        for model in row.models:
            name, mode = f"{board.board}-{model.name}", f", {row.mode}" if row.mode else ""
            yield name, f"{model.name} on {board.title}{mode}", model_section(model, name, is_whole=is_whole)


def _header(plan: Plan) -> html.Markup:
    first = plan.boards[0]
    row = first.rows[first.chosen] if len(plan.boards) == 1 and first.chosen is not None else None
    return html.header(
        f"Plan for {plan.objective} · {plan_text.basis(first)}",
        plan.pipeline,
        plan_text.headline(plan),
        html.figures(_figures(row)) if row else "",
        *(html.paragraph(text) for text in first.advice if len(plan.boards) == 1),
    )


def _figures(row: Row) -> Iterable[tuple[str, str, str]]:
    error = "error unknown" if row.error is None else f"± {row.error:.0%} of times"
    most = f"at most {significant(row.most_fps)}, {significant(row.headroom)} × what is asked; {error}"
    yield "Frames per second", significant(row.fps), most
    yield ("p99", f"{significant(row.p99_ms)} ms", f"capture to last stage; p50 {significant(row.p50_ms)} ms")
    if row.power_w is not None and row.energy_mj is not None:
        bar = "error unknown" if row.power_error is None else f"± {row.power_error:.0%}"
        wall = "" if row.wall_w is None else f"; about {significant(row.wall_w, 2)} W at the plug of a developer kit"
        yield (
            "Power",
            f"{significant(row.power_w)} W",
            f"of the module, {significant(row.energy_mj)} mJ a frame; {bar}{wall}",
        )
    more = f"up to + {plan_text.more_memory(row)}; engines and frames"
    yield "Memory", size(row.memory_bytes), "; ".join((more, *row.steps))


def _boards(plan: Plan) -> html.Markup:
    picked = [board.best for board in plan.boards]
    titles = [html.tag("b", one.title) if one.board == plan.smallest else one.title for one in plan.boards]
    budgets = [_marked(board.verdict, plan_text.verdict_text(board)) for board in plan.boards]
    numbers = [str(number) for number, _ in enumerate(plan.boards, 1)]
    table = html.table(
        "Boards",
        [
            html.Column("Nr.", numbers, "rank"),
            html.Column("Board", [_estimated(title, row) for title, row in zip(titles, picked, strict=True)], "wrap"),
            html.Column("Budgets", budgets, "prose"),
            html.Column(
                "Mode, placement",
                [html.with_bar(_broken(row.mode), row.name) if row else "–" for row in picked],
                "wrap",
            ),
            *_numbers(picked),
        ],
        head=1,
        sortable=True,
        stacked=True,
    )
    about = "The best mode and placement of each board, numbered as in the table; small dots are all others."
    return html.join([_chart(pareto.plan_points(plan), about), table])


def _chart(points: Sequence[pareto.Point], about: str) -> html.Markup:
    """Return frames a second against watts, with error bars; nothing where there is no choice."""
    if len(points) < 2:
        return html.Markup("")
    heat = pareto.heat_of(points)
    rows = [point.row for point in points]
    asked = {row.asked_fps for row in rows}
    title = "Frames a second at most against watts at the asked rates"
    drawn = scatter.scatter_chart(
        pareto.dots(points),
        title=title,
        names=("frames a second at most", "W of the module"),
        show=significant,
        limits=(min(asked) if len(asked) == 1 else None, pareto.watts_limit(points)),
        strip="W not known",
    )
    marks = dict.fromkeys(point.verdict for point in points)
    shapes = " · ".join(words for verdict, words in scatter.SIGNS.items() if verdict in marks)
    about += " Bars hold nine of ten; what has none is not known. Dotted steps join those that no other beats in both."
    estimated = " · ~ estimated" if any(row.estimated for row in rows) else ""
    caption = html.tag(
        "figcaption",
        f"{title}. {about}",
        html.tag("span", f"{shapes}{estimated}", class_="legend"),
        scatter.heat_legend(heat, "p99 in ms", significant),
    )
    return html.tag("figure", caption, drawn)


def _estimated(name: object, row: Row | None) -> html.Markup:
    """Return a board or mode, marked where its clocks are not published."""
    return html.with_bar(name, "~ estimated" if row is not None and row.estimated else "")


def _broken(name: str) -> html.Markup:
    """Return the name of a mode, which may be broken where its parts meet."""
    return html.join(name.split("_"), html.Markup("_<wbr>"))


def _marked(verdict: Verdict, text: str) -> html.Markup:
    """Return a verdict's sign and color, and its text."""
    mark, kind = html.VERDICTS[verdict]
    return html.tag("span", f"{mark} {text}", class_=kind)


def _rows(board: BoardPlan) -> html.Markup:
    heads, rows = [head for head, _ in plan_text.listed(board)], [row for _, row in plan_text.listed(board)]
    chosen = None if board.chosen is None else board.rows[board.chosen]
    marks = [html.tag("b", "chosen") if row is chosen else "Pareto" if row.is_best else "" for row in rows]
    numbers = {id(row): str(number) for number, row in enumerate(board.rows, 1)}
    whole = html.table(
        f"{board.title}: modes and placements",
        [
            html.Column("Nr.", [numbers.get(id(row), "") for row in rows], "rank"),
            html.Column(
                "Mode", [_estimated(_broken(mode), row) for (mode, _), row in zip(heads, rows, strict=True)], "wrap"
            ),
            html.Column(
                "Placement", [html.with_bar(name, mark) for (_, name), mark in zip(heads, marks, strict=True)], "wrap"
            ),
            html.Column("Budgets", [_marked(row.verdict, plan_text.row_text(row)) for row in rows], "prose"),
            *_numbers(rows),
        ],
        head=1,
        sortable=True,
        stacked=True,
    )
    more = [*board.advice, *(f"{text}: not planned" for text in board.skipped)]
    drawn = _chart(pareto.board_points(board), "Modes and placements, numbered as in the table.")
    return html.join([drawn, whole, html.bullets(more) if more else ""])


def _memory(row: Row) -> html.Markup:
    """Return every part of the memory, the largest first."""
    parts = sorted(row.memory, key=lambda part: -part.size_bytes)
    return html.table(
        "Memory",
        [
            html.Column("Part", [part.name for part in parts]),
            html.Column("On", [part.on for part in parts]),
            html.Column("For", [part.kind for part in parts]),
            html.Column("Memory", [html.Cell(size(part.size_bytes), part.size_bytes) for part in parts], "number"),
            html.Column("What", [part.note for part in parts], "prose"),
        ],
        sortable=True,
        stacked=True,
    )


def _numbers(rows: Sequence[Row | None]) -> Iterator[html.Column]:
    unknown = (plan_text.Number("–", 0.0),) * len(plan_text.NUMBERS)
    cells = [plan_text.numbers(row) if row else unknown for row in rows]
    for place, name in enumerate(plan_text.NUMBERS):
        shown = [html.Cell(html.with_bar(one.text, one.bar), one.order) for one in (texts[place] for texts in cells)]
        yield html.Column(name, shown, "number")
