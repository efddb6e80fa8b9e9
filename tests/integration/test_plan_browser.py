"""The page of a plan in a real browser: five hundred units drawn, zoomed, found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgert.placement.plan_record import BoardPlan, Check, EngineRow, ModelRow, Plan, Row
from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.planner.plan_page import render
from edgert.planner.unit_section import MOST_BOXES
from tests.helpers.browser import Page, browser

COUNT = 500
CROSSINGS = {("gpu", "dla0"): Transition(0.1), ("dla0", "gpu"): Transition(0.1)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def made() -> Plan:
    """Blocks of four units with a skip; every other block on the DLA; one name that would like to be a script."""
    costs = {"gpu": Cost(0.1, 1.0), "dla0": Cost(0.2, 0.5)}
    names = [f"/model/block.{place // 4}/part.{place % 4}" for place in range(COUNT - 1)] + [
        "<script>hacked=1</script>"
    ]
    units = tuple(Unit(name, (name,), costs) for name in names)
    pairs = [(place, place + 1) for place in range(COUNT - 1)] + [
        (place, place + 3) for place in range(0, COUNT - 3, 4)
    ]
    edges = tuple(Edge(f"t{a}.{b}", a, (b,), transitions=CROSSINGS, size_bytes=1024) for a, b in pairs)
    assignment = tuple("dla0" if place // 4 % 2 else "gpu" for place in range(COUNT))
    model = ModelRow(
        "net", Network("net", units, edges), (EngineRow(assignment, 1.0),), 30.0, 5.0, 5.0, 6.0, 0.5, {"dla0": 9}
    )
    check = Check("latency", 0.9, 0.2, "p99 45 of 50 ms", "latency: 54ms")
    row = Row("b", "15W", "mixed", (model,), 2.0, 30.0, 6.0, 9.0, 2**20, 300.0, {"gpu": 0.5}, 0.2, 0.3, 30.0, 5.0)
    row = replace(row, checks=(check,), is_best=True)
    return Plan("p", "throughput", (BoardPlan("b", "A Board", (row,), 0, ()),), "b", ("something was assumed",))


@pytest.fixture(scope="module")
def path(made: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "plan.html"
    file.write_text(render(made), encoding="utf-8")
    return file


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width_px", [420, 1600])
def test_page_fits_draws_everything_and_is_quiet(page: Page, path: Path, width_px: int, dark: bool) -> None:
    page.open(path, width_px, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width_px
    assert page.evaluate("document.querySelectorAll('.network .unit').length") == COUNT
    assert page.evaluate("document.querySelectorAll('.network .crosses').length") > COUNT / 8
    assert page.evaluate("window.hacked ?? null") is None
    assert page.errors == [] and page.requests == [path.resolve().as_uri()]


def test_buttons_zoom_and_a_name_is_found(page: Page, path: Path) -> None:
    page.open(path, 1200)
    height = "document.querySelector('svg.network').getBoundingClientRect().height"
    before = page.evaluate(height)
    page.evaluate("document.querySelector('.zoom button').click()")
    assert page.evaluate(height) > before * 1.3
    page.evaluate("[...document.querySelector('.zoom').querySelectorAll('button')].at(-1).click()")
    assert page.evaluate(height) <= page.evaluate("document.querySelector('.viewport').clientHeight")
    page.evaluate(
        "(() => { const input = document.querySelector('.zoom input'); input.value = 'BLOCK.77/part.2';"
        "input.dispatchEvent(new Event('input')); })()"
    )
    assert page.evaluate("document.querySelectorAll('.network .found').length") == 1
    assert page.errors == []


def test_a_block_leads_to_its_units_and_the_table_is_searched_and_sorted(page: Page, path: Path) -> None:
    page.open(path, 1200)
    blocks = page.evaluate("document.querySelectorAll('.network .block').length")
    assert 8 < blocks <= MOST_BOXES and not page.evaluate("document.querySelector('details.all').open")
    page.evaluate(
        "new Promise(done => { document.querySelectorAll('.network .block')[5]"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true})); setTimeout(done, 300); })"
    )
    assert page.evaluate("document.querySelector('details.all').open")
    found = page.evaluate("[...document.querySelectorAll('.network .found')].map(one => one.dataset.name)")
    assert found == page.evaluate(
        "[...document.querySelectorAll('.network .unit[data-group=\"5\"]')].map(one => one.dataset.name)"
    )
    assert 1 < len(found) < 20
    seen = "(one => { const a = one.getBoundingClientRect(), b = one.closest('.viewport').getBoundingClientRect();"
    seen += "return a.top >= b.top - 1 && a.bottom <= b.bottom + 1 && a.height > 30; })"
    assert page.evaluate(f"{seen}(document.querySelector('.network .found'))")  # at a size that is read
    rows = "[...document.querySelectorAll('.searchable tbody tr')].filter(one => !one.hidden).length"
    assert page.evaluate(rows) == COUNT
    page.evaluate(
        "(() => { const input = document.querySelector('.searchable input'); input.value = 'BLOCK.77/part.2';"
        "input.dispatchEvent(new Event('input')); })()"
    )
    assert page.evaluate(rows) == 1
    assert page.evaluate("document.querySelector('.searchable output').textContent") == f"1 of {COUNT} units"
    first = "document.querySelector('.searchable tbody tr').cells[0].textContent"
    page.evaluate("document.querySelector('.searchable thead button').click()")
    assert page.evaluate(first) == "1"
    assert page.errors == []


@pytest.mark.parametrize("width_px", [390, 900, 1200, 1600])
def test_a_table_of_many_boards_fits_and_marks_the_smallest(
    page: Page, made: Plan, tmp_path: Path, width_px: int
) -> None:
    why = "unknown: the clocks of this power mode are unknown (not published: cpu_mhz, sms, gpu_mhz, emc_mhz)"
    unknown = BoardPlan("t", "Jetson T4000", (), None, (why,))
    board = made.boards[0]
    long = replace(board.rows[0], mode="MODE_20W_6CORE", memory_bytes=412 * 2**20, memory_error=0.83, p99_ms=0.0123)
    boards = (replace(board, title="Jetson Orin Nano 8GB Super", rows=(long,)), unknown)
    (tmp_path / "plan.html").write_text(render(replace(made, boards=boards)), encoding="utf-8")
    page.open(tmp_path / "plan.html", width_px)
    assert page.evaluate("document.documentElement.scrollWidth") == width_px
    assert page.evaluate("document.querySelector('#boards b').textContent") == "Jetson Orin Nano 8GB Super"
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    hidden = "Math.max(...[...document.querySelectorAll('.scroll')].map(box => box.scrollWidth - box.clientWidth))"
    assert page.evaluate(hidden) == 0  # nothing scrolls sideways


def test_of_many_boards_each_is_folded_up_until_it_is_asked_for(page: Page, made: Plan, tmp_path: Path) -> None:
    boards = tuple(replace(made.boards[0], board=f"b{n}", title=f"Board {n}") for n in range(18))
    (tmp_path / "plan.html").write_text(render(replace(made, boards=boards, smallest="b0")), encoding="utf-8")
    assert (tmp_path / "plan.html").stat().st_size < 2e6  # blocks and the slowest units of each, not all of them
    page.open(tmp_path / "plan.html", 1200)
    assert page.evaluate("document.documentElement.scrollHeight") < 4000
    assert page.evaluate("document.querySelectorAll('details.whole[open]').length") == 0
    page.evaluate("document.querySelector('nav a[href=\"#b3\"]').click()")
    unfolded = "document.querySelector('#b3 details.whole').open"
    page.evaluate(f"new Promise(done => {{ const look = () => {unfolded} ? done() : setTimeout(look, 20); look(); }})")
    assert page.evaluate(unfolded)
    drawn = "document.querySelector('#b3 svg.network').getBoundingClientRect().width"
    natural = "document.querySelector('#b3 svg.network').viewBox.baseVal.width"
    assert page.evaluate(drawn) == page.evaluate(natural)  # it fits, so it is not scaled
    assert page.errors == []
