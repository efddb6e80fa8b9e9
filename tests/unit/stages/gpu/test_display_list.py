"""Shapes packed for the GPU, read back as the kernel reads them."""

import numpy as np
import pytest

from edgert.stages.gpu import display_list
from edgert.stages.paint import WHITE, Bgr, Box, Dot, Label, Pen, Shape, Stroke

BASE, TILES = 1 << 40, 1 << 41
SHADE: Bgr = (10, 20, 30)
PEN = Pen(14)


class Memory:
    """Of a list and its tiles, by the addresses that a GPU would have."""

    def __init__(self, list_bytes: int = 1 << 16, tiles_bytes: int = 1 << 14) -> None:
        self.waits = 0
        self.region = display_list.Region(np.zeros(list_bytes, np.uint8), BASE)
        self.tiles = display_list.Tiles(display_list.Region(np.zeros(tiles_bytes, np.uint8), TILES), self._wait)

    def packed(self, *shapes: Shape, size: tuple[int, int] = (320, 240)) -> display_list.PackedList:
        listed = display_list.DisplayList(size, self.region, self.tiles)
        listed.add(shapes)
        return listed.finish()

    def read(self, address: int, nbytes: int) -> bytes:
        for region in (self.region, self.tiles.region):
            start = address - region.address
            if start >= 0 and start + nbytes <= region.used:
                return region.host[start : start + nbytes].tobytes()
        raise AssertionError(f"{address:#x} was not written")

    def items(self, packed: display_list.PackedList) -> list[tuple[int, ...]]:
        return list(display_list.ITEM.iter_unpack(self.read(packed.items, packed.item_count * display_list.ITEM.size)))

    def lines(self, packed: display_list.PackedList) -> list[tuple[int, ...]]:
        return list(display_list.LINE.iter_unpack(self.read(packed.lines, packed.line_count * display_list.LINE.size)))

    def _wait(self) -> None:
        self.waits += 1


def label(text: str, left: int = 5, top: int = 9) -> Label:
    return PEN.label((320, 240), text, left, top, SHADE)


def test_items_stand_in_the_order_of_the_shapes_and_strokes_keep_their_places() -> None:
    memory = Memory()
    points = np.arange(8, dtype=np.int32).reshape(4, 2) * 100
    stroke = Stroke(points, ((0, 1, 2), (1, 3, 3)), SHADE)
    packed = memory.packed(Box(20, 30, 90, 80, SHADE, 2), stroke, Dot(500, 600, 48, WHITE), label("word"))
    kinds = [item[4] for item in memory.items(packed)]
    assert (packed.item_count, packed.segments, packed.line_count) == (6, 4, 2)
    assert kinds[0] == display_list.BOX and kinds[5] == display_list.TEXT
    first, second = memory.lines(packed)
    assert first[1] == 1 and second[1] == 4 and second[3] == 3 * display_list.MOST_EDGES
    assert first[4:] == (0, 1, 2, 1, 3, 3, 0, 0, 0) and second[4:7] == (0, 0, -48)
    assert memory.read(packed.points + first[0], points.nbytes) == points.tobytes()
    assert np.frombuffer(memory.read(packed.points + second[0], 8), np.int32).tolist() == [500, 600]
    assert memory.read(packed.lookups, 96) == display_list.lookups().tobytes()


def test_large_boxes_share_one_pattern_and_small_ones_have_their_own() -> None:
    memory = Memory()
    boxes = [Box(20, 20, 90, 80, SHADE, 2), Box(0, 5, 300, 200, WHITE, 2), Box(20, 20, 24, 80, SHADE, 2)]
    one, other, small = (item[6] for item in memory.items(memory.packed(*boxes)))
    assert one == other != small


def test_a_word_that_comes_again_is_where_it_was() -> None:
    memory = Memory()
    first = memory.items(memory.packed(label("word"), label("other")))
    used = memory.tiles.region.used
    again = memory.items(memory.packed(label("word", 100, 100)))
    assert again[0][6] == first[0][6] and memory.tiles.region.used == used


def test_tiles_go_when_three_quarters_are_full_and_nothing_reads_them() -> None:
    memory = Memory(list_bytes=1 << 20, tiles_bytes=1 << 13)
    found = []
    for number in range(200):
        memory.region.used = 0
        memory.tiles.empty_if_full()
        packed = memory.packed(label(f"word {number}"), label("always"))
        found.append(memory.items(packed)[1][6])
    assert memory.waits > 3 and len(set(found)) <= memory.waits + 1


def test_tiles_that_find_no_room_go_with_their_list() -> None:
    memory = Memory(tiles_bytes=256)
    (item,) = memory.items(memory.packed(label("word")))
    assert BASE <= item[6] < TILES


@pytest.mark.parametrize("shape", [label("word"), Dot(500, 600, 48, WHITE), Box(20, 30, 90, 80, SHADE, 2)])
def test_a_list_that_does_not_fit_says_so(shape: Shape) -> None:
    memory = Memory(list_bytes=8, tiles_bytes=8)
    with pytest.raises(display_list.TooLongError):
        memory.packed(shape)


def test_what_lies_outside_is_not_listed() -> None:
    memory = Memory()
    assert memory.packed(Box(-90, 20, -20, 80, SHADE, 2), Box(400, 20, 500, 80, SHADE, 2)).item_count == 0
