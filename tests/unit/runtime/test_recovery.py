"""What fails in one place: others go on, frames come back, and it is counted, logged and opened again."""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from edgert.clock import REAL
from edgert.errors import StageError
from edgert.memory import Counter
from edgert.policy import OnError
from edgert.runtime import Result, Runner, Task, recovery, summarize
from edgert.runtime.branches import Branch, branch_tasks
from edgert.runtime.records import lost_placeholder, ticket_of
from edgert.runtime.recovery import Recovery
from edgert.runtime.task import FailurePolicy
from edgert.runtime.watchdog import Watchdog
from tests.helpers.stages import Does, Numbers, chain, link, result
from tests.helpers.virtual_clock import VirtualClock


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "FIRST_S", 0.002)
    monkeypatch.setattr(recovery, "LONGEST_S", 0.002)


def failing(*indices: int) -> Does:
    def work(one: Result) -> Result:
        if one.frame.index in indices:
            raise KeyError(f"frame {one.frame.index}")
        return one

    return Does(work)


def slowly(one: Result) -> Result:
    REAL.wait(threading.Event(), 0.001)
    return one


def run(nodes: list[Task]) -> None:
    runner = Runner(nodes)
    runner.start()
    runner.wait(60)


@pytest.mark.parametrize("on_error", ["restart", "drop", "log"])
@pytest.mark.parametrize("at", ["end", "middle"])
def test_others_get_every_frame_while_one_fails(on_error: OnError, at: str) -> None:
    source, bad, other = Numbers(count=40), failing(3, 4), Does()
    nodes = chain(source, bad) if at == "end" else chain(source, bad, Does())
    nodes.append(Task("other", other))
    link(nodes[0], nodes[-1])
    nodes[1].policy = FailurePolicy(on_error)
    run(nodes)
    assert other.indices == list(range(40)) and source.is_full()
    meter, status = nodes[1].meter, nodes[1].meter.status
    assert meter.results_in + meter.losses.total() == 40
    assert status.errors == (1 if on_error == "drop" else 2 if on_error == "log" else status.errors) >= 1
    assert bad.opened == bad.closed == status.restarts + 1
    if on_error == "log":
        assert meter.losses.total() == 2 and not nodes[1].meter.status.failing
    if on_error == "drop":
        assert meter.losses.total() == 37 and "KeyError" in nodes[1].meter.status.failing
    stage = summarize(nodes, 1, Counter().read(), 0, {}).stages["1"]
    assert (stage.state.errors, stage.state.restarts, stage.dropped) == (
        status.errors,
        status.restarts,
        meter.losses.total(),
    )


def test_one_that_is_restarted_works_again_and_says_both(caplog: pytest.LogCaptureFixture) -> None:
    source, bad = Numbers(count=400), failing(3)

    nodes = chain(source, Does(slowly), bad)
    nodes[2].policy = FailurePolicy("restart")
    runner = Runner(nodes)
    runner.start()
    runner.wait(60)
    assert not nodes[2].meter.status.failing and nodes[2].meter.status.restarts == 1 == nodes[2].meter.status.errors
    assert bad.indices[-1] == 399 and bad.opened == bad.closed == 2 and source.is_full()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 2, lines
    assert "stage '2': KeyError: 'frame 3' at " in lines[0] and f"{__file__}:" in lines[0] and "in work" in lines[0]
    assert "opened again in" in lines[0] and "works again" in lines[1]


class Disk:
    """A stage on a disk that takes the first of each try while it is full."""

    def __init__(self) -> None:
        self.is_full, self._taken = True, 0

    def open(self) -> None:
        self._taken = 0

    def process(self, one: Result) -> None:
        self._taken += 1
        if self.is_full and self._taken > 1:
            raise OSError("no space left on device")

    def close(self) -> None: ...


def test_what_fails_again_soon_never_worked_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgert.runtime.recovery.JITTER", 0.0)  # when it is tried again is not left to chance
    clock, disk = VirtualClock(), Disk()
    node = Task("record", disk, policy=FailurePolicy("restart"))
    own, dog = Recovery(node, clock), Watchdog(lambda: [node], (), clock)
    disk.open()
    own.is_open = True

    def pass_time(seconds: int) -> list[str]:
        caplog.clear()
        for _ in range(seconds):
            clock.wait(threading.Event(), 1.0)
            try:
                own.stage.process(result(0))
            except Exception as error:  # noqa: BLE001 - as a node does
                assert own.continues_after(error)
            dog.look()
        return [record.getMessage() for record in caplog.records]

    first = pass_time(290)
    assert len(first) == 1 and "no space left on device" in first[0] and "it is opened again in" in first[0]
    more = pass_time(600)
    assert not any("works again" in line for line in more) and 1 <= len(more) <= 4, more
    disk.is_full = False
    (line,) = pass_time(400)
    assert re.search("works again, after [0-9]+", line) and not node.meter.status.failing
    disk.is_full = True
    assert "opened again" in pass_time(3)[0], "another failure is said at once"
    disk.is_full = False
    assert "works again" in pass_time(600)[-1]


