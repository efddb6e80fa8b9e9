"""Dots with error bars on two logarithmic axes, and classes of numbers shown by color."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgert.report.chart import anchor, level, percent, text, ticks, upright
from edgert.report.html import Markup, join, shape, tag

_PLOT_PX, _TOP_PX, _AXIS_PX, _STRIP_PX = 300, 32, 38, 26
_NOMINAL_PX, _NARROW_PX = 640, 290  # widths to keep labels apart, and inside; a chart is as wide as its page lets it
_LETTER_PX, _LINE_PX = 7, 13  # of small text
_SAME_PX = 7  # dots that are closer than that have one label
_ROOM = 1.06  # beyond the outermost bars, as a ratio
_DECADES = 8  # ratio of an axis's ends from which its ticks are these digits times powers of ten
_DIGITS = ((1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
_NEAR = 1.7  # a limit that is farther beyond all bars is named at the edge, and not drawn
_SHAPES = {
    "kept": "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0z",
    "close": "M0,-6.5L6.5,0L0,6.5L-6.5,0z",
    "unknown": "M-5,-5H5V5H-5z",
    "missed": "M-4.5,-4.5L4.5,4.5M-4.5,4.5L4.5,-4.5",
}
SIGNS = {"kept": "● kept", "close": "◆ too close to tell", "unknown": "☐ not known", "missed": "✕ missed"}
"""Meaning of the shapes of dots."""

# Classes of numbers, drawn as the colors ``heat0`` to ``heat4`` of ``series.css``.

CLASSES = 5
_WIDEST = 12  # from the least number of the second class to that of the last, about


@dataclass(frozen=True, slots=True)
class Heat:
    """Classes of equal ratio, up to the largest of some numbers.

    Attributes:
        edges: least number of each class, the coldest first; one where all numbers are about the same.
        high: the largest of the numbers.
    """

    edges: tuple[float, ...]
    high: float

    def of(self, value: float) -> int:
        """Return the class of a number, 0 to 4; the last one for infinity."""
        return CLASSES - 1 if value == math.inf else sum(value >= edge * (1 - 1e-9) for edge in self.edges[1:])

    def legend(self, show: Callable[[float], str]) -> Iterator[tuple[int, str]]:
        """Yield every class with its range of numbers."""
        ends = [*self.edges[1:], self.high]
        for number, (low, high) in enumerate(zip(self.edges, ends, strict=True)):
            yield number, show(low) if show(low) == show(high) else f"{show(low)} – {show(high)}"


def heat_of(values: Sequence[float], *, is_from_least: bool = False) -> Heat:
    """Return classes for numbers; numbers that are not finite or not above zero are ignored.

    Args:
        values: the numbers.
        is_from_least: far numbers share the hottest class, and not the coldest.
    """
    known = [value for value in values if 0 < value < math.inf]
    if not known:
        return Heat((0.0,), 0.0)
    least, most = min(known), max(known)
    if most / least < 1 + 0.02 * CLASSES:
        return Heat((least,), most)
    ratio = min(most / least, _WIDEST)
    step, low = ratio ** (1 / CLASSES), least if is_from_least else most / ratio
    return Heat((least, *(low * step**number for number in range(1, CLASSES))), most)


def heat_legend(heat: Heat, unit: str, show: Callable[[float], str]) -> Markup:
    """Return the legend of the colors."""
    keys = [tag("span", words, class_=f"key heat{number}") for number, words in heat.legend(show)]
    return tag("span", f"{unit}: ", *keys, class_="legend")


@dataclass(frozen=True, slots=True)
class Dot:
    """One dot.

    Attributes:
        x, y: above 0; ``y`` is None where it is not known: the dot is then in a strip of its own below.
        x_bar, y_bar: ends of the error bars; None: there is none.
        label: beside it; empty: none.
        detail: text on hovering.
        heat: class of its color.
        mark: its shape, of :data:`SIGNS`.
        kind: ``chosen``, ``small`` (without bars) or empty.
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


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis: ends, and what is marked on it."""

    low: float
    high: float

    def part(self, value: float) -> float:
        """Return the position of a number, 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self, wanted: int) -> list[float]:
        """Return round numbers."""
        if self.high / self.low < _DECADES:
            return list(ticks(self.low, self.high, wanted))
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found: list[float] = []
        for digits in _DIGITS:
            if len(found) < wanted // 2:
                found = [digit * 10.0**power for power in powers for digit in digits]
                found = [value for value in found if self.low <= value <= self.high]
        return found


def axis_of(values: Sequence[float], limit: float | None = None) -> Axis:
    """Return an axis with space for all finite numbers above zero, and for a limit that is not far from them."""
    known = [value for value in values if 0 < value < math.inf] or [1.0]
    low, high = min(known), max(known)
    if limit is not None and low / _NEAR <= limit <= high * _NEAR:
        low, high = min(low, limit), max(high, limit)
    room = max(_ROOM, (1.3 / (high / low)) ** 0.5)  # a single number stands in the middle
    return Axis(low / room, high * room)


