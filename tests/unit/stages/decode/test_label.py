from __future__ import annotations

from pathlib import Path

import pytest

from edgert.errors import ConfigError
from edgert.stages.decode.kinds import read_labels


def written(folder: Path, content: bytes) -> Path:
    path = folder / "labels.txt"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        b"car\ntruck",
        b"car\r\ntruck\r\n\r\n",
        b" car \n\ttruck\n\n \n",
        b"\xef\xbb\xbfcar\ntruck\n",
        b"car\rtruck\r",
        "car\r\ntruck\r\n".encode("utf-16"),
        "car\ntruck".encode("utf-16-be"),
    ],
)
def test_one_name_a_line(tmp_path: Path, content: bytes) -> None:
    assert read_labels(written(tmp_path, content)) == ("car", "truck")


def test_names_may_hold_anything_else(tmp_path: Path) -> None:
    assert read_labels(written(tmp_path, "grüner Apfel, 2 kg\n# no comment\n".encode())) == (
        "grüner Apfel, 2 kg",
        "# no comment",
    )


@pytest.mark.parametrize(
    ("content", "why"), [(b"", "it is empty"), (b"\n \n", "it is empty"), (b"car\n\ntruck\n", "line 2 is blank")]
)
def test_what_would_shift_the_classes_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_labels(written(tmp_path, content), "p.yaml:3 task.labels")
    assert (caught.value.why, caught.value.where) == (why, "p.yaml:3 task.labels")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path, written(tmp_path, b"\xff\xfe\x00ca")):
        with pytest.raises(ConfigError) as caught:
            read_labels(path, "here")
        assert caught.value.where == "here"
