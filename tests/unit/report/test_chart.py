import re

import numpy as np
import pytest

from edgert.report.chart import (
    Bar,
    Interval,
    Marker,
    Steps,
    Track,
    bar_chart,
    histogram_chart,
    interval_chart,
    timeline_chart,
)
from edgert.report.svg import ticks


@pytest.mark.parametrize(
    ("low", "high", "wanted", "expected"),
    [
        (0, 10, 5, (0, 2, 4, 6, 8, 10)),
        (0, 0.037, 4, (0, 0.01, 0.02, 0.03)),
        (-1, 1, 4, (-1, -0.5, 0, 0.5, 1)),
        (3, 3, 4, ()),
    ],
)
def test_ticks_are_round(low: float, high: float, wanted: int, expected: tuple[float, ...]) -> None:
    assert ticks(low, high, wanted) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1e-30, 1e-7, 0.3, 7.0, 4.1e9])
def test_ticks_lie_inside_and_are_about_as_many_as_wanted(scale: float) -> None:
    found = ticks(0, scale, 5)
    assert 3 <= len(found) <= 9
    assert min(found) >= 0 and max(found) <= scale * (1 + 1e-9)


def numbers(text: str, pattern: str) -> list[float]:
    return [float(value) for value in re.findall(pattern, text)]


def bars(*shown: Bar) -> str:
    return bar_chart(shown, title="t", left=lambda value: f"{value:g}", right=lambda value: "")


def test_bars_are_as_high_as_their_values() -> None:
    text = bars(Bar(10.0, "a"), Bar(20.0, "b", "1"), Bar(None, "c", rug=True))
    heights = numbers(text, r'<rect y="[\d.]+" height="([\d.]+)" (?!class="rug")')
    assert heights == pytest.approx([heights[0], 2 * heights[0]], rel=1e-3)  # and none for what is not known
    assert text.count('class="worst"') == text.count('class="rug"') == 1
    assert re.findall(r"<title>(\w)</title>", text) == ["t", "a", "b", "c"]


def test_bars_below_zero_hang_from_the_line() -> None:
    text = bars(Bar(10.0, "a"), Bar(-10.0, "b"))
    (up, up_height), (down, down_height) = re.findall(r'<rect y="([\d.]+)" height="([\d.]+)"', text)
    assert float(up_height) == pytest.approx(float(down_height))
    assert float(up) + float(up_height) == pytest.approx(float(down))


def test_marks_of_neighbors_do_not_touch() -> None:
    many = [Bar(30.0, str(number)) for number in range(400)]
    many[200:203] = [Bar(10.0, name, name) for name in ("1", "2", "3")]
    heights = numbers(bars(*many), r'<text x="[\d.]+%" y="([\d.]+)" class="mark"')
    assert len(heights) == 3 and min(np.diff(sorted(heights))) >= 12


def test_histogram_draws_every_count() -> None:
    counts = np.zeros(2048, np.int64)
    counts[0], counts[1000] = 1_000_000, 1  # a single value far out must be seen
    text = histogram_chart(counts, 1 / 256, 1000.5 / 256, [], title="t")
    levels = numbers(text.split("M0,200")[1].split("Z")[0], r"V(\d+)h1")
    assert levels[0] == 0
    assert levels[-1] < 195
    assert set(levels[1:-1]) == {200.0}


def test_histogram_shades_what_is_clipped() -> None:
    counts = np.ones(2048, np.int64)
    text = histogram_chart(counts, 1 / 2048, 1.0, [Marker(0.5, "mse 0.5", True), Marker(1.0, "minmax 1")], title="t")
    (left,) = numbers(text, r'<rect x="([\d.]+)%"[^>]*class="clipped"')
    (line,) = numbers(text, r'<line x1="([\d.]+)%"[^>]*class="chosen"')
    assert left == line == pytest.approx(100 * 0.5 / 1.02, abs=0.01)
    assert "mse 0.5" in text and "minmax 1" in text


def test_every_marker_has_a_line_of_text_of_its_own() -> None:
    markers = [Marker(value, str(value)) for value in (0.1, 0.1, 0.5, 0.9)]
    text = histogram_chart(np.ones(64, np.int64), 1 / 64, 1.0, markers, title="t")
    heights = numbers(text, r'y="([\d.]+)" dx="-?4" class="other')
    assert len(set(heights)) == 4


def test_a_threshold_beyond_the_values_widens_the_axis() -> None:
    text = histogram_chart(np.ones(64, np.int64), 1 / 64, 1.0, [Marker(2.0, "in use 2", True)], title="t")
    assert all(value <= 100 for value in numbers(text, r'[x12]="([\d.]+)%"'))
    (width,) = numbers(text, r'<svg y="\d+" width="([\d.]+)%"')
    assert width == pytest.approx(100 / 2.04, abs=0.1)


def test_intervals_lie_where_their_values_are() -> None:
    rows = [Interval("a", 0.004, (0.0, 0.008), 0.01), Interval("b", -0.002)]
    text = interval_chart(rows, title="t", show=lambda value: f"{value:g}")
    dots = numbers(text, r'<circle cx="([\d.]+)%"')
    whisker = re.search(r'<line x1="([\d.]+)%" x2="([\d.]+)%"[^>]*class="whisker"', text)
    limit = re.search(r'<line x1="([\d.]+)%"[^>]*class="limit"', text)
    zero = re.search(r'<line x1="([\d.]+)%"[^>]*class="grid zero"', text)
    assert whisker and limit and zero
    assert dots[0] == pytest.approx((float(whisker[1]) + float(whisker[2])) / 2, abs=0.02)
    assert dots[1] < float(zero[1]) < dots[0] < float(limit[1])


def test_a_timeline_has_what_worked_where_it_did_and_what_waited_below() -> None:
    track = Track("gpu<", {0: [(1000.0, 1250.0), (1500.0, 1500.001)], 3: [(1750.0, 2000.0)]}, {0: "a", 3: "<b>"})
    steps = Steps("q", ((1000.0, 0.0), (1500.0, 2.0)), 2.0, "up to 2")
    text = timeline_chart((1000.0, 2000.0), [track], [steps], title="t", show=lambda value: f"{value:g}")
    assert "M0 5h2494v18h-2494zM5000 5h5v18h-5z" in text  # what is too short to be seen is seen all the same
    assert "M7500 5h2494v18h-2494z" in text and 'class="hue3"' in text
    assert "M0 46H0V46.0H5000V28.0H10000V46z" in text  # the second row; from the middle on as high as it gets
    assert "gpu&lt;" in text and "&lt;b&gt;" in text and "<b>" not in text
    assert all(f">{value}<" in text for value in (1000, 1500, 2000))
