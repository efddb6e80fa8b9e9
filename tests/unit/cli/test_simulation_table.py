"""A simulation in the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from edgert.cli.simulate_command import show_simulation
from edgert.config import load_pipeline
from edgert.installation import pipeline_named
from edgert.planner.simulation import Scenario, simulate


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
