"""A small histogram with thresholds marked in it, as SVG text; drawn like the charts of :mod:`edgert.report.chart`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.report.axis import anchor, decades, percent, text, ticks
from edgert.report.markup import Markup, join, shape, tag
from edgert.report.number import power_of_ten, significant

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
        shape("rect", x=percent(100 * chosen / end), y=top, width=percent(100 - 100 * chosen / end),
              height=_PLOT_PX, class_="clipped"),
        shape("line", x1="0", x2="100%", y1=height, y2=height, class_="foot"),
        *(_value_tick(value, end, height) for value in ticks(0, end, 4)),
        *_marker_lines(markers, end, top),
        class_="chart histogram",
        role="img",
        height=height + _AXIS_PX,
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


def _count_lines(columns: npt.NDArray[np.float64], top: int) -> list[Markup]:
    most = max(float(columns.max()), 1.0)
    whole = math.log10(most) + _FLOOR_DECADES
    lines = [text(0, top - 8, "values", "end", -4)]
    for power in decades(most, 4):
        down = top + _PLOT_PX * (1 - (power + _FLOOR_DECADES) / whole)
        lines.append(shape("line", x1="0", x2="100%", y1=down, y2=down, class_="grid"))
        lines.append(text(0, down + 4, power_of_ten(power), "end", -6))
    return lines


def _value_tick(value: float, end: float, height: int) -> Markup:
    across = 100 * value / end
    line = shape("line", x1=percent(across), x2=percent(across), y1=height, y2=height + 4, class_="foot")
    name = [text(0, height + 16, "|x| =", "end", -6)] if value == 0 else []
    return join([line, *name, text(across, height + 16, significant(value), anchor(across))])


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
        drawn.append(shape("line", x1=percent(across), x2=percent(across), y1=up - 8, y2=top + _PLOT_PX, class_=kind))
        drawn.append(text(across, up, marker.label, f"{kind}{side}", dx=gap))
    lines = [one for one in drawn if one.startswith("<line")]
    return [*lines, *(one for one in drawn if not one.startswith("<line"))]
