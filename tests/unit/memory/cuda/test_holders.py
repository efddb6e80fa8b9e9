"""Who else holds memory of a GPU, by a stand-in for nvidia-smi."""

import os
from pathlib import Path

import pytest

from edgert.memory.cuda import holders

BUS = "0000:01:00.0"


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The program: what it prints for each query lies beside it, and it fails for other GPUs and queries."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = --id={BUS} ] && /bin/cat {tmp_path}/"${{2%%=*}}" 2>/dev/null\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_others_come_by_what_they_hold_and_not_this_process(smi: Path) -> None:
    lines = "7, 1, /usr/bin/Xorg -nolisten", f"{os.getpid()}, 16384, me", "4711, 3072, /opt/python3 train.py, fast"
    (smi / "--query-compute-apps").write_text("\n".join(lines) + "\n")
    found = holders.others_on(BUS)
    assert list(map(str, found)) == ["python3 (process 4711) 3.0 GiB", "Xorg (process 7) 1.0 MiB"]


def test_what_is_not_shown_is_left_out(smi: Path) -> None:
    (smi / "--query-compute-apps").write_text("7, [N/A], [Not Found]\n")
    (found,) = holders.others_on(BUS)
    assert str(found) == "unnamed (process 7)"
    assert holders.describe_holders(()) == ""
    many = tuple(holders.Holder(pid, "a", 1024) for pid in range(6))
    assert holders.describe_holders(many).endswith("a (process 3) 1.0 KiB and 2 more")


def test_free_memory_is_known_without_a_context(smi: Path) -> None:
    (smi / "--query-gpu").write_text("300\n")
    assert holders.free_on(BUS) == 300 * 2**20 and holders.free_on("0000:02:00.0") is None
    (smi / "--query-gpu").write_text("[N/A]\n")
    assert holders.free_on(BUS) is None


def test_where_nobody_can_tell_there_are_none(smi: Path) -> None:
    for _ in range(2):
        (smi / "--query-compute-apps").write_text("[Not Supported]\n[N/A], [N/A], [N/A]\n")
        assert holders.others_on(BUS) == () and holders.free_on(BUS) is None
        (smi / "nvidia-smi").unlink(missing_ok=True)
