"""Charts of plain numbers: bars, intervals, histograms, values over time, and time lines.

Every function is pure, and returns empty Markup where there is nothing to draw.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from edgert.report import svg
from edgert.report.numbers import power_of_ten, significant
from edgert.report.svg import Plot, Scale, Show

_MIDDLE = 50.0  # percent; marks right of it have their labels on the left

# Bars, of which there may be hundreds.

_BARS_PX, _BARS_TOP_PX = 236, 18
_RUG_PX = 5
_BARS_FOOT_PX = _BARS_PX - svg.AXIS_PX - _RUG_PX
_GAP = 0.22  # gap between bars, as a part of a bar's space
_CLOSE_PERCENT = 2.4  # distance below which marks may touch on a narrow page


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; a ``mark`` above it gives it the color of the worst, a ``rug`` is a dash below it.

    A value of None or NaN is not known; an infinite one goes up to the top.
    """

    value: float | None
    label: str
    mark: str = ""
    rug: bool = False


def bar_chart(bars: Sequence[Bar], *, title: str, left: Show, right: Show) -> Markup:
    """Return vertical bars in the order given, from zero; ``left`` and ``right`` format the values of the grid."""
    if not bars:
        return Markup("")
    plot = Plot(Scale(0, len(bars)), svg.scale_of(bar.value for bar in bars), _BARS_TOP_PX, _BARS_FOOT_PX)
    numbers = [1, *(int(value) for value in svg.ticks(2, len(bars), 8) if value >= len(bars) / 16)]
    below = ((number, plot.across(number - 0.5)) for number in dict.fromkeys(numbers))
    return svg.chart(
        "bar",
        title,
        _BARS_PX,
        *plot.rows(5, left, right),
        svg.element("g", *(_bar(bar, place, plot) for place, bar in enumerate(bars)), class_="bars"),
        *_marks(bars, plot),
        *(svg.label(across, _BARS_PX - 5, number) for number, across in below),
    )


def _bar(bar: Bar, place: int, plot: Plot) -> Markup:
    room, left = plot.across(1), plot.across(place)
    across = {"x": svg.percent(left + room * _GAP / 2), "width": svg.percent(room * (1 - _GAP))}
    parts = [svg.element("rect", x=svg.percent(left), width=svg.percent(room), height="100%", class_="hit")]
    if (value := _drawn(bar, plot)) is not None:
        top, foot = sorted((plot.down(value), plot.down(0)))
        kind = "worst" if bar.mark else None
        parts.append(svg.element("rect", y=top, height=max(foot - top, 1.0), class_=kind, **across))
    if bar.rug:
        parts.append(svg.element("rect", y=float(plot.foot + 2), height=_RUG_PX, class_="rug", **across))
    return svg.element("g", svg.element("title", bar.label), *parts)


def _drawn(bar: Bar, plot: Plot) -> float | None:
    """Return the value up to which a bar is drawn; None where it is not known."""
    if bar.value is None or math.isnan(bar.value):
        return None
    return min(max(bar.value, plot.y.low), plot.y.high)


def _marks(bars: Sequence[Bar], plot: Plot) -> list[Markup]:
    """Return the texts above marked bars, moved up where neighbors would touch."""
    placed: list[tuple[float, float, str]] = []
    for place, bar in enumerate(bars):
        if bar.mark:
            across, up = plot.across(place + 0.5), plot.down(max(_drawn(bar, plot) or 0.0, 0.0)) - 5
            near = [y for x, y, _ in placed if abs(across - x) < _CLOSE_PERCENT]
            while up > svg.LINE_PX and any(abs(up - y) < svg.LINE_PX for y in near):
                up -= svg.LINE_PX
            placed.append((across, up, bar.mark))
    return [svg.text(x, y, name, "mark") for x, y, name in placed]


