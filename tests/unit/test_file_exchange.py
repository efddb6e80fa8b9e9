"""Two paths change places in one step, or it is said that they cannot."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from edgert.files import exchange


def test_folders_change_places(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
    assert exchange(tmp_path / "a", tmp_path / "b")
    assert [one.name for one in sorted(tmp_path.rglob("*"))] == ["a", "b", "b", "a"]


def test_what_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "b")


def test_a_system_without_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: object())
    assert not exchange(tmp_path / "a", tmp_path / "b")
