"""``edgert simulate``: what each option does to the figures, and what is printed and written."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import edgert
from edgert.cli.simulate_command import show_simulation
from edgert.config import PipelineFile, load_pipeline
from edgert.errors import EdgertError
from edgert.installation import pipeline_named
from edgert.planner import simulation
from edgert.planner.planning import plan_boards
from edgert.planner.simulation import Scenario, simulate
from edgert.simulator import Simulated
from tests.helpers.command import in_process

BOARD = ("--board", "orin-nx-16gb", "--mode", "15W")
CROPS = "cascade"
"""A shipped pipeline with a second model on crops."""


@pytest.fixture(autouse=True, scope="module")
def _one_plan_of_each_file() -> Iterator[None]:
    """Simulations of one file start from one plan, whatever their scenarios are."""
    made = dict[str, Any]()

    def planned(file: PipelineFile, *given: Any, **more: Any) -> SimpleNamespace:
        key = f"{file.config!r} {given}"
        if key not in made:
            made[key] = plan_boards(file, *given, **more).boards
        return SimpleNamespace(boards=made[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "plan_boards", planned)
        yield


def simulated(folder: Path, *options: str, pipeline: str = "hello", code: int = 0) -> dict[str, Any]:
    """What was played, and the figures."""
    done = in_process("simulate", pipeline, *BOARD, *options, "--json", "s.json", cwd=folder)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads((folder / "s.json").read_text())
    return {**found["played"], "figures": found["figures"]}


def test_the_verdict_comes_first_then_the_seconds(tmp_path: Path) -> None:
    done = in_process("simulate", "hello", *BOARD, "--duration", "3", cwd=tmp_path)
    lines = done.stdout.replace("\xa0", " ").splitlines()
    assert done.returncode == 0 and lines[0].startswith("Jetson Orin NX 16GB in 15W, simulated for 3 s: 30 frames")
    assert lines[1].startswith("✓ kept")
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "3"]
    assert "nothing of this was measured on the board" in done.stdout


@pytest.mark.parametrize("seconds", [2, 4])
def test_the_duration_is_that_of_the_board(tmp_path: Path, seconds: int) -> None:
    found = simulated(tmp_path, "--duration", str(seconds))
    assert found["frames_in"] == pytest.approx(30 * seconds, abs=2) and found["seconds"] == seconds


def test_json_to_standard_output_is_alone_there(tmp_path: Path) -> None:
    done = in_process("simulate", "hello", *BOARD, "--duration", "1", "--json", "-", cwd=tmp_path)
    assert json.loads(done.stdout)["figures"]["verdict"] == "kept"
    assert "simulated for 1\xa0s" in done.stderr


def test_a_report_is_one_page(tmp_path: Path) -> None:
    done = in_process("simulate", "hello", *BOARD, "--duration", "1", "--report", "page.html", cwd=tmp_path)
    assert done.returncode == 0 and "report written to page.html" in done.stdout
    page = (tmp_path / "page.html").read_text()
    assert "Jetson Orin NX 16GB" in page and "<svg" in page and "http://" not in page.replace("http://www.w3.org", "")


def played(pipeline: str, **scenario: Any) -> Simulated:
    """Return what a scenario of the Python interface gives."""
    found = edgert.simulate(pipeline, board="orin-nx-16gb", mode="15W", scenario=edgert.Scenario(**scenario))
    return found.played


def test_more_objects_are_more_crops_and_more_power() -> None:
    none, many = (played(CROPS, seconds=2.0, objects=count) for count in (0.0, 8.0))
    assert none.power_w is not None and many.power_w is not None and many.power_w > none.power_w
    assert many.latency_ms.p50 > none.latency_ms.p50


def test_a_seed_draws_the_same_objects_again() -> None:
    one, again, other = (played(CROPS, seconds=3.0, objects=2.5, seed=seed) for seed in (1, 1, 2))
    assert one.latency_ms == again.latency_ms != other.latency_ms


def test_jitter_of_a_camera_makes_its_latest_frames_later() -> None:
    even, uneven = (played("usb-camera", seconds=2.0, jitter=share).latency_ms for share in (0.0, 1.0))
    assert uneven.p99 > 1.2 * even.p99


def test_a_board_in_the_heat_is_hotter() -> None:
    cool, hot = (played("hello", seconds=2.0, ambient_c=degrees).temperature_c for degrees in (0.0, 9.0))
    assert cool is not None and hot == pytest.approx(cool + 9, abs=0.5)


@pytest.mark.parametrize("name", ["trace", "stages"])
def test_a_file_of_a_scenario_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(EdgertError, match=r"gone\.json"):
        played("hello", **{name: Path("gone.json")})


def test_a_budget_that_is_missed_is_exit_1(tmp_path: Path) -> None:
    found = simulated(tmp_path, "--duration", "1", "--set", "budgets.latency=1ms", code=1)
    assert found["figures"]["verdict"] == "missed"


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--board", "orin-nx"), 1, "which one: orin-nx-16gb"),
        (("--board", "orin-nx-16gb", "--mode", "16W"), 1, "15W"),
        (("--board", "orin-nx-16gb", "--duration", "0"), 2, "--duration"),
        (("--board", "orin-nx-16gb", "--profile", "gone.json"), 1, "gone.json"),
        ((), 1, "without a board"),
    ],
)
def test_mistakes_name_the_option_and_what_is_near(
    tmp_path: Path, options: tuple[str, ...], code: int, says: str
) -> None:
    done = in_process("simulate", "hello", *options, cwd=tmp_path)
    assert done.returncode == code and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("overrides", "has_table"), [((), True), (("stages.belt.realtime=false",), False)])
def test_what_ends_within_a_second_has_no_empty_table(overrides: tuple[str, ...], has_table: bool) -> None:
    path = pipeline_named("hello")
    assert path is not None
    simulation = simulate(
        load_pipeline(path, overrides), board="orin-nx-16gb", mode="15W", scenario=Scenario(seconds=3.0)
    )
    out = io.StringIO()
    show_simulation(Console(file=out, width=160), simulation)
    assert ("second  fps" in out.getvalue()) is has_table and ("J/frame" in out.getvalue()) is has_table
    assert "frames, 0 dropped" in out.getvalue()


def test_a_verdict_has_a_sign_and_the_headline_error_bars() -> None:
    path = pipeline_named("hello")
    assert path is not None
    file = load_pipeline(path, ("budgets.latency=1ms",))
    out = io.StringIO()
    show_simulation(
        Console(file=out, width=160), simulate(file, board="orin-nx-16gb", mode="15W", scenario=Scenario(1.0))
    )
    first, second, *_ = out.getvalue().splitlines()
    assert first.count("±") == 2 and second.startswith("✗ p99 ")  # not by color alone
