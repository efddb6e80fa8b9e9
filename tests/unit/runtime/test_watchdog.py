"""Calls that do not return: reported, with what waits for them, and ended where that can be; others pass them by."""

import logging
import re
import threading
import time

import pytest

from edgert.errors import StageError
from edgert.memory import Counter
from edgert.runtime import Result, Runner, Task, runner, summarize, watchdog
from edgert.runtime.task import FailurePolicy
from edgert.runtime.thread_loop import ThreadLoop
from tests.helpers.stages import Does, Numbers, chain, link
from tests.helpers.waiting import wait_until

SOON_S = 0.05


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "FIRST_S", SOON_S)
    for name, seconds in (("DRAIN_S", 0.1), ("_GRACE_S", 0.2), ("_CLOSE_S", 0.5)):
        monkeypatch.setattr(runner, name, seconds)


class Hangs(Does):
    """At a frame, until it is released; or until it is interrupted, which is an error."""

    def __init__(self, at: int = 3, ends: bool = False) -> None:
        super().__init__(self.work)
        self.at, self.release, self.error = at, threading.Event(), ends
        if ends:
            self.interrupt = self.release.set

    def work(self, one: Result) -> Result:
        if one.frame.index == self.at:
            self.release.wait()
            if self.error:
                raise RuntimeError("ended")
        return one


def hanging(hangs: Does, care: FailurePolicy, count: int | None = None) -> tuple[Runner, list[Task], Does]:
    other = Does()
    nodes = [*chain(Numbers(count=count), hangs, Does()), Task("other", other)]
    link(nodes[0], nodes[-1])
    nodes[1].policy = care
    made = Runner(nodes)
    made.start()
    return made, nodes, other


def test_a_call_that_does_not_return_is_reported_once_and_when_it_does(caplog: pytest.LogCaptureFixture) -> None:
    hangs = Hangs()
    running, nodes, _ = hanging(hangs, FailurePolicy(watchdog_s=SOON_S))
    wait_until(lambda: nodes[1].meter.status.stuck_s > 4 * SOON_S)
    assert summarize(nodes, 1, Counter().read(), 0, {}).stages["1"].state.stuck_s > SOON_S
    hangs.release.set()
    wait_until(lambda: not nodes[1].meter.status.stuck_s)
    running.shut_down()
    first, last = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "stage '1' has been in one call for 0." in first and f"at {__file__}:" in first and " in work" in first
    assert "2 results wait for it, and behind it 2" in first
    assert "stage '1' continues after" in last


def test_it_is_reported_again_after_minutes(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "REMIND_S", SOON_S)
    hangs = Hangs()
    running, _, _ = hanging(hangs, FailurePolicy(watchdog_s=SOON_S))
    wait_until(lambda: len(caplog.records) >= 3)
    hangs.release.set()
    running.shut_down()


def test_what_is_down_is_reported_again(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "REMIND_S", SOON_S)

    def fail(_: Result) -> None:
        raise OSError("no space left")

    running, nodes, _ = hanging(Does(fail), FailurePolicy("drop", watchdog_s=SOON_S))
    still = re.compile(r"stage '\w+' is still down, for \d+ s: OSError: no space left")
    wait_until(lambda: sum(bool(still.match(one.getMessage())) for one in caplog.records) >= 2)
    running.shut_down()
    assert nodes[1].meter.status.errors == 1


@pytest.mark.parametrize("on_error", ["drop", "log", "restart"])
def test_others_go_on_while_one_hangs_that_they_do_not_need(on_error: str) -> None:
    hangs = Hangs()
    running, nodes, other = hanging(hangs, FailurePolicy(on_error, watchdog_s=SOON_S))  # type: ignore[arg-type]
    wait_until(lambda: len(other.seen) > 200)
    assert nodes[1].meter.status.stuck_s and nodes[1].wiring.inlet.channels[0].dropped
    hangs.release.set()
    wait_until(lambda: not nodes[1].meter.status.stuck_s)
    assert nodes[1].wiring.inlet.channels[0].waits
    running.shut_down()


