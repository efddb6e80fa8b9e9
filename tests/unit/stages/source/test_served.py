"""Frames that a running pipeline takes in the thread that brings them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.memory import Counter, Counts
from edgert.runtime import Node, Result, Runner, summarize
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
        self.source, self.begin, self.entered = ApiSource("cam", config, Counter(), REAL), threading.Event(), Event()

        def process(result: Result) -> None:
            self.entered.set()
            assert self.begin.wait(LIMIT_S)
            work(result)

        self.stage = Does(process)
        self.nodes = [Node("cam", self.source), Node("end", self.stage)]
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
        for _ in range(self.nodes[1].inlet.channels[0].capacity):
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
