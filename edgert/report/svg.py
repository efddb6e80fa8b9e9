"""SVG as text: escaped elements, and the scales, axes and marks of all charts.

Horizontal positions are percentages of a chart's width, and vertical ones are pixels. So a chart fills any width, while
text and lines keep their size. Marks beyond 0 and 100 % need a margin of the page. ``templates/charts.css`` has colors
and fonts.
"""

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

AXIS_PX = 20
"""Height of the labels under a plot."""
LINE_PX = 13
"""Distance between two lines of small text."""

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})  # controls, direction overrides, lone surrogates, ...
_DECADES = 8  # ratio of a logarithmic axis's ends from which ticks are these digits times powers of ten
_DIGITS = ((1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
_LARGEST = 1e300  # beyond it, differences are infinite
_EDGE_PERCENT = 4  # nearer than this to an edge, a label stays inside

Point = tuple[float, float]
Show = Callable[[float], str]
"""Function that formats a number of an axis."""


def visible(text: str) -> str:
    """Return a text with invisible characters, and those that hide others, as Python escapes."""
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode("ascii") if unicodedata.category(one) in _HIDDEN else one for one in text
    )


def escaped(value: object) -> Markup:
    """Return a value as escaped text for HTML or SVG; Markup is not escaped."""
    return value if isinstance(value, Markup) else escape("\n".join(map(visible, str(value).split("\n"))))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return ``<text class="end">a &lt; b</text>`` for ``element("text", "a < b", class_="end")``.

    Without children the element has no end tag. In attributes ``_`` becomes ``-``, but is removed at the end; None is
    left out; floats have five digits.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(f"{value:.5g}" if isinstance(value, float) else value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    body = "".join(map(escaped, children))
    return Markup(f"<{name}{written}>{body}</{name}>" if children else f"<{name}{written}/>")  # noqa: S704  # escaped


def join(parts: Iterable[object]) -> Markup:
    """Return the concatenated parts."""
    return Markup("").join(map(escaped, parts))


def percent(value: float) -> str:
    """Return 12.5 as ``"12.5%"``, as SVG has it."""
    return f"{value:.2f}".rstrip("0").rstrip(".") + "%"


# Scales.


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from ``low`` to ``high``, which are above zero on a logarithmic one."""

    low: float
    high: float
    is_log: bool = False

    def part(self, value: float) -> float:
        """Return the position of a number: 0 at the low end, 1 at the high one."""
        if self.is_log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, wanted: int) -> tuple[float, ...]:
        """Return about ``wanted`` round numbers."""
        if not self.is_log or self.high / self.low < _DECADES:
            return ticks(self.low, self.high, wanted)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found: list[float] = []
        for digits in _DIGITS:
            if len(found) < wanted // 2:
                found = [digit * 10.0**power for power in powers for digit in digits]
                found = [value for value in found if self.low <= value <= self.high]
        return tuple(found)


def scale_of(values: Iterable[float | None], *, room: float = 0.0) -> Scale:
    """Return a linear scale with zero and all known numbers up to 1e300.

    Any may be None, infinite or NaN. ``room`` is free space beyond the outermost, as a part of the scale.
    """
    known = [0.0, *(value for value in values if value is not None and abs(value) <= _LARGEST)]
    low, high = min(known), max(known)
    high = high if high > low else low + 1.0
    free = (high - low) * room
    return Scale(low - free, high + free)


def ticks(low: float, high: float, wanted: int) -> tuple[float, ...]:
    """Return about ``wanted`` multiples of 1, 2 or 5 times a power of ten in ``[low, high]``, which may be empty."""
    if high <= low or wanted < 1:
        return ()
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    # the round step with the ratio to the rough one that is nearest to 1
    step = min((power * one for one in (1.0, 2.0, 5.0, 10.0)), key=lambda step: abs(math.log(step / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(number * step for number in range(first, last + 1))


# Marks.


def text(across: float, down: float, content: object, class_: str | None = None, dx: int | None = None) -> Markup:
    """Return a text; ``across`` in percent of the chart's width, ``down`` and ``dx`` in pixels."""
    return element("text", content, x=percent(across), y=float(down), dx=dx, class_=class_ or None)


def label(across: float, down: float, content: object) -> Markup:
    """Return a text that is centered at its position, or stays inside near an edge of the chart."""
    side = "start" if across < _EDGE_PERCENT else "end" if across > 100 - _EDGE_PERCENT else "middle"
    return text(across, down, content, side)


def level(down: float, class_: str, left: str = "", right: str = "") -> Markup:
    """Return a horizontal line across the chart, ``down`` in pixels, with a label beside each end."""
    labels = [text(0, down + 4, left, "end", -6)] if left else []
    labels += [text(100, down + 4, right, None, 6)] if right else []
    return join([element("line", x1="0", x2="100%", y1=down, y2=down, class_=class_), *labels])


def upright(across: float, top: float, foot: float, class_: str) -> Markup:
    """Return a vertical line; ``across`` in percent of the chart's width, its ends in pixels."""
    return element("line", x1=percent(across), x2=percent(across), y1=top, y2=foot, class_=class_)


def whisker(ends: tuple[float, float], down: float) -> Markup:
    """Return a horizontal line between two positions in percent."""
    first, last = map(percent, ends)
    return element("line", x1=first, x2=last, y1=down, y2=down, class_="whisker")


def stretched(top: float, height: float, box: tuple[float, float], *marks: object, width: float = 100.0) -> Markup:
    """Return marks with coordinates from 0 to ``box``, stretched over a part of the chart."""
    view = f"0 0 {box[0]:g} {box[1]:g}"
    place = {"y": top or None, "width": percent(width), "height": height}
    return element("svg", *marks, **place, viewBox=view, preserveAspectRatio="none")


def line(points: Iterable[Point | None], class_: str, box: float) -> Iterator[Markup]:
    """Yield a path for every run of points between gaps (None); a single point is a short dash.

    Points are 0 to 1 across and down, in a box of the size ``box``.
    """
    stretch: list[str] = []
    for point in [*points, None]:
        if point is not None:
            stretch.append(f"{box * point[0]:.1f},{box * point[1]:.1f}")
        elif stretch:
            dash = f"h{-box * 0.009:.0f}" if len(stretch) == 1 else ""
            yield element("path", d=f"M{' '.join(stretch)}{dash}", class_=class_)
            stretch = []


@dataclass(frozen=True, slots=True)
class Plot:
    """The area of a chart between its axes, from ``top`` to ``foot`` in pixels."""

    x: Scale
    y: Scale
    top: float
    foot: float

    def across(self, value: float) -> float:
        """Return the horizontal position of a value in percent."""
        return 100 * self.x.part(value)

    def down(self, value: float) -> float:
        """Return the vertical position of a value in pixels."""
        return self.foot - (self.foot - self.top) * self.y.part(value)

    def rows(self, wanted: int, left: Show, right: Show = lambda value: "") -> Iterator[Markup]:
        """Yield horizontal grid lines, with labels beside each end."""
        return (level(self.down(value), "grid", left(value), right(value)) for value in self.y.ticks(wanted))

    def columns(self, wanted: int, show: Show, below: float = 0.0) -> Iterator[Markup]:
        """Yield vertical grid lines, which go on ``below`` the foot by pixels, with labels at their lower ends."""
        for value in self.x.ticks(wanted):
            across = self.across(value)
            yield upright(across, self.top, self.foot + below, "grid" if value else "grid zero")
            yield label(across, self.foot + below + 15, show(value))


def chart(kind: str, title: str, height: float, *marks: object) -> Markup:
    """Return a complete chart, ``height`` in pixels, with CSS classes ``kind``; the first mark is in the back."""
    head = element("title", title)
    return element("svg", head, *marks, class_=f"chart {kind}", role="img", height=height)
