"""``edgert build --remote``: mistakes are refused before any connection; and what a build says at its end."""

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from edgert.backend.chain import Skipped
from edgert.cli import app
from edgert.cli.build_command import show_engines
from edgert.errors import ConfigError
from tests.helpers.bundles import bundle


def refused(*words: str) -> str:
    """What a usage error says, on one line."""
    done = CliRunner().invoke(app, ["build", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    return " ".join(done.output.replace("│", " ").split())


def test_options_of_builds_on_this_machine() -> None:
    said = refused("hello", "--remote", "jetson", "--tune")
    assert "--tune" in said and "it is for builds on this machine" in said


def test_strict_is_for_where_engines_are_compiled() -> None:
    said = refused("hello", "--strict")
    assert "--strict" in said and "it is for builds that compile engines" in said


def test_a_place_of_edgert_without_a_board() -> None:
    assert "it is the path of edgert on the board of --remote" in refused(
        "hello", "--remote-edgert", "edgert/bin/edgert"
    )


@pytest.mark.parametrize("words", [("--board", "orin-nx-16gb"), ("--trt", "10.3"), ("--set", "name=b")])
def test_a_bundle_says_itself_what_it_is_for(tmp_path: Path, words: tuple[str, str]) -> None:
    said = refused(str(bundle(tmp_path / "a.edgert")), "--remote", "jetson", *words)
    assert words[0] in said and "is a bundle, whose build has already decided that" in said


def test_an_address_that_is_an_option() -> None:
    done = CliRunner().invoke(app, ["build", "hello", "--remote", "-oProxyCommand=true"])
    assert isinstance(done.exception, ConfigError) and done.exception.where == "--remote"


WAITING = {"parts": Skipped("tensorrt", "there is no NVIDIA GPU here: no driver", "parts")}


def shown(engines: dict[str, str], place: str = "here") -> list[str]:
    console = Console(width=200, highlight=False)
    with console.capture() as captured:
        show_engines(console, engines, WAITING, place)
    return captured.get().splitlines()


def test_what_runs_is_told_beside_what_waits() -> None:
    assert shown({"parts": "onnxruntime", "plates": "onnxruntime"}) == [
        "parts runs with onnxruntime here",
        "plates runs with onnxruntime here",
        "parts is compiled for tensorrt, which cannot run here yet: there is no NVIDIA GPU here: no driver",
    ]


def test_where_nothing_runs_it() -> None:
    (reason,) = shown({}, "on jetson")
    assert "which cannot run on jetson yet; no other engine of engines: runs it: there is no NVIDIA GPU" in reason
