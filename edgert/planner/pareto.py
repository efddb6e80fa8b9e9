"""Chart of a plan's frames per second and watts, for a page or a terminal: points, error bars and colors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_letters

from edgert.placement.plan_record import BoardPlan, Plan, Row
from edgert.planner.plan_text import error_text, row_label
from edgert.report import scatter
from edgert.report.numbers import fixed, significant
from edgert.report.svg import Scale

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Point:
    """A row in the chart.

    Attributes:
        label: number in the table, from 1; empty for a row that the table leaves out.
        name: name of the row, or of the board and the row.
        row: row with the maximum frames per second, and the watts at the requested rates.
        is_chosen: whether this is the row to take.
    """

    label: str
    name: str
    row: Row
    is_chosen: bool = False

    @property
    def fps_bar(self) -> Interval | None:
        """Range of the maximum frames per second; None if unknown."""
        return _error_interval(self.row.most_fps, self.row.error)

    @property
    def watts_bar(self) -> Interval | None:
        """Range of the watts; None if unknown."""
        return _error_interval(self.row.power_w, self.row.power_error)

    @property
    def detail(self) -> str:
        """All figures in words."""
        row = self.row
        watts = "watts not known" if row.power_w is None else f"{fixed(row.power_w, 1)} {error_text(row.power_error)} W"
        estimated = "\nestimated by ratios of what is published" if row.estimated else ""
        return (
            f"{self.name}\nat most {significant(row.most_fps)} {error_text(row.error)} fps, {watts}\n"
            f"p99 {significant(row.p99_ms)} {error_text(row.error)} ms{estimated}"
        )


def _error_interval(value: float | None, error: float | None) -> Interval | None:
    """Return the range with nine of ten values: the same ratio below as above; None if unknown."""
    return None if value is None or error is None else (value / (1 + error), value * (1 + error))


def board_points(board: BoardPlan) -> tuple[Point, ...]:
    """Return every row of a board, numbered as in its table."""
    return tuple(
        Point(str(number), row_label(row), row, place == board.chosen)
        for number, (place, row) in enumerate(enumerate(board.rows), 1)
        if row.most_fps > 0
    )


def plan_points(plan: Plan) -> tuple[Point, ...]:
    """Return the best row of each board, numbered as in the table, and all others without a number."""
    found = []
    for number, board in enumerate(plan.boards, 1):
        for row in board.rows:
            if row.most_fps > 0:
                label = str(number) if row is board.best else ""
                is_chosen = bool(label) and board.board == plan.smallest
                found.append(Point(label, f"{board.title}: {row.mode}, {row.name}", row, is_chosen))
    return tuple(found)


def heat_of(points: Sequence[Point]) -> scatter.Heat:
    """Return the color classes of the points' p99, in milliseconds."""
    return scatter.heat_of([point.row.p99_ms for point in points], is_from_least=True)


def watts_limit(points: Sequence[Point]) -> float | None:
    """Return the power budget of the rows, in watts; None where there is none or the watts are unknown."""
    for row in (point.row for point in points):
        for check in row.checks:
            if check.name == "power" and check.used and row.power_w:
                return row.power_w / check.used
    return None


def dots(points: Sequence[Point]) -> tuple[scatter.Dot, ...]:
    """Return the points as dots to draw on a page."""
    heat = heat_of(points)
    return tuple(
        scatter.Dot(
            one.row.most_fps,
            one.row.power_w,
            one.fps_bar,
            one.watts_bar,
            f"{one.label}~" if one.label and one.row.estimated else one.label,
            one.detail,
            heat.of(one.row.p99_ms),
            one.row.verdict,
            "chosen" if one.is_chosen else "" if one.label else "small",
        )
        for one in points
    )


# In a terminal: plain characters in a grid.

Cell = tuple[str, int | None]
"""Character, and the class of its color; None for no color."""
LETTERS = ascii_letters
_HEIGHT, _LEFT = 16, 7  # lines without those of the axis, and characters before it


