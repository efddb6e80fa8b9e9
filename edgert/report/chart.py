"""SVG charts as text: bars, intervals, histograms and values over time.

They are pure functions from numbers, drawn with the classes of ``page.css`` and ``series.css``. Positions across are
percentages and positions down are pixels. So a chart fills any width while its text and lines keep their size. Marks
beyond 0 and 100 % need a margin of the page.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.report.html import Markup, join, shape, tag
from edgert.report.numbers import power_of_ten, significant

# Axes: round numbers to mark, and text placed by percent across and pixels down.


def ticks(low: float, high: float, wanted: int) -> tuple[float, ...]:
    """Return about ``wanted`` multiples of 1, 2 or 5 times a power of ten, within ``[low, high]``.

    There are none if the interval is empty.

    Raises:
        ValueError: an end is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"an axis needs finite ends, not {low} and {high}")
    if high <= low or wanted < 1:
        return ()
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    # the round step nearest to the rough one on a ratio scale
    step = min((power * one for one in (1.0, 2.0, 5.0, 10.0)), key=lambda step: abs(math.log(step / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def decades(largest: float, wanted: int) -> tuple[int, ...]:
    """Return whole powers of ten from 1 up to ``largest``, at most about ``wanted`` of them, evenly spaced."""
    top = math.floor(math.log10(largest)) if largest >= 1 else 0
    stride = max(1, math.ceil(top / max(wanted - 1, 1)))
    return tuple(range(0, top + 1, stride))


def text(across: float, down: float, content: str, class_: str | None = None, dx: int | None = None) -> Markup:
    """Return a label; ``across`` in percent of the chart's width, ``down`` and ``dx`` in pixels."""
    return tag("text", content, x=percent(across), y=float(down), dx=dx, class_=class_)


def anchor(across: float) -> str:
    """Return the class with which a label under its tick stays inside the chart."""
    return "start" if across < 4 else "end" if across > 96 else "middle"


def level(down: float, class_: str, left: str = "", right: str = "") -> Markup:
    """Return a line across the whole chart, ``down`` in pixels, with a label beside either end."""
    labels = [text(0, down + 4, left, "end", -6)] if left else []
    labels += [text(100, down + 4, right, None, 6)] if right else []
    return join([shape("line", x1="0", x2="100%", y1=down, y2=down, class_=class_), *labels])


def upright(across: float, top: float, foot: float, class_: str) -> Markup:
    """Return a vertical line; ``across`` in percent of the chart's width, its ends in pixels."""
    return shape("line", x1=percent(across), x2=percent(across), y1=top, y2=foot, class_=class_)


def percent(value: float) -> str:
    """Return 12.5 as ``"12.5%"``, the form of SVG."""
    return f"{value:.2f}".rstrip("0").rstrip(".") + "%"


_LINE_PX = 13  # between two lines of small text
_AXIS_PX = 20  # room under a plot for its ticks
_BARS_PX, _BARS_TOP_PX = 236, 18
_RUG_PX = 5
_GAP = 0.22  # of a bar's room, between bars
_CLOSE_PERCENT = 2.4  # marks nearer than this may touch on a narrow page
_MIDDLE = 50.0  # labels of lines right of here stand on their left side


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its value (None: not known; infinite: to the top), what hovering shows, and how it stands out.

    ``mark`` is written above it and gives it the color of the worst; ``rug`` puts a dash under it.
    """

    value: float | None
    label: str
    mark: str = ""
    rug: bool = False


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its interval, the limit it must not exceed, and whether it does."""

    label: str
    value: float
    interval: tuple[float, float] | None = None
    limit: float | None = None
    over: bool = False


def bar_chart(bars: Sequence[Bar], *, title: str, grid: Callable[[float], tuple[str, str]]) -> Markup:
    """Return vertical bars in the order given, from zero; thin ones where there are hundreds.

    Args:
        bars: at least one.
        title: text for screen readers.
        grid: labels of a grid line at a value, with their units: left and right of the chart.
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
        *(level(down(value), "grid", *grid(value)) for value in ticks(low, high, 5)),
        tag("g", *body, class_="bars"),
        *_marks(bars, room, down, high),
        *(text(at, _BARS_PX - 5, f"{number}", anchor(at)) for number, at in _numbered(len(bars))),
        class_="chart bar",
        role="img",
        height=_BARS_PX,
    )


def _bar(bar: Bar, left: float, room: float, down: Callable[[float], float], high: float) -> Markup:
    across = {"x": percent(left + room * _GAP / 2), "width": percent(room * (1 - _GAP))}
    parts = [shape("rect", x=percent(left), width=percent(room), height="100%", class_="hit")]
    if bar.value is not None and not math.isnan(bar.value):
        top, foot = sorted((down(max(min(bar.value, high), -high)), down(0)))
        kind = "worst" if bar.mark else None
        parts.append(shape("rect", y=top, height=max(foot - top, 1.0), class_=kind, **across))
    if bar.rug:
        parts.append(shape("rect", y=float(_BARS_PX - _AXIS_PX - _RUG_PX + 2), height=_RUG_PX, class_="rug", **across))
    return tag("g", tag("title", bar.label), *parts)


def _marks(bars: Sequence[Bar], room: float, down: Callable[[float], float], high: float) -> list[Markup]:
    """Return numbers above the marked bars, lifted where neighbors would touch."""
    placed: list[tuple[float, float, str]] = []
    for number, bar in enumerate(bars):
        if bar.mark:
            across, up = (number + 0.5) * room, down(min(max(bar.value or 0.0, 0.0), high)) - 5
            near = [y for x, y, _ in placed if abs(across - x) < _CLOSE_PERCENT]
            while up > _LINE_PX and any(abs(up - y) < _LINE_PX for y in near):
                up -= _LINE_PX
            placed.append((across, up, bar.mark))
    return [text(x, y, name, "mark") for x, y, name in placed]


def _numbered(count: int) -> list[tuple[int, float]]:
    """Return the numbers of some bars, counted from one, and their positions along the foot, in percent."""
    numbers = [1, *(int(value) for value in ticks(2, count, 8) if value >= count / 16)]
    return [(number, (number - 0.5) * (100 / count)) for number in dict.fromkeys(numbers)]


def interval_chart(intervals: Sequence[Interval], *, title: str, show: Callable[[float], str]) -> Markup:
    """Return values as dots with whiskers on one axis from zero, and each one's limit as a bar across.

    Args:
        intervals: at least one, all in one unit.
        title: text for screen readers.
        show: a number of the axis with its unit.
    """
    ends = [0.0]
    for one in intervals:
        ends += [one.value, *(one.interval or ()), *([] if one.limit is None else [one.limit])]
    low, high = min(ends), max(ends)
    room = (high - low or 1.0) * 0.06
    low, high = low - room, high + room
    row, top = 4 * _LINE_PX + 3, 4
    foot = top + row * len(intervals)

    def across(value: float) -> float:
        return 100 * (value - low) / (high - low)

    marks = ticks(low, high, 6)
    return tag(
        "svg",
        tag("title", title),
        *(upright(across(value), 0, foot, "grid" if value else "zero") for value in marks),
        *(text(across(value), foot + 15, show(value), anchor(across(value))) for value in marks),
        *(_interval(one, top + row * number, across) for number, one in enumerate(intervals)),
        class_="chart interval",
        role="img",
        height=foot + _AXIS_PX,
    )


def _interval(one: Interval, top: int, across: Callable[[float], float]) -> Markup:
    middle = top + _LINE_PX + 15
    dot = across(one.value)
    parts = [text(across(0), top + _LINE_PX, one.label, "name" if across(0) < _MIDDLE else "name end", dx=5)]
    if one.limit is not None:
        where = across(one.limit)
        parts += [upright(where, middle - 11, middle + 11, "limit"), text(where, middle + 22, "budget", anchor(where))]
    if one.interval is not None:
        first, last = map(across, one.interval)
        parts.append(shape("line", x1=percent(first), x2=percent(last), y1=middle, y2=middle, class_="whisker"))
    parts.append(shape("circle", cx=percent(dot), cy=middle, r="5.5", class_="dot over" if one.over else "dot"))
    return join(parts)


def length_bar(part: float, *, strong: bool) -> Markup:
    """Return a bar whose length is a part (0 to 1) of its space; it only repeats the number beside it."""
    bar = shape("rect", width=percent(100 * part), height="100%", class_="strong" if strong else None)
    return tag("svg", bar, class_="length", height=12, aria_hidden="true")


# How often values occur, with marked thresholds.

_COLUMNS = 110  # what a small chart can show
_PLOT_PX = 92
_MARKER_MIDDLE = 52.0  # labels of markers right of here stand on their left side
_LEVELS = 200  # vertical resolution of the outline
_FLOOR_DECADES = 0.35  # a count of one is still seen
_ROOM = 1.02  # beyond the largest value, so that its marker is inside


@dataclass(frozen=True, slots=True)
class Marker:
    """A vertical line in a histogram, with its label."""

    value: float
    label: str
    chosen: bool = False


def histogram_chart(
    counts: npt.NDArray[np.integer[npt.NBitBase]] | npt.NDArray[np.float64],
    bin_width: float,
    largest: float,
    markers: Sequence[Marker],
    *,
    title: str,
    rows: int = 0,
) -> Markup:
    """Return the counts of each magnitude on a log scale, with labeled lines, shaded beyond the chosen one.

    Args:
        counts: (bins,) counts of equal bins from zero up; neighbors are added up to visible columns.
        bin_width: in the values' own unit.
        largest: the largest value; the axis ends there or at the largest marker.
        markers: the labeled lines.
        title: text for screen readers; shown on hovering.
        rows: lines of labels to keep space for, so that charts side by side have equal plots; at least one per marker.
    """
    end = max([largest, *(marker.value for marker in markers)]) * _ROOM
    top = max(rows, len(markers)) * _LINE_PX + 6
    chosen = next((marker.value for marker in markers if marker.chosen), end)
    # counts of whole groups of bins, up to the largest value
    filled = min(max(math.ceil(largest / bin_width), 1), len(counts))
    group = math.ceil(filled / _COLUMNS)
    padded = np.zeros(math.ceil(filled / group) * group)
    padded[:filled] = counts[:filled]
    columns, width = padded.reshape(-1, group).sum(axis=1), group * bin_width
    height = top + _PLOT_PX
    return tag(
        "svg",
        tag("title", title),
        text(0, top - 8, "values", "end", -4),
        *_count_lines(columns, top),
        _area(columns, width, end, top),
        shape("rect", x=percent(100 * chosen / end), y=top, width=percent(100 - 100 * chosen / end),
              height=_PLOT_PX, class_="clipped"),
        level(height, "foot"),
        *_value_ticks(end, height),
        *_marker_lines(markers, end, top),
        class_="chart histogram",
        role="img",
        height=height + _AXIS_PX,
    )  # fmt: skip


def _area(columns: npt.NDArray[np.float64], width: float, end: float, top: int) -> Markup:
    """Return the histogram's outline in a box of its own, which is stretched to the chart's width."""
    levels = np.zeros(len(columns), np.int64)
    some = columns > 0
    scale = _LEVELS / (math.log10(max(columns.max(), 1.0)) + _FLOOR_DECADES)
    levels[some] = np.rint((np.log10(columns[some]) + _FLOOR_DECADES) * scale)
    steps = "".join(f"V{_LEVELS - level}h1" for level in levels.tolist())
    return tag(
        "svg",
        shape("path", d=f"M0,{_LEVELS}{steps}V{_LEVELS}Z", class_="area"),
        y=top,
        width=percent(100 * len(columns) * width / end),
        height=_PLOT_PX,
        viewBox=f"0 0 {len(columns)} {_LEVELS}",
        preserveAspectRatio="none",
    )


def _count_lines(columns: npt.NDArray[np.float64], top: int) -> Iterator[Markup]:
    most = max(float(columns.max()), 1.0)
    whole = math.log10(most) + _FLOOR_DECADES
    for power in decades(most, 4):
        yield level(top + _PLOT_PX * (1 - (power + _FLOOR_DECADES) / whole), "grid", power_of_ten(power))


def _value_ticks(end: float, height: int) -> Iterator[Markup]:
    for value in ticks(0, end, 4):
        across = 100 * value / end
        yield upright(across, height, height + 4, "foot")
        if value == 0:
            yield text(0, height + 16, "|x| =", "end", -6)
        yield text(across, height + 16, significant(value), anchor(across))


def _marker_lines(markers: Sequence[Marker], end: float, top: int) -> list[Markup]:
    """Return a line and a label each; every label has a row of its own, so that labels never overlap.

    On the left half labels are right of their lines and the leftmost is highest; on the right half it is the other way
    round. So lines do not cross labels, except around the middle.
    """
    left = sorted((one for one in markers if 100 * one.value / end < _MARKER_MIDDLE), key=lambda one: one.value)
    right = sorted((one for one in markers if one not in left), key=lambda one: -one.value)
    lines, labels = [], []
    for row, marker in enumerate([*right, *left]):
        across, up = 100 * marker.value / end, (row + 1) * _LINE_PX
        kind = "chosen" if marker.chosen else "other"
        side, gap = ("", 4) if across < _MARKER_MIDDLE else (" end", -4)
        lines.append(upright(across, up - 8, top + _PLOT_PX, kind))
        labels.append(text(across, up, marker.label, f"{kind}{side}", dx=gap))
    return [*lines, *labels]


# Values over time as lines.

_SERIES_PX, _TOP_PX = 120, 14
_SERIES_ROOM = 1.05  # above the highest value
_SERIES_LEVELS = 1000  # vertical resolution of a line

LINES = 3
"""Lines that a reader can tell apart in one chart."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name and a value at each moment; None leaves a gap."""

    label: str
    values: Sequence[float | None]


def series_chart(
    times_s: Sequence[float],
    lines: Sequence[Series],
    *,
    title: str,
    show: Callable[[float], str],
    limit: float | None = None,
) -> Markup:
    """Return lines from zero up, at most :data:`LINES`, with a legend where there are several.

    Args:
        times_s: rising, from 0 at the left; at least one.
        lines: each with a value at every time.
        title: text for screen readers.
        show: a value with its unit.
        limit: a budget, drawn across.
    """
    known = [value for line in lines for value in line.values if value is not None]
    high = max([*known, limit or 0.0]) * _SERIES_ROOM or 1.0
    end_s = max(times_s[-1], 1e-9)
    foot = _TOP_PX + _SERIES_PX

    def down(value: float) -> float:
        return foot - value / high * _SERIES_PX

    moments = [(value, 100 * value / end_s) for value in ticks(0.0, end_s, 6)]
    budget = [] if limit is None else [level(down(limit), "limit"),
                                       text(100, down(limit) - 4, f"budget {show(limit)}", "end name")]  # fmt: skip
    drawn = tag(
        "svg",
        tag("title", title),
        *(level(down(value), "grid", show(value)) for value in ticks(0.0, high, 4)),
        *(text(across, foot + 15, f"{value:g} s", anchor(across)) for value, across in moments),
        *(_line(times_s, line, number, end_s, high) for number, line in enumerate(lines)),
        *budget,
        class_="chart series",
        role="img",
        height=foot + _AXIS_PX,
    )
    keys = [tag("span", line.label, class_=f"key line{number}") for number, line in enumerate(lines)]
    return join([tag("p", *keys, class_="legend") if len(lines) > 1 else "", drawn])


def _line(times_s: Sequence[float], line: Series, number: int, end_s: float, high: float) -> Markup:
    """Return a line in a box of its own, which is stretched to the chart's width."""
    return tag(
        "svg",
        *(shape("path", d=path, class_=f"line{number}") for path in _paths(times_s, line.values, end_s, high)),
        y=_TOP_PX,
        width="100%",
        height=_SERIES_PX,
        viewBox=f"0 0 {_SERIES_LEVELS} {_SERIES_LEVELS}",
        preserveAspectRatio="none",
    )


def _paths(times_s: Sequence[float], values: Sequence[float | None], end_s: float, high: float) -> Iterator[str]:
    """Yield a path for every stretch without a gap; a value alone is a short dash."""
    points: list[str] = []
    for time_s, value in [*zip(times_s, values, strict=True), (math.inf, None)]:
        if value is not None:
            points.append(f"{_SERIES_LEVELS * time_s / end_s:.1f},{_SERIES_LEVELS * (1 - value / high):.1f}")
        elif points:
            yield f"M{' '.join(points)}" + ("h-9" if len(points) == 1 else "")
            points = []


# What happened where and when, in rows above one another.

_TRACK_PX, _TRACK_GAP_PX = 18, 5
_UNITS = 10_000  # across the whole of a timeline
_LEAST_UNITS, _GAP_UNITS = 5, 6  # of what is too short to be seen otherwise; between two that follow one another
HUES = 8
"""Colors of a timeline, ``hue0`` to ``hue7``."""


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a timeline: the spans in which something worked.

    Attributes:
        label: beside it.
        spans: color → (start, end) of each.
        titles: color → text on hovering.
    """

    label: str
    spans: Mapping[int, Sequence[tuple[float, float]]]
    titles: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Steps:
    """A row of a timeline: a number that changes, as (when, from then on) with the first at the beginning."""

    label: str
    changes: Sequence[tuple[float, float]]
    high: float
    title: str


def timeline_chart(
    ends: tuple[float, float],
    tracks: Sequence[Track],
    steps: Sequence[Steps],
    *,
    title: str,
    show: Callable[[float], str],
) -> Markup:
    """Return rows of working spans, then rows of numbers, on one time axis; a page's script stretches it.

    Args:
        ends: of the axis.
        tracks: rows of spans.
        steps: rows of numbers.
        title: text for screen readers.
        show: a moment with its unit.
    """
    start, end = ends
    room = _TRACK_PX + _TRACK_GAP_PX
    foot = room * (len(tracks) + len(steps)) + _TRACK_GAP_PX

    def across(value: float) -> float:
        return _UNITS * (value - start) / (end - start)

    tops = range(_TRACK_GAP_PX, foot, room)
    bodies = [_track(one, top, across) for one, top in zip(tracks, tops, strict=False)]
    bodies += [_steps(one, top, across) for one, top in zip(steps, tops[len(tracks) :], strict=False)]
    marks = [(100 * across(value) / _UNITS, show(value)) for value in ticks(start, end, 10)]
    drawn = tag(
        "svg",
        tag("title", title),
        *(upright(at, 0, foot, "grid") for at, _ in marks),
        *(text(at, foot + 14, words, anchor(at)) for at, words in marks),
        tag("svg", *bodies, width="100%", height=foot, viewBox=f"0 0 {_UNITS} {foot}", preserveAspectRatio="none"),
        class_="chart timeline",
        role="img",
        height=foot + _AXIS_PX,
    )
    named = [(one.label, "track") for one in tracks] + [(one.label, "queue") for one in steps]
    labels = [tag("text", name, x=0, y=top + 13, class_=kind) for (name, kind), top in zip(named, tops, strict=False)]
    names = tag("svg", *labels, class_="chart names", height=foot + _AXIS_PX, aria_hidden="true")
    return tag("div", names, tag("div", drawn, class_="stretched", tabindex=0), class_="rows")


def _track(track: Track, top: int, across: Callable[[float], float]) -> Markup:
    """Return one path for each color: thousands of spans stay small."""
    parts = [shape("rect", x=0, y=top, width=_UNITS, height=_TRACK_PX, class_="lane")]
    for hue, spans in track.spans.items():
        boxes = []
        for start, end in spans:
            width = round(across(end) - across(start))
            width = max(width - _GAP_UNITS if width > 5 * _GAP_UNITS else width, _LEAST_UNITS)
            boxes.append(f"M{round(across(start))} {top}h{width}v{_TRACK_PX}h-{width}z")
        parts.append(tag("path", tag("title", track.titles[hue]), d="".join(boxes), class_=f"hue{hue % HUES}"))
    return join(parts)


def _steps(steps: Steps, top: int, across: Callable[[float], float]) -> Markup:
    foot = top + _TRACK_PX
    path = [f"M0 {foot}"]
    for when, value in steps.changes:
        path.append(f"H{max(round(across(when)), 0)}V{foot - value / (steps.high or 1.0) * _TRACK_PX:.1f}")
    path.append(f"H{_UNITS}V{foot}z")
    lane = shape("rect", x=0, y=top, width=_UNITS, height=_TRACK_PX, class_="lane")
    return join([lane, tag("path", tag("title", steps.title), d="".join(path), class_="steps")])
