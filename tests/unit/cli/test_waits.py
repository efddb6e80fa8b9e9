"""Verbs that take long say what they do, and show what is done when they are interrupted."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgert.board.record import boards
from edgert.cli import progress
from edgert.planner import planning
from tests.helpers.command import in_process
from tests.unit.planner.test_planning import pipeline

TWO = ("orin-nano-8gb", "orin-nx-16gb")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pipeline to plan where there are only two boards."""
    known = boards
    monkeypatch.setattr(planning, "boards", lambda: tuple(one for one in known() if one.name in TWO))
    return str(pipeline(tmp_path).document.path)


def test_each_board_is_shown_as_soon_as_it_is_planned(file: str, tmp_path: Path) -> None:
    done = in_process("plan", file, "--board", "all", cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert "planning" in lines[0] and "board 1 of 2" in lines[0]
    assert [line[:6] for line in lines if line[1:6] == " of 2"] == ["1 of 2", "2 of 2"]
    assert all(name in done.stdout for name in TWO)


def test_after_ctrl_c_what_is_planned_is_shown(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Callable[..., Any] = planning.plan_boards

    def interrupted(*words: Any, on_board: Callable[..., None], **options: Any) -> Any:
        def then(found: Any, total: int) -> None:
            on_board(found, total)
            raise KeyboardInterrupt

        return whole(*words, on_board=then, **options)

    monkeypatch.setattr(planning, "plan_boards", interrupted)
    done = in_process("plan", file, "--board", "all", cwd=tmp_path)
    assert done.returncode == 130 and "interrupted: 1 boards are planned" in done.stderr
    assert TWO[0] in done.stdout and TWO[1] not in done.stdout


def test_a_simulation_and_an_emulation_say_that_they_plan_first(file: str, tmp_path: Path) -> None:
    more = "--set", "stages.cam.source=api"
    for verb in (("simulate", file, *more, "--board"), ("run", file, *more, "--duration", "0.1", "--as")):
        done = in_process(*verb, TWO[1], cwd=tmp_path)
        assert done.stderr.startswith("planning Jetson Orin NX 16GB"), done.stderr


def test_a_block_that_takes_long_is_named_and_a_short_one_is_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with progress.show_waiting("reading a model"):
        pass
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(progress, "_WAIT_SHOWN_AFTER_S", 0.0)
    before = set(threading.enumerate())
    with progress.show_waiting("reading a model"):
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
    assert capfd.readouterr().err == "reading a model ...\n"
