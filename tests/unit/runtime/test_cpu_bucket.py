import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from edgert.runtime import SourceRateLimiter
from edgert.runtime.throttle import CpuTokenBucket
from tests.helpers.virtual_clock import VirtualClock

GO = threading.Event()
HZ = 30.0


@dataclass
class Machine:
    """Cameras whose frames cost CPU time, in the clock's seconds."""

    cores: float
    clock: VirtualClock = field(default_factory=VirtualClock)
    spent_ns: int = 0
    bucket: CpuTokenBucket = field(init=False)

    def __post_init__(self) -> None:
        self.bucket = CpuTokenBucket(self.cores, self.clock, lambda: self.spent_ns)

    def camera(
        self, seconds: float, cost_s: Callable[[float], float], limiter: SourceRateLimiter
    ) -> Iterator[tuple[bool, int]]:
        """Whether each frame went on, and CPU time spent by then."""
        limiter.bucket = self.bucket
        for _ in range(round(seconds * HZ)):
            self.clock.wait(GO, 1 / HZ)
            passes = limiter.passes(GO)
            self.spent_ns += round(1e9 * cost_s(self.clock.now_ns() / 1e9)) if passes else 0
            yield passes, self.spent_ns


def over(spent_ns: list[int], cap: float, window_s: float = 2.0) -> float:
    """The most CPU time taken in any window, as a part of the budget."""
    width = round(window_s * HZ)
    return max((spent_ns[at + width] - spent_ns[at]) / 1e9 for at in range(len(spent_ns) - width)) / (cap * window_s)


def test_what_fits_is_not_touched() -> None:
    machine = Machine(0.5)
    found = list(machine.camera(10.0, lambda _: 0.015, SourceRateLimiter(True, machine.clock)))
    assert all(passes for passes, _ in found)
    assert machine.bucket.share() == 1.0


@given(st.lists(st.floats(0.002, 0.06), min_size=1, max_size=10), st.floats(0.15, 1.0))
def test_whatever_frames_cost_no_two_seconds_take_more_than_a_frame_above_the_budget(
    costs: list[float], cap: float
) -> None:
    machine = Machine(cap)
    cost_s = lambda now_s: costs[int(now_s / 1.5) % len(costs)]  # noqa: E731 - a new cost every 1.5 s
    found = list(machine.camera(15.0, cost_s, SourceRateLimiter(True, machine.clock)))
    assert over([spent for _, spent in found], cap) <= 1.0 + max(costs) / (2.0 * cap)


def test_frames_that_cost_half_more_are_fewer_at_once_and_come_back_at_once() -> None:
    machine = Machine(0.45)
    cost_s = lambda now_s: 0.0145 if not 5.0 <= now_s < 10.0 else 0.029  # noqa: E731
    found = [passes for passes, _ in machine.camera(15.0, cost_s, SourceRateLimiter(True, machine.clock))]
    parts = [found[round(HZ * first) : round(HZ * last)] for first, last in ((0, 5), (5.2, 10), (10.2, 15))]
    shares = [sum(part) / len(part) for part in parts]
    assert shares[0] == shares[2] == 1.0
    assert shares[1] == pytest.approx(0.45 * 0.97 / (0.029 * HZ), rel=0.05)
    assert machine.bucket.share() == pytest.approx(sum(found) / len(found))
    assert machine.bucket.share() == 1.0


def test_two_cameras_are_throttled_alike_though_one_is_always_first() -> None:
    machine = Machine(0.3)
    door, yard = SourceRateLimiter(True, machine.clock), SourceRateLimiter(True, machine.clock)
    door.bucket = yard.bucket = machine.bucket
    passed = {door: 0, yard: 0}
    for _ in range(900):
        for limiter, gap_s in ((door, 0.001), (yard, 1 / HZ - 0.001)):
            if limiter.passes(GO):
                passed[limiter] += 1
                machine.spent_ns += 20_000_000
            machine.clock.wait(GO, gap_s)
    assert passed[door] == pytest.approx(passed[yard], rel=0.05)
    assert sum(passed.values()) * 0.02 == pytest.approx(0.3 * 0.97 * 30.0, rel=0.05)


def test_a_camera_that_fell_silent_is_not_waited_for() -> None:
    machine = Machine(0.3)
    door, yard = SourceRateLimiter(True, machine.clock), SourceRateLimiter(True, machine.clock)
    door.bucket = yard.bucket = machine.bucket
    machine.bucket.grants(0)
    machine.spent_ns += 1_000_000_000
    assert not any(limiter.passes(GO) for limiter in (door, yard, yard, door, door))
    machine.clock.wait(GO, 4.0)
    assert yard.passes(GO)


def test_a_file_waits_and_loses_nothing() -> None:
    machine = Machine(0.5)
    limiter = SourceRateLimiter(False, machine.clock)
    limiter.bucket = machine.bucket
    began_ns = machine.clock.now_ns()
    for _ in range(100):
        machine.clock.wait(GO, 0.02)
        machine.spent_ns += 20_000_000
        assert limiter.passes(GO)
    assert (machine.clock.now_ns() - began_ns) / 1e9 == pytest.approx(2.0 / (0.5 * 0.97), rel=0.03)
    assert machine.bucket.share() == pytest.approx(0.5, abs=0.05)
    assert limiter.throttled == 0


def test_a_file_that_waits_for_cpu_time_can_be_stopped() -> None:
    machine = Machine(0.5)
    limiter = SourceRateLimiter(False, machine.clock)
    limiter.bucket = machine.bucket
    limiter.passes(GO)
    machine.spent_ns += 500_000_000
    stop = threading.Event()
    stop.set()
    assert not limiter.passes(stop)
    assert limiter.throttled == 1
