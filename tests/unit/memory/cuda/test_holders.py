"""Who else holds memory of a GPU, by NVML."""

import os
from typing import Any

import pytest

from edgert.memory.cuda import holders

BUS = "0000:01:00.0"


class Nvml:
    """The library: processes by number, with their bytes and names."""

    def __init__(self, processes: dict[int, tuple[int, str]], broken: str = "") -> None:
        self._processes, self._broken, self.opened = processes, broken, 0

    def nvmlInit_v2(self) -> int:
        self.opened += 1
        return int(self._broken == "init")

    def nvmlShutdown(self) -> int:
        self.opened -= 1
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: bytes, device: Any) -> int:
        return int(bus_id.decode() != BUS)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: Any, count: Any, found: Any) -> int:
        count._obj.value = len(self._processes)
        for entry, (pid, (used, _)) in zip(found, self._processes.items(), strict=False):
            entry.pid, entry.used_bytes = pid, used
        return int(self._broken == "processes")

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:
        memory._obj.free = 300 * 2**20
        return int(self._broken == "memory")

    def nvmlSystemGetProcessName(self, pid: Any, name: Any, length: Any) -> int:
        text = self._processes[pid.value][1]
        name.value = text.encode()
        return int(not text)


def test_others_come_by_what_they_hold_and_not_this_process() -> None:
    processes = {
        7: (2**20, "/usr/bin/Xorg -nolisten"),
        os.getpid(): (2**34, "me"),
        4711: (3 * 2**30, "/opt/python3 train.py"),
    }
    nvml = Nvml(processes)
    found = holders.others_on(BUS, nvml)
    assert list(map(str, found)) == ["python3 (process 4711) 3.0 GiB", "Xorg (process 7) 1.0 MiB"]
    assert nvml.opened == 0


def test_what_is_not_shown_is_left_out() -> None:
    (found,) = holders.others_on(BUS, Nvml({7: (2**64 - 1, "")}))
    assert str(found) == "unnamed (process 7)"
    assert holders.describe_holders(()) == ""
    many = tuple(holders.Holder(pid, "a", 1024) for pid in range(6))
    assert holders.describe_holders(many).endswith("a (process 3) 1.0 KiB and 2 more")


@pytest.mark.parametrize("broken", ["init", "processes"])
def test_where_nobody_can_tell_there_are_none(broken: str) -> None:
    assert holders.others_on(BUS, Nvml({7: (1, "a")}, broken)) == ()
    assert holders.others_on("0000:02:00.0", Nvml({7: (1, "a")})) == ()
    assert holders.others_on(BUS) == ()


def test_free_memory_is_known_without_a_context() -> None:
    assert holders.free_on(BUS, Nvml({})) == 300 * 2**20
    assert holders.free_on(BUS, Nvml({}, broken="memory")) is None
    assert holders.free_on(BUS, Nvml({}, broken="init")) is None
    assert holders.free_on("0000:02:00.0", Nvml({})) is None
