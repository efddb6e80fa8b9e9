"""A network drawn as boxes and lines, coloured by who runs what; drawn with the classes of ``page.css``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgert.report.layout import Point, arrange
from edgert.report.markup import Markup, shape, tag, visible

_ROOM_X, _ROOM_Y = 168, 46  # of a box with what is free around it, pixels at full size
_BOX_X, _BOX_Y = 148, 28
_MARGIN = 10
_LETTERS = 21  # that fit in a box


@dataclass(frozen=True, slots=True)
class Box:
    """A unit: ``kind`` colours it (``gpu``, ``dla0``, ``dla1``, ``cpu0`` …), ``detail`` shows when it is pointed at."""

    name: str
    label: str
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A tensor from one box to a later one; ``crosses`` where it is handed to another accelerator."""

    start: int
    end: int
    detail: str = ""
    crosses: bool = False


def network_picture(boxes: Sequence[Box], lines: Sequence[Line], *, title: str) -> Markup:
    """An SVG of its natural size; the page's script zooms it.

    Args:
        boxes: at least one, every one after those that feed it.
        lines: each from a box to one that comes later.
        title: what a reader who cannot see it is told.
    """
    layout = arrange(len(boxes), [(line.start, line.end) for line in lines])
    width, height = _px(layout.width, _ROOM_X), _px(layout.height, _ROOM_Y)
    drawn = [_line(line, route) for line, route in zip(lines, layout.routes, strict=True)]
    drawn += [_box(box, place) for box, place in zip(boxes, layout.places, strict=True)]
    return tag(
        "svg",
        tag("title", title),
        *drawn,
        class_="network",
        role="img",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )


def _px(rooms: float, room: int) -> int:
    return round(rooms * room) + 2 * _MARGIN


def _corner(place: Point) -> tuple[float, float]:
    across, down = place
    return across * _ROOM_X + _MARGIN + (_ROOM_X - _BOX_X) / 2, down * _ROOM_Y + _MARGIN + (_ROOM_Y - _BOX_Y) / 2


def _box(box: Box, place: Point) -> Markup:
    left, top = _corner(place)
    label = visible(box.label)
    short = label if len(label) <= _LETTERS else f"…{label[1 - _LETTERS :]}"  # names differ at their ends
    return tag(
        "g",
        tag("title", f"{visible(box.name)}\n{box.detail}".strip()),
        shape("rect", x=left, y=top, width=_BOX_X, height=_BOX_Y, rx="5"),
        tag("text", short, x=left + _BOX_X / 2, y=top + _BOX_Y / 2 + 4),
        class_=f"unit {box.kind}",
        data_name=box.name.lower(),
    )


def _line(line: Line, route: Sequence[Point]) -> Markup:
    """Straight down through the rows it passes, bent between them."""
    points = [(left + _BOX_X / 2, top) for left, top in map(_corner, route)]
    x, y = points[0]
    path = [f"M{x:.1f} {y + _BOX_Y:.1f}"]
    y += _BOX_Y
    for number, (right, top) in enumerate(points[1:], 1):
        middle = (y + top) / 2
        path.append(f"C{x:.1f} {middle:.1f} {right:.1f} {middle:.1f} {right:.1f} {top:.1f}")
        x, y = right, top
        if number < len(points) - 1:
            y += _BOX_Y
            path.append(f"V{y:.1f}")
    kind = "tensor crosses" if line.crosses else "tensor"
    return tag("g", tag("title", line.detail), shape("path", d=" ".join(path)), class_=kind)
