"""Text files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.errors import ArtifactError
from edgert.files import replace_text


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    replace_text(path, "one")
    replace_text(path, "zwei ü")
    assert path.read_text(encoding="utf-8") == "zwei ü"
    assert list(path.parent.iterdir()) == [path]


def test_others_may_read_it_if_they_may_read_new_files(tmp_path: Path) -> None:
    replace_text(tmp_path / "file", "text")
    (tmp_path / "new").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_what_goes_wrong_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_text(path, "old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ArtifactError, match="cannot write") as caught:
        replace_text(path, "new")
    assert "No space left" in caught.value.why
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