def test_it_looks_where_the_threads_began_late(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ThreadLoop.start
    monkeypatch.setattr(ThreadLoop, "start", lambda worker: time.sleep(0.1) or begin(worker))
    hangs = Hangs()
    running, nodes, _ = hanging(hangs, FailurePolicy(watchdog_s=SOON_S))
    wait_until(lambda: nodes[1].meter.status.stuck_s)
    hangs.release.set()
    running.shut_down()


def test_others_wait_for_one_whose_failure_would_stop_them() -> None:
    hangs = Hangs()
    running, nodes, other = hanging(hangs, FailurePolicy(watchdog_s=SOON_S))
    wait_until(lambda: nodes[1].meter.status.stuck_s > 4 * SOON_S)
    assert len(other.seen) < 20 and not nodes[1].wiring.inlet.channels[0].dropped
    hangs.release.set()
    running.shut_down()


def test_an_engine_that_hangs_is_ended_and_then_has_failed() -> None:
    running, nodes, _ = hanging(Hangs(ends=True), FailurePolicy(watchdog_s=SOON_S))
    with pytest.raises(StageError, match="RuntimeError: ended"):
        running.wait(30)
    assert not nodes[1].meter.status.failing


def test_an_engine_that_hangs_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.runtime.recovery.FIRST_S", 0.01)
    hangs = Hangs(ends=True)
    running, nodes, _ = hanging(hangs, FailurePolicy("restart", watchdog_s=SOON_S))
    wait_until(lambda: bool(hangs.seen) and hangs.indices[-1] > 50)
    running.shut_down()
    assert nodes[1].meter.status.errors == nodes[1].meter.status.restarts == 1


def test_a_watchdog_shorter_than_the_first_run_is_told_with_numbers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "FIRST_S", 30.0)
    slow = Does(lambda one: time.sleep(0.1) or one, opening=lambda: time.sleep(0.2))  # type: ignore[func-returns-value]
    nodes = chain(Numbers(count=5), slow)
    nodes[1].policy = FailurePolicy(watchdog_s=SOON_S)
    one = Runner(nodes)
    one.start()
    one.wait(30)
    (line,) = (record.getMessage() for record in caplog.records if "watchdog" in record.getMessage())
    assert re.search(r"stage '1' took (0\.[2-9]|[1-9])", line) and "0.05 s" in line and "3 times" in line
    assert not [record for record in caplog.records if "in one call" in record.getMessage()]


def test_no_watchdog_reports_nothing(caplog: pytest.LogCaptureFixture) -> None:
    hangs = Hangs()
    running, nodes, _ = hanging(hangs, FailurePolicy(watchdog_s=0.0))
    wait_until(lambda: bool(nodes[1].meter.status.since_ns))
    time.sleep(6 * SOON_S)
    assert not nodes[1].meter.status.stuck_s and not caplog.records
    hangs.release.set()
    running.shut_down()


@pytest.mark.parametrize("where", ["process", "close"])
def test_the_end_of_the_sources_does_not_wait_for_ever(where: str) -> None:
    hangs, release = Hangs(), threading.Event()
    if where == "close":
        hangs = Does(closing=release.wait)  # type: ignore[assignment]
    running, _, other = hanging(hangs, FailurePolicy("log", watchdog_s=SOON_S), count=8)
    began = time.monotonic()
    with pytest.raises(StageError, match="stage 1 does not end"):
        running.wait()
    assert time.monotonic() - began < 20 and other.closed == 1 and len(other.seen) == 8
    release.set()
    getattr(hangs, "release", release).set()


def test_a_thread_that_ends_just_after_its_last_call_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage may close in exactly the time after which the others are looked at, as one whose server is silent."""
    nodes = chain(Numbers(count=None), Does())
    monkeypatch.setattr(nodes[1].wiring.inlet, "apply", lambda: time.sleep(0.5))  # the thread's last step
    running = Runner(nodes)
    running.start()
    wait_until(lambda: bool(nodes[1].meter.results_in))
    running.shut_down()
    assert not running.has_stuck_threads


def test_whoever_still_writes_its_files_is_waited_for() -> None:
    with open("/dev/null", "wb", buffering=0) as file:  # noqa: PTH123

        def closing() -> None:
            until_s = time.monotonic() + 2.5
            while time.monotonic() < until_s:
                file.write(b"an index of a large file")
                time.sleep(0.05)

        nodes = chain(Numbers(count=None), Does(closing=closing))
        nodes[1].policy = FailurePolicy(watchdog_s=SOON_S)
        one = Runner(nodes)
        one.start()
        wait_until(lambda: bool(nodes[1].meter.results_in))
        one.shut_down()
    assert not one.has_stuck_threads
