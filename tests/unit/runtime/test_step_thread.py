"""Threads that run steps or jobs, and their failures in the thread that asks for them."""

import sys
import threading
from contextlib import ExitStack

import pytest

from edgert.runtime.worker import SHORT_TURNS, OneJobWorker, StepThread


def test_a_stop_has_one_last_step_and_then_the_end() -> None:
    calls: list[object] = []
    thread = StepThread(60.0)
    thread.start("t", calls.append, lambda: calls.append("end"))
    assert thread.stop() and calls == [True, "end"]
    thread.start("t", calls.append, lambda: calls.append("end"))  # as a sink that is opened again
    assert thread.stop() and calls == [True, "end"] * 2 and not thread.stop()
    thread.check()


def test_it_steps_when_it_is_woken() -> None:
    thread, stepped = StepThread(60.0), threading.Event()
    thread.start("t", lambda is_last: stepped.set(), lambda: None)
    thread.wake.set()
    assert stepped.wait(10)
    thread.stop()


@pytest.mark.parametrize("place", ["step", "end", "both"])
def test_a_failure_is_raised_once_by_the_thread_that_asks(place: str) -> None:
    ended = list[str]()

    def step(is_last: bool) -> None:
        if place != "end":
            raise OSError("step")

    def end() -> None:
        ended.append("end")
        if place != "step":
            raise OSError("end")

    thread = StepThread(0.001)
    thread.start("t", step, end)
    thread.stop()
    with pytest.raises(OSError, match="end" if place == "end" else "step"):
        thread.check()
    thread.check()
    assert ended == ["end"]


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_a_failure_of_a_job_is_raised_by_its_future(error: type[BaseException]) -> None:
    def job() -> None:
        raise error

    with pytest.raises(error):
        OneJobWorker("t").submit(job).result(5)


def test_short_turns_last_until_the_last_thread_leaves_them() -> None:
    before_s = sys.getswitchinterval()
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(SHORT_TURNS)
        second.enter_context(SHORT_TURNS)
        first.close()
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    assert sys.getswitchinterval() == pytest.approx(before_s)
    with SHORT_TURNS:
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == pytest.approx(0.002), "a program's own value stays"
    sys.setswitchinterval(before_s)
