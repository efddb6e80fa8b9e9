from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from edgert.board.host import core_count, core_quota, free_bytes, read_text, share_cores


def cgroup(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v1(root: Path, quota: str, period: str) -> Path:
    return cgroup(root, cpu__cpu_dot_cfs_quota_us=quota, cpu__cpu_dot_cfs_period_us=period)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("150000 100000\n", 1.5),
        ("max 100000\n", None),
        ("0 100000", None),
        ("-1 100000", None),
        ("100000 0", None),
        ("", None),
        ("max", None),
        ("a b", None),
        ("² ³", None),
        ("1 2 3", None),
    ],
)
def test_a_quota_of_cgroup_v2(tmp_path: Path, text: str, cores: float | None) -> None:
    assert core_quota(cgroup(tmp_path, cpu_dot_max=text)) == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"), [("50000", "100000", 0.5), ("-1", "100000", None), ("", "", None), ("5", "0", None)]
)
def test_a_quota_of_cgroup_v1(tmp_path: Path, quota: str, period: str, cores: float | None) -> None:
    assert core_quota(v1(tmp_path, quota, period)) == cores


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    assert core_quota(tmp_path) is None
    assert core_count(tmp_path) == len(os.sched_getaffinity(0))


def test_cores_are_cut_by_the_quota_but_never_to_none(tmp_path: Path) -> None:
    assert core_count(cgroup(tmp_path, cpu_dot_max="1000 100000")) == 1


def test_a_quota_of_a_part_of_a_core_counts_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert core_count(cgroup(tmp_path, cpu_dot_max="250000 100000")) == 3
    assert core_count(cgroup(tmp_path, cpu_dot_max="9900000 100000")) == 8


def test_small_files_are_read_without_their_nul(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"NVIDIA Jetson\xff\0\n")
    assert read_text(tmp_path / "model").startswith("NVIDIA Jetson")
    assert "\0" not in read_text(tmp_path / "model")
    assert read_text(tmp_path / "none") == read_text(tmp_path) == ""


@pytest.mark.parametrize(("cores", "engines", "threads"), [(8, 2, 4), (8, 3, 2), (2, 5, 1), (4, 0, 4), (1, 1, 1)])
def test_engines_share_the_cores(cores: int, engines: int, threads: int) -> None:
    assert share_cores(cores, engines) == threads


@pytest.mark.parametrize(("limit_kib", "free_kib"), [(-1, 8000), (5000, 4000), (500, None), (99_000, 8000)])
def test_what_ulimit_withholds_is_not_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_kib: int, free_kib: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       16000 kB\nMemAvailable:    8000 kB\n")
    (tmp_path / "proc/self/status").write_text("Name:\tpython\nVmPeak:\t   9000 kB\nVmData:\t   1000 kB\n")
    limit = resource.RLIM_INFINITY if limit_kib < 0 else limit_kib * 1024
    monkeypatch.setattr(
        resource, "getrlimit", lambda which: {resource.RLIMIT_DATA: (limit, resource.RLIM_INFINITY)}[which]
    )
    assert free_bytes(tmp_path) == (1 if free_kib is None else free_kib * 1024)
