"""Axes: round numbers to mark, and text placed by percent across and pixels down."""

from __future__ import annotations

import math

from edgert.report.markup import Markup, tag

_STEPS = (1.0, 2.0, 5.0, 10.0)


def ticks(low: float, high: float, wanted: int) -> tuple[float, ...]:
    """About ``wanted`` multiples of 1, 2 or 5 times a power of ten, within ``[low, high]``; none if that is empty.

    Raises:
        ValueError: an end is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"an axis needs finite ends, not {low} and {high}")
    if high <= low or wanted < 1:
        return ()
    step = _step((high - low) / wanted)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def _step(rough: float) -> float:
    """The round step nearest to a rough one on a ratio scale."""
    power = 10.0 ** math.floor(math.log10(rough))
    return min((step * power for step in _STEPS), key=lambda step: abs(math.log(step / rough)))


def decades(largest: float, wanted: int) -> tuple[int, ...]:
    """Whole powers of ten from 1 up to ``largest``, at most about ``wanted`` of them, evenly spaced."""
    top = math.floor(math.log10(largest)) if largest >= 1 else 0
    stride = max(1, math.ceil(top / max(wanted - 1, 1)))
    return tuple(range(0, top + 1, stride))


def text(across: float, down: float, content: str, class_: str | None = None, dx: int | None = None) -> Markup:
    """A label; ``across`` in percent of the chart's width, ``down`` and ``dx`` in pixels."""
    return tag("text", content, x=percent(across), y=float(down), dx=dx, class_=class_)


def anchor(across: float) -> str:
    """The class with which a label under its tick stays inside the chart."""
    return "start" if across < 4 else "end" if across > 96 else "middle"


def percent(value: float) -> str:
    """12.5 → ``"12.5%"``, as SVG wants it."""
    return f"{value:.2f}".rstrip("0").rstrip(".") + "%"