# Values with intervals and limits, one in each row.


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its interval, its limit, and whether it is over the limit."""

    label: str
    value: float
    interval: tuple[float, float] | None = None
    limit: float | None = None
    over: bool = False


def interval_chart(intervals: Sequence[Interval], *, title: str, show: Show) -> Markup:
    """Return values as dots with whiskers on one axis from zero, with their limits as vertical bars.

    Values that are not finite are left out.
    """
    intervals = [one for one in intervals if math.isfinite(one.value)]
    if not intervals:
        return Markup("")
    ends = [end for one in intervals for end in (one.value, one.limit, *(one.interval or ()))]
    row, top = 4 * svg.LINE_PX + 3, 4
    plot = Plot(svg.scale_of(ends, room=0.06), Scale(0, 1), 0, top + row * len(intervals))
    rows = (_interval(one, top + row * number, plot) for number, one in enumerate(intervals))
    return svg.chart("interval", title, plot.foot + svg.AXIS_PX, *plot.columns(6, show), *rows)


def _interval(one: Interval, top: int, plot: Plot) -> Markup:
    middle, zero = top + svg.LINE_PX + 15, plot.across(0)
    parts = [svg.text(zero, top + svg.LINE_PX, one.label, "name" if zero < _MIDDLE else "name end", dx=5)]
    if one.limit is not None:
        where = plot.across(one.limit)
        parts += [svg.upright(where, middle - 11, middle + 11, "limit"), svg.label(where, middle + 22, "budget")]
    if one.interval is not None and all(map(math.isfinite, one.interval)):
        parts.append(svg.whisker((plot.across(one.interval[0]), plot.across(one.interval[1])), middle))
    dot, kind = svg.percent(plot.across(one.value)), "dot over" if one.over else "dot"
    return svg.join([*parts, svg.element("circle", cx=dot, cy=middle, r="5.5", class_=kind)])


# Histograms with thresholds.

_COLUMNS = 110  # number that a small chart can show
_HISTOGRAM_PX = 92
_LEVELS = 200  # vertical resolution of the outline
_FLOOR_DECADES = 0.35  # keeps a count of one visible
_ROOM = 1.02  # keeps the marker of the largest value inside


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
        counts: (bins,) counts of equal bins from zero up; neighbors are added to visible columns.
        bin_width: width of a bin, in the unit of the values.
        largest: largest value; the axis ends there, or at the largest marker.
        markers: labeled lines.
        title: text for screen readers and on hovering.
        rows: number of label lines to keep space for, so that charts side by side have equal plots.
    """
    end = max([largest, *(marker.value for marker in markers)]) * _ROOM
    if not len(counts) or not 0 < end < math.inf:
        return Markup("")
    chosen = next((marker.value for marker in markers if marker.chosen), end)
    # counts of groups of bins, up to the largest value
    filled = min(max(math.ceil(largest / bin_width), 1), len(counts))
    group = math.ceil(filled / _COLUMNS)
    padded = np.zeros(math.ceil(filled / group) * group)
    padded[:filled] = counts[:filled]
    columns = padded.reshape(-1, group).sum(axis=1)
    top = max(rows, len(markers)) * svg.LINE_PX + 6
    most = math.log10(max(float(columns.max()), 1.0))
    plot = Plot(Scale(0, end), Scale(-_FLOOR_DECADES, most), top, top + _HISTOGRAM_PX)
    powers = (power for power in plot.y.ticks(4) if power >= 0 and power == round(power))
    left = plot.across(chosen)
    clipped = {"x": svg.percent(left), "width": svg.percent(100 - left), "y": top, "height": _HISTOGRAM_PX}
    return svg.chart(
        "histogram",
        title,
        plot.foot + svg.AXIS_PX,
        svg.text(0, top - 8, "values", "end", -4),
        *(svg.level(plot.down(power), "grid", power_of_ten(round(power))) for power in powers),
        _outline(columns, plot, len(columns) * group * bin_width),
        svg.element("rect", **clipped, class_="clipped"),
        svg.level(plot.foot, "foot"),
        svg.text(0, plot.foot + 16, "|x| =", "end", -6),
        *_value_ticks(plot),
        *_marker_lines(markers, plot),
    )