def test_a_warning_is_not_repeated_for_every_frame(caplog: pytest.LogCaptureFixture) -> None:
    nodes = chain(Numbers(count=200), failing(*range(200)))
    nodes[1].policy = FailurePolicy("log")
    run(nodes)
    assert nodes[1].meter.status.errors == 200 and len(caplog.records) == 1


def test_the_number_of_failures_is_told_again_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "REMIND_S", 0.0)
    nodes = chain(Numbers(count=3), failing(*range(3)))
    nodes[1].policy = FailurePolicy("log")
    run(nodes)
    assert len(caplog.records) == 3


@pytest.mark.parametrize("listeners", [1, 0])
def test_more_restarts_than_are_in_order_end_the_pipeline_where_others_listen_and_a_sink_is_tried_rarely(
    listeners: int,
) -> None:
    nodes = chain(Numbers(count=1000), Does(slowly), failing(*range(1000)), *[Does()] * listeners)
    nodes[2].policy = FailurePolicy("restart")
    runner = Runner(nodes)
    runner.start()
    with pytest.raises(StageError, match="KeyError") if listeners else nullcontext():
        runner.wait(60)
    status = nodes[2].meter.status
    assert status.restarts == recovery.MAX_RESTARTS and (status.failing or listeners)


@pytest.mark.parametrize("at_start", [False, True])
def test_what_cannot_be_opened_at_first(at_start: bool) -> None:
    def opening() -> None:
        if bad.opened == 1:
            raise OSError("no such folder")

    bad, other = Does(opening=opening), Does()
    nodes = chain(Numbers(count=300), Does(slowly), bad)
    nodes.append(Task("other", other))
    link(nodes[1], nodes[-1])
    nodes[2].policy = FailurePolicy("restart", at_start)
    runner = Runner(nodes)
    runner.start()
    if not at_start:
        with pytest.raises(StageError, match="no such folder"):
            runner.wait(60)
        return
    runner.wait(60)
    assert bad.indices[-1] == 299 and bad.opened == 2 and bad.closed == 1 and len(other.seen) == 300


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_what_asks_for_an_end_gets_it(raised: type[BaseException]) -> None:
    def work(_: Result) -> None:
        raise raised

    nodes = chain(Numbers(count=10), Does(work))
    nodes[1].policy = FailurePolicy("log")
    runner = Runner(nodes)
    runner.start()
    with pytest.raises(StageError, match=raised.__name__):
        runner.wait(60)


def test_a_source_may_be_dropped() -> None:
    bad, good, end = Numbers("bad", fails_at=3), Numbers("good", count=30), Does()
    nodes = [Task("bad", bad), Task("good", good), Task("end", end)]
    link(nodes[0], nodes[2], "bad")
    link(nodes[1], nodes[2], "good")
    nodes[0].policy = FailurePolicy("drop")
    run(nodes)
    assert len(end.seen) == 33 and bad.closed == good.closed == 1 and "lens cap on" in nodes[0].meter.status.failing


def test_what_fails_only_when_it_is_closed_is_counted() -> None:
    def closing() -> None:
        raise OSError("no space left")

    nodes = chain(Numbers(count=5), Does(closing=closing))
    nodes[1].policy = FailurePolicy("restart")
    run(nodes)
    assert "no space left" in nodes[1].meter.status.failing and nodes[1].meter.status.errors == 1


def test_a_generator_that_fails_in_the_middle_gives_its_frames_back() -> None:
    def work(one: Result) -> Iterator[Result]:
        yield one
        if one.frame.index % 3 == 0:
            raise ValueError("half of it")

    source, end = Numbers(count=30), Does()
    nodes = chain(source, Does(work), end)
    nodes[1].policy = FailurePolicy("log")
    run(nodes)
    assert end.indices == list(range(30)) and nodes[1].meter.status.errors == 10 and source.is_full()


@pytest.mark.parametrize("on_error", ["restart", "drop"])
def test_frames_lost_in_one_branch_do_not_hold_up_the_others(on_error: OnError) -> None:
    source, end = Numbers(count=60), Does()
    branches = [Branch((failing(4, 8, 10),)), Branch((Does(),))]
    nodes = branch_tasks("find", branches, frozenset({"cam"}), 2)
    for node in nodes:
        node.policy = FailurePolicy(on_error)
    everything = [Task("cam", source), *nodes, Task("end", end)]
    link(everything[0], nodes[0])
    link(nodes[-1], everything[-1])
    run(everything)
    lost = sum(node.meter.losses.total() for node in nodes)
    assert lost >= 1 and end.indices == sorted(end.indices) and len(end.seen) == 60 - lost
    assert set(range(1, 60, 2)) <= set(end.indices) and source.is_full()


def test_an_error_names_the_line_of_the_users_own_code() -> None:
    nodes = chain(Numbers(count=5), failing(2))
    runner = Runner(nodes)
    runner.start()
    with pytest.raises(StageError) as caught:
        runner.wait(60)
    assert f"{__file__}:" in caught.value.why and "in work" in caught.value.why


def test_a_result_that_was_lost_keeps_its_place() -> None:
    one = result(3)
    assert ticket_of(lost_placeholder(lost_placeholder(one))) == ticket_of(lost_placeholder(one))
