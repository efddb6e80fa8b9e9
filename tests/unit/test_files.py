"""Text files: there whole or not at all, read from any editor and system."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgert.errors import ArtifactError, ConfigError
from edgert.files import memory_file, replace_text
from edgert.text_files import as_text, lines_of, read_text


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


def test_a_file_in_memory_is_read_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")  # as in Pythons that were compiled for an old C library
    with memory_file(b"model") as file:
        path = Path(f"/proc/self/fd/{file.fileno()}")
        assert (path.read_bytes(), file.read()) == (b"model", b"model")
    assert not path.exists()


LINES = "Käfer\nVogel, blau\n"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(encoding: str, end: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert as_text(LINES.replace("\n", end).encode(encoding), "names.txt") == LINES
    warned = [one.getMessage() for one in caplog.records]
    assert [one.startswith("names.txt:1 is not UTF-8") for one in warned] == [True] * (
        encoding in ("latin-1", "cp1252")
    )


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ("a\nкошка\n".encode("cp1251"), 2),  # mostly beyond ASCII, so no text of Windows-1252
        ("人\n汽车\n".encode("gbk"), 1),
        (b"\xff\xfe\x00ca", 1),
        (b"\x00\x01\x02\xff\xff", 1),
        (b"a\nb\n\x81c d e f", 3),
    ],
)
def test_what_is_no_text_names_its_line(data: bytes, line: int) -> None:
    with pytest.raises(ConfigError, match="text") as caught:
        as_text(data, "names.txt")
    assert caught.value.where == f"names.txt:{line}" and caught.value.fix == "save it as UTF-8"


def test_characters_that_other_readers_take_for_line_ends_stay(tmp_path: Path) -> None:
    assert as_text("a\u2028b\x85c\x0bd\n".encode(), "dict.txt") == "a\u2028b\x85c\x0bd\n"
    assert as_text(b"", "empty.txt") == ""


def test_lines_without_blanks_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"# head\r\n\r\n a.jpg \r\n  \n#b.jpg\n#\n")
    assert list(lines_of(path)) == [(3, "a.jpg"), (5, "#b.jpg")]
    with pytest.raises(ConfigError, match="cannot read"):
        list(lines_of(tmp_path / "none.txt"))
    with pytest.raises(ConfigError, match="too long"):
        read_text(path, most_bytes=3)


def test_no_more_of_a_pipe_is_read_than_a_text_may_have(tmp_path: Path) -> None:
    """The size that the system states for a pipe or a device is 0."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(b"a" * 2000))
    writer.start()
    with pytest.raises(ConfigError, match="too long"):
        read_text(fifo, 1000)
    writer.join()