def _outline(columns: npt.NDArray[np.float64], plot: Plot, width: float) -> Markup:
    """Return the histogram's outline, whose last column ends at the value ``width``."""
    heights = np.zeros(len(columns), np.int64)
    some = columns > 0
    scale = _LEVELS / (plot.y.high - plot.y.low)
    heights[some] = np.rint((np.log10(columns[some]) - plot.y.low) * scale)
    steps = "".join(f"V{_LEVELS - height}h1" for height in heights.tolist())
    area = svg.element("path", d=f"M0,{_LEVELS}{steps}V{_LEVELS}Z", class_="area")
    return svg.stretched(plot.top, _HISTOGRAM_PX, (len(columns), _LEVELS), area, width=plot.across(width))


def _value_ticks(plot: Plot) -> Iterator[Markup]:
    for value in plot.x.ticks(4):
        across = plot.across(value)
        yield svg.upright(across, plot.foot, plot.foot + 4, "foot")
        yield svg.label(across, plot.foot + 16, significant(value))


def _marker_lines(markers: Sequence[Marker], plot: Plot) -> list[Markup]:
    """Return a line and a label for each marker; every label has a row of its own, so that labels never overlap.

    On the left half, labels are right of their lines and the leftmost is highest. On the right half, labels are left of
    their lines and the rightmost is highest. So lines cross no labels, except around the middle.
    """
    left = sorted((one for one in markers if plot.across(one.value) < _MIDDLE), key=lambda one: one.value)
    right = sorted((one for one in markers if one not in left), key=lambda one: -one.value)
    lines, labels = [], []
    for row, marker in enumerate([*right, *left]):
        across, up = plot.across(marker.value), (row + 1) * svg.LINE_PX
        kind = "chosen" if marker.chosen else "other"
        side, gap = ("", 4) if across < _MIDDLE else (" end", -4)
        lines.append(svg.upright(across, up - 8, plot.foot, kind))
        labels.append(svg.text(across, up, marker.label, f"{kind}{side}", dx=gap))
    return [*lines, *labels]


# Values over time.

_SERIES_PX, _SERIES_TOP_PX = 120, 14
_SERIES_ROOM = 1.05  # space above the highest value, as a ratio
_UNITS = 1000.0  # width and height of a line's coordinates

LINES = 3
"""Maximum number of lines in one chart, which have different colors."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name, and a value at each time; None leaves a gap."""

    label: str
    values: Sequence[float | None]


def series_chart(
    times_s: Sequence[float], lines: Sequence[Series], *, title: str, show: Show, limit: float | None = None
) -> Markup:
    """Return a chart of at most :data:`LINES` lines over rising times, in the colors ``line0``, ``line1`` and so on.

    Values that are not finite leave gaps. The budget ``limit`` is a horizontal line.
    """
    if not times_s:
        return Markup("")
    high = svg.scale_of([limit, *(value for one in lines for value in one.values)]).high * _SERIES_ROOM
    end_s = max(times_s[-1], 1e-9)
    plot = Plot(Scale(0, end_s), Scale(0, high), _SERIES_TOP_PX, _SERIES_TOP_PX + _SERIES_PX)
    drawn = []
    for number, one in enumerate(lines):
        known = [value for value in one.values if value is not None and math.isfinite(value)]
        title += f"; {one.label} {show(min(known))} to {show(max(known))}" if known else ""
        points = [
            None if value is None or not math.isfinite(value) else (plot.x.part(time_s), 1 - plot.y.part(value))
            for time_s, value in zip(times_s, one.values, strict=True)
        ]
        paths = svg.line(points, f"line{number}", _UNITS)
        drawn.append(svg.stretched(plot.top, _SERIES_PX, (_UNITS, _UNITS), *paths))
    if limit is not None:
        drawn += [svg.level(plot.down(limit), "limit"),
                  svg.text(100, plot.down(limit) - 4, f"budget {show(limit)}", "end name")]  # fmt: skip
    moments = (svg.label(plot.across(value), plot.foot + 15, f"{value:g} s") for value in plot.x.ticks(6))
    return svg.chart("series", title, plot.foot + svg.AXIS_PX, *plot.rows(4, show), *moments, *drawn)


