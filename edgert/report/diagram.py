"""A directed graph drawn as boxes and lines: in rows, every box below those that feed it, with few crossing lines.

The method is that of Sugiyama, Tagawa and Toda (1981, https://doi.org/10.1109/TSMC.1981.4308636): rows by longest path,
a dummy node on every row that a long line passes, rows ordered by the mean place of their neighbors, and then places as
near to that mean as the order and the room between neighbors allow, which is isotonic regression.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

from edgert.report.html import Markup, shape, tag, visible

_SWEEPS = 8  # down and up in turns; more changed nothing in the networks tried
_DUMMY = 0.4  # space that a passing line takes, in boxes

Point = tuple[float, float]
"""Across and down, in boxes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Places, in units of a box's room; the first row is 0 and the leftmost place is 0.

    Attributes:
        places: of every box.
        routes: of every line, in the order given: the points it passes, from box to box.
        width, height: of all of it.
    """

    places: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def arrange(count: int, lines: Iterable[tuple[int, int]]) -> Layout:
    """Places ``count`` boxes, numbered so that every line goes from a smaller number to a larger one."""
    drawing = _Drawing(count, tuple(lines))
    drawing.order()
    return drawing.placed()


class _Drawing:
    """Boxes first, then a dummy node for each row that a line passes; ``after`` and ``before`` are its neighbors."""

    def __init__(self, count: int, lines: Sequence[tuple[int, int]]) -> None:
        self.count, self.lines = count, lines
        self.row = [0] * count  # the longest path to each box from one that nothing feeds
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
        """Sweeps down and up: each row sorted by, then placed near, the mean of its neighbors."""
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            near = self.before if down else self.after
            for nodes in self.rows if down else reversed(self.rows):
                wanted = {node: fmean([self.x[one] for one in near[node]] or [self.x[node]]) for node in nodes}
                nodes.sort(key=wanted.__getitem__)
                self._spread(nodes, [wanted[node] for node in nodes])

    def placed(self) -> Layout:
        left = min(self.x, default=0.0)
        points = [(x - left, float(row)) for x, row in zip(self.x, self.row, strict=True)]
        routes = tuple(tuple(points[node] for node in chain) for chain in self.chains)
        width = max((x for x, _ in points), default=0.0) + 1
        return Layout(tuple(points[: self.count]), routes, width, float(len(self.rows)))

    def _chain(self, start: int, end: int) -> list[int]:
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
        """Places a row's nodes, in order and with room between them, with the least squared distance from wanted."""
        rooms = [1.0 if node < self.count else _DUMMY for node in nodes]
        offsets = list(accumulate(((one + other) / 2 for one, other in pairwise(rooms)), initial=0.0))[: len(nodes)]
        steady = _isotonic([want - offset for want, offset in zip(wanted, offsets, strict=True)])
        for node, value, offset in zip(nodes, steady, offsets, strict=True):
            self.x[node] = value + offset


def _isotonic(values: Sequence[float]) -> list[float]:
    """The rising sequence nearest to the values, by pooling neighbors that fall."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, size = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / size:
            more, others = pools.pop()
            total, size = total + more, size + others
        pools.append((total, size))
    return [total / size for total, size in pools for _ in range(size)]


# A network drawn as boxes and lines, colored by who runs what; drawn with the classes of ``page.css``.

_ROOM_X, _ROOM_Y = 168, 46  # of a box with what is free around it, pixels at full size
_BOX_X, _BOX_Y = 148, 28
_MARGIN = 10
_LETTERS = 21  # that fit in a box


@dataclass(frozen=True, slots=True)
class Box:
    """A unit: ``kind`` colors it (``gpu``, ``dla0``, ``dla1``, ``cpu0`` …), ``detail`` shows when it is pointed at."""

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


def network_image(boxes: Sequence[Box], lines: Sequence[Line], *, title: str) -> Markup:
    """An SVG of its natural size; the page's script zooms it.

    Args:
        boxes: at least one, every one after those that feed it.
        lines: each from a box to one that comes later.
        title: text for screen readers.
    """
    layout = arrange(len(boxes), [(line.start, line.end) for line in lines])
    width, height = (round(rooms) + 2 * _MARGIN for rooms in (layout.width * _ROOM_X, layout.height * _ROOM_Y))
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
    for (x, y), (right, top) in pairwise(points):
        middle = (y + _BOX_Y + top) / 2
        path.append(f"C{x:.1f} {middle:.1f} {right:.1f} {middle:.1f} {right:.1f} {top:.1f}")
        path.append(f"V{top + _BOX_Y:.1f}")
    path.pop()  # the line ends where its last box begins
    kind = "tensor crosses" if line.crosses else "tensor"
    return tag("g", tag("title", line.detail), shape("path", d=" ".join(path)), class_=kind)
