"""Charts of dots with error bars: axes, classes of color, the best of the dots, and what is drawn."""

import math
import re
from itertools import pairwise

import pytest

from edgert.report.scatter import Dot, front_of, heat_of, log_scale, scatter_chart
from edgert.report.svg import Scale


def dot(x: float, y: float | None, label: str = "", kind: str = "", mark: str = "kept") -> Dot:
    bar = None if y is None else (y / 1.2, y * 1.2)
    return Dot(x, y, (x / 1.5, x * 1.5), bar, label, f"about {label}", 0, mark, kind)


def drawn(*dots: Dot, **more: object) -> str:
    options = {"title": "t", "names": ("fps", "W"), "show": lambda value: f"{value:g}"} | more
    return scatter_chart(dots, **options)  # type: ignore[arg-type]


def test_classes_have_equal_ratios_and_every_number_has_one() -> None:
    heat = heat_of([2.0, 4.0, 8.0, 16.0, math.inf, math.nan, 0.0])
    assert heat.edges[0] == 2.0 and heat.high == 16.0
    ratios = [high / low for low, high in pairwise(heat.edges)]
    assert ratios == pytest.approx([ratios[0]] * 4)
    assert [heat.of(value) for value in (2.0, 16.0, math.inf, 0.5)] == [0, 4, 4, 0]
    words = [one for one, _ in heat.keys(lambda value: f"{value:.3g}")]
    assert words[0].startswith("2 – ") and words[4].endswith(" – 16") and len(words) == 5


def test_far_numbers_share_the_class_at_their_end() -> None:
    values = [1.0, 2.0, 3.0, 5.0, 10_000.0]
    assert [heat_of(values).of(value) for value in values] == [0, 0, 0, 0, 4]
    near = heat_of(values, is_from_least=True)
    assert near.of(1.0) == 0 and near.of(5.0) > near.of(2.0) > 0 and near.of(10_000.0) == 4


@pytest.mark.parametrize(("values", "high"), [([], 0.0), ([5.0], 5.0), ([5.0, 5.01], 5.01), ([math.inf], 0.0)])
def test_numbers_that_are_about_the_same_have_one_class(values: list[float], high: float) -> None:
    heat = heat_of(values)
    assert len(heat.edges) == 1 and heat.high == high and {heat.of(value) for value in values} <= {0, 4}
    assert len(heat.keys(str)) == 1


def test_equal_ratios_are_equally_far_on_an_axis() -> None:
    axis = Scale(1.0, 100.0, is_log=True)
    assert [axis.part(value) for value in (1.0, 10.0, 100.0)] == pytest.approx([0, 0.5, 1])
    assert axis.ticks(6) == pytest.approx([1, 2, 5, 10, 20, 50, 100])
    assert Scale(4.5, 6.0, is_log=True).ticks(3) == pytest.approx([4.5, 5, 5.5, 6])
    assert len(Scale(20.0, 400.0, is_log=True).ticks(7)) >= 3


@pytest.mark.parametrize("values", [[], [7.0], [0.0, -1.0, math.inf, 7.0]])
def test_an_axis_of_one_number_or_none_has_room(values: list[float]) -> None:
    axis = log_scale(values)
    assert 0 < axis.low < axis.high < math.inf
    assert values == [] or axis.part(7.0) == pytest.approx(0.5)


def test_a_limit_is_drawn_if_it_is_near_and_named_if_it_is_far() -> None:
    assert log_scale([5.0, 6.0], 8.0).high > 8 and log_scale([5.0, 6.0], 60.0).high < 8
    near, far = drawn(dot(100, 5), limits=(90.0, 6.0)), drawn(dot(100, 5), limits=(10.0, 60.0))
    assert near.count('class="limit"') == 2 and "asked 90" in near and "budget 6" in near
    assert far.count('class="limit"') == 0 and "← asked 10" in far and "↑ budget 60" in far


def test_the_front_has_no_dot_that_another_beats_in_both() -> None:
    dots = [dot(100, 5, "a"), dot(200, 6, "b"), dot(150, 7, "c"), dot(90, 5.5, "d"), dot(300, None, "e")]
    assert [one.label for one in front_of(dots)] == ["a", "b"]


def test_every_dot_has_its_bars_its_shape_and_its_words() -> None:
    text = drawn(
        dot(100, 5, "1"), dot(300, 9, "2", mark="missed"), dot(200, 7, kind="small"), dot(150, None, "3"), strip="?W"
    )
    assert text.count('class="whisker"') == 5  # none of the small one, and none of what is not known
    assert text.count('class="dot ') == 4 and text.count('class="dot missed') == 1 and ">?W<" in text
    places = re.findall(r'<svg x="([\d.]+)%" y="([\d.]+)" class="dot kept', text)
    heights = [float(y) for _, y in places]
    assert max(heights) == heights[-1] or len(set(heights)) == 3  # what is not known stands below


def test_dots_in_one_place_have_one_label_and_others_do_not_touch() -> None:
    text = drawn(dot(100, 5, "2"), dot(100.1, 5.001, "10"), dot(108, 5.0, "3"), dot(115, 5.6, "4"), dot(400, 9, "5"))
    assert ">2, 10<" in text
    labels = re.findall(r'<text x="([\d.]+)%" y="([\d.]+)"(?: dx="(-?\d+)")? class="mark ?(\w*)">([^<]+)<', text)
    boxes = []
    for x, y, dx, side, words in labels:
        left = (
            float(x) * 6.4
            + float(dx or 0)
            - (len(words) * 7 if side == "end" else len(words) * 3.5 * (side == "middle"))
        )
        boxes.append((left, float(y) - 10, left + 7 * len(words), float(y) + 2))
    for one, other in pairwise(boxes):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_without_anything_known_upwards_there_is_no_such_axis() -> None:
    text = drawn(dot(100, None, "1"), dot(200, None, "2"), strip="W not known")
    assert ">W<" not in text and ">fps<" in text and "W not known" in text
    assert not re.search(r'<line x1="0"[^>]*class="grid"', text)
