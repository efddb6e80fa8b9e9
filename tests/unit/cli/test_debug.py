"""``--debug`` of every verb shows where an error comes from; without it, an error has no traceback."""

from pathlib import Path
from typing import Any

import pytest
import typer

from edgert.cli import app
from tests.helpers.command import in_process

GROUP: Any = typer.main.get_command(app)
MISTAKES = {
    "bench": ("gone.onnx",),
    "boards": ("gone",),
    "build": ("gone.yaml",),
    "calibrate": ("gone.yaml",),
    "check": ("gone.yaml",),
    "ctl": ("show", "--name", "gone"),
    "eval": ("gone.yaml",),
    "explain": ("E999",),
    "export": ("gone.yaml", "--format", "onnx", "-o", "x"),
    "gallery": ("gone.yaml",),
    "import": ("gone.pt2",),
    "inspect": ("gone.onnx",),
    "models": ("no such family",),
    "new": ("gone.onnx",),
    "plan": ("gone.yaml", "--board", "host"),
    "quantize": ("gone.yaml",),
    "replay": ("gone.mcap",),
    "run": ("gone.yaml",),
    "simulate": ("gone.yaml", "--board", "host"),
    "validate": ("gone.yaml",),
}
"""Verb → arguments with which it fails."""
NEVER_FAILS = {"doctor", "schema", "top"}


def test_every_verb_has_a_mistake_here() -> None:
    verbs = {name for name, one in GROUP.commands.items() if not one.hidden}
    assert verbs == set(MISTAKES) | NEVER_FAILS


@pytest.mark.parametrize("verb", sorted(MISTAKES))
def test_a_traceback_is_shown_where_it_was_asked_for(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgert.control.client.socket_folders", tuple)  # other tests' pipelines come and go
    plain = in_process(verb, *MISTAKES[verb], cwd=tmp_path)
    assert plain.returncode == 1 and "error: " in plain.stderr and "Traceback" not in plain.stderr, plain.stderr
    debug = in_process(verb, *MISTAKES[verb], "--debug", cwd=tmp_path)
    assert debug.returncode == 1 and "Traceback" in debug.stderr, debug.stderr
    assert plain.stderr.splitlines()[-1] in debug.stderr
    assert not list(tmp_path.iterdir())
