"""``edgert plan``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from edgert.cli import option, progress, terminal
from edgert.errors import EXIT_INTERRUPTED
from edgert.units import format_bytes

if TYPE_CHECKING:
    from edgert.budget.footprint import Part
    from edgert.config import PipelineFile
    from edgert.placement.plan_record import BoardPlan, ModelRow, Objective, Plan, Row
    from edgert.planner.many_cameras import CameraPlan
    from edgert.planner.pareto import Point

_SHOWN_REASONS = 6
_LEAST_CHART, _MOST_CHART = 40, 110
_HEATS = ("cyan", "green", "yellow", "magenta", "red")  # by p99, the shortest first
_RANKS = {"memory": 1, "DLA": 2, "mJ/frame": 3}  # columns that a narrow terminal leaves out
_PART_COLUMNS = (
    terminal.Column("part"),
    terminal.Column("on", rank=1),
    terminal.Column("for", rank=2),
    terminal.Column("memory", is_number=True),
    terminal.Column("", wraps=True),
)


Cameras = Annotated[
    int | None,
    option.named(
        "--cameras", "N", "Plan how many of which boards run this many cameras like the pipeline's.", min=1, max=10_000
    ),
]
Several = Annotated[
    str | None, option.named("--boards", "NAMES", "For --cameras: boards to choose among, with commas between them.")
]
Spare = Annotated[
    int,
    option.named(
        "--spare",
        "N",
        "For --cameras: number of boards that may fail while the others run all cameras.",
        min=0,
        max=100,
    ),
]


def plan(
    pipeline: option.PipelineArgument,
    board: Annotated[str | None, option.board("With all, every board. Default: the pipeline's.")] = None,
    mode: Annotated[str, option.mode("With all, every mode is compared.")] = "all",
    objective: Annotated[
        str, option.named("--objective", "NAME", "Optimize for energy, throughput or latency.")
    ] = "energy",
    trt: option.Trt = None,
    profiles: option.Profiles = None,
    launch: Annotated[
        str, option.named("--launch", "NAME", "Predict engines run as a CUDA graph, or kernel by kernel.")
    ] = "graph",
    chart: Annotated[
        bool, option.flag("--chart", "Draw frames a second against watts, with error bars, p99 by color.")
    ] = False,
    report: option.Report = None,
    cameras: Cameras = None,
    several: Several = None,
    spare: Spare = 0,
    overrides: option.Set = None,
    json: option.Json = None,
) -> None:
    """Predict what a pipeline does on a board, and which layers should run on its GPU and which on its DLA.

    For every power mode and placement it shows frames per second, latency, power and memory, compared with the file's
    budgets. All numbers come from a cost model that was fitted to published measurements; nothing is run. Of several
    boards each is shown when it is planned; Ctrl-C shows those so far. Exit code 1 when no board is sure to keep every
    budget.

    Examples:
        edgert plan pipeline.yaml --board orin-nx-16gb
        edgert plan pipeline.yaml --board all --chart --report plan.html
        edgert plan pipeline.yaml --board orin-nx-16gb --mode 15W --objective energy
        edgert plan pipeline.yaml --board host --profile profile.json
        edgert plan pipeline.yaml --board thor-t5000 --trt 10.13 --launch kernels --json plan.json
        edgert plan pipeline.yaml --board orin-nx-16gb --set stages.camera.fps=60
        edgert plan pipeline.yaml --board orin-nx-16gb --profile from-the-board.edgert
        edgert plan pipeline.yaml --cameras 64 --boards orin-nx-16gb,agx-orin-64gb --spare 1
    """
    from edgert.config import load_pipeline
    from edgert.planner import plan_page, plan_text

    file, screen = load_pipeline(pipeline, overrides or ()), terminal.console(json)
    if cameras is not None:
        alone = {"--objective": objective != "energy", "--trt": trt, "--profile": profiles, "--chart": chart}
        option.refuse({**alone, "--launch": launch != "graph"}, "it does not go with --cameras")
        _plan_cameras(screen, file, several or board or "", cameras, spare, mode, report, json)
        return
    option.refuse({"--boards": several, "--spare": spare}, "it goes with --cameras")
    how = (board, mode, cast("Objective", objective), trt, profiles or (), launch)
    made = _plan_boards(screen, file, how)
    show_plan(screen, made, chart=chart)
    terminal.write_report(screen, lambda: plan_page.render(made), report)
    terminal.write_json(plan_text.to_json(made), json)
    if made.smallest is None:
        raise typer.Exit(1)


def _plan_boards(screen: terminal.Console, file: PipelineFile, how: tuple[Any, ...]) -> Plan:
    """Return a pipeline's plan; print each of several boards as soon as it is planned."""
    from edgert.planner import plan_text, planning

    log, done = terminal.console(stderr=True), list["BoardPlan"]()

    def on_board(found: BoardPlan, total: int) -> None:
        done.append(found)
        if total > 1:
            log.print(f"{len(done)} of {total}  {plan_text.board_headline(found)}", markup=False, soft_wrap=True)

    try:
        with progress.on_first_call(progress.planning_bar) as bar:
            return planning.plan_boards(file, *how, on_progress=bar, on_board=on_board)
    except KeyboardInterrupt:
        if done:
            log.print(f"interrupted: {len(done)} boards are planned, the smallest first", style="yellow")
            _show_boards(screen, done)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _plan_cameras(
    screen: terminal.Console,
    file: PipelineFile,
    boards: str,
    cameras: int,
    spare: int,
    mode: str,
    report: Path | None,
    json: Path | None,
) -> None:
    """Print how many of which boards run this many cameras. Raises Exit: no board runs one."""
    from edgert.planner import many_cameras

    names = [name.strip() for name in boards.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter("name the boards to choose among, with commas between them", param_hint="--boards")
    with progress.on_first_call(progress.planning_bar) as bar:
        found = many_cameras.plan_cameras(file, names, cameras, spare=spare, mode=mode, on_progress=bar)
    _show_cameras(screen, found)
    terminal.write_report(screen, lambda: many_cameras.render(found), report)
    terminal.write_json(found.to_json(), json)
    if not found.taken:
        raise typer.Exit(1)


def show_plan(console: terminal.Console, plan: Plan, *, chart: bool = False) -> None:
    """Print the verdict, a row for each mode and placement, or for each of several boards, and maybe a chart."""
    from edgert.planner.pareto import board_points, plan_points
    from edgert.planner.plan_text import headline

    verdict = plan.boards[0].verdict if len(plan.boards) == 1 else "kept" if plan.smallest is not None else "missed"
    console.print(headline(plan), style=f"bold {terminal.VERDICTS[verdict]}", markup=False)
    if len(plan.boards) == 1:
        points = board_points(plan.boards[0]) if chart else ()
        _show_board(console, plan.boards[0], points)
    else:
        _show_boards(console, plan.boards, plan.smallest, plan_points(plan) if chart else ())
    for note in plan.notes:
        console.print(f"note: {note}", style="dim", markup=False)


def _show_cameras(console: terminal.Console, plan: CameraPlan) -> None:
    """Print how many of which boards are needed, then how many cameras each board runs in each mode."""
    from edgert.planner.many_cameras import HEADS, figures, sentences

    console.print(plan.headline, style=f"bold {terminal.VERDICTS['kept' if plan.taken else 'missed']}", markup=False)
    columns = (
        terminal.Column(""),
        *map(terminal.Column, ("board", "mode")),
        *(terminal.Column(name, is_number=True) for name in HEADS),
        terminal.Column("one more camera", wraps=True),
    )
    rows = [
        terminal.Row(
            ("→" if one.count else "", one.board, one.mode, *figures(one), one.limit), "bold" if one.count else ""
        )
        for one in plan.boards
    ]
    if rows:
        console.print(terminal.table(columns, rows, width=console.width))
    for text in sentences(plan):
        console.print(f"note: {text}", style="dim", markup=False)


def _show_boards(
    console: terminal.Console, boards: Sequence[BoardPlan], smallest: str | None = None, points: Sequence[Point] = ()
) -> None:
    """Print a row for each board, and a line for each that cannot be predicted."""
    from edgert.planner.plan_text import basis, board_headline

    rows = [
        ((board.board, f"{row.mode}, {row.name}"), row, board.board == smallest)
        for board in boards
        if (row := board.best) is not None
    ]
    _show_table(console, ("board", "mode, placement"), rows, basis(boards[0]), points)
    for board in boards:
        if not board.rows:
            line = f"{board_headline(board)} {'; '.join(board.skipped)}"
            console.print(line, style="yellow", markup=False)


def _show_board(console: terminal.Console, board: BoardPlan, points: Sequence[Point]) -> None:
    from edgert.planner.plan_text import basis, listed_rows, reason_against

    chosen = None if board.chosen is None else board.rows[board.chosen]
    rows = [(heads, row, row is chosen) for heads, row in listed_rows(board)]
    _show_table(console, ("mode", "placement"), rows, basis(board), points)
    if chosen is not None:
        for row in [row for row in board.rows if row is not chosen][:_SHOWN_REASONS]:
            console.print(f"not {reason_against(row, chosen)}", style="dim", markup=False)
        models: dict[str, ModelRow] = {}  # with fallback models, each once
        for row in (chosen, *chosen.fallbacks):
            models |= {model.name: model for model in row.models if model.name not in models}
        for model in models.values():
            for engine in model.engines:
                counts = {name: engine.assignment.count(name) for name in engine.accelerators}
                units = ", ".join(f"{count} units on {name}" for name, count in counts.items())
                console.print(f"{model.name}: {engine.share:.0%} of its frames, {units}", markup=False)
        console.print(parts_table(chosen.memory, console.width))
        for step in chosen.steps:
            console.print(f"made smaller: {step}", markup=False)
    for text in board.advice:
        console.print(text, markup=False)
    for text in board.skipped:
        console.print(f"{text}: not planned", style="yellow", markup=False)


def parts_table(parts: Sequence[Part], width: int) -> terminal.Table:
    """Return a table with a row for each part, and their sum."""
    total_bytes = sum(part.size_bytes for part in parts)
    rows = [terminal.Row((part.name, part.on, part.kind, format_bytes(part.size_bytes), part.note)) for part in parts]
    rows.append(terminal.Row(("all", "", "", format_bytes(total_bytes), "predicted peak"), "bold"))
    return terminal.table(_PART_COLUMNS, rows, width=width)


def _show_table(
    screen: terminal.Console,
    heads: tuple[str, str],
    rows: Iterable[tuple[tuple[str, str], Row, bool]],
    basis: str,
    points: Sequence[Point],
) -> None:
    """Print a table of plans and, where there are points, a chart of them, whose letters mark their rows."""
    from edgert.planner.pareto import letters
    from edgert.planner.plan_text import ESTIMATED, NUMBERS, numbers, row_text
    from edgert.report.page import VERDICTS

    columns = (
        terminal.Column(""),
        *map(terminal.Column, heads),
        *(terminal.Column(name, is_number=True, rank=_RANKS.get(name, 0)) for name in NUMBERS),
        terminal.Column("budgets", wraps=True),
    )
    named = letters(points)
    letter = {id(one.row): named[one.label] for one in points if one.label}
    shown, signs = [], f"→ chosen, · Pareto; {basis}"
    for (name, other), row, is_chosen in rows:
        mark = f"{letter.get(id(row), '')}{'→' if is_chosen else '·' if row.is_best else ''}"
        if row.estimated and name:
            name, signs = f"~{name}", f"→ chosen, · Pareto, {ESTIMATED}; {basis}"
        budgets = terminal.styled(f"{VERDICTS[row.verdict][0]} {row_text(row)}", terminal.VERDICTS[row.verdict])
        figures = (f"{one.text} {one.bar}".rstrip() for one in numbers(row))
        shown.append(terminal.Row((mark, name, other, *figures, budgets), "bold" if is_chosen else ""))
    screen.print(terminal.table(columns, shown, width=screen.width))
    screen.print(f"[dim]{signs}[/]")
    if points:
        _show_chart(screen, points)


def _show_chart(screen: terminal.Console, points: Sequence[Point]) -> None:
    from edgert.planner import pareto
    from edgert.report.numbers import significant

    width = max(_LEAST_CHART, min(screen.width, _MOST_CHART))
    for line in pareto.grid(points, width):
        text = terminal.styled("", "")
        for character, number in line:
            text.append(character, "" if number is None else _HEATS[number])
        screen.print(text, no_wrap=True, crop=False)
    heat = pareto.heat_of([point for point in points if point.label])
    named = pareto.letters(points)
    for place, (words, _) in enumerate(heat.keys(significant)):
        letters = [named[one.label] for one in points if one.label and heat.of(one.row.p99_ms) == place]
        if letters:
            screen.print(terminal.styled(f"p99 {words} ms: {' '.join(letters)}", _HEATS[place]))
    for words in pareto.notes_below(points, width):
        screen.print(words, style="dim", markup=False)
