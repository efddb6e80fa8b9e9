"""Text files that are there whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
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


def test_a_link_stays_and_what_it_points_at_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    real, link, loose = tmp_path / "there" / "file", tmp_path / "link", tmp_path / "loose"
    real.write_text("old")
    link.symlink_to(real)
    loose.symlink_to(tmp_path / "not yet")
    replace_text(link, "new")
    replace_text(loose, "made")
    assert (link.is_symlink(), real.read_text(), (tmp_path / "not yet").read_text()) == (True, "new", "made")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "link", "loose", "not yet", "there"]


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    fifo, found = tmp_path / "fifo", []
    os.mkfifo(fifo)
    text = "all of it\n" * 30_000  # more than a pipe holds
    reader = threading.Thread(target=lambda: found.append(fifo.read_text()))
    reader.start()
    replace_text(fifo, text)
    reader.join(10.0)
    assert found == [text]
    assert fifo.is_fifo()


@pytest.mark.parametrize("name", ["/dev/null", "link"])
def test_a_device_stays_a_device(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "link":
        path.symlink_to("/dev/null")
    replace_text(path, "text")
    assert path.is_char_device()
    assert [one.name for one in tmp_path.iterdir()] == ([] if name == "/dev/null" else ["link"])


def test_standard_output_is_written_to(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        program = "from pathlib import Path; from edgert.files import replace_text; print('one', flush=True); "
        program += "replace_text(Path('/dev/stdout'), 'two\\n'); print('three')"
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert out.read_text().split() == ["one", "two", "three"]
