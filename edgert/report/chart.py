"""Charts as SVG text: pure functions from numbers, drawn with the classes of ``page.css``.

Positions across are percentages and positions down are pixels, so that a chart fills whatever width it is given while
its text and lines keep their size. Labels of the vertical axis stand on their grid lines, inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.report.markup import Markup, join, shape, tag
from edgert.report.number import power_of_ten, significant
from edgert.report.tick import decades, ticks

_LINE_PX = 13  # between two lines of small text
_AXIS_PX = 20  # room under a plot for its ticks
_BARS_PX, _BARS_TOP_PX = 236, 18
_RUG_PX = 5
_GAP = 0.22  # of a bar's room, between bars
_CLOSE_PERCENT = 2.4  # marks nearer than this may touch on a narrow page
_COLUMNS = 110  # of a histogram: what a small chart can show
_PLOT_PX = 92
_MIDDLE = 52.0  # labels of markers right of here stand on their left side
_FLOOR_DECADES = 0.35  # a count of one is still seen
_ROOM = 1.02  # beyond the largest value, so that its marker is inside


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its value (None: not known; infinite: to the top), what hovering says, and how it stands out.

    ``mark`` is written above it and gives it the colour of the worst; ``rug`` puts a dash under it.
    """

    value: float | None
    label: str
    mark: str = ""
    rug: bool = False


@dataclass(frozen=True, slots=True)
class Marker:
    """A vertical line in a histogram, with its label."""

    value: float
    label: str
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its interval, and the limit it must not exceed."""

    label: str
    value: float
    interval: tuple[float, float] | None = None
    limit: float | None = None


def bar_chart(bars: Sequence[Bar], *, title: str, grid: Callable[[float], str]) -> Markup:
    """Vertical bars in the order given, from zero; thin ones where there are hundreds.

    Args:
        bars: at least one.
        title: what a reader who cannot see it is told.
        grid: label of a grid line at a value, with the unit.
    """
    known = [bar.value for bar in bars if bar.value is not None and math.isfinite(bar.value)]
    low, high = min([0.0, *known]), max([0.0, *known]) or 1.0
    bottom = _BARS_PX - _AXIS_PX - _RUG_PX

    def down(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - _BARS_TOP_PX)

    room = 100 / len(bars)
    body = [_bar(bar, number * room, room, down, high) for number, bar in enumerate(bars)]
    return tag(
        "svg",
        tag("title", title),
        *(_grid_line(down(value), grid(value)) for value in ticks(low, high, 5)),
        tag("g", *body, class_="bars"),
        *_marks(bars, room, down, high),
        *_positions(len(bars), room),
        class_="chart bar",
        role="img",
        height=_BARS_PX,
        aria_label=title,
    )


def _bar(bar: Bar, left: float, room: float, down: Callable[[float], float], high: float) -> Markup:
    value = 0.0 if bar.value is None or math.isnan(bar.value) else max(min(bar.value, high), -high)
    top, foot = sorted((down(value), down(0)))
    across = {"x": _percent(left + room * _GAP / 2), "width": _percent(room * (1 - _GAP))}
    parts = [
        shape("rect", x=_percent(left), width=_percent(room), height="100%", class_="hit"),
        shape("rect", y=top, height=max(foot - top, 1.0), class_="worst" if bar.mark else None, **across),
    ]
    if bar.rug:
        parts.append(shape("rect", y=float(_BARS_PX - _AXIS_PX - _RUG_PX + 2), height=_RUG_PX, class_="rug", **across))
    return tag("g", tag("title", bar.label), *parts)


def _marks(bars: Sequence[Bar], room: float, down: Callable[[float], float], high: float) -> list[Markup]:
    """Numbers above the marked bars, lifted where neighbours would touch."""
    placed: list[tuple[float, float]] = []
    for number, bar in enumerate(bars):
        if bar.mark:
            across, up = (number + 0.5) * room, down(min(max(bar.value or 0.0, 0.0), high)) - 5
            while any(abs(across - x) < _CLOSE_PERCENT and abs(up - y) < _LINE_PX for x, y in placed):
                up -= _LINE_PX
            placed.append((across, up))
    names = [bar.mark for bar in bars if bar.mark]
    return [_text(x, y, name, "mark") for (x, y), name in zip(placed, names, strict=True)]


def _positions(count: int, room: float) -> list[Markup]:
    """Numbers of the bars, counted from one, along the foot."""
    numbers = [1, *(int(value) for value in ticks(2, count, 8) if value >= count / 16)]
    return [
        _text((number - 0.5) * room, _BARS_PX - 5, str(number), _anchor((number - 0.5) * room))
        for number in dict.fromkeys(numbers)
    ]


def histogram_chart(
    counts: npt.NDArray[np.integer[npt.NBitBase]] | npt.NDArray[np.float64],
    bin_width: float,
    largest: float,
    markers: Sequence[Marker],
    *,
    title: str,
    rows: int = 0,
) -> Markup:
    """How often each magnitude occurs, counts on a log scale, with labelled lines, shaded beyond the chosen one.

    Args:
        counts: (bins,) counts of equal bins from zero up; neighbours are added up to what can be seen.
        bin_width: in the values' own unit.
        largest: the largest value; the axis ends there or at the largest marker.
        title: what a reader who cannot see it is told; shown on hovering.
        rows: lines of labels to keep room for, so that charts side by side have equal plots; at least one per marker.
    """
    end = max([largest, *(marker.value for marker in markers)]) * _ROOM
    top = max(rows, len(markers)) * _LINE_PX + 6
    chosen = next((marker.value for marker in markers if marker.chosen), end)
    columns, width = _columns(counts, bin_width, largest)
    height = top + _PLOT_PX
    return tag(
        "svg",
        tag("title", title),
        *_count_lines(columns, top),
        _area(columns, width, end, top),
        shape("rect", x=_percent(100 * chosen / end), y=top, width=_percent(100 - 100 * chosen / end),
              height=_PLOT_PX, class_="clipped"),
        shape("line", x1="0", x2="100%", y1=height, y2=height, class_="foot"),
        *(_value_tick(value, end, height) for value in ticks(0, end, 4)),
        *_marker_lines(markers, end, top),
        class_="chart histogram",
        role="img",
        height=height + _AXIS_PX,
        aria_label=title,
    )  # fmt: skip


def _columns(
    counts: npt.NDArray[np.generic], bin_width: float, largest: float
) -> tuple[npt.NDArray[np.float64], float]:
    """Counts of whole groups of bins up to the largest value, and a group's width."""
    filled = min(max(math.ceil(largest / bin_width), 1), len(counts))
    group = math.ceil(filled / _COLUMNS)
    padded = np.zeros(math.ceil(filled / group) * group)
    padded[:filled] = counts[:filled]
    return padded.reshape(-1, group).sum(axis=1), group * bin_width


