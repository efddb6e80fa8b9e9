"""Probes of the machine itself and its clock, and the facts that another machine asks for."""

import os
import shutil
from pathlib import Path

import pytest

from edgert._version import __version__
from edgert.diagnosis import facts, machine
from edgert.diagnosis.machine import KernelClock, clock_finding, kernel_clock
from tests.unit.board.tree import jetson, nvpmodel, write
from tests.unit.diagnosis.evidence import NO_GPU, evidence


def test_python_and_edgert_say_where_they_are(tmp_path: Path) -> None:
    found = machine.python(evidence(tmp_path))
    assert found.state == "yes" and "python" in found.detail
    found = machine.edgert(evidence(tmp_path))
    assert found.state == "yes" and found.detail.endswith("(checkout)")


def test_a_known_jetson(tmp_path: Path) -> None:
    found = machine.board(evidence(jetson(tmp_path)))
    assert found.state == "yes"
    assert found.detail == "Jetson Orin NX 16GB Super (orin-nx-16gb-super), L4T 36.4.3, JetPack 6.2"


def test_a_module_that_is_taken_for_another(tmp_path: Path) -> None:
    compatible = ("nvidia,p3737-0000+p3701-0008", "nvidia,tegra234")
    found = machine.board(evidence(jetson(tmp_path, compatible, 62817)))
    assert found.detail.startswith("Jetson AGX Orin Industrial, taken for a Jetson AGX Orin 64GB (agx-orin-64gb), ")
    assert "power modes are its own (nvpmodel_p3701_0008.conf) and not known here" in found.detail


def test_a_jetson_that_edgert_does_not_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERT_BOARD", "jetson-tx2-8gb")
    found = machine.board(evidence(jetson(tmp_path)))
    assert found.state == "no" and "does not run on a Jetson TX2 8GB: its last JetPack, 4" in found.detail
    assert "edgert export" in found.fix


@pytest.mark.parametrize(
    ("number", "state", "detail"),
    [
        (1, "yes", "JetPack 6.2, power mode 15W"),
        (2, "yes", "power mode MY_OWN (none that edgert has clocks of)"),
        (5, "optional", "power mode unknown: no power mode 5 in /etc/nvpmodel.conf: it has 0: 10W, 1: 15W, 2: MY_OWN"),
    ],
)
def test_the_power_mode_of_a_jetson(tmp_path: Path, number: int, state: str, detail: str) -> None:
    found = machine.board(evidence(nvpmodel(jetson(tmp_path), ("10W", "15W", "MY_OWN"), current=number)))
    assert found.state == state and found.detail.endswith(detail)
    assert ("nvpmodel -q" in found.fix) == (state == "optional")


def test_a_jetson_whose_device_tree_is_hidden_is_told_how_to_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = jetson(tmp_path)
    shutil.rmtree(root / "proc/device-tree")
    found = machine.board(evidence(root))
    assert "device tree is hidden" in found.detail
    assert "EDGERT_BOARD" in found.fix and "systempaths=unconfined" in found.fix
    monkeypatch.setenv("EDGERT_BOARD", "orin-nx-16gb")
    assert "(orin-nx-16gb), recognized by EDGERT_BOARD, L4T 36.4.3" in machine.board(evidence(root)).detail


def test_a_jetson_in_a_container_lacks_its_release(tmp_path: Path) -> None:
    found = machine.board(evidence(jetson(tmp_path, release="")))
    assert found.state == "optional" and "L4T unknown" in found.detail
    assert "/etc/nv_tegra_release" in found.fix


def test_an_unknown_jetson_shows_what_it_calls_itself(tmp_path: Path) -> None:
    found = machine.board(evidence(jetson(tmp_path, ("nvidia,p9999-0000", "nvidia,tegra999"))))
    assert found.state == "optional" and "nvidia,p9999-0000" in found.detail and "EDGERT_BOARD=" in found.fix


def test_a_host_needs_no_fix(tmp_path: Path) -> None:
    found = machine.board(evidence(tmp_path, cuda=NO_GPU))
    assert found.state == "optional" and not found.fix
    assert found.detail.endswith("not a Jetson; models run on the CPU")


def test_a_host_with_a_gpu_is_not_said_to_run_models_on_the_cpu(tmp_path: Path) -> None:
    found = machine.board(evidence(tmp_path))
    assert found.state == "optional" and found.detail.endswith("not a Jetson") and not found.fix


def test_cores_that_a_power_mode_switches_off(tmp_path: Path) -> None:
    found = machine.cpu(evidence(jetson(tmp_path, cores="0-3")))
    assert "Cortex-A78AE, 4 of 8 cores on" in found.detail and "nvpmodel" in found.fix