# Time lines: rows of spans, and of numbers that change.

_TRACK_PX, _TRACK_GAP_PX = 18, 5
_WIDTH = 10_000  # units of a time line's width
_LEAST, _BETWEEN = 5, 6  # units: minimum width of a span, and gap between two spans
HUES = 8
"""Number of colors of a time line, ``hue0`` to ``hue7``."""


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a time line: by color, the (start, end) of spans in which something worked, and text on hovering."""

    label: str
    spans: Mapping[int, Sequence[tuple[float, float]]]
    titles: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Steps:
    """A row of a time line: a number that changes, as (time, value from then on), from the beginning."""

    label: str
    changes: Sequence[tuple[float, float]]
    high: float
    title: str


def timeline_chart(
    ends: tuple[float, float], tracks: Sequence[Track], steps: Sequence[Steps], *, title: str, show: Show
) -> Markup:
    """Return rows of spans, then rows of numbers, on one time axis, which the page's script stretches."""
    if not (tracks or steps):
        return Markup("")
    room = _TRACK_PX + _TRACK_GAP_PX
    foot = room * (len(tracks) + len(steps)) + _TRACK_GAP_PX
    plot = Plot(Scale(*ends), Scale(0, 1), 0, foot)
    tops = range(_TRACK_GAP_PX, foot, room)
    rows = [_track(one, top, plot) for one, top in zip(tracks, tops, strict=False)]
    rows += [_steps(one, top, plot) for one, top in zip(steps, tops[len(tracks) :], strict=False)]
    drawn = svg.chart(
        "timeline", title, foot + svg.AXIS_PX, *plot.columns(10, show), svg.stretched(0, foot, (_WIDTH, foot), *rows)
    )
    named = [(one.label, "track") for one in tracks] + [(one.label, "queue") for one in steps]
    labels = (
        svg.element("g", svg.element("title", name), svg.element("text", name, x=0, y=top + 13, class_=kind))
        for (name, kind), top in zip(named, tops, strict=False)
    )
    names = svg.element("svg", *labels, class_="chart names", height=foot + svg.AXIS_PX, aria_hidden="true")
    return svg.element("div", names, svg.element("div", drawn, class_="stretched", tabindex=0), class_="rows")


def _track(track: Track, top: int, plot: Plot) -> Markup:
    """Return a row of spans as one path for each color, so that thousands of spans stay small."""
    parts = [svg.element("rect", x=0, y=top, width=_WIDTH, height=_TRACK_PX, class_="lane")]
    for hue, spans in track.spans.items():
        boxes = []
        for start, end in ((round(_WIDTH * plot.x.part(one)) for one in span) for span in spans):
            width = max(end - start - _BETWEEN if end - start > 5 * _BETWEEN else end - start, _LEAST)
            boxes.append(f"M{start} {top}h{width}v{_TRACK_PX}h-{width}z")
        words = svg.element("title", track.titles[hue])
        parts.append(svg.element("path", words, d="".join(boxes), class_=f"hue{hue % HUES}"))
    return svg.join(parts)


def _steps(steps: Steps, top: int, plot: Plot) -> Markup:
    foot = top + _TRACK_PX
    path = [f"M0 {foot}"]
    for when, value in steps.changes:
        across = max(round(_WIDTH * plot.x.part(when)), 0)
        path.append(f"H{across}V{foot - value / (steps.high or 1.0) * _TRACK_PX:.1f}")
    path.append(f"H{_WIDTH}V{foot}z")
    lane = svg.element("rect", x=0, y=top, width=_WIDTH, height=_TRACK_PX, class_="lane")
    return svg.join([lane, svg.element("path", svg.element("title", steps.title), d="".join(path), class_="steps")])
