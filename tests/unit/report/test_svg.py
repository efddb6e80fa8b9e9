"""SVG: well formed and escaped, whatever the numbers and the words are; boxes in rows and their lines."""

import math
from itertools import combinations, pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, strategies as st

from edgert.report import chart
from edgert.report.chart import Bar, Interval, Marker, Series, Steps, Track
from edgert.report.diagram import arrange, fold
from edgert.report.scatter import Dot, scatter_chart
from edgert.report.svg import Scale, element, escaped, scale_of

HOSTILE = "</title></svg><script>alert(1)</script>\"'&\x00\u202e"


def drawn(*values: float, word: str = "a") -> dict[str, str]:
    """Every kind of chart of these numbers, with a word wherever one may stand."""

    def show(value: float) -> str:
        return word

    dots = [Dot(value, value, None, None, word, word, 0, "kept") for value in values]
    tracks = [Track(word, {0: [(0.0, 1.0)]}, {0: word})][: len(values)]
    steps = [Steps(word, ((0.0, 1.0),), 1.0, word)][: len(values)]
    markers, times_s = [Marker(value, word, True) for value in values[:1]], [float(n) for n in range(len(values))]
    return {
        "bars": chart.bar_chart([Bar(value, word, word) for value in values], title=word, left=show, right=show),
        "intervals": chart.interval_chart([Interval(word, v, (v, v), v) for v in values], title=word, show=show),
        "histogram": chart.histogram_chart(np.ones(4), 1.0, max(values, default=0.0), markers, title=word),
        "series": chart.series_chart(times_s, [Series(word, values)], title=word, show=show, limit=1.0),
        "timeline": chart.timeline_chart((0.0, 1.0), tracks, steps, title=word, show=show),
        "scatter": scatter_chart(dots, title=word, names=(word, word), show=show, limits=(1.0, 1.0), strip=word),
    }


def test_a_small_chart_is_exactly_this() -> None:
    made = chart.series_chart([0.0, 1.0], [Series("fps", [1.0, 2.0])], title="<fps>", show=lambda value: f"{value:g}")
    assert str(made).replace("><", ">\n<").splitlines()[:4] == [
        '<svg class="chart series" role="img" height="154">',
        "<title>&lt;fps&gt;; fps 1 to 2</title>",
        '<line x1="0" x2="100%" y1="134" y2="134" class="grid"/>',
        '<text x="0%" y="138" dx="-6" class="end">0</text>',
    ]
    assert '<path d="M0.0,523.8 1000.0,47.6" class="line0"/></svg></svg>' in made
    assert drawn(1.0, math.nan, 2.0)["series"].count('h-9" class="line0"') == 2  # a gap between two points


@pytest.mark.parametrize("kind", drawn())
def test_of_nothing_there_is_no_chart_and_words_from_strangers_stay_words(kind: str) -> None:
    assert drawn()[kind] == "" and drawn(math.nan)["intervals"] == ""
    text = drawn(1.0, word=HOSTILE)[kind]
    root = ElementTree.fromstring(text)  # well formed
    assert not {"script", "img"} & {mark.tag for mark in root.iter()}
    assert "<script>alert(1)" in "".join(root.itertext()) and "\x00" not in text and "\u202e" not in text


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 1e300, -1e300, 1e-300, math.inf, math.nan])
def test_one_point_of_any_size_is_drawn_inside(value: float) -> None:
    for kind, text in drawn(value).items():
        assert "nan" not in text and "inf" not in text, kind
        for mark in ElementTree.fromstring(text).iter() if text else ():
            for place in ("x", "x1", "x2", "cx"):
                assert -1e-6 <= float(mark.get(place, "0").removesuffix("%")) <= 100 + 1e-6, kind


def test_attributes_are_escaped_lines_are_kept_and_scales_hold_what_is_finite() -> None:
    assert element("text", "a < b", class_='x" onload="y') == '<text class="x&#34; onload=&#34;y">a &lt; b</text>'
    assert element("line", x1=1 / 3, y1=None) == '<line x1="0.33333"/>' and escaped("a\nb\tc") == "a\nb\\tc"
    assert scale_of([3.0, None, math.nan, math.inf, 1.7e308]) == Scale(0.0, 3.0)
    assert scale_of([-2.0, 4.0], room=0.5) == Scale(-5.0, 7.0) and scale_of([]) == Scale(0.0, 1.0)


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
    made = fold(chain, 4.5)
    assert made.width == 4 and made.height == 10 and len(set(made.places)) == 40
    assert made.places[9] == (0, 9) and made.places[10] == (1, 0)
    assert all(route[0] == made.places[n] and route[-1] == made.places[n + 1] for n, route in enumerate(made.routes))
    assert fold(chain, 1.5) == chain and fold(arrange(5, []), 4.5).height <= 5
    assert fold(arrange(0, []), 4.5).places == ()
