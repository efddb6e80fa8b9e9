"""How long one who waits for a GPU keeps the processor busy, and how late it notices the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from edgert.errors import DeviceError
from edgert.memory.cuda import Event
from edgert.stages.gpu.waiting import Doze, Nap, Sleep, Snooze, Waiting

_NONE = cast("Event", None)


class Wait:
    """A GPU that needs so many microseconds, and a clock by which a sleep takes longer than was asked for."""

    def __init__(self, gpu_us: int, late_us: int = 50, look_us: int = 0) -> None:
        self.now_us, self.done_us, self.late_us, self.spun_us = 0, gpu_us, late_us, 0
        self.slept = self.looks = 0
        self.look_us = look_us

    def now_ns(self) -> int:
        return self.now_us * 1000

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now_us += round(seconds * 1e6) + self.late_us

    def passed(self) -> bool:
        self.looks += 1
        self.now_us += self.look_us
        return self.now_us >= self.done_us

    def synchronize(self) -> None:
        self.spun_us, self.now_us = max(self.done_us - self.now_us, 0), max(self.done_us, self.now_us)

    def late_by_us(self, way: Waiting, rows: int = 1) -> int:
        """How late it is noticed that the GPU is done."""
        way.event = cast("Event", self)
        way.wait(rows)
        return self.now_us - self.done_us


def waited(way: Nap | Doze, gpu_us: Sequence[int], late_us: int = 50, look_us: int = 0) -> list[tuple[Wait, int]]:
    """Of waits one after the other: the GPU as it was left, and how many microseconds late the end was noticed."""
    found = []
    for each in gpu_us:
        wait = Wait(each, late_us, look_us)
        way._now_ns, way._sleep = wait.now_ns, wait.sleep
        found.append((wait, wait.late_by_us(way)))
    return found


@pytest.mark.parametrize("gpu_us", [300, 1000, 3000])
def test_one_who_waits_as_long_as_before_sleeps_for_most_of_it_and_is_not_late(gpu_us: int) -> None:
    found = [(wait.spun_us, late) for wait, late in waited(Nap(_NONE), [gpu_us] * 100)]
    assert found[0] == (gpu_us, 0)  # nothing is known
    assert all(spun <= 100 and late == 0 for spun, late in found[50:])


def test_a_wait_that_becomes_shorter_is_late_for_a_while_only_and_a_short_one_is_no_sleep() -> None:
    late = [late for _, late in waited(Nap(_NONE), [1000] * 50 + [500] * 50)[50:]]
    assert max(late) <= 500 and late[25:] == [0] * 25
    assert [(wait.spun_us, late) for wait, late in waited(Nap(_NONE), [70] * 30)] == [(70, 0)] * 30
    wakes_late = waited(Nap(_NONE), [1000] * 100, late_us=400)
    assert all(late <= 60 for _, late in wakes_late[60:])


@pytest.mark.parametrize("gpu_us", [60, 300, 1000, 3000, 30_000])
def test_who_dozes_looks_seldom_and_is_a_little_late(gpu_us: int) -> None:
    found = waited(Doze(_NONE), [gpu_us] * 200)[100:]
    assert all(wait.spun_us == 0 for wait, _ in found)
    assert sum(wait.looks for wait, _ in found) / len(found) <= 4
    assert max(late for _, late in found) <= 150 + gpu_us // 32


def test_a_long_wait_that_nobody_expected_takes_few_looks() -> None:
    ((wait, late),) = waited(Doze(_NONE), [10_000_000])
    assert wait.looks <= 400 and late <= 10_000_000 // 32 + 100


def test_a_doze_follows_runs_that_become_shorter() -> None:
    late = [late for _, late in waited(Doze(_NONE), [3000] * 50 + [500] * 150)[50:]]
    assert max(late) <= 3000 and max(late[100:]) <= 200


def test_each_size_of_a_batch_has_a_usual_time_of_its_own() -> None:
    way, late = Nap(_NONE), list[int]()
    for turn in range(200):
        rows = 1 + 7 * (turn % 2)
        wait = Wait(500 * rows)
        way._now_ns, way._sleep = wait.now_ns, wait.sleep
        late.append(wait.late_by_us(way, rows) + wait.spun_us)
    assert max(late[100:]) <= 100


def test_who_snoozes_is_not_late_for_runs_that_take_as_long_and_looks_for_a_moment_at_others() -> None:
    alike = waited(Snooze(_NONE), [1000] * 100, look_us=2)[50:]
    assert all(wait.slept == 1 and wait.looks <= 50 and late <= 2 for wait, late in alike)
    unlike = waited(Snooze(_NONE), [1000, 4000] * 100, look_us=2)[100:]
    assert max(2 * wait.looks for wait, _ in unlike) <= 200  # microseconds, where a nap looks for up to 3000
    assert max(late for wait, late in unlike if wait.done_us == 4000) <= 4000 // 32 + 50


@pytest.mark.parametrize("kind", [Nap, Doze])
def test_after_a_stall_nobody_sleeps_for_long(kind: type[Nap | Doze]) -> None:
    """As of a machine that was suspended, or a GPU that another process had."""
    late = [late for _, late in waited(kind(_NONE), [500] * 100 + [10_000_000] + [500] * 100)[101:]]
    assert max(late) <= 1000 and sum(late) <= 50_000


@pytest.mark.parametrize("kind", [Nap, Sleep, Doze, Snooze])
def test_an_error_of_the_gpu_reaches_whoever_waits(kind: type[Waiting]) -> None:
    class Lost(Wait):
        def passed(self) -> bool:
            raise DeviceError("the GPU is gone")

        synchronize = passed  # type: ignore[assignment]

    with pytest.raises(DeviceError, match="gone"):
        kind(cast("Event", Lost(100))).wait()
