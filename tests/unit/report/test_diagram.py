"""Boxes in rows: nothing overlaps, every line goes down, little crosses."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from edgert.report.diagram import arrange, blocks_of, folded


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 14))
    pairs = list(combinations(range(count), 2))
    return count, draw(st.lists(st.sampled_from(pairs), unique=True, max_size=25)) if pairs else []


@given(graphs())
def test_boxes_do_not_overlap_and_lines_go_down_through_free_room(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, lines = graph
    layout = arrange(count, lines)
    for (x, y), (other_x, other_y) in combinations(layout.places, 2):
        assert y != other_y or abs(x - other_x) >= 1 - 1e-9
    for (start, end), route in zip(lines, layout.routes, strict=True):
        assert route[0] == layout.places[start] and route[-1] == layout.places[end]
        assert all(lower - upper == 1 for (_, upper), (_, lower) in pairwise(route))
        for x, y in route[1:-1]:
            assert all(abs(x - box_x) >= 0.7 - 1e-9 for box_x, box_y in layout.places if box_y == y)
    assert min(x for x, _ in layout.places) >= 0
    assert max(x for x, _ in layout.places) <= layout.width
    assert max(y for _, y in layout.places) < layout.height


def test_a_chain_is_straight() -> None:
    layout = arrange(4, [(0, 1), (1, 2), (2, 3)])
    assert layout.places == ((0, 0), (0, 1), (0, 2), (0, 3))


def test_two_branches_stand_side_by_side_without_crossing() -> None:
    layout = arrange(6, [(0, 1), (0, 2), (1, 4), (2, 3), (3, 5), (4, 5)])
    x = [place[0] for place in layout.places]
    assert (x[1] < x[2]) == (x[4] < x[3])
    assert abs(x[0] - (x[1] + x[2]) / 2) < 1e-6


def test_a_long_drawing_does_not_lean() -> None:
    """Blocks of a fork, a join and a shortcut around both, each of which pushes the next one aside."""
    lines = []
    for first in range(0, 5 * 60, 5):
        lines += [
            (first + start, first + end) for start, end in ((0, 1), (0, 2), (1, 3), (2, 4), (3, 4), (4, 5), (0, 5))
        ]
    layout = arrange(5 * 60 + 1, lines)
    assert layout.width < 8 and layout.height > 150


def test_nothing_is_a_layout_too() -> None:
    assert arrange(0, []).places == ()


def test_long_drawings_go_on_in_further_columns() -> None:
    chain = arrange(40, [(one, one + 1) for one in range(39)])
    made = folded(chain, 4.5)
    assert made.width == 4 and made.height == 10 and len(set(made.places)) == 40
    assert made.places[9] == (0, 9) and made.places[10] == (1, 0)
    assert all(route[0] == made.places[n] and route[-1] == made.places[n + 1] for n, route in enumerate(made.routes))
    assert folded(chain, 1.5) == chain and folded(arrange(5, []), 4.5).height <= 5
    assert folded(arrange(0, []), 4.5).places == ()


def sizes(names: list[str], most: int = 64) -> list[tuple[str, int]]:
    return [(one.label, one.end - one.first) for one in blocks_of(names, most)]


def test_units_of_one_block_have_names_that_begin_alike() -> None:
    names = ["/stem/conv", *(f"/layers/{n // 6}/attn/op_{n % 6}" for n in range(60)), "/head/fc"]
    assert sizes(names, 14) == [("stem", 1), *((f"layers.{n}", 6) for n in range(10)), ("head", 1)]


def test_neighbors_are_put_together_where_blocks_would_be_too_many() -> None:
    assert sizes([f"/model/block.{n // 4}/part.{n % 4}" for n in range(500)])[:2] == [
        ("block.0 … block.1", 8), ("block.2 … block.3", 8)]  # fmt: skip
    flat = sizes([f"Conv_{n}" for n in range(200)])
    assert len(flat) == 50 and flat[0] == ("Conv_0 … Conv_3", 4)


@given(st.lists(st.text(alphabet="ab/.1_", max_size=9), max_size=120), st.integers(8, 64))
def test_blocks_are_few_and_hold_every_unit_once(names: list[str], most: int) -> None:
    blocks = blocks_of(names, most)
    assert len(blocks) <= max(most, 1)
    assert [at for block in blocks for at in range(block.first, block.end)] == list(range(len(names)))
    assert all(block.end > block.first for block in blocks)
