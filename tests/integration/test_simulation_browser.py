"""The page of a simulation in a real browser: it fits, and draws every line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgert.budget.rules import Budget
from edgert.placement.cost.power import Power
from edgert.placement.segment_engines import Step
from edgert.planner.simulation import Simulation
from edgert.planner.simulation_page import render
from edgert.simulator import Cooling, Design, Edge, Node, Platform, Source, Task, simulate
from tests.helpers.browser import Page, browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Too many frames for the model, of a pipeline whose name would like to be a script."""
    find = Node("find", (Edge("camera", 1, "oldest"),), Task(run=(Step("gpu", 20.0),)))
    platform = Platform(power=Power(5.0, 10.0, 0.0, 0.0), cooling=Cooling(2.0))
    made = Design((Source("camera", 80.0),), (find, Node("end", (Edge("find", 2, "never"),))))
    played = simulate(made, platform, 30.0, record=True)
    name = "<script>hacked=1</script>"
    simulation = Simulation(name, "b", "A Board", "15W", "gpu", Budget(14.0, 50.0), "a model", ("assumed",), played)
    file = tmp_path_factory.mktemp("page") / "simulated.html"
    file.write_text(render(simulation), encoding="utf-8")
    return file


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width_px", [390, 1200, 1600])
def test_page_fits_draws_every_line_and_is_quiet(page: Page, path: Path, width_px: int, dark: bool) -> None:
    page.open(path, width_px, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width_px
    hidden = "Math.max(...[...document.querySelectorAll('.scroll')].map(box => box.scrollWidth - box.clientWidth))"
    assert page.evaluate(hidden) == 0
    assert page.evaluate("document.querySelectorAll('.series').length") == 7
    assert page.evaluate("document.querySelectorAll('.series path').length") == 8  # two lines of latency
    assert page.evaluate("document.querySelectorAll('.series .limit').length") == 2
    assert page.evaluate("window.hacked ?? null") is None
    assert page.errors == [] and page.requests == [path.resolve().as_uri()]


def test_the_second_in_full_is_stretched(page: Page, path: Path) -> None:
    page.open(path, 1200)
    assert page.evaluate("document.querySelectorAll('.timeline .lane').length") >= 2  # the GPU, and a queue
    assert page.evaluate("document.querySelectorAll('.timeline .steps').length") >= 1
    width = "document.querySelector('.timeline').getBoundingClientRect().width"
    before = page.evaluate(width)
    page.evaluate("document.querySelector('.zoom button').click()")
    assert page.evaluate(width) == 2 * before
    page.evaluate("[...document.querySelectorAll('.zoom button')].at(-1).click()")
    assert page.evaluate(width) == before
    assert page.errors == []
