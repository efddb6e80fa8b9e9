"""Frames that a running pipeline takes in the thread that brings them."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.errors import DeviceError, StageError
from edgert.memory import Counts
from edgert.runtime import Frame, Result, Runner, Task, summarize
from edgert.stages.context import Context
from edgert.stages.source import api
from edgert.stages.source.api import ApiSource
from tests.helpers.stages import Does, link

LIMIT_S = 20.0


Event = threading.Event


class Served:
    """A running pipeline of an api source and one stage with a queue.

    Attributes:
        begin: until it is set, the stage keeps the first result.
    """

    def __init__(
        self, capacity: int = 2, work: Callable[[Result], object] = lambda result: None, **options: object
    ) -> None:
        config = SourceStage.model_validate({"source": "api", **options})
        self.source, self.begin, self.entered = ApiSource("cam", config, Context()), Event(), Event()

        def process(result: Result) -> None:
            self.entered.set()
            assert self.begin.wait(LIMIT_S)
            work(result)

        self.stage = Does(process)
        self.nodes = [Task("cam", self.source), Task("end", self.stage)]
        link(*self.nodes, capacity=capacity)
        self.runner = Runner(self.nodes)

    def start(self) -> None:
        self.runner.start()

    def submit(self, value: int = 0, **options: object) -> int:
        return self.source.submit(np.full((4, 6, 3), value, np.uint8), **options)  # type: ignore[arg-type]

    def fill(self) -> None:
        """One frame that is worked on, and a full queue."""
        self.start()
        self.submit()
        assert self.entered.wait(LIMIT_S)
        for _ in range(self.nodes[1].wiring.inlet.channels[0].capacity):
            self.submit()

    def ended(self) -> list[int]:
        """Finishes; the frames that came."""
        self.begin.set()
        self.source.finish()
        assert self.runner.wait(LIMIT_S)
        return self.stage.indices


def test_frames_that_were_there_before_the_start_come_first() -> None:
    served, values = Served(), list[int]()
    served.begin.set()
    served.stage.function = lambda result: values.append(int(result.frame.planes[0][0, 0, 0]))  # type: ignore[func-returns-value]
    for value in (1, 2):
        served.submit(value)
    served.start()
    assert [served.submit(value) for value in (3, 4, 5)] == [2, 3, 4]
    assert served.ended() == [0, 1, 2, 3, 4] and values == [1, 2, 3, 4, 5]


def test_a_full_queue_makes_submit_wait_no_longer_than_it_may() -> None:
    served = Served()
    served.fill()
    for timeout_s in (0, 0.02):
        with pytest.raises(StageError, match="no room"):
            served.submit(timeout_s=timeout_s)
    assert served.ended() == [0, 1, 2]
    summary = summarize(served.nodes, 10**9, Counts(), 0, {})
    assert summary.frames_in == 3 and summary.stages["cam"].wait_out_percent >= 2


def test_while_one_waits_for_room_another_waits_no_longer_than_it_may() -> None:
    served = Served()
    served.fill()
    waiting = threading.Thread(target=served.submit)
    waiting.start()
    with pytest.raises(StageError, match="no room"):
        served.submit(timeout_s=0.02)
    served.begin.set()
    waiting.join(LIMIT_S)
    assert served.ended() == [0, 1, 2, 3]


def test_whoever_waits_when_the_pipeline_is_stopped_keeps_the_frame() -> None:
    served = Served()
    served.fill()
    buffer = served.source.buffer((6, 4))
    seen = list[str]()

    def submit() -> None:
        with pytest.raises(StageError, match="no more frames") as caught:
            served.source.submit(buffer)
        seen.append(caught.value.why)

    waiting = threading.Thread(target=submit)
    waiting.start()
    served.runner.stop()
    served.begin.set()
    waiting.join(LIMIT_S)
    assert served.runner.wait(LIMIT_S) and seen == ["the pipeline has ended"]
    assert buffer.array.shape == (4, 6, 3)
    with pytest.raises(StageError, match="no more frames"):
        served.submit()


def test_finish_and_limit_end_it_and_what_was_submitted_still_goes_on() -> None:
    served = Served(limit=3)
    served.begin.set()
    served.start()
    for _ in range(3):
        served.submit()
    with pytest.raises(StageError, match="no more frames"):
        served.submit()
    assert served.runner.wait(LIMIT_S) and served.stage.indices == [0, 1, 2]
    finished = Served()
    finished.fill()
    finished.source.finish()
    with pytest.raises(StageError, match="no more frames") as caught:
        finished.submit()
    assert "finish() was called" in caught.value.why
    assert finished.ended() == [0, 1, 2]


def test_a_stage_that_submits_never_waits_for_the_room_that_it_makes() -> None:
    def more(result: Result) -> None:
        for _ in range(3 if result.frame.index == 0 else 0):
            served.submit()

    served = Served(capacity=1, work=more, queue=1)
    served.fill()
    served.begin.set()
    assert _until(lambda: len(served.stage.seen) == 5)
    assert served.ended() == [0, 1, 2, 3, 4]


def _until(is_so: Callable[[], bool]) -> bool:
    for _ in range(int(LIMIT_S / 0.01)):
        if is_so():
            return True
        Event().wait(0.01)
    return False


def test_many_threads_bring_frames_and_each_comes_once_in_order() -> None:
    served = Served()
    served.begin.set()
    served.start()
    givers = [threading.Thread(target=lambda: [served.submit() for _ in range(25)]) for _ in range(4)]
    for giver in givers:
        giver.start()
    for giver in givers:
        giver.join(LIMIT_S)
    assert served.ended() == list(range(100))


class Overtaken:
    """A lock: once the thread that made it has released it, that goes on when another thread has had it."""

    def __init__(self, lock: threading.Lock, other: Callable[[], object]) -> None:
        self._lock, self._other, self._first = lock, threading.Thread(target=other), threading.current_thread()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if threading.current_thread() is self._first and self._other.ident is None:
            self._other.start()
            self._other.join(LIMIT_S)


def test_the_number_of_a_submitted_frame_is_that_of_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    served, numbers = Served(), dict[int, int]()
    served.begin.set()
    served.start()
    assert _until(lambda: served.source._taker is not None)
    turn = Overtaken(served.source._turn, lambda: numbers.update({2: served.submit(2)}))
    monkeypatch.setattr(served.source, "_turn", turn)
    numbers[1] = served.submit(1)
    values = [int(value) for _, value in sorted((number, value) for value, number in numbers.items())]
    assert served.ended() == [0, 1] and numbers == {1: 0, 2: 1} and values == [1, 2]


def test_what_a_stage_submits_just_before_finish_still_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    served.begin.set()

    def last() -> None:
        """Between two looks at what waits."""
        with monkeypatch.context() as patch:
            patch.setattr(api, "runs_pipeline_of", lambda stop: True)
            served.submit()
        served.source.finish()

    images_on_gpu = SimpleNamespace(reclaim=last, close=bool)  # looked for now and then
    monkeypatch.setattr(served.source, "_tensors", images_on_gpu)
    served.submit()
    served.start()
    assert served.runner.wait(LIMIT_S) and served.stage.indices == [0, 1]


@pytest.mark.parametrize("has_images_on_gpu", [False, True])
def test_its_thread_sleeps_until_there_is_something_to_do(
    has_images_on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, timeouts = Served(), set[float | None]()
    served.begin.set()
    wait = served.source._changed.wait
    monkeypatch.setattr(served.source._changed, "wait", lambda timeout=None: timeouts.add(timeout) or wait(timeout))
    if has_images_on_gpu:  # which have to be looked at
        monkeypatch.setattr(served.source, "_tensors", SimpleNamespace(reclaim=bool, close=bool))
    served.start()
    assert _until(lambda: bool(timeouts))
    served.submit()
    assert served.ended() == [0] and timeouts == {0.1 if has_images_on_gpu else None}


@pytest.mark.parametrize("is_early", [True, False])
def test_a_frame_for_which_there_is_no_memory_keeps_no_buffer(is_early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The submitting thread gets the error and its buffer; an image submitted before the start ends the pipeline."""
    served = Served()
    served.begin.set()

    def fail(frame: Frame) -> Frame:
        raise DeviceError("too little memory")

    closed = list[bool]()
    staging = SimpleNamespace(shared_frame=fail, close=lambda: closed.append(True))
    monkeypatch.setattr(served.source._timeline, "_staging", staging)
    buffer = served.source.buffer((6, 4))
    if is_early:
        served.source.submit(buffer)
        lease = served.source._waiting[0].lease
        served.start()
        with pytest.raises(DeviceError, match="too little memory"):
            served.runner.wait(LIMIT_S)
        assert not lease.alive
    else:
        served.start()
        assert _until(lambda: served.source._taker is not None)
        with pytest.raises(DeviceError, match="too little memory"):
            served.source.submit(buffer)
        assert buffer.array.shape == (4, 6, 3)
        served.ended()
    assert closed == [True]
