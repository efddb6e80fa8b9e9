"""The page about the DLA in a real browser: it is drawn, filters, and asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dla import Target
from edgert.graph import read
from edgert.placement.dla_share import survey
from edgert.report.dla_page import render
from tests.helpers.browser import Page, browser
from tests.unit.graph.graphs import make, node, weights

COUNT = 500


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five hundred nodes of long names, every third refused."""
    nodes, name = [], "x"
    for place in range(COUNT):
        op = ("Relu", "Neg", "Sin")[place % 3]
        nodes.append(node(op, [name], [f"t{place}"], name=f"/model/backbone/block.{place}/{'deep/' * 12}{op}"))
        name = f"t{place}"
    nodes.append(node("Conv", [name, "w"], ["y"], name="<script>window.hacked = 1</script>"))
    model = make(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}, {"w": weights(4, 3, 1, 1)})
    file = tmp_path_factory.mktemp("page") / "dla.html"
    text = render(survey(read(model), Target(2, "10.3", "int8")), "net.onnx", "Jetson Orin NX 16GB")
    file.write_text(text, encoding="utf-8")
    return file


def shown(page: Page) -> int:
    count = page.evaluate("[...document.querySelectorAll('.nodes tbody tr')].filter((row) => !row.hidden).length")
    assert isinstance(count, int)
    return count


def choose(page: Page, verdict: str) -> None:
    page.evaluate(f"document.querySelector('.choices input[value={verdict}]').click()")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width_px", [400, 1600])
def test_page_fits_and_is_quiet(page: Page, path: Path, width_px: int, dark: bool) -> None:
    page.open(path, width_px, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width_px
    assert page.evaluate("document.querySelectorAll('.map rect').length") == COUNT + 1
    assert page.evaluate("window.hacked ?? null") is None
    assert page.errors == [] and page.requests == [path.resolve().as_uri()]


def test_filters(page: Page, path: Path) -> None:
    page.open(path, 1200)
    assert shown(page) == 167  # at first those that are refused
    choose(page, "yes")
    assert shown(page) == 167 + 168  # 167 of Relu, and the Conv
    choose(page, "verify")
    assert shown(page) == COUNT + 1
    choose(page, "yes")
    choose(page, "verify")
    assert shown(page) == 167
    page.evaluate(
        "(box => { box.value = 'block.1/'; box.dispatchEvent(new Event('input', {bubbles: true})); })"
        "(document.querySelector('.choices .filter'))"
    )
    assert shown(page) == 1
    assert page.evaluate("document.querySelector('.choices output').textContent") == f"1 of {COUNT + 1} nodes"


def test_page_is_whole_without_scripts(page: Page, path: Path) -> None:
    page.open(path, 1200, scripts=False)
    page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert shown(page) == COUNT + 1
    assert page.evaluate("document.querySelector('.choices')") is None