def test_a_container_limit_is_shown(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", str(2**30))
    write(tmp_path, "proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
    assert "(container limit 1.5)" in machine.cpu(evidence(tmp_path)).detail
    found = machine.memory(evidence(tmp_path))
    assert found.detail == "4.0 GiB, 2.0 GiB available, container limit 1.0 GiB"


SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
ZRAM = "".join(f"/dev/zram{number}                              partition\t635000\t\t0\t\t5\n" for number in range(6))


@pytest.mark.parametrize(
    ("swaps", "said", "is_advised"),
    [
        (SWAPS, "swap: none", True),
        (SWAPS + ZRAM, "swap: 3.6 GiB of zram, which is memory itself", True),
        (
            SWAPS + ZRAM + "/swapfile file 8388604 0 -2\n",
            "of zram, which is memory itself and 8.0 GiB on /swapfile",
            False,
        ),
        (None, "available", True),
    ],
)
def test_swap_of_a_small_board(tmp_path: Path, swaps: str | None, said: str, is_advised: bool) -> None:
    """JetPack's zram is memory, compressed; what a GPU holds does not go there."""
    root = jetson(tmp_path)
    write(root, "proc/meminfo", "MemTotal: 7802000 kB\nMemAvailable: 5120000 kB\nSwapTotal: 3901000 kB\n")
    if swaps is not None:
        write(root, "proc/swaps", swaps)
    found = machine.memory(evidence(root))
    assert found.state == "yes" and found.detail.endswith(said) and bool(found.fix) == is_advised
    assert not is_advised or "swap file on a disk" in found.fix


def test_a_large_board_and_a_host_need_no_advice_on_swap(tmp_path: Path) -> None:
    write(tmp_path / "host", "proc/meminfo", "MemTotal: 7802000 kB\nMemAvailable: 5120000 kB\n")
    assert not machine.memory(evidence(tmp_path / "host")).fix
    root = jetson(tmp_path / "jetson")
    write(root, "proc/meminfo", "MemTotal: 31900000 kB\nMemAvailable: 5120000 kB\n")
    assert not machine.memory(evidence(root)).fix


def test_memory_unknown(tmp_path: Path) -> None:
    assert machine.memory(evidence(tmp_path)).state == "optional"


def test_the_cache_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))
    assert machine.cache(evidence(tmp_path)).state == "yes"
    write(tmp_path, "cache/ort/a.bin", "x" * 2048)
    assert f"{tmp_path}/cache, 2.0 KiB in it" in machine.cache(evidence(tmp_path)).detail
    assert not (tmp_path / "cache/ort/b").exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "file", "")
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "file/below"))
    found = machine.cache(evidence(tmp_path))
    assert found.state == "optional" and "EDGERT_CACHE" in found.fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: a read-only folder cannot be made")
def test_a_read_only_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o500)
    monkeypatch.setenv("EDGERT_CACHE", str(folder))
    assert machine.cache(evidence(tmp_path)).state == "optional"


@pytest.mark.parametrize(
    ("clock", "daemons", "state", "said"),
    [
        (KernelClock(True, 1.25), {"chronyd": "NTP"}, "yes", "synchronized by NTP (chronyd), to 1.25 ms at worst"),
        (KernelClock(True, 0.5), {}, "yes", "by the host of this container"),
        (KernelClock(False, 16000.0), {}, "optional", "not synchronized, and no program keeps it"),
        (KernelClock(False, 16.0), {"ptp4l": "PTP"}, "optional", "though PTP (ptp4l) runs: it has no answer yet"),
        (None, {"ntpd": "NTP"}, "optional", "the kernel does not say whether it is right; NTP (ntpd) runs"),
    ],
)
def test_who_keeps_the_clock(clock: KernelClock | None, daemons: dict[str, str], state: str, said: str) -> None:
    found = clock_finding(clock, daemons, [])
    assert found.name == "clock" and found.state == state and said in found.detail
    assert ("timedatectl" in found.fix) == (clock is not None and not clock.is_set)


def test_daemons_and_hardware_clocks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "kernel_clock", lambda: KernelClock(True, 0.01))
    for file, text in {
        "proc/7/comm": "phc2sys\n",
        "proc/8/comm": "bash\n",
        "sys/class/ptp/ptp0/clock_name": "mgbe0\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    found = machine.time_of_day(evidence(tmp_path))
    assert found.detail == "synchronized by PTP (phc2sys), to 0.01 ms at worst; PTP hardware clocks: ptp0 mgbe0"


def test_the_kernel_is_asked() -> None:
    clock = kernel_clock()
    assert clock is None or clock.error_ms >= 0


def test_a_jetson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "not" / "there" / "yet"))
    found = facts(jetson(tmp_path))
    assert found["edgert"] == __version__ and found["board"].startswith("orin-nx") and found["jetpack"]
    assert found["cache"].endswith("yet") and found["free_bytes"] > 0


def test_a_machine_that_is_no_jetson(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert (found["board"], found["mode"], found["l4t"], found["jetpack"]) == ("host", "", "", "")
