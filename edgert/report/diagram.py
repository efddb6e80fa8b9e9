"""Drawings of directed graphs as boxes and lines, with every box below its inputs, and few crossings.

The method is that of Sugiyama, Tagawa and Toda (1981, https://doi.org/10.1109/TSMC.1981.4308636). The row of a box is
the longest path to it, and a long line has a dummy node in every row that it passes. Rows are ordered by the mean
place of their neighbors. Isotonic regression then finds the places that are nearest to these means.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, linear_regression

from markupsafe import Markup

from edgert.report.svg import element, visible

_SWEEPS = 8  # alternately down and up; more changed nothing in the networks that were tried
_DUMMY = 0.4  # width of a passing line, in boxes

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of boxes, and of the points that lines pass, in units of a box's space, from 0 at the top left."""

    places: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def arrange(count: int, lines: Iterable[tuple[int, int]]) -> Layout:
    """Return the layout of ``count`` boxes. Every line must go from a smaller number to a larger one."""
    drawing = _Drawing(count, tuple(lines))
    drawing.order()
    return drawing.layout()


class _Drawing:
    """Nodes of a graph: boxes, then a dummy node for each row that a line passes, with neighbors before and after."""

    def __init__(self, count: int, lines: Sequence[tuple[int, int]]) -> None:
        self.count, self.lines = count, lines
        self.row = [0] * count  # length of the longest path to each box
        for start, end in sorted(lines):
            self.row[end] = max(self.row[end], self.row[start] + 1)
        self.after: list[list[int]] = [[] for _ in range(count)]
        self.before: list[list[int]] = [[] for _ in range(count)]
        self.chains = [self._chain(start, end) for start, end in lines]
        self.rows: list[list[int]] = [[] for _ in range(max(self.row, default=0) + 1)]
        for node, row in enumerate(self.row):
            self.rows[row].append(node)
        self.x = [0.0] * len(self.row)
        for nodes in self.rows:
            self._spread(nodes, [float(place) for place in range(len(nodes))])

    def order(self) -> None:
        """Sweep down and up, sorting each row by the mean of its neighbors and placing it near them."""
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            near = self.before if down else self.after
            for nodes in self.rows if down else reversed(self.rows):
                wanted = {node: fmean([self.x[one] for one in near[node]] or [self.x[node]]) for node in nodes}
                nodes.sort(key=wanted.__getitem__)
                self._spread(nodes, [wanted[node] for node in nodes])

    def layout(self) -> Layout:
        """Return the layout of boxes and lines."""
        upright = self._upright()
        places = upright if _wide(upright) < _wide(self.x) else self.x
        left = min(places, default=0.0)
        points = [(x - left, float(row)) for x, row in zip(places, self.row, strict=True)]
        routes = tuple(tuple(points[node] for node in chain) for chain in self.chains)
        width = max((x for x, _ in points), default=0.0) + 1
        return Layout(tuple(points[: self.count]), routes, width, float(len(self.rows)))

    def _upright(self) -> list[float]:
        """Return the places without their slant: in long drawings, rows drift to one side."""
        rows, means = range(len(self.rows)), [fmean(self.x[node] for node in nodes) for nodes in self.rows if nodes]
        if len(means) < 2:
            return self.x
        slope = linear_regression(rows, means).slope
        return [x - slope * row for x, row in zip(self.x, self.row, strict=True)]

    def _chain(self, start: int, end: int) -> list[int]:
        """Add the dummy nodes of a line; return all nodes on it."""
        chain = [start]
        for row in range(self.row[start] + 1, self.row[end]):
            chain.append(len(self.row))
            self.row.append(row)
            self.after.append([])
            self.before.append([])
        chain.append(end)
        for upper, lower in pairwise(chain):
            self.after[upper].append(lower)
            self.before[lower].append(upper)
        return chain

    def _spread(self, nodes: Sequence[int], wanted: Sequence[float]) -> None:
        """Place the nodes of a row in order, with space between them, at the least squared distance from ``wanted``."""
        rooms = [1.0 if node < self.count else _DUMMY for node in nodes]
        offsets = list(accumulate(((one + other) / 2 for one, other in pairwise(rooms)), initial=0.0))[: len(nodes)]
        steady = _isotonic([want - offset for want, offset in zip(wanted, offsets, strict=True)])
        for node, value, offset in zip(nodes, steady, offsets, strict=True):
            self.x[node] = value + offset


def _wide(places: Sequence[float]) -> float:
    return max(places, default=0.0) - min(places, default=0.0)


