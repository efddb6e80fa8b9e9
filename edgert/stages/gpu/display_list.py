"""Display lists for the overlay kernel: items in painting order, and the bytes that they point to.

The coverage of a shape is a tile of one channel, white on black, rasterized by the code that paints on the host
(:mod:`edgert.stages.paint`). Tiles of text, dots and box corners are reused, so they stay on the GPU.
"""

import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime.frame import U8
from edgert.stages import paint
from edgert.stages.paint import I32, Bgr, Box, Dot, Label, Mask, Shape, Stroke

ITEM = struct.Struct("=4i2IQ2i2I")
TEXT, BOX, MASK, STROKE = range(4)
LINE = struct.Struct("=Q3I9i")
EDGE_BYTES, MOST_EDGES = 48, 30
"""Bytes of an edge, and maximum number of edges of a stroke's segment, as ``strokes.cuh`` writes them."""
_ALIGN_BYTES = 16


class Region:
    """A region of memory that host and GPU share, filled from its start."""

    def __init__(self, host: U8, address: int) -> None:
        self.host, self.address, self.used, self.sent = host, address, 0, 0

    def allocate(self, nbytes: int) -> tuple[U8, int] | None:
        """Return the next ``nbytes`` and their address, or None if there is too little room."""
        start = -(-self.used // _ALIGN_BYTES) * _ALIGN_BYTES
        if start + nbytes > self.host.size:
            return None
        self.used = start + nbytes
        return self.host[start : self.used], self.address + start


class PackedList(NamedTuple):
    """A display list in memory that the kernel reads."""

    items: int
    item_count: int
    lines: int
    line_count: int
    points: int
    segments: int
    lookups: int


class TooLongError(Exception):
    """The error of a display list that needs a larger region."""


class Tiles:
    """Cache of rasterized tiles in a region. When it is nearly full, it is emptied."""

    def __init__(self, region: Region, wait: Callable[[], None]) -> None:
        self.region, self._wait = region, wait
        self._found: dict[Hashable, int] = {}

    def empty_if_full(self) -> None:
        """Empty the region if three quarters are used, after every kernel that reads it. Call it before each list."""
        if 4 * self.region.used > 3 * self.region.host.size:
            self._wait()
            self._found.clear()
            self.region.used = self.region.sent = 0

    def find(self, key: Hashable) -> int | None:
        """Return the address of a tile on the GPU, or None if it is not cached."""
        return self._found.get(key)

    def add(self, key: Hashable, nbytes: int) -> tuple[U8, int] | None:
        """Return host bytes and address for a new tile of this key, or None if there is no room."""
        allocated = self.region.allocate(nbytes)
        if allocated is not None:
            self._found[key] = allocated[1]
        return allocated


class DisplayList:
    """Builder of the display list of one image of (width, height) ``size``. Tiles used only once are in ``region``.

    Raises TooLongError: the region is too small.
    """

    def __init__(self, size: tuple[int, int], region: Region, tiles: Tiles) -> None:
        self._size, self._region, self._tiles = size, region, tiles
        self._items, self._lines, self._points = list[bytes](), list[bytes](), list[bytes]()
        self._count = self._segments = self._points_bytes = 0

    def add(self, shapes: Iterable[Shape]) -> None:
        """Append items that paint the shapes, in order."""
        for shape in shapes:
            if isinstance(shape, Label):
                self._label(shape)
            elif isinstance(shape, Box):
                self._box(shape)
            elif isinstance(shape, Stroke):
                self._stroke(*shape)
            elif isinstance(shape, Dot):
                place = np.array([[shape.x, shape.y]], np.int32)
                self._stroke(place, [(0, 0, -shape.radius)], shape.shade)
            else:
                self._mask(shape)

    def finish(self) -> "PackedList":
        """Write items and lines into the region, and return their places. Raises TooLongError."""
        written = list[int]()
        for parts in (self._items, self._lines, self._points):
            packed = b"".join(parts)
            host, address = self._allocate(len(packed))
            host[:] = np.frombuffer(packed, np.uint8)
            written.append(address)
        items, lines, points = written
        return PackedList(items, self._count, lines, len(self._lines), points, self._segments, self._lookups())

    def _item(self, left: int, top: int, width: int, height: int, *rest: int) -> None:
        """Append an item for a rectangle, clipped to the image; nothing if it is completely outside."""
        x, y = max(left, 0), max(top, 0)
        right, bottom = min(left + width, self._size[0]), min(top + height, self._size[1])
        if x < right and y < bottom:
            self._items.append(ITEM.pack(x, y, right, bottom, *rest))
            self._count += 1

    def _label(self, label: Label) -> None:
        left, top, width, text, pen, background = label
        key = pen.height_px, text
        address = self._tiles.find(key) or self._new_tile(
            key, width, pen.line_px, lambda out: pen.write(out, text, 0, 0, 255)
        )
        letters = _color(paint.text_color(background))
        self._item(left, top, width, pen.line_px, TEXT, _color(background), address, left, top, width, letters)

    def _box(self, box: Box) -> None:
        x1, y1, x2, y2, shade, line_px = box
        out = box.edge_px // 2 + 2  # beyond its lines
        middle = 2 * out + 1
        most = middle + 1  # a larger box has the same corners, and lines that are the same along their length
        across, down = min(max(x2 - x1, -most), most), min(max(y2 - y1, -most), most)

        def draw(pattern: U8) -> None:
            first = out + max(-across, 0), out + max(-down, 0)
            second = out + max(across, 0), out + max(down, 0)
            cv2.rectangle(pattern, first, second, 1, box.edge_px)
            cv2.rectangle(pattern, first, second, 2, line_px)

        key, more = (line_px, across, down), 1 + 2 * out
        address = self._tiles.find(key) or self._new_tile(key, abs(across) + more, abs(down) + more, draw)
        left, top = min(x1, x2) - out, min(y1, y2) - out
        width, height = abs(x2 - x1) + more, abs(y2 - y1) + more
        color = _color(shade) | middle << 24
        self._item(left, top, width, height, BOX, color, address, left, top, width, height)

    def _stroke(self, points: I32, pieces: Sequence[tuple[int, int, int]], shade: Bgr) -> None:
        """Reserve items for a stroke, and append the line from which the GPU computes them."""
        segments = sum([1 if thickness < 0 else last - first for first, last, thickness in pieces])
        unused, first = (0, 0, 0) * (3 - len(pieces)), self._segments * MOST_EDGES
        start = self._points_bytes
        self._lines.append(LINE.pack(start, self._count, _color(shade), first, *chain(*pieces), *unused))
        self._points.append(points.tobytes())
        self._items.append(bytes(segments * ITEM.size))
        self._points_bytes += points.nbytes
        self._count += segments
        self._segments += segments

    def _mask(self, mask: Mask) -> None:
        left, top, right, bottom = cut = paint.mask_cut(mask, *self._size)
        if not right:
            return
        height, width = mask.classes.shape
        key = mask.region, cut, (width, height), mask.has_background, mask.is_heat
        room = 1024 + 8 * (right - left + bottom - top)

        def draw(out: U8) -> None:
            added, kept = paint.mask_tables(mask.has_background, mask.is_heat)
            out[0, :1024].reshape(256, 4)[:] = np.concatenate([added, kept[..., :1]], axis=2)[:, 0]
            x, y, end_x, end_y = mask.region
            taps = out[0, 1024:].view(np.uint16).reshape(-1, 4)
            taps[: right - left] = _taps(width, end_x - x, True)[left - x : right - x]
            taps[right - left :] = _taps(height, end_y - y, False)[top - y : bottom - y]

        tables = self._tiles.find(key) or self._new_tile(key, room, 1, draw)
        host, address = self._allocate(mask.classes.size)
        np.copyto(host.reshape(height, width), mask.classes)
        low, high = tables & 0xFFFFFFFF, tables >> 32
        self._item(left, top, right - left, bottom - top, MASK, 0, address, width, height, low, high)

    def _new_tile(self, key: Hashable, width: int, height: int, draw: Callable[[U8], None]) -> int:
        host, address = self._tiles.add(key, width * height) or self._allocate(width * height)
        host.fill(0)
        draw(host.reshape(height, width))
        return address

    def _lookups(self) -> int:
        def draw(out: U8) -> None:
            out[0] = lookups()

        return self._tiles.find("lookups") or self._new_tile("lookups", lookups().size, 1, draw)

    def _allocate(self, nbytes: int) -> tuple[U8, int]:
        if (allocated := self._region.allocate(nbytes)) is None:
            raise TooLongError
        return allocated


@lru_cache(maxsize=1)
def lookups() -> U8:
    """Return (96,) uint8: coverage of an anti-aliased line at 64 distances of 1/32 pixel, then factors for 32 slopes.

    Coverage is a Gaussian. A factor is the length of a line inside a pixel at that slope. The numbers are those of
    OpenCV's LineAA (modules/imgproc/src/drawing.cpp).
    """
    distance, slope = (np.arange(64) - 15.5) / 32, (np.arange(32) + 0.5) / 32
    shares = 255 * np.exp(-(distance**2) / (2 * 0.2812)), 256 * np.sqrt((1 + slope**2) / 2)
    return np.concatenate([np.minimum(shares[0], 254), shares[1]]).astype(np.uint8)


def _color(color: Bgr) -> int:
    return color[0] | color[1] << 8 | color[2] << 16


def _taps(source: int, wanted: int, across: bool) -> npt.NDArray[np.uint16]:
    """Return (wanted, 4) uint16 per pixel of an axis: two source pixels, weight of the second in 1/2048, and 0.

    The numbers are those of OpenCV's linear scaling (modules/imgproc/src/resize.cpp).
    """
    number = (2 * np.arange(wanted, dtype=np.int64) + 1) * source - wanted
    whole, rest = np.divmod(number, 2 * wanted)
    exact = whole.astype(np.float32) + rest.astype(np.float32) / np.float32(2 * wanted)
    below = np.floor(exact)
    first, weight = below.astype(np.int64), np.rint((exact - below) * np.float32(2048))
    if across:
        weight[(first < 0) | (first >= source - 1)] = 0
    ends = np.clip(first, 0, source - 1), np.clip(first + 1, 0, source - 1)
    return np.stack([*ends, weight, np.zeros(wanted)], axis=1).astype(np.uint16)
