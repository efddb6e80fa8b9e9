from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from edgert.errors import ArtifactError
from edgert.files import FileStore, cache_folder


def content(folder: Path, text: bytes = b"engine") -> Path:
    path = folder / "made.bin"
    path.write_bytes(text)
    return path


def test_what_is_put_is_found(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "deep" / "cache")
    assert store.get("key") is None
    put = store.put("key", content(tmp_path))
    assert store.get("key") == put and put.read_bytes() == b"engine"
    assert content(tmp_path).exists()


def test_a_key_is_not_the_beginning_of_another(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    store.put("key2", content(tmp_path))
    assert store.get("key") is None


def test_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    for text in (b"one", b"two", b"two"):
        store.put("key", content(tmp_path, text))
    assert [path.read_bytes() for path in (tmp_path / "cache").iterdir()] == [b"two"]


@pytest.mark.parametrize("damage", [b"", b"engin", b"engine!", b"Engine"])
def test_a_damaged_entry_is_removed_and_said(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = FileStore(tmp_path / "cache")
    path = store.put("key", content(tmp_path))
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert store.get("key") is None
    assert "damaged" in caplog.text and not path.exists()
    assert store.put("key", content(tmp_path)) == store.get("key")


def test_a_folder_in_an_entrys_place_is_no_crash(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    path = store.put("key", content(tmp_path))
    path.unlink()
    path.mkdir()
    assert store.get("key") is None


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = FileStore(tmp_path / "file" / "cache")
    assert store.get("key") is None
    with pytest.raises(ArtifactError, match="cannot write to the cache") as caught:
        store.put("key", content(tmp_path))
    assert "EDGERT_CACHE" in caught.value.fix


def test_content_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        FileStore(tmp_path / "cache").put("key", tmp_path / "none")


def test_a_folder_that_belongs_to_others_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "cache")
    path = store.put("key", content(tmp_path))

    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(os, "utime", refuse)
    assert store.get("key") == path


def test_a_damaged_entry_that_cannot_be_removed_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "cache")
    store.put("key", content(tmp_path)).write_bytes(b"x")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert store.get("key") is None


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache", limit_bytes=250)
    for age, key in ((30, "old"), (20, "used"), (10, "new")):
        path = store.put(key, content(tmp_path, key.encode() * 20))
        os.utime(path, (1_000_000_000 - age, 1_000_000_000 - age))
    assert store.get("old") is not None  # and is thereby the youngest
    store.put("last", content(tmp_path, b"x" * 80))
    assert [key for key in ("old", "used", "new", "last") if store.get(key)] == ["old", "new", "last"]


def test_what_was_just_put_stays_however_large(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache", limit_bytes=10)
    store.put("small", content(tmp_path, b"x"))
    assert store.put("large", content(tmp_path, b"x" * 100)) == store.get("large")
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


def test_without_a_home_the_cache_asks_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("EDGERT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(ArtifactError, match="no home folder") as caught:
        cache_folder()
    assert "EDGERT_CACHE" in caught.value.fix
