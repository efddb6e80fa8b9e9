"""Boards for many cameras: how many cameras one board carries in each power mode, and the fewest boards for all."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from edgert.board.record import find_board
from edgert.config import PipelineFile
from edgert.config.flow import inputs_of
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, EdgertError
from edgert.placement.integer import Program
from edgert.placement.plan_record import Row
from edgert.planner.plan_text import row_text, verdict_text
from edgert.planner.planning import ALL, plan_boards
from edgert.report.numbers import counted, significant
from edgert.report.page import Cell, Column, Head, Part, Table, render as render_page
from edgert.reporter import OnProgress, counting
from edgert.stages.source.delivered import as_delivered

MOST_CAMERAS, MOST_SPARE = 10_000, 100
_SOLVE_S = 10.0  # time limit of one program of a few dozen variables, which takes milliseconds

Plan = Callable[..., Any]
"""Function with the arguments of ``plan_boards``."""


@dataclass(frozen=True, slots=True)
class BoardCapacity:
    """Number of cameras that one board carries in one power mode.

    Attributes:
        cameras: number of cameras that keep every budget at the unfavorable end of every error bar.
        likely: number of cameras by the predictions themselves; at least ``cameras``.
        power_w: power of the module with ``cameras`` at the upper end of its error bar; None if unknown.
        limit: what one more camera would exceed, in words.
        count: number of such boards to take.
    """

    board: str
    title: str
    mode: str
    cameras: int
    likely: int
    power_w: float | None
    limit: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class CameraPlan:
    """Boards for many cameras.

    Attributes:
        cameras: number of cameras to carry.
        spare: number of boards, whichever they are, that may fail while the others still carry all cameras.
        boards: every board and mode that carries a camera.
        none: board that carries no camera → reason.
        notes: assumptions of the plan.
    """

    pipeline: str
    cameras: int
    spare: int
    boards: tuple[BoardCapacity, ...]
    none: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def taken(self) -> tuple[BoardCapacity, ...]:
        """Boards and modes to take; empty where no board carries a camera."""
        return tuple(one for one in self.boards if one.count)

    @property
    def power_w(self) -> float | None:
        """Watts of all modules, each with as many cameras as it carries; None if unknown."""
        watts = [one.power_w for one in self.taken]
        known = [one for one in watts if one is not None]
        return sum(one.count * (one.power_w or 0) for one in self.taken) if len(known) == len(watts) else None

    @property
    def headline(self) -> str:
        """Sentence that says how many boards to take of each kind."""
        if not self.taken:
            return "None of these boards is sure to carry a camera of this pipeline."
        boards = " and ".join(f"{one.count} × {one.title} in {one.mode}" for one in self.taken)
        watts = "" if self.power_w is None else f", at most {significant(self.power_w)} W"
        fails = "any board fails" if self.spare == 1 else f"any {self.spare} boards fail"
        spare = f", even where {fails}" if self.spare else ""
        return f"{boards} carry {counted(self.cameras, 'camera')}{spare}{watts}."

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        boards = [asdict(one) for one in self.boards]
        found = {"boards": boards, "none": dict(self.none), "notes": list(self.notes)}
        head = {"pipeline": self.pipeline, "cameras": self.cameras, "spare": self.spare, "verdict": self.headline}
        return {**head, "power_w": self.power_w, "predicted": True, **found}


def plan_cameras(
    file: PipelineFile,
    names: Sequence[str],
    cameras: int,
    *,
    spare: int = 0,
    mode: str = ALL,
    planned: Plan = plan_boards,
    on_progress: OnProgress | None = None,
) -> CameraPlan:
    """Return the plan with the fewest boards that carry the cameras, and of these the one with least power.

    A camera is the pipeline's source. To find the capacity of a board, the pipeline is planned with more and more
    copies of its source, which share the models. The search ends when a budget or a camera's rate is no longer kept.

    Args:
        file: pipeline with one source.
        names: names of boards, or paths of board files.
        cameras: number of cameras to carry.
        spare: number of boards, whichever they are, that may fail.
        mode: power mode of the boards, or ``all``.
        planned: function that plans a pipeline on a board.
        on_progress: function called before each board and mode.

    Raises:
        ConfigError: a board is unknown, or the pipeline has several sources.
        EdgertError: see :func:`edgert.planner.plan`.
    """
    file, seen = as_delivered(file)
    boards = [find_board(name, file.document.path.parent) for name in dict.fromkeys(names)]
    _source_of(file)
    found, none, notes = list[BoardCapacity](), dict[str, str](), dict.fromkeys(seen)
    bar, total = counting(on_progress) or (lambda *_: None), sum(len(one.modes) for one in boards)
    for place, board in enumerate(boards):
        if board.without_edgert:
            none[board.name] = board.without_edgert
            continue
        try:
            first = planned(with_cameras(file, 1), board.name, mode, look=False)
        except EdgertError as error:
            none[board.name] = f"{error.what}: {error.why}" if error.why else error.what
            continue
        notes.update(dict.fromkeys(first.notes))
        (alone,) = first.boards
        best = dict[str, Row]()
        for row in alone.rows:
            if row.verdict == "kept":
                best.setdefault(row.mode, row)
        if not best:
            none[board.name] = verdict_text(alone)
        for number, (name, row) in enumerate(best.items()):
            bar(f"{board.title} in {name}", sum(len(one.modes) for one in boards[:place]) + number, total)
            most, limit = _find_capacity(row, cameras, partial(_row_of, planned, file, board.name, name))
            likely = max(most[0], math.floor(most[0] * most[1].headroom))
            found.append(BoardCapacity(board.name, board.title, name, most[0], likely, _upper_power_w(most[1]), limit))
    counts = fewest_boards([one.cameras for one in found], [one.power_w for one in found], cameras, spare)
    taken = tuple(replace(one, count=count) for one, count in zip(found, counts, strict=True))
    return CameraPlan(file.config.name, cameras, spare, taken, none, tuple(notes))


def with_cameras(file: PipelineFile, count: int) -> PipelineFile:
    """Return a pipeline with ``count`` copies of its only source, connected to the same stages."""
    name, stages = _source_of(file), dict[str, Any]()
    names = [name]
    for number in range(2, count + 1):
        copy = f"{name}-{number}"
        while copy in file.config.stages:
            copy += "_"
        names.append(copy)
    for one, stage in file.config.stages.items():
        if one == name:
            stages |= dict.fromkeys(names, stage)
        elif name in (given := inputs_of(stage)):
            inputs = tuple(other for other in given if other != name)
            stages[one] = stage.model_copy(update={"inputs": (*names, *inputs)})
        else:
            stages[one] = stage
    return replace(file, config=file.config.model_copy(update={"stages": stages}))


def _source_of(file: PipelineFile) -> str:
    sources = [name for name, stage in file.config.stages.items() if isinstance(stage, SourceStage)]
    if len(sources) > 1:
        raise ConfigError(
            f"cannot count cameras: the pipeline has {len(sources)} sources, {', '.join(sources)}",
            why="--cameras plans copies of one source, which share its models",
            where=file.where("stages", sources[1]),
            fix="a pipeline with one of them",
        )
    return sources[0]


def _row_of(planned: Plan, file: PipelineFile, board: str, mode: str, count: int) -> Row:
    row: Row = planned(with_cameras(file, count), board, mode, look=False).boards[0].rows[0]
    return row


def _find_capacity(alone: Row, cameras: int, row_of: Callable[[int], Row]) -> tuple[tuple[int, Row], str]:
    """Return ((largest number of cameras that keeps every budget, its row), what one more camera exceeds).

    Args:
        alone: row with one camera, which keeps every budget.
        cameras: number of cameras above which the search ends.
        row_of: number of cameras → row.
    """
    best, low, high, limit, step = alone, 1, cameras + 1, "", 1
    guess = math.floor(alone.headroom / (1 + (alone.error or 0.0)))
    while high - low > 1:
        count = min(max(guess, low + 1), high - 1)
        row = row_of(count)
        if row.verdict == "kept":
            best, low, guess = row, count, count + step
        else:
            high, limit, guess = count, row_text(row), count - step
        step *= 2
        if high <= cameras and low > 1:
            guess = (low + high) // 2
    return (low, best), limit


def _upper_power_w(row: Row) -> float | None:
    return None if row.power_w is None else row.power_w * (1 + (row.power_error or 0.0))


def fewest_boards(
    carried: Sequence[int], watts: Sequence[float | None], cameras: int, spare: int = 0
) -> tuple[int, ...]:
    """Return the number of boards of each kind: the fewest boards, and of such choices the one with least power.

    All cameras must still be carried if any ``spare`` of the boards fail. The worst case is that the largest fail. Let
    ``edge`` be the capacity of the smallest of those. Then the condition is that all boards, each counted up to
    ``edge``, carry ``cameras + spare * edge``. So a program is solved for each possible ``edge``.

    Args:
        carried: number of cameras that each kind of board carries.
        watts: power of each kind; kinds of unknown power are taken last.
        cameras: number of cameras to carry.
        spare: number of boards that may fail.

    Returns:
        Number of boards of each kind; zeros where no kind carries a camera.

    Raises:
        PlacementError: SciPy is missing.
    """
    best: tuple[tuple[int, float], tuple[int, ...]] | None = None
    unknown_w = 1e6
    costs = [unknown_w if one is None else one for one in watts]
    for edge in sorted({one for one in carried if one > 0}):
        need, most = cameras + spare * edge, cameras + spare
        capped = [min(one, edge) for one in carried]
        fewest = _cheapest_counts(capped, [1.0] * len(carried), need, most)
        number = sum(fewest)
        if best is not None and number > best[0][0]:
            continue
        counts = _cheapest_counts(capped, costs, need, most, number)
        key = number, sum(count * cost for count, cost in zip(counts, costs, strict=True))
        if best is None or key < best[0]:
            best = key, counts
    return (0,) * len(carried) if best is None else best[1]


def _cheapest_counts(
    carried: Sequence[int], costs: Sequence[float], need: int, most: int, number: int = 0
) -> tuple[int, ...]:
    """Return the cheapest counts that carry ``need`` cameras; with ``number`` above 0, by exactly that many boards."""
    program = Program()
    kinds = [
        program.add_variable(cost, whole=True, most=most if one else 0)
        for one, cost in zip(carried, costs, strict=True)
    ]
    program.add_upper_bound({kind: -one for kind, one in zip(kinds, carried, strict=True) if one}, -need)
    if number:
        program.add_equality(dict.fromkeys(kinds, 1.0), number)
    values = program.solve(time_limit_s=_SOLVE_S).values
    assert values is not None  # ``most`` boards of one kind carry all cameras
    return tuple(round(float(one)) for one in values)


HEADS = ("cameras", "likely", "W each", "boards", "W in all")
"""Headers of :func:`figures`."""


def figures(one: BoardCapacity) -> tuple[str, ...]:
    """Return the numbers of a board in a mode as text; a dash where a number is unknown or no board is taken."""
    each = "–" if one.power_w is None else significant(one.power_w)
    total = "–" if one.power_w is None or not one.count else significant(one.power_w * one.count)
    return str(one.cameras), str(one.likely), each, str(one.count or "–"), total


def sentences(plan: CameraPlan) -> Iterator[str]:
    """Yield the meaning of the numbers, and the reasons why boards carry no camera."""
    yield "cameras: surely carried, at the unfavorable end of every error bar; likely: by the predictions themselves"
    yield "W: upper end of the error bar, of modules that carry as many cameras as they can"
    if plan.spare:
        failing = "any board" if plan.spare == 1 else f"any {plan.spare} boards"
        yield f"{failing} may fail, and the others carry all cameras if theirs are moved there"
    yield from (f"{name} carries no camera: {why}" for name, why in plan.none.items())
    yield from plan.notes


def render(plan: CameraPlan) -> str:
    """Return the plan as an HTML page."""
    taken = ["strong" if one.count else "" for one in plan.boards]
    columns = (
        Column("Board", [Cell(one.title, look=look) for one, look in zip(plan.boards, taken, strict=True)], "wrap"),
        Column("Mode", [one.mode for one in plan.boards], "wrap"),
        *(Column(head, [figures(one)[place] for one in plan.boards], "number") for place, head in enumerate(HEADS)),
        Column("One more camera", [one.limit for one in plan.boards], "prose"),
    )
    head = Head(
        f"{plan.pipeline}: {counted(plan.cameras, 'camera')}",
        "Plan of boards · predicted, not measured",
        plan.pipeline,
        plan.headline,
    )
    tables = (Table("Boards and modes", columns, head=1, sortable=True, stacked=True),)
    contents = {"boards": "Boards", "notes": "What was assumed"}
    shown = {"contents": contents, "overview": Part(tables=tables), "boards": (), "notes": list(sentences(plan))}
    return render_page("plan.html.j2", head, shown)
