import threading

import pytest

from edgert.runtime import SourceRateLimiter
from edgert.runtime.thread_loop import ThreadLoop
from tests.helpers.stages import Does, Numbers, chain
from tests.helpers.virtual_clock import VirtualClock

GO = threading.Event()


def passed(limiter: SourceRateLimiter, frames: int) -> list[bool]:
    return [limiter.passes(GO) for _ in range(frames)]


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.3, 0.1, 0.0])
def test_a_live_source_loses_frames_evenly(share: float) -> None:
    limiter = SourceRateLimiter(True, VirtualClock())
    limiter.passes(GO)  # the first frame goes on whatever the share
    limiter.share = share
    found = passed(limiter, 120)
    assert abs(sum(found) - share * 120) <= 1
    windows = [sum(found[at : at + 12]) for at in range(len(found) - 12)]
    assert max(windows) - min(windows) <= 1
    assert limiter.throttled == 120 - sum(found)


def test_a_file_is_slowed_down_to_a_part_of_its_own_speed_and_loses_nothing() -> None:
    clock = VirtualClock()
    limiter = SourceRateLimiter(False, clock)

    def seconds(frames: int) -> float:
        began_ns = clock.now_ns()
        for _ in range(frames):
            clock.wait(GO, 0.02)  # what the pipeline takes for each
            assert limiter.passes(GO)
        return (clock.now_ns() - began_ns) / 1e9

    assert seconds(50) == pytest.approx(1.0)
    limiter.share = 0.5
    assert seconds(50) == pytest.approx(2.0, rel=0.05)
    limiter.share = 1.0
    assert seconds(50) == pytest.approx(1.0)
    assert limiter.throttled == 0


def test_a_closed_gate_opens_again_and_lets_go_at_the_end() -> None:
    class Opening(VirtualClock):
        def wait(self, event: threading.Event, seconds: float) -> bool:
            if self.now_ns() > 1e9:
                limiter.share = 1.0
            return super().wait(event, seconds)

    limiter = SourceRateLimiter(False, Opening())
    passed(limiter, 20)
    limiter.share = 0.0
    assert limiter.passes(GO)
    stop = threading.Event()
    stop.set()
    limiter.share = 0.0
    assert not limiter.passes(stop)


def test_the_wait_of_a_throttled_file_is_no_work_of_its_reader() -> None:
    clock = VirtualClock()

    class Limiter(SourceRateLimiter):
        def passes(self, stop: threading.Event) -> bool:
            clock.wait(GO, 1.0)
            return True

    nodes = chain(Numbers(count=3), Does(), drop="oldest")
    nodes[0].execution.limiter = Limiter(False, clock)
    ThreadLoop(nodes[0], clock, GO, pytest.fail).run()
    assert nodes[0].meter.busy_ns == 0 and nodes[0].meter.wait_in_ns == 3e9
