"""Scatter charts with error bars on two logarithmic axes, and classes of numbers for colors."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from edgert.report import svg
from edgert.report.svg import Plot, Point, Scale, Show

_PLOT_PX, _TOP_PX, _AXIS_PX, _STRIP_PX = 300, 32, 38, 26
_NOMINAL_PX, _NARROW_PX = 640, 290  # widths at which labels are apart, and inside the chart
_LETTER_PX = 7  # width of a letter of small text
_SAME_PX = 7  # distance below which dots share a label
_ROOM = 1.06  # space beyond the outermost bars, as a ratio
_NEAR = 1.7  # ratio beyond all bars from which a limit is named at the edge, not drawn
_SHAPES = {
    "kept": "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0z",
    "close": "M0,-6.5L6.5,0L0,6.5L-6.5,0z",
    "unknown": "M-5,-5H5V5H-5z",
    "missed": "M-4.5,-4.5L4.5,4.5M-4.5,4.5L4.5,-4.5",
}
SIGNS = {"kept": "● kept", "close": "◆ too close to tell", "unknown": "☐ not known", "missed": "✕ missed"}

# Classes of numbers, in the colors ``heat0`` to ``heat4``.

CLASSES = 5
_WIDEST = 12  # maximum ratio that equal classes cover; outliers widen the first or the last class


@dataclass(frozen=True, slots=True)
class Heat:
    """Classes of numbers, with edges of equal ratio: the least of each, coldest first, and the largest number.

    There is a single class where all numbers are about the same.
    """

    edges: tuple[float, ...]
    high: float

    def of(self, value: float) -> int:
        """Return the class of a number, 0 to 4; 4 for infinity."""
        return CLASSES - 1 if value == math.inf else sum(value >= edge * (1 - 1e-9) for edge in self.edges[1:])

    def keys(self, show: Show) -> tuple[tuple[str, str], ...]:
        """Return the legend: the range of every class, and its color."""
        ends = zip(self.edges, [*self.edges[1:], self.high], strict=True)
        texts = [dict.fromkeys((show(low), show(high))) for low, high in ends]
        return tuple((" – ".join(words), f"heat{number}") for number, words in enumerate(texts))


def heat_of(values: Sequence[float], *, is_from_least: bool = False) -> Heat:
    """Return classes for the finite numbers above zero; outliers share the coldest, or the hottest if asked to."""
    known = [value for value in values if 0 < value < math.inf]
    if not known:
        return Heat((0.0,), 0.0)
    least, most = min(known), max(known)
    if most / least < 1 + 0.02 * CLASSES:
        return Heat((least,), most)
    ratio = min(most / least, _WIDEST)
    step, low = ratio ** (1 / CLASSES), least if is_from_least else most / ratio
    return Heat((least, *(low * step**number for number in range(1, CLASSES))), most)


@dataclass(frozen=True, slots=True)
class Dot:
    """One dot above 0, with the ends of its error bars.

    Where ``y`` is None it is placed in a strip below the plot. ``mark`` is a key of :data:`SIGNS`; ``kind`` is
    ``chosen``, ``small`` (without bars) or empty.
    """

    x: float
    y: float | None
    x_bar: tuple[float, float] | None
    y_bar: tuple[float, float] | None
    label: str
    detail: str
    heat: int
    mark: str
    kind: str = ""


def log_scale(values: Sequence[float], limit: float | None = None) -> Scale:
    """Return a logarithmic scale with all finite numbers above zero, and a limit if it is near to them."""
    known = [value for value in values if 0 < value < math.inf] or [1.0]
    low, high = min(known), max(known)
    if limit is not None and low / _NEAR <= limit <= high * _NEAR:
        low, high = min(low, limit), max(high, limit)
    room = max(_ROOM, (1.3 / (high / low)) ** 0.5)  # centers a single number
    return Scale(low / room, high * room, is_log=True)


def front_of(dots: Sequence[Dot]) -> list[Dot]:
    """Return the Pareto front from left to right: the dots without another one to the right and below."""
    found: list[Dot] = []
    for dot in sorted((one for one in dots if one.y is not None), key=lambda one: (-one.x, one.y or 0.0)):
        if not found or (dot.y or 0.0) < (found[-1].y or 0.0):
            found.append(dot)
    return found[::-1]


def scatter_chart(
    dots: Sequence[Dot],
    *,
    title: str,
    names: tuple[str, str],
    show: Show,
    limits: tuple[float | None, float | None] = (None, None),
    strip: str = "",
) -> Markup:
    """Return dots, the best of them joined: down is better, and right is better.

    Dots whose ``x`` is not finite or not above zero are left out. ``limits`` of both axes are drawn across, or named at
    the edge that they are beyond. ``strip`` names the dots whose ``y`` is not known.
    """
    dots = [dot for dot in dots if 0 < dot.x < math.inf]
    if not dots:
        return Markup("")
    known = [dot for dot in dots if dot.y is not None]
    x_scale = log_scale([one for dot in dots for one in (dot.x, *(dot.x_bar or ()))], limits[0])
    y_scale = log_scale([one for dot in known for one in (dot.y or 0.0, *(dot.y_bar or ()))], limits[1])
    plot = Plot(x_scale, y_scale, _TOP_PX, _TOP_PX + (_PLOT_PX if known else 0))
    strip_px = _STRIP_PX if len(known) < len(dots) else 0  # below the plot, for what is not known
    bottom, middle = plot.foot + strip_px, plot.foot + strip_px / 2

    def place(dot: Dot) -> Point:
        return plot.across(dot.x), middle if dot.y is None else plot.down(dot.y)

    drawn = sorted(dots, key=lambda dot: (dot.kind != "small", dot.kind == "chosen"))
    return svg.chart(
        "series scatter",
        title,
        bottom + _AXIS_PX,
        *(plot.rows(6, show) if known else ()),
        *plot.columns(7, show, strip_px),
        *((svg.level(plot.foot, "foot"), svg.text(100, middle + 4, strip, "end", -4)) if strip_px else ()),
        svg.text(0, 10, names[1]) if known else "",
        svg.text(100, bottom + 31, names[0], "end"),
        *_limits(limits, plot, bottom, show),
        _front([place(dot) for dot in front_of(dots)], plot.foot),
        *(_bars(dot, plot, *place(dot)) for dot in drawn),
        *(_dot(dot, *place(dot)) for dot in drawn),
        *_labels([(*place(dot), dot.label) for dot in drawn if dot.label]),
    )


def _limits(limits: tuple[float | None, float | None], plot: Plot, bottom: float, show: Show) -> Iterator[Markup]:
    """Yield the lines of the requested rate and of the budget, each named; a name at the edge that it is beyond."""
    requested, most = limits
    if requested is not None:
        words, is_less = f"asked {show(requested)}", requested < plot.x.low
        if is_less or requested > plot.x.high:
            text = f"← {words}" if is_less else f"{words} →"
            yield svg.text(0 if is_less else 100, _TOP_PX - 6, text, "start" if is_less else "end")
        else:
            where = plot.across(requested)
            yield svg.upright(where, _TOP_PX, bottom, "limit")
            yield svg.label(where, _TOP_PX - 6, words)
    if most is not None:
        words, is_less = f"budget {show(most)}", most < plot.y.low
        if is_less or most > plot.y.high:
            yield svg.text(100, 10, f"{'↓' if is_less else '↑'} {words}", "end")
        else:
            yield svg.level(plot.down(most), "limit")
            yield svg.text(100, plot.down(most) - 4, words, "end")


def _front(points: Sequence[Point], height: float) -> Markup:
    if len(points) < 2:
        return Markup("")
    steps = [f"M{points[0][0]:.2f},{points[0][1]:.1f}", *(f"V{y:.1f}H{x:.2f}" for x, y in points[1:])]
    return svg.stretched(0, height, (100, height), svg.element("path", d="".join(steps), class_="front"))


def _bars(dot: Dot, plot: Plot, x: float, y: float) -> Markup:
    if dot.kind == "small":
        return Markup("")
    parts = []
    if dot.x_bar is not None:
        parts.append(svg.whisker((plot.across(dot.x_bar[0]), plot.across(dot.x_bar[1])), y))
    if dot.y_bar is not None:
        low, high = map(plot.down, dot.y_bar)
        parts.append(svg.upright(x, high, low, "whisker"))
    return svg.join(parts)


def _dot(dot: Dot, x: float, y: float) -> Markup:
    kind = f"dot {dot.mark} heat{dot.heat} {dot.kind}".rstrip()
    ring = svg.element("circle", r=9, class_="ring") if dot.kind == "chosen" else ""
    shape = svg.element("path", d=_SHAPES[dot.mark])
    return svg.element("svg", svg.element("title", dot.detail), shape, ring, x=svg.percent(x), y=float(y), class_=kind)


def _labels(places: Sequence[tuple[float, float, str]]) -> Iterator[Markup]:
    """Yield one label for all dots in a place, where it overlaps the least with dots and other labels."""
    groups: list[tuple[float, float, list[str]]] = []
    for x, y, label in places:
        near = (one for one in groups if abs(one[0] - x) * _NOMINAL_PX / 100 < _SAME_PX and abs(one[1] - y) < _SAME_PX)
        group = next(near, None)
        if group is None:
            groups.append((x, y, [label]))
        else:
            group[2].append(label)
    taken = [(x * _NOMINAL_PX / 100 - 6, y - 6, x * _NOMINAL_PX / 100 + 6, y + 6) for x, y, _ in groups]
    for x, y, labels in groups:
        words = ", ".join(sorted(labels, key=lambda one: (len(one), one)))
        width, middle = len(words) * _LETTER_PX, x * _NOMINAL_PX / 100
        spots = [(6, -6, ""), (-6, -6, "end"), (6, 14, ""), (-6, 14, "end"), (0, -11, "middle"), (0, 20, "middle"),
                 (10, 4, ""), (-10, 4, "end")]  # fmt: skip
        best: tuple[float, tuple[int, int, str], tuple[float, float, float, float]] | None = None
        for dx, dy, side in spots:
            left = middle + dx - (width if side == "end" else width / 2 if side == "middle" else 0)
            box = (left, y + dy - 10, left + width, y + dy + 2)
            start = x * _NARROW_PX / 100 + left - middle
            beyond = max(0.0, -start) + max(0.0, start + width - _NARROW_PX)
            cost = sum(_overlap(box, other) for other in taken) + 100 * beyond
            if best is None or cost < best[0]:
                best = (cost, (dx, dy, side), box)
        assert best is not None
        (dx, dy, side), box = best[1], best[2]
        taken.append(box)
        yield svg.text(x, y + dy, words, f"mark {side}".rstrip(), dx)


def _overlap(box: tuple[float, ...], other: tuple[float, ...]) -> float:
    wide = min(box[2], other[2]) - max(box[0], other[0])
    high = min(box[3], other[3]) - max(box[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0
