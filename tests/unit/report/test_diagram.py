"""Boxes in rows: nothing overlaps, every line goes down, little crosses."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, strategies as st

from edgert.report.diagram import arrange, folded


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


def test_long_drawings_go_on_in_further_columns() -> None:
    chain = arrange(40, [(one, one + 1) for one in range(39)])
    assert chain.places == tuple((0, row) for row in range(40))  # straight
    made = folded(chain, 4.5)
    assert made.width == 4 and made.height == 10 and len(set(made.places)) == 40
    assert made.places[9] == (0, 9) and made.places[10] == (1, 0)
    assert all(route[0] == made.places[n] and route[-1] == made.places[n + 1] for n, route in enumerate(made.routes))
    assert folded(chain, 1.5) == chain and folded(arrange(5, []), 4.5).height <= 5
    assert folded(arrange(0, []), 4.5).places == ()
