"""How long one who waits for a GPU keeps the processor busy, and how late it notices the end."""

from collections.abc import Sequence
from typing import cast

import pytest

from edgert.errors import DeviceError
from edgert.memory.cuda import Event
from edgert.stages.gpu.waiting import BlockingWait, PollingWait, Waiting

_NONE = cast("Event", None)


class Wait:
    """A GPU that needs so many microseconds, and a clock by which a sleep takes longer than was asked for."""

    def __init__(self, gpu_us: int, late_us: int = 50, look_us: int = 2) -> None:
        self.now_us, self.done_us, self.late_us = 0, gpu_us, late_us
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
        self.now_us = max(self.done_us, self.now_us)

    def late_by_us(self, way: Waiting, rows: int = 1) -> int:
        """How late it is noticed that the GPU is done."""
        way.event = cast("Event", self)
        way.wait(rows)
        return self.now_us - self.done_us


def waited(gpu_us: Sequence[int], late_us: int = 50) -> list[tuple[Wait, int]]:
    """Wait for one run after the other: the GPU as it was left, and how many microseconds late the end was noticed."""
    way, found = PollingWait(_NONE), []
    for each in gpu_us:
        wait = Wait(each, late_us)
        way._now_ns, way._sleep = wait.now_ns, wait.sleep
        found.append((wait, wait.late_by_us(way)))
    return found


@pytest.mark.parametrize("gpu_us", [300, 1000, 3000])
def test_a_run_that_takes_as_long_as_before_is_slept_through_and_noticed_at_once(gpu_us: int) -> None:
    alike = waited([gpu_us] * 100)
    assert all(wait.slept == 1 and wait.looks <= 50 and late <= 2 for wait, late in alike[50:])


def test_runs_that_differ_are_looked_at_for_a_moment_and_then_seldom() -> None:
    unlike = waited([1000, 4000] * 100)[100:]
    assert max(2 * wait.looks for wait, _ in unlike) <= 200  # microseconds
    assert max(late for wait, late in unlike if wait.done_us == 4000) <= 4000 // 32 + 50


def test_a_wait_that_becomes_shorter_is_late_for_a_while_only_and_a_short_one_is_no_sleep() -> None:
    late = [late for _, late in waited([1000] * 50 + [500] * 50)[50:]]
    assert max(late) <= 500 and max(late[25:]) <= 2
    assert all(wait.slept == 0 and late <= 2 for wait, late in waited([70] * 30))
    wakes_late = waited([1000] * 100, late_us=400)
    assert all(late <= 60 for _, late in wakes_late[60:])


def test_a_long_wait_that_nobody_expected_takes_few_looks() -> None:
    ((wait, late),) = waited([10_000_000])
    assert wait.looks <= 450 and late <= 10_000_000 // 32 + 100


def test_each_size_of_a_batch_has_a_usual_time_of_its_own() -> None:
    way, late = PollingWait(_NONE), list[int]()
    for turn in range(200):
        rows = 1 + 7 * (turn % 2)
        wait = Wait(500 * rows)
        way._now_ns, way._sleep = wait.now_ns, wait.sleep
        late.append(wait.late_by_us(way, rows))
        assert wait.looks <= 60 or turn < 100
    assert max(late[100:]) <= 100


def test_after_a_stall_nobody_sleeps_for_long() -> None:
    """As of a machine that was suspended, or a GPU that another process had."""
    late = [late for _, late in waited([500] * 100 + [10_000_000] + [500] * 100)[101:]]
    assert max(late) <= 1000 and sum(late) <= 50_000


@pytest.mark.parametrize("kind", [PollingWait, BlockingWait])
def test_an_error_of_the_gpu_reaches_whoever_waits(kind: type[Waiting]) -> None:
    class Lost(Wait):
        def passed(self) -> bool:
            raise DeviceError("the GPU is gone")

        synchronize = passed  # type: ignore[assignment]

    with pytest.raises(DeviceError, match="gone"):
        kind(cast("Event", Lost(100))).wait()
