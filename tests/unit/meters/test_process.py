from __future__ import annotations

import resource
from pathlib import Path

import pytest

from edgert.meters import peak_rss_bytes, rss_bytes


def proc(root: Path, **files: str) -> Path:
    folder = root / "proc/self"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return root


def test_the_peak_is_the_systems_high_water_mark(tmp_path: Path) -> None:
    assert peak_rss_bytes(proc(tmp_path, status="Name:\tx\nVmPeak:\t9 kB\nVmHWM:\t  2048 kB\n")) == 2 * 2**20


@pytest.mark.parametrize("status", ["", "VmHWM:\tmany kB\n", "VmRSS:\t5 kB\n"])
def test_without_one_the_peak_is_what_getrusage_says(tmp_path: Path, status: str) -> None:
    known = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert known <= peak_rss_bytes(proc(tmp_path, status=status)) <= known * 2


def test_the_memory_held_now_is_counted_in_pages(tmp_path: Path) -> None:
    assert rss_bytes(proc(tmp_path, statm="900 30 5 1 0 9 0\n")) == 30 * resource.getpagesize()


@pytest.mark.parametrize("statm", ["", "900", "900 x"])
def test_without_it_the_peak_must_do(tmp_path: Path, statm: str) -> None:
    root = proc(tmp_path, statm=statm, status="VmHWM:\t2048 kB\n")
    assert rss_bytes(root) == peak_rss_bytes(root) == 2 * 2**20


def test_this_process_holds_something_and_never_more_than_its_peak() -> None:
    assert 0 < rss_bytes() <= peak_rss_bytes() * 1.05
