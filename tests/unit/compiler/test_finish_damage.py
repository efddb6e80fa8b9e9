"""Engines kept on a machine: damaged in any byte, or left half done by a build that ended at any write."""

import random
from pathlib import Path
from typing import Any

import pytest

from edgert.bundle.bundle import open_bundle
from edgert.compiler.finish import finish
from edgert.files import FileStore
from tests.helpers.trt_bench import ORIN, Bench
from tests.helpers.trt_bundle import bench, trt_bundle

WRITES = 4
"""Entries of one engine: the engine, what it was built under, what kernels took, and what was found of it."""
TIMED: dict[str, Any] = {"answer": {"timing_cache": b"measured here", "seconds": 1.0}}


class Killed(BaseException):
    """The end of a process, as far as the store sees it: nobody catches it."""


class DyingStore(FileStore):
    """A store whose process ends before, or in the middle of, its n-th write."""

    def __init__(self, folder: Path, writes: int) -> None:
        super().__init__(folder)
        self.left = writes

    def put(self, key: str, content: bytes) -> None:
        if not self.left:
            (self.folder / ".new-half").mkdir(parents=True)
            (self.folder / ".new-half" / "body").write_bytes(content[:5])
            raise Killed
        self.left -= 1
        super().put(key, content)


def packed(folder: Path, store: FileStore, on: Bench) -> bytes:
    """The finished bundle; times of runs, which are measured, left out."""
    out = folder / "out.edgert"
    out.unlink(missing_ok=True)
    finish(folder / "dock.edgert", out, machine=ORIN, trt=on.backend, store=store)
    with open_bundle(out) as bundle:
        entries = bundle.manifest.compiled.values()
        checks = {one.checks for entry in entries for engines in entry.engines.values() for one in engines}
        return b"".join(bundle.read(path) for path in bundle.manifest.members if path not in checks)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))
    trt_bundle(tmp_path / "dock.edgert")
    return tmp_path


def test_an_end_at_any_write_leaves_what_the_next_build_can_use(folder: Path) -> None:
    whole = packed(folder, FileStore(folder / "whole"), bench(**TIMED))
    assert len(list((folder / "whole").glob("*.bin"))) == WRITES
    for writes in range(WRITES):
        place = folder / str(writes)
        with pytest.raises(Killed):
            packed(folder, DyingStore(place, writes), bench(**TIMED))
        again = bench(**TIMED)
        assert packed(folder, FileStore(place), again) == whole
        assert len(again.requests) == (0 if writes else 1)


@pytest.mark.parametrize("entry", ["engine", "checks", "last", "timing"])
def test_a_flipped_byte_in_the_cache_is_found_and_never_used(folder: Path, entry: str) -> None:
    store, chance, warned = FileStore(folder / "store"), random.Random(entry), list[str]()
    whole = packed(folder, store, bench(**TIMED))
    for _ in range(5):
        path = kept(store.folder, entry)
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
        path.write_bytes(content)
        on = bench(**TIMED)
        if entry in ("last", "timing"):  # these are asked for only when an engine is compiled
            kept(store.folder, "engine").unlink()
        assert packed(folder, FileStore(store.folder, warn=warned.append), on) == whole
        assert len(on.requests) == (0 if entry == "checks" else 1)
        assert [request.timing_cache for request in on.requests] in (
            [],
            [b"" if entry == "timing" else b"measured here"],
        )
        assert len(warned) == 1 and "is damaged; it is made afresh" in warned.pop()


def kept(folder: Path, entry: str) -> Path:
    """The file of an entry."""
    kinds = {"last": "trt-last-", "timing": "trt-timing-"}
    for path in folder.glob("*.bin"):
        kind = next((name for name, word in kinds.items() if path.name.startswith(word)), "engine")
        if entry == ("checks" if "-checks." in path.name else kind):
            return path
    raise AssertionError(f"no {entry} in {folder}")