def _area(columns: npt.NDArray[np.float64], width: float, end: float, top: int) -> Markup:
    """The histogram's outline in a box of its own, which is stretched to the chart's width."""
    levels = np.zeros(len(columns), np.int64)
    some = columns > 0
    scale = 200 / (math.log10(max(columns.max(), 1.0)) + _FLOOR_DECADES)
    levels[some] = np.rint((np.log10(columns[some]) + _FLOOR_DECADES) * scale)
    steps = "".join(f"V{200 - level}h1" for level in levels.tolist())
    return tag(
        "svg",
        shape("path", d=f"M0,200{steps}V200Z", class_="area"),
        y=top,
        width=_percent(100 * len(columns) * width / end),
        height=_PLOT_PX,
        viewBox=f"0 0 {len(columns)} 200",
        preserveAspectRatio="none",
    )


def _count_lines(columns: npt.NDArray[np.float64], top: int) -> list[Markup]:
    most = max(float(columns.max()), 1.0)
    whole = math.log10(most) + _FLOOR_DECADES
    found = decades(most, 4)
    lines = []
    for power in found:
        down = top + _PLOT_PX * (1 - (power + _FLOOR_DECADES) / whole)
        lines.append(_grid_line(down, power_of_ten(power) + (" values" if power == found[-1] else ""), right=True))
    return lines


def _value_tick(value: float, end: float, height: int) -> Markup:
    across = 100 * value / end
    name = "|x| = 0" if value == 0 else significant(value)
    return join(
        [
            shape("line", x1=_percent(across), x2=_percent(across), y1=height, y2=height + 4, class_="foot"),
            _text(across, height + 16, name, _anchor(across)),
        ]
    )