def letters(points: Sequence[Point]) -> dict[str, str]:
    """Return label → letter for it in a terminal; labels after the last letter get ``*``."""
    labels = [point.label for point in points if point.label]
    return {label: LETTERS[place] if place < len(LETTERS) else "*" for place, label in enumerate(labels)}


def grid(points: Sequence[Point], width: int) -> list[list[Cell]]:
    """Return the lines of a chart: watts upwards, frames per second to the right, ``-`` and ``|`` for error bars.

    Args:
        points: points; those without a label or with unknown watts are left out.
        width: width of the terminal in characters, at least 40.
    """
    shown = _shown_points(points)
    if not shown:
        return []
    heat, named = heat_of([point for point in points if point.label]), letters(points)
    x_axis, y_axis = _axes(shown)
    across = width - _LEFT - 2
    cells: list[list[Cell]] = [[(" ", None)] * across for _ in range(_HEIGHT)]

    def column(value: float) -> int:
        return _cell_index(x_axis, value, across)

    def line(value: float) -> int:
        return _HEIGHT - 1 - _cell_index(y_axis, value, _HEIGHT)

    places = [(column(one.row.most_fps), line(one.row.power_w or 0.0), one) for one in shown]
    for x, y, one in places:
        for at in range(column(one.fps_bar[0]), column(one.fps_bar[1]) + 1) if one.fps_bar else ():
            cells[y][at] = ("-", heat.of(one.row.p99_ms))
        for at in range(line(one.watts_bar[1]), line(one.watts_bar[0]) + 1) if one.watts_bar else ():
            cells[at][x] = ("|", heat.of(one.row.p99_ms))
    for x, y, one in reversed(places):  # the first of several in one place stays visible
        cells[y][x] = (named[one.label], heat.of(one.row.p99_ms))
    marks = {line(value): significant(value) for value in y_axis.ticks(5)}
    lines = [_plain_cells(f"{marks.get(y, ''):>{_LEFT}} |") + row for y, row in enumerate(cells)]
    lines.append(_plain_cells(f"{'':>{_LEFT}} +{'-' * across}"))
    foot = [" "] * across
    for value in x_axis.ticks(6):
        name, at = significant(value), column(value)
        start = min(max(at - len(name) // 2, 0), across - len(name))
        if all(one == " " for one in foot[max(start - 1, 0) : start + len(name) + 1]):
            foot[start : start + len(name)] = name
    lines.append(_plain_cells(f"{'':>{_LEFT}}  {''.join(foot).rstrip()}"))
    return [_plain_cells(f"{'W':>{_LEFT}}"), *lines, _plain_cells(f"{'':>{_LEFT}}  frames a second at most")]


def _plain_cells(words: str) -> list[Cell]:
    return [(one, None) for one in words]


def notes_below(points: Sequence[Point], width: int) -> Iterator[str]:
    """Yield notes on rows that a terminal's chart hides behind others, and on rows with unknown watts."""
    named, shown = letters(points), _shown_points(points)
    places: dict[tuple[int, int], list[str]] = {}
    for one in shown:
        x_axis, y_axis = _axes(shown)
        at = (
            _cell_index(x_axis, one.row.most_fps, width - _LEFT - 2),
            _cell_index(y_axis, one.row.power_w or 0.0, _HEIGHT),
        )
        places.setdefault(at, []).append(named[one.label])
    hidden = [f"{first}: {' '.join(others)}" for first, *others in places.values() if others]
    if hidden:
        yield f"in the same place as {', '.join(hidden)}"
    if unknown := [named[one.label] for one in points if one.label and one.row.power_w is None]:
        yield f"watts not known: {' '.join(unknown)}"


def _shown_points(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point.label and point.row.power_w is not None]


def _axes(shown: Sequence[Point]) -> tuple[Scale, Scale]:
    fps = [value for one in shown for value in (one.row.most_fps, *(one.fps_bar or ()))]
    watts = [value for one in shown for value in (one.row.power_w or 0.0, *(one.watts_bar or ()))]
    return scatter.log_scale(fps), scatter.log_scale(watts)


def _cell_index(axis: Scale, value: float, count: int) -> int:
    return min(max(round(axis.part(value) * (count - 1)), 0), count - 1)
