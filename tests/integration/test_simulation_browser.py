"""The page of a simulation in a real browser: it fits, and draws every line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgert.budget.rules import Budget
from edgert.placement.cost.power import Power
from edgert.placement.segment_engines import Step
from edgert.planner.simulation import Simulation
from edgert.planner.simulation_page import save
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
    played = simulate(
        Design((Source("camera", 80.0),), (find, Node("end", (Edge("find", 2, "never"),)))), platform, 30.0
    )
    name = "<script>hacked=1</script>"
    made = Simulation(name, "b", "A Board", "15W", "gpu", Budget(14.0, 50.0), "a model", ("assumed",), played)
    file = tmp_path_factory.mktemp("page") / "simulated.html"
    save(made, file)
    return file


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width_px", [420, 1600])
def test_page_fits_draws_every_line_and_is_quiet(page: Page, path: Path, width_px: int, dark: bool) -> None:
    page.open(path, width_px, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width_px
    assert page.evaluate("document.querySelectorAll('.series').length") == 7
    assert page.evaluate("document.querySelectorAll('.series path').length") == 8  # two lines of latency
    assert page.evaluate("document.querySelectorAll('.series .limit').length") == 2
    assert page.evaluate("window.hacked ?? null") is None
    assert page.errors == [] and page.requests == [path.resolve().as_uri()]
