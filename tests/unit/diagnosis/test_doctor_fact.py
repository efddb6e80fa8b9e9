"""What a machine says of itself before another sends it work."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert._version import __version__
from edgert.diagnosis import facts
from tests.unit.board.tree import jetson


def test_a_jetson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "not" / "there" / "yet"))
    found = facts(jetson(tmp_path))
    assert found["edgert"] == __version__ and found["board"].startswith("orin-nx") and found["jetpack"]
    assert found["cache"].endswith("yet") and found["free_bytes"] > 0


def test_a_machine_that_is_no_jetson(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert (found["board"], found["mode"], found["l4t"], found["jetpack"]) == ("host", "", "", "")
