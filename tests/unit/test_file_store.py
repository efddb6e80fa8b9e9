import errno
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO
from unittest.mock import MagicMock

import pytest

from edgert import files
from edgert.errors import ArtifactError
from edgert.files import FileStore, cache_folder


def put(store: FileStore, key: str = "key", content: bytes = b"engine") -> Path:
    """Where the store wrote it."""
    store.put(key, content)
    (path,) = store.folder.glob(f"{key}.*")
    return path


def test_what_is_put_is_found(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "deep" / "cache")
    assert store.get("key") is None
    assert put(store).read_bytes() == store.get("key") == b"engine"


def test_a_key_is_not_the_beginning_of_another(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    store.put("key2", b"engine")
    assert store.get("key") is None


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    for text in (b"one", b"two", b"two"):
        store.put("key", text)
    assert [path.read_bytes() for path in (tmp_path / "cache").iterdir()] == [b"two"]


@pytest.mark.parametrize("damage", [b"", b"engin", b"engine!", b"Engine"])
def test_a_damaged_entry_is_removed_and_said(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = FileStore(tmp_path / "cache")
    path = put(store)
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert store.get("key") is None
    assert "damaged" in caplog.text and not path.exists()
    assert put(store).read_bytes() == store.get("key")


def test_a_folder_in_an_entrys_place_is_no_crash(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    path = put(store)
    path.unlink()
    path.mkdir()
    assert store.get("key") is None


def test_a_pipe_in_an_entrys_place_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FileStore(tmp_path / "cache")
    path = put(store)
    path.unlink()
    os.mkfifo(path)
    assert store.get("key") is None and "no regular file" in caplog.text
    assert put(store, content=b"other").read_bytes() == store.get("key") == b"other"


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = FileStore(tmp_path / "file" / "cache")
    assert store.get("key") is None
    with pytest.raises(ArtifactError, match="cannot write to the cache") as caught:
        store.put("key", b"engine")
    assert "EDGERT_CACHE" in caught.value.fix


def test_an_entry_that_another_process_replaces_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path / "cache")
    put(store)
    digest, listed = files.digest_of, store._entries("key")

    def replaced(file: BinaryIO) -> str:
        monkeypatch.setattr(files, "digest_of", digest)
        store.put("key", b"the other's")
        return digest(file)

    monkeypatch.setattr(files, "digest_of", replaced)
    with caplog.at_level(logging.WARNING):
        assert store.get("key") is None
    assert not caplog.text and not listed[0].exists() and store.get("key") == b"the other's"


def test_many_processes_share_one_cold_folder(tmp_path: Path) -> None:
    """Each makes its own content, as compilers do, and reads whatever is there; none finds a file gone."""
    script = (
        "import os, sys; from pathlib import Path; from edgert.files import FileStore\n"
        "store = FileStore(Path(sys.argv[1]))\n"
        "for turn in range(60):\n"
        "    store.put('key', os.urandom(2000)); assert len(store.get('key') or bytes(2000)) == 2000\n"
    )
    several = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "cold")]) for _ in range(4)]
    assert [one.wait(60) for one in several] == [0] * 4
    assert FileStore(tmp_path / "cold").get("key") is not None


@pytest.mark.parametrize("number", [errno.EPERM, errno.EROFS])
def test_a_folder_of_others_or_on_a_read_only_disk_can_be_read(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "cache")
    path = put(store)
    monkeypatch.setattr(os, "utime", MagicMock(side_effect=OSError(number, os.strerror(number))))
    assert store.get("key") == b"engine" and path.exists()


def test_a_damaged_entry_that_cannot_be_removed_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "cache")
    put(store).write_bytes(b"x")

    monkeypatch.setattr(Path, "unlink", MagicMock(side_effect=PermissionError("read-only")))
    assert store.get("key") is None


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache", limit_bytes=250)
    for age, key in ((30, "old"), (20, "used"), (10, "new")):
        path = put(store, key, key.encode() * 20)
        os.utime(path, (1_000_000_000 - age, 1_000_000_000 - age))
    assert store.get("old") is not None  # and is thereby the youngest
    store.put("last", b"x" * 80)
    assert [key for key in ("old", "used", "new", "last") if store.get(key)] == ["old", "new", "last"]


def test_what_was_just_put_stays_however_large(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache", limit_bytes=10)
    store.put("small", b"x")
    store.put("large", b"x" * 100)
    assert store.get("large") == b"x" * 100
    assert store.get("small") is None


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EDGERT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "edgert"
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("EDGERT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "edgert"


def test_without_a_home_the_cache_is_where_docker_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("EDGERT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert cache_folder() == Path("/.cache/edgert")
