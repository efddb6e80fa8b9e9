import os
import threading
from pathlib import Path

import pytest

from edgert.board.host import core_accelerators, pin, pinned, unpin
from edgert.errors import DeviceError

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin threads")


def in_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_there_is_an_accelerator_for_every_core_of_this_process(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(os.getpid()))
    found = core_accelerators(tmp_path)
    assert list(found) == [f"cpu{number}" for number in range(len(cores))]
    assert list(found.values()) == cores


@pytest.mark.parametrize(("quota", "count"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)])
def test_a_container_gets_no_more_than_its_quota(tmp_path: Path, quota: str, count: int | None) -> None:
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text(quota)
    assert len(core_accelerators(tmp_path)) == (count or len(os.sched_getaffinity(os.getpid())))


def test_a_pinned_thread_still_sees_all_cores(tmp_path: Path) -> None:
    seen: dict[str, frozenset[int]] = {}

    def work() -> None:
        with pinned(min(os.sched_getaffinity(0))):
            seen.update(core_accelerators(tmp_path))

    in_thread(work)
    assert seen == dict(core_accelerators(tmp_path))


def test_pinning_holds_for_the_calling_thread_alone_and_is_undone() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    seen: list[set[int]] = []

    def work() -> None:
        with pinned(core):
            seen.append(set(os.sched_getaffinity(0)))
        seen.append(set(os.sched_getaffinity(0)))
        kept = pin(core)
        unpin(kept)
        seen.append(set(os.sched_getaffinity(0)))

    in_thread(work)
    assert seen == [{core}, before, before]
    assert os.sched_getaffinity(0) == before


def test_a_core_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(DeviceError, match="core 4095"):
        pin(4095)
