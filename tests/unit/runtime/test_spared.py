"""Nodes whose own thread sleeps while the one that their results come from works on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from edgert.errors import DeviceError, StageError
from edgert.memory import Counts
from edgert.runtime import Frame, Result, Runner, summarize
from edgert.runtime.recovery import STOPS, FailurePolicy
from tests.helpers.stages import Does, Numbers, chain
from tests.helpers.virtual_clock import VirtualClock
from tests.helpers.waiting import wait_until

LIMIT_S = 20.0


class Spared:
    """A camera of 100 frames per second, a stage, and one that is spared and works for so many milliseconds.

    Attributes:
        threads: that it worked in.
    """

    def __init__(self, *worked_ms: float) -> None:
        self.clock, self._done, self.threads = VirtualClock(), threading.Semaphore(0), list[str]()
        self._left_ms, count = list(worked_ms), len(worked_ms)

        class Camera(Numbers):
            def frames(source, stop: threading.Event) -> Iterator[Frame]:
                for frame in super().frames(stop):
                    self.wait(10 - worked_ms[frame.index])
                    yield frame
                    assert stop.is_set() or self._done.acquire(timeout=LIMIT_S)

        self.nodes = chain(Camera(count=count), Does(), Does(self._work))
        self.nodes[2].spared = 0.5

    def wait(self, milliseconds: float) -> None:
        """Time goes by."""
        self.clock.wait(threading.Event(), milliseconds / 1e3)

    def run(self) -> Runner:
        """Until it has ended; raises the first error."""
        runner = Runner(self.nodes, self.clock)
        runner.start()
        assert runner.wait(LIMIT_S)
        return runner

    def _work(self, result: Result) -> None:
        self.threads.append(threading.current_thread().name)
        self.wait(self._left_ms.pop(0))
        self._done.release()


def test_the_thread_of_a_node_sleeps_while_its_work_is_quick() -> None:
    spared = Spared(*[4] * 20)
    spared.run()
    source, last = spared.nodes[0].work, spared.nodes[2].work
    assert isinstance(last, Does) and last.indices == list(range(20)) and (last.opened, last.closed) == (1, 1)
    assert spared.threads == ["edgert:1"] * 20 and isinstance(source, Numbers) and source.is_full()
    assert summarize(spared.nodes, 10**9, Counts(), 0, {}).frames_out == 20


def test_a_node_that_is_slow_three_times_in_a_row_works_in_its_own_thread_from_then_on() -> None:
    spared = Spared(4, 4, 9, 9, 4, 9, 9, 9, 4, 4)
    spared.run()
    last = spared.nodes[2].work
    assert isinstance(last, Does) and last.indices == list(range(10))
    assert spared.threads == ["edgert:1"] * 8 + ["edgert:2"] * 2


@pytest.mark.parametrize("opens", [True, False])
def test_a_spared_node_that_fails_or_cannot_open_keeps_no_frame(opens: bool) -> None:
    def refuse() -> None:
        raise DeviceError("no disk")

    def fail(result: Result) -> None:
        if result.frame.index == 3:
            raise DeviceError("no disk")

    nodes = chain(Numbers(count=None), Does(), Does(fail) if opens else Does(opening=refuse))
    nodes[2].spared = 0.5
    with pytest.raises(DeviceError, match="no disk"):
        runner = Runner(nodes)
        runner.start()
        runner.wait(LIMIT_S)
    source, last = nodes[0].work, nodes[2].work
    assert isinstance(last, Does) and last.closed == opens and len(last.seen) == 4 * opens
    assert isinstance(source, Numbers) and source.is_full()


def test_what_the_thread_before_does_itself_counts_too() -> None:
    spared = Spared(*[3] * 6)
    spared.nodes[1].work = Does(lambda result: spared.wait(6) or result)
    spared.run()
    assert spared.threads == ["edgert:1"] * 3 + ["edgert:2"] * 3


@dataclass
class Lens(Numbers):
    """A camera whose frames a test asks for."""

    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        for frame in super().frames(stop):
            while not self.turn.acquire(timeout=0.01):
                if stop.is_set():
                    frame.lease.release()
                    return
            yield frame


class Filmed:
    """A camera, and a stage that is worked on in its thread while it is quick.

    Attributes:
        threads: that the stage worked in.
    """

    def __init__(self, *, opening: Callable[[], object] = lambda: None, care: FailurePolicy = STOPS) -> None:
        self.threads, self.works = list[str](), Does(self._note, opening=opening)
        self.camera = Lens(count=None, live=True)
        _, stage = self.nodes = chain(self.camera, self.works, capacity=1, drop="oldest")
        stage.spared, stage.care = 0.5, care
        self.fails = False
        self.runner = Runner(self.nodes)

    def film(self, frames: int = 1) -> None:
        """So many frames; returns when the camera waits for the next turn."""
        for _ in range(frames):
            given = self.nodes[0].meter.results_out
            time.sleep(0.02)  # the time between two frames is what work is measured against
            self.camera.turn.release()
            wait_until(lambda given=given: self.nodes[0].meter.results_out > given)  # type: ignore[misc]

    def _note(self, result: Result) -> None:
        self.threads.append(threading.current_thread().name)
        if self.fails:
            raise DeviceError("the GPU is gone")


def test_a_camera_goes_on_while_a_stage_opens_and_then_works_on_its_frames() -> None:
    may_open = threading.Event()
    filmed = Filmed(opening=lambda: may_open.wait(LIMIT_S))
    filmed.runner.start()
    filmed.film(5)
    assert not filmed.works.seen and filmed.nodes[1].inlet.channels[0].dropped == 4
    may_open.set()
    wait_until(lambda: filmed.works.indices == [4])  # the newest, in the stage's own thread
    filmed.film(5)
    filmed.runner.shut_down()
    assert filmed.works.indices == [4, *range(5, 10)]
    assert filmed.threads[0] == "edgert:1" and filmed.threads[-4:] == ["edgert:0"] * 4
    assert filmed.works.closed == 1


def test_a_stage_that_fails_is_opened_again_in_its_own_thread() -> None:
    """A model takes long to open, and a camera's driver would be full of old frames."""
    filmed = Filmed(care=FailurePolicy("restart"))
    filmed.runner.start()
    wait_until(lambda: filmed.works.opened == 1)
    filmed.film(3)
    filmed.fails = True
    filmed.film()
    filmed.fails = False
    wait_until(lambda: filmed.film() or filmed.works.opened == 2)
    filmed.runner.shut_down()
    assert filmed.threads[3] == "edgert:0" and set(filmed.threads[4:]) == {"edgert:1"}


def test_a_stage_that_hangs_in_the_cameras_thread_is_the_one_that_is_named() -> None:
    entered, may_go = threading.Event(), threading.Event()
    filmed = Filmed()
    filmed.works.function = lambda result: (entered.set(), may_go.wait(LIMIT_S), None)[-1]
    filmed.runner.start()
    wait_until(lambda: filmed.works.opened == 1)
    time.sleep(0.05)
    filmed.camera.turn.release()
    assert entered.wait(LIMIT_S)
    with pytest.raises(StageError, match="stage 1 does not end"):
        filmed.runner.shut_down()
    may_go.set()
    wait_until(lambda: not any(worker.is_alive() for worker in filmed.runner._workers))