def _marker_lines(markers: Sequence[Marker], end: float, top: int) -> list[Markup]:
    """A line and a label each; every label has a row of its own, so that none meets another.

    On the left half labels stand right of their lines and the leftmost is highest, on the right half the other way
    round: so lines do not cross labels, except around the middle.
    """
    left = sorted((one for one in markers if 100 * one.value / end < _MIDDLE), key=lambda one: one.value)
    right = sorted((one for one in markers if one not in left), key=lambda one: -one.value)
    drawn = []
    for row, marker in enumerate([*right, *left]):
        across, up = 100 * marker.value / end, (row + 1) * _LINE_PX
        kind = "chosen" if marker.chosen else "other"
        side, gap = ("", 4) if across < _MIDDLE else (" end", -4)
        drawn.append(shape("line", x1=_percent(across), x2=_percent(across), y1=up - 8, y2=top + _PLOT_PX, class_=kind))
        drawn.append(_text(across, up, marker.label, f"{kind}{side}", dx=gap))
    lines = [one for one in drawn if one.startswith("<line")]
    return [*lines, *(one for one in drawn if not one.startswith("<line"))]


def interval_chart(intervals: Sequence[Interval], *, title: str, show: Callable[[float], str]) -> Markup:
    """Values as dots with whiskers on one axis from zero, and each one's limit as a bar across.

    Args:
        intervals: at least one, all in one unit.
        title: what a reader who cannot see it is told.
        show: a number of the axis with its unit.
    """
    ends = [0.0]
    for one in intervals:
        ends += [one.value, *(one.interval or ()), *([] if one.limit is None else [one.limit])]
    low, high = min(ends), max(ends)
    room = (high - low or 1.0) * 0.06
    low, high = low - room, high + room
    row, top = 3 * _LINE_PX + 4, 4
    foot = top + row * len(intervals)

    def across(value: float) -> float:
        return 100 * (value - low) / (high - low)

    return tag(
        "svg",
        tag("title", title),
        *(_axis_tick(value, across(value), foot, show) for value in ticks(low, high, 6)),
        *(_interval(one, top + row * number, across) for number, one in enumerate(intervals)),
        class_="chart interval",
        role="img",
        height=foot + _AXIS_PX,
        aria_label=title,
    )


def _axis_tick(value: float, across: float, foot: int, show: Callable[[float], str]) -> Markup:
    where = _percent(across)
    line = shape("line", x1=where, x2=where, y1=0, y2=foot, class_="zero" if value == 0 else "grid")
    return join([line, _text(across, foot + 15, show(value), _anchor(across))])


def _interval(one: Interval, top: int, across: Callable[[float], float]) -> Markup:
    middle = top + 2 * _LINE_PX + 2
    dot = across(one.value)
    over = one.limit is not None and one.value > one.limit
    parts = [_text(across(0), top + _LINE_PX, one.label, "name" if across(0) < _MIDDLE else "name end", dx=5)]
    if one.limit is not None:
        where = across(one.limit)
        parts.append(shape("line", x1=_percent(where), x2=_percent(where), y1=middle - 11, y2=middle + 11,
                           class_="limit"))  # fmt: skip
        parts.append(_text(where, middle - 13, "budget", _anchor(where)))
    if one.interval is not None:
        first, last = map(across, one.interval)
        parts.append(shape("line", x1=_percent(first), x2=_percent(last), y1=middle, y2=middle, class_="whisker"))
    parts.append(shape("circle", cx=_percent(dot), cy=middle, r="5.5", class_="dot over" if over else "dot"))
    return join(parts)


def length_bar(part: float, *, strong: bool) -> Markup:
    """A bar whose length is a part (0 to 1) of the room it has; it only repeats the number beside it."""
    bar = shape("rect", width=_percent(100 * part), height="100%", class_="strong" if strong else None)
    return tag("svg", bar, class_="length", height=12, aria_hidden="true")


def _grid_line(down: float, label: str, right: bool = False) -> Markup:
    line = shape("line", x1="0", x2="100%", y1=down, y2=down, class_="grid")
    return join([line, _text(100.0 if right else 0.0, down - 3, label, "end" if right else None)])


def _text(across: float, down: float, text: str, class_: str | None, dx: int | None = None) -> Markup:
    return tag("text", text, x=_percent(across), y=float(down), dx=dx, class_=class_)


def _anchor(across: float) -> str:
    """Text at the edges stays inside."""
    return "start" if across < 4 else "end" if across > 96 else "middle"


def _percent(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") + "%"
