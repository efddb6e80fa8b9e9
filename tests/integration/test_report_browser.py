"""The report in a real browser: something is on it, it fits, and it asks for nothing and complains of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from edgert.report.quantization_page import render
from tests.helpers.browser import Page, browser
from tests.helpers.quantization_report import EMPTY, full_report

SIZES_PX = (400, 1600)
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>/" + "deep/" * 30


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report with spaces & more.html"
    path.write_text(render(full_report(40, 20, HOSTILE)), encoding="utf-8")
    return path


def pixels(png: bytes) -> npt.NDArray[np.uint8]:
    """(height, width, 3) BGR."""
    image = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return image.astype(np.uint8, copy=False)


def assert_quiet(page: Page, path: Path) -> None:
    assert page.errors == []
    assert page.requests == [path.resolve().as_uri()]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width_px", SIZES_PX)
def test_page_is_drawn_without_complaint(page: Page, report: Path, width_px: int, dark: bool) -> None:
    page.open(report, width_px, dark=dark)
    image = pixels(page.image())
    assert image.shape == (900, width_px, 3)
    background = np.median(image.reshape(-1, 3), axis=0)
    inked = np.abs(image.astype(np.int16) - background.astype(np.int16)).max(axis=2) > 60
    assert 0.02 < inked.mean() < 0.5
    assert inked.any(axis=1).mean() > 0.3  # lines of text and charts all the way down
    assert (background.mean() < 60) == dark
    assert page.evaluate("document.documentElement.scrollWidth") == width_px
    assert_quiet(page, report)


def test_charts_have_ink(page: Page, report: Path) -> None:
    page.open(report, 1000)
    for chart, colors in ((".bar", 40), (".histogram", 20), (".interval", 20)):
        box = page.evaluate(
            f"(b => [b.top + scrollY, b.height])(document.querySelector('{chart}').getBoundingClientRect())"
        )
        image = pixels(page.image(int(box[0]), int(box[1])))
        assert len(np.unique(image.reshape(-1, 3), axis=0)) > colors, chart


def test_hostile_names_do_nothing_and_are_shown(page: Page, report: Path) -> None:
    page.open(report, 1000)
    assert page.evaluate("window.hacked ?? null") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelector('td .name, th .name').title").startswith(HOSTILE)
    shown = page.evaluate("document.querySelector('td .name, th .name').textContent")
    assert shown.startswith("<script>") and "…" in shown


def test_tables_sort_and_histograms_filter(page: Page, report: Path) -> None:
    page.open(report, 1000)
    first = "document.querySelector('table.sortable tbody tr').cells[0].textContent"
    sqnr = "document.querySelector('table.sortable thead th:last-child button').click()"
    assert page.evaluate(first) == "1"
    page.evaluate(sqnr)
    assert page.evaluate(first) == "6"  # the noisiest
    page.evaluate(sqnr)
    assert page.evaluate(first) != "6"
    visible = "[...document.querySelectorAll('.filtered .card')].filter(card => !card.hidden).length"
    assert page.evaluate(visible) == 14
    field = "document.querySelector('.filter')"
    page.evaluate(f"{field}.value = '/17:0'; {field}.dispatchEvent(new Event('input'))")
    assert page.evaluate(visible) <= 1
    assert_quiet(page, report)


def test_hovering_a_bar_names_its_layer(page: Page, report: Path) -> None:
    page.open(report, 1000)
    box = page.evaluate(
        "(chart => { chart.scrollIntoView({behavior: 'instant'}); const b = chart.getBoundingClientRect();"
        " return [b.left, b.top, b.width]; })(document.querySelector('.bar'))"
    )
    page.move(box[0] + box[2] * 5.5 / 40, box[1] + 20)
    assert page.evaluate("document.querySelector('.tip').textContent").startswith("6. <script>")
    page.move(5, 5)
    assert page.evaluate("document.querySelector('.tip').textContent") == ""


def test_page_is_whole_without_scripts(page: Page, report: Path) -> None:
    page.open(report, 1000, scripts=False)
    image = pixels(page.image())
    assert image.std() > 10
    assert_quiet(page, report)


def test_page_prints(page: Page, report: Path) -> None:
    page.open(report, 1000, dark=True)
    document = page.print()
    assert document.startswith(b"%PDF-") and len(document) > 20_000


def test_empty_report_is_drawn_too(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_text(render(replace(EMPTY, target="ONNX Runtime")), encoding="utf-8")
    page.open(path, 400)
    assert pixels(page.image()).std() > 10
    assert_quiet(page, path)