def front_of(dots: Sequence[Dot]) -> list[Dot]:
    """Return the dots that no other is right of and below of, from left to right."""
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
    show: Callable[[float], str],
    limits: tuple[float | None, float | None] = (None, None),
    strip: str = "",
) -> Markup:
    """Return dots, the best of them joined: down is better, and right is better.

    Args:
        dots: at least one; small ones are drawn first.
        title: text for screen readers.
        names: of both axes.
        show: a number of an axis.
        limits: drawn across, or named at the edge that they are beyond; None: none.
        strip: the words for dots whose ``y`` is not known.
    """
    x_axis = axis_of([one for dot in dots for one in (dot.x, *(dot.x_bar or ()))], limits[0])
    y_axis = axis_of([one for dot in dots if dot.y for one in (dot.y, *(dot.y_bar or ()))], limits[1])
    plot_px = _PLOT_PX if any(dot.y is not None for dot in dots) else 0
    foot = _TOP_PX + plot_px
    has_strip = any(dot.y is None for dot in dots)
    strip_px = foot + _STRIP_PX / 2 if has_strip else foot
    bottom = foot + (_STRIP_PX if has_strip else 0)

    def across(value: float) -> float:
        return 100 * x_axis.part(value)

    def down(value: float | None) -> float:
        return strip_px if value is None else foot - plot_px * y_axis.part(value)

    drawn = sorted(dots, key=lambda dot: (dot.kind != "small", dot.kind == "chosen"))
    parts = [
        *(level(down(value), "grid", show(value)) for value in (y_axis.ticks(6) if plot_px else ())),
        *(upright(across(value), _TOP_PX, bottom, "grid") for value in x_axis.ticks(7)),
        *(text(across(value), bottom + 15, show(value), anchor(across(value))) for value in x_axis.ticks(7)),
        level(foot, "foot") if has_strip else "",
        text(0, 10, names[1]) if plot_px else "",
        text(100, bottom + 31, names[0], "end"),
        text(100, strip_px + 4, strip, "end", -4) if has_strip else "",
        *_asked(limits[0], x_axis, bottom, show),
        *_budget(limits[1], y_axis, down, show),
        _front([(across(dot.x), down(dot.y)) for dot in front_of(dots)], foot),
        *(_bars(dot, across, down) for dot in drawn),
        *(_dot(dot, across(dot.x), down(dot.y)) for dot in drawn),
        *_labels([(across(dot.x), down(dot.y), dot.label) for dot in drawn if dot.label]),
    ]
    return tag("svg", tag("title", title), *parts, class_="chart series scatter", role="img", height=bottom + _AXIS_PX)


def _asked(asked: float | None, axis: Axis, bottom: float, show: Callable[[float], str]) -> Iterator[Markup]:
    if asked is None:
        return
    if axis.low <= asked <= axis.high:
        where = 100 * axis.part(asked)
        yield upright(where, _TOP_PX, bottom, "limit")
        yield text(where, _TOP_PX - 6, f"asked {show(asked)}", anchor(where))
    else:
        is_less = asked < axis.low
        words = f"← asked {show(asked)}" if is_less else f"asked {show(asked)} →"
        yield text(0 if is_less else 100, _TOP_PX - 6, words, "start" if is_less else "end")


def _budget(
    most: float | None, axis: Axis, down: Callable[[float], float], show: Callable[[float], str]
) -> Iterator[Markup]:
    if most is None:
        return
    if axis.low <= most <= axis.high:
        yield level(down(most), "limit")
        yield text(100, down(most) - 4, f"budget {show(most)}", "end")
    else:
        yield text(100, 10, f"{'↑' if most > axis.high else '↓'} budget {show(most)}", "end")


def _front(points: Sequence[tuple[float, float]], height: int) -> Markup:
    """Return steps from dot to dot: the best combinations of both axes."""
    if len(points) < 2:
        return Markup("")
    steps = [f"M{points[0][0]:.2f},{points[0][1]:.1f}", *(f"V{y:.1f}H{x:.2f}" for x, y in points[1:])]
    return tag(
        "svg",
        shape("path", d="".join(steps), class_="front"),
        width="100%",
        height=height,
        viewBox=f"0 0 100 {height}",
        preserveAspectRatio="none",
    )


def _bars(dot: Dot, across: Callable[[float], float], down: Callable[[float | None], float]) -> Markup:
    if dot.kind == "small":
        return Markup("")
    parts, y = [], down(dot.y)
    if dot.x_bar is not None:
        ends = [percent(across(value)) for value in dot.x_bar]
        parts.append(shape("line", x1=ends[0], x2=ends[1], y1=y, y2=y, class_="whisker"))
    if dot.y_bar is not None:
        low, high = map(down, dot.y_bar)
        parts.append(upright(across(dot.x), high, low, "whisker"))
    return join(parts)


def _dot(dot: Dot, x: float, y: float) -> Markup:
    kind = f"dot {dot.mark} heat{dot.heat} {dot.kind}".rstrip()
    body = [tag("title", dot.detail), shape("path", d=_SHAPES[dot.mark])]
    if dot.kind == "chosen":
        body.append(shape("circle", r=9, class_="ring"))
    return tag("svg", *body, x=percent(x), y=float(y), class_=kind)


def _labels(places: Sequence[tuple[float, float, str]]) -> Iterator[Markup]:
    """Yield one label for dots in the same place, where it overlaps no dot and no other label, if there is space."""
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
        yield text(x, y + dy, words, f"mark {side}".rstrip(), dx)


def _overlap(box: tuple[float, ...], other: tuple[float, ...]) -> float:
    wide = min(box[2], other[2]) - max(box[0], other[0])
    high = min(box[3], other[3]) - max(box[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0