def _isotonic(values: Sequence[float]) -> list[float]:
    """Return the nearest rising sequence to the values, by pooling adjacent violators."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, size = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / size:
            more, others = pools.pop()
            total, size = total + more, size + others
        pools.append((total, size))
    return [total / size for total, size in pools for _ in range(size)]


# Drawings of networks, with boxes colored by time and striped by accelerator, in the classes of ``network.css``.

_ROOM_X, _ROOM_Y = 180, 58  # space of a box, in pixels at full size
_BOX_X, _BOX_Y = 160, 38
_STRIPE_X = 7
_MARGIN = 10
_LETTERS, _SMALL_LETTERS = 20, 24  # maximum number in a box
_WIDTH_PX, _FEWEST_ROWS = 860, 8  # narrow drawings are folded into columns, as many as a page is wide


@dataclass(frozen=True, slots=True)
class Box:
    """A box for a unit, or for a block of several units.

    ``shares`` are the fractions of its time by accelerator (``gpu``, ``dla0``, ``cpu1`` …). ``note`` is its second
    line, ``detail`` its text on hovering, ``heat`` the class of its color, 0 to 4.
    """

    name: str
    label: str
    shares: Mapping[str, float]
    note: str = ""
    detail: str = ""
    heat: int = 0
    group: int | None = None
    is_block: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A tensor from one box to a later one; ``crosses`` is whether it moves to another accelerator."""

    start: int
    end: int
    detail: str = ""
    crosses: bool = False


def network_image(boxes: Sequence[Box], lines: Sequence[Line], *, title: str) -> Markup:
    """Return a network as an SVG image at full size, which the page's script zooms; boxes come after their inputs."""
    layout = fold(arrange(len(boxes), [(line.start, line.end) for line in lines]), _WIDTH_PX / _ROOM_X)
    width, height = (round(rooms) + 2 * _MARGIN for rooms in (layout.width * _ROOM_X, layout.height * _ROOM_Y))
    drawn = [_line(line, route) for line, route in zip(lines, layout.routes, strict=True)]
    drawn += [_box(box, place) for box, place in zip(boxes, layout.places, strict=True)]
    return element(
        "svg",
        element("title", title),
        *drawn,
        class_="network",
        role="img",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )


def fold(layout: Layout, width: float) -> Layout:
    """Return a layout in columns from left to right, if it is long and they fit into ``width``."""
    count = min(int(width // layout.width), math.ceil(layout.height / _FEWEST_ROWS)) if layout.height else 1
    if count < 2:
        return layout
    rows = math.ceil(layout.height / count)

    def moved(point: Point) -> Point:
        column, row = divmod(point[1], rows)
        return point[0] + column * layout.width, row

    routes = tuple(tuple(map(moved, route)) for route in layout.routes)
    count = math.ceil(layout.height / rows)
    return Layout(tuple(map(moved, layout.places)), routes, layout.width * count, rows)


def _corner(place: Point) -> tuple[float, float]:
    across, down = place
    return across * _ROOM_X + _MARGIN + (_ROOM_X - _BOX_X) / 2, down * _ROOM_Y + _MARGIN + (_ROOM_Y - _BOX_Y) / 2


def _box(box: Box, place: Point) -> Markup:
    left, top = _corner(place)
    label = visible(box.label)
    short = label if len(label) <= _LETTERS else f"…{label[1 - _LETTERS :]}"  # names differ at their ends
    middle = left + (_BOX_X + _STRIPE_X) / 2
    stripes, at = [], top
    for name, part in box.shares.items():
        stripes.append(element("rect", x=left, y=at, width=_STRIPE_X, height=_BOX_Y * part, class_=f"stripe {name}"))
        at += _BOX_Y * part
    return element(
        "g",
        element("title", f"{visible(box.name)}\n{box.detail}".strip()),
        element("rect", x=left, y=top, width=_BOX_X, height=_BOX_Y),
        *stripes,
        element("text", short, x=middle, y=top + 16),
        element("text", box.note[:_SMALL_LETTERS], x=middle, y=top + 31, class_="note") if box.note else "",
        class_=f"{'block' if box.is_block else 'unit'} heat{box.heat}",
        data_name=None if box.is_block else box.name.lower(),
        data_group=box.group,
    )


def _line(line: Line, route: Sequence[Point]) -> Markup:
    """Return a line that is vertical within rows and bends between them, also up to the top of the next column."""
    points = [(left + _BOX_X / 2, top) for left, top in map(_corner, route)]
    x, y = points[0]
    path = [f"M{x:.1f} {y + _BOX_Y:.1f}"]
    for (x, y), (right, top) in pairwise(points):
        bend = (top - y - _BOX_Y) / 2 if top > y else _ROOM_Y
        low, high = y + _BOX_Y + bend, top - bend
        path.append(f"C{x:.1f} {low:.1f} {right:.1f} {high:.1f} {right:.1f} {top:.1f}")
        path.append(f"V{top + _BOX_Y:.1f}")
    path.pop()  # the line ends where its last box begins
    kind = "tensor crosses" if line.crosses else "tensor"
    return element("g", element("title", line.detail), element("path", d=" ".join(path)), class_=kind)
