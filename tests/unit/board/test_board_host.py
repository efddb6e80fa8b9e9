"""Cores, quotas, memory and cameras from small trees; what the kernel says of the CPU."""

import os
import resource
from pathlib import Path

import pytest

from edgert.board.devices import cameras
from edgert.board.host import (
    core_count,
    core_quota,
    cpu_name,
    free_bytes,
    online_cores,
    present_cores,
    read_text,
    saturates_bytes,
    share_cores,
    system_memory,
)
from tests.unit.board.tree import ARM_CORE, write


@pytest.mark.parametrize(("text", "count"), [("0-7", 8), ("0-3,6,8-9", 7), ("0", 1)])
def test_lists_of_cores(tmp_path: Path, text: str, count: int) -> None:
    write(tmp_path, "sys/devices/system/cpu/online", text + "\n")
    assert online_cores(tmp_path) == count
    assert present_cores(tmp_path) == count


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([("0x41", "0xd42")], "Cortex-A78AE"),
        ([("0x4e", "0x004")], "Carmel"),
        ([("0x41", "0xd07"), ("0x4e", "0x003"), ("0x4e", "0x003")], "Cortex-A57 + Denver 2"),
        ([("0x41", "0xd83")], "Neoverse-V3AE"),
    ],
)
def test_arm_cores_are_named(tmp_path: Path, parts: list[tuple[str, str]], name: str) -> None:
    text = "".join(ARM_CORE.format(n=n, maker=maker, part=part) for n, (maker, part) in enumerate(parts))
    write(tmp_path, "proc/cpuinfo", text)
    assert cpu_name(tmp_path) == name


def test_x86_names_itself(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7B13\nflags\t\t: fpu\n\nprocessor\t: 1\n")
    assert cpu_name(tmp_path) == "AMD EPYC 7B13"


def test_memory_and_its_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:  2048 kB\nMemFree: 12 kB\nMemAvailable:  1024 kB\nHugePages_Total: 0\n")
    assert system_memory(tmp_path).limit_bytes is None
    write(tmp_path, "sys/fs/cgroup/memory.max", "1048576\n")
    found = system_memory(tmp_path)
    assert (found.total_bytes, found.available_bytes, found.limit_bytes) == (2 * 2**20, 2**20, 2**20)


def test_swap_and_the_limits_of_the_service_that_a_process_is_in(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:  2048 kB\nSwapTotal:  1024 kB\n")
    assert system_memory(tmp_path).most_bytes == 3 * 2**20
    write(tmp_path, "proc/self/cgroup", "0::/system.slice/dock.service\n")
    write(tmp_path, "sys/fs/cgroup/system.slice/dock.service/memory.max", "1048576\n")
    assert (system_memory(tmp_path).limit_bytes, system_memory(tmp_path).most_bytes) == (2**20, 2 * 2**20)
    write(tmp_path, "sys/fs/cgroup/system.slice/dock.service/memory.swap.max", "0\n")
    assert system_memory(tmp_path).most_bytes == 2**20
    assert system_memory(tmp_path / "none").most_bytes == 0


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n"])
def test_no_memory_limit(tmp_path: Path, text: str) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:  2048 kB\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", text)
    assert system_memory(tmp_path).limit_bytes is None


def _camera(root: Path, number: int, title: str, index: int) -> None:
    write(root, f"dev/video{number}", "")
    write(root, f"sys/class/video4linux/video{number}/name", f"{title}\n")
    write(root, f"sys/class/video4linux/video{number}/index", f"{index}\n")


def test_cameras_without_their_metadata_nodes(tmp_path: Path) -> None:
    for number, title, index in ((0, "HD Webcam", 0), (1, "HD Webcam", 1), (10, "vi-output, imx219", 0), (2, "B", 0)):
        _camera(tmp_path, number, title, index)
    driver = tmp_path / "sys/bus/usb/drivers/uvcvideo"
    driver.mkdir(parents=True)
    (tmp_path / "sys/class/video4linux/video0/device").mkdir()
    (tmp_path / "sys/class/video4linux/video0/device/driver").symlink_to(driver)
    found = cameras(tmp_path)
    assert [camera.path for camera in found] == ["/dev/video0", "/dev/video2", "/dev/video10"]
    assert (found[0].title, found[0].driver, found[0].is_readable) == ("HD Webcam", "uvcvideo", True)
    assert found[2].driver == ""


def test_a_camera_without_sysfs_counts(tmp_path: Path) -> None:
    write(tmp_path, "dev/video0", "")
    assert [(camera.path, camera.title) for camera in cameras(tmp_path)] == [("/dev/video0", "")]


def test_no_cameras(tmp_path: Path) -> None:
    assert cameras(tmp_path) == ()


@pytest.mark.parametrize(
    ("text", "saturates"),
    [
        ("model name\t: Xeon\nflags\t\t: sse2 avx2 avx512f avx512_vnni\n", False),
        ("flags\t\t: avx2 avx_vnni\n", False),
        ("flags\t\t: avx2 avx512f\n", True),
        ("Features\t: asimd asimddp\nCPU implementer\t: 0x41\n", False),
        ("", False),
    ],
)
def test_who_adds_products_of_bytes_in_16_bits(tmp_path: Path, text: str, saturates: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(text)
    assert saturates_bytes(tmp_path) is saturates


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
    write(tmp_path, "sys/fs/cgroup/cpu.max", text)
    assert core_quota(tmp_path) == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"), [("50000", "100000", 0.5), ("-1", "100000", None), ("", "", None), ("5", "0", None)]
)
def test_a_quota_of_cgroup_v1(tmp_path: Path, quota: str, period: str, cores: float | None) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota)
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", period)
    assert core_quota(tmp_path) == cores


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    assert core_quota(tmp_path) is None
    assert core_count(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [("1000", 1), ("250000", 3), ("9900000", 8)])
def test_cores_are_cut_by_the_quota_but_never_to_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    """A part of a core counts as one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    write(tmp_path, "sys/fs/cgroup/cpu.max", f"{quota} 100000")
    assert core_count(tmp_path) == cores


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
