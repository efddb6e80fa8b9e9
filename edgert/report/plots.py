"""Histograms with marked thresholds, and values over time, as SVG text; drawn like :mod:`edgert.report.chart`."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.report.chart import anchor, decades, level, percent, text, ticks, upright
from edgert.report.html import Markup, join, shape, tag
from edgert.report.numbers import power_of_ten, significant

_COLUMNS = 110  # what a small chart can show
_PLOT_PX = 92
_LINE_PX = 13  # between two lines of small text
_AXIS_PX = 20  # room under the plot for its ticks
_MIDDLE = 52.0  # labels of markers right of here stand on their left side
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
    """How often each magnitude occurs, counts on a log scale, with labeled lines, shaded beyond the chosen one.

    Args:
        counts: (bins,) counts of equal bins from zero up; neighbors are added up to what can be seen.
        bin_width: in the values' own unit.
        largest: the largest value; the axis ends there or at the largest marker.
        title: text for screen readers; shown on hovering.
        rows: lines of labels to keep room for, so that charts side by side have equal plots; at least one per marker.
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
    """The histogram's outline in a box of its own, which is stretched to the chart's width."""
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
    """A line and a label each; every label has a row of its own, so that none meets another.

    On the left half labels stand right of their lines and the leftmost is highest, on the right half the other way
    round: so lines do not cross labels, except around the middle.
    """
    left = sorted((one for one in markers if 100 * one.value / end < _MIDDLE), key=lambda one: one.value)
    right = sorted((one for one in markers if one not in left), key=lambda one: -one.value)
    lines, labels = [], []
    for row, marker in enumerate([*right, *left]):
        across, up = 100 * marker.value / end, (row + 1) * _LINE_PX
        kind = "chosen" if marker.chosen else "other"
        side, gap = ("", 4) if across < _MIDDLE else (" end", -4)
        lines.append(upright(across, up - 8, top + _PLOT_PX, kind))
        labels.append(text(across, up, marker.label, f"{kind}{side}", dx=gap))
    return [*lines, *labels]


# Values over time as lines.

_SERIES_PLOT_PX, _TOP_PX, _SERIES_AXIS_PX = 120, 14, 20
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
    """Lines from zero up, at most :data:`LINES`, with a legend where there are several.

    Args:
        times_s: rising, from 0 at the left; at least one.
        title: text for screen readers.
        show: a value with its unit.
        limit: a budget, drawn across.
    """
    known = [value for line in lines for value in line.values if value is not None]
    high = max([*known, limit or 0.0]) * _SERIES_ROOM or 1.0
    end_s = max(times_s[-1], 1e-9)
    foot = _TOP_PX + _SERIES_PLOT_PX

    def down(value: float) -> float:
        return foot - value / high * _SERIES_PLOT_PX

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
        height=foot + _SERIES_AXIS_PX,
    )
    keys = [tag("span", line.label, class_=f"key line{number}") for number, line in enumerate(lines)]
    return join([tag("p", *keys, class_="legend") if len(lines) > 1 else "", drawn])


def _line(times_s: Sequence[float], line: Series, number: int, end_s: float, high: float) -> Markup:
    """In a box of its own, which is stretched to the chart's width."""
    return tag(
        "svg",
        *(shape("path", d=path, class_=f"line{number}") for path in _paths(times_s, line.values, end_s, high)),
        y=_TOP_PX,
        width="100%",
        height=_SERIES_PLOT_PX,
        viewBox=f"0 0 {_SERIES_LEVELS} {_SERIES_LEVELS}",
        preserveAspectRatio="none",
    )


def _paths(times_s: Sequence[float], values: Sequence[float | None], end_s: float, high: float) -> Iterator[str]:
    """A path for every stretch without a gap; a value alone is a dash as long as its moment."""
    points: list[str] = []
    for time_s, value in [*zip(times_s, values, strict=True), (math.inf, None)]:
        if value is not None:
            points.append(f"{_SERIES_LEVELS * time_s / end_s:.1f},{_SERIES_LEVELS * (1 - value / high):.1f}")
        elif points:
            yield f"M{' '.join(points)}" + ("h-9" if len(points) == 1 else "")
            points = []
