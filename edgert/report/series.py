"""Values over time as lines, as SVG text; drawn like the charts of :mod:`edgert.report.chart`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgert.report.axis import anchor, text, ticks
from edgert.report.markup import Markup, join, shape, tag

_PLOT_PX, _TOP_PX, _AXIS_PX = 120, 14, 20
_ROOM = 1.05  # above the highest value
_LEVELS = 1000  # vertical resolution of a line

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
        title: what a reader who cannot see it is told.
        show: a value with its unit.
        limit: a budget, drawn across.
    """
    known = [value for line in lines for value in line.values if value is not None]
    high = max([*known, limit or 0.0]) * _ROOM or 1.0
    end_s = max(times_s[-1], 1e-9)
    foot = _TOP_PX + _PLOT_PX

    def down(value: float) -> float:
        return foot - value / high * _PLOT_PX

    drawn = tag(
        "svg",
        tag("title", title),
        *(_level(down(value), show(value)) for value in ticks(0.0, high, 4)),
        *(_moment(value, end_s, foot) for value in ticks(0.0, end_s, 6)),
        *(_line(times_s, line, number, end_s, high) for number, line in enumerate(lines)),
        *([_limit(down(limit), show(limit))] if limit is not None else []),
        class_="chart series",
        role="img",
        height=foot + _AXIS_PX,
    )
    keys = [tag("span", line.label, class_=f"key line{number}") for number, line in enumerate(lines)]
    return join([tag("p", *keys, class_="legend") if len(lines) > 1 else "", drawn])


def _level(down: float, label: str) -> Markup:
    line = shape("line", x1="0", x2="100%", y1=down, y2=down, class_="grid")
    return join([line, text(0, down + 4, label, "end", -6)])


def _moment(value: float, end_s: float, foot: int) -> Markup:
    across = 100 * value / end_s
    return text(across, foot + 15, f"{value:g} s", anchor(across))


def _limit(down: float, label: str) -> Markup:
    line = shape("line", x1="0", x2="100%", y1=down, y2=down, class_="limit")
    return join([line, text(100, down - 4, f"budget {label}", "end name")])


def _line(times_s: Sequence[float], line: Series, number: int, end_s: float, high: float) -> Markup:
    """In a box of its own, which is stretched to the chart's width."""
    return tag(
        "svg",
        *(shape("path", d=path, class_=f"line{number}") for path in _paths(times_s, line.values, end_s, high)),
        y=_TOP_PX,
        width="100%",
        height=_PLOT_PX,
        viewBox=f"0 0 {_LEVELS} {_LEVELS}",
        preserveAspectRatio="none",
    )


def _paths(times_s: Sequence[float], values: Sequence[float | None], end_s: float, high: float) -> Iterator[str]:
    """A path for every stretch without a gap; a value alone is a dash as long as its moment."""
    points: list[str] = []
    for time_s, value in [*zip(times_s, values, strict=True), (math.inf, None)]:
        if value is not None:
            points.append(f"{_LEVELS * time_s / end_s:.1f},{_LEVELS * (1 - value / high):.1f}")
        elif points:
            yield f"M{' '.join(points)}" + ("h-9" if len(points) == 1 else "")
            points = []
