"""Nodes that are worked on in the thread of the one that they listen to."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import pytest

from edgert.clock import REAL
from edgert.errors import DeviceError, EdgertError, StageError
from edgert.memory import Counts
from edgert.runtime import Frame, Node, Result, Runner, summarize
from edgert.runtime.branches import Branch, branch_nodes
from edgert.runtime.passing import Together
from edgert.stages.sink.results import CallbackSink
from tests.helpers.stages import Does, Numbers, chain, link, tag

LIMIT_S = 20.0


def inline_chain(*works: object) -> list[Node]:
    """A chain whose last node runs in the thread of the one before."""
    nodes = chain(*works)
    nodes[-1].runs_in = nodes[-2]
    return nodes


def run(*nodes: Node) -> Runner:
    runner = Runner(nodes)
    runner.start()
    try:
        assert runner.wait(LIMIT_S)
    except EdgertError:
        assert not runner.running
    return runner


def test_an_inline_node_gets_every_result_in_the_thread_of_the_one_before() -> None:
    threads = set[str]()

    def double(result: Result) -> Iterator[Result]:
        threads.add(threading.current_thread().name)
        yield result
        yield result

    source, inner = Numbers(count=50), Does(lambda result: threads.add(threading.current_thread().name))
    nodes = inline_chain(source, Does(double), inner)
    run(*nodes).raise_error()
    assert inner.indices == [index for index in range(50) for _ in range(2)] and threads == {"edgert:1"}
    assert (inner.opened, inner.closed) == (1, 1) and source.is_full()
    stages = summarize(nodes, 10**9, Counts(), 0, {}).stages
    assert (stages["2"].results_in, stages["2"].dropped, stages["2"].thread, stages["1"].thread) == (100, 0, "1", "")


@pytest.mark.timing
def test_what_an_inline_node_works_is_its_own_time_and_no_waiting_of_the_one_before() -> None:
    done = threading.Event()
    nodes = inline_chain(Numbers(count=1), Does(), Does(lambda result: done.wait(0.05) or None))
    run(*nodes).raise_error()
    assert nodes[2].meter.busy_ns > 45_000_000 and nodes[2].meter.latency.counts().sum() == 1
    assert abs(nodes[1].meter.wait_out_ns) < 20_000_000 and nodes[1].meter.busy_ns < 20_000_000


def test_an_inline_node_passes_on_and_what_it_fails_with_is_its_own() -> None:
    def fail(result: Result) -> Result:
        if result.frame.index == 3:
            raise ValueError("bad box")
        return result

    source, beside, behind = Numbers(count=9), Does(), Does()
    nodes = inline_chain(source, tag("1"), Does(fail))
    inner = nodes[2]
    others = [Node("beside", beside), Node("behind", behind)]
    link(nodes[1], others[0], capacity=20)
    link(inner, others[1])
    with pytest.raises(StageError, match="stage '2' failed: ValueError: bad box"):
        run(*nodes, *others).raise_error()
    assert behind.indices == [0, 1, 2] and beside.indices[:4] == [0, 1, 2, 3]
    assert [one.closed for one in (inner.work, beside, behind)] == [1, 1, 1]  # type: ignore[union-attr]
    assert source.is_full()


def test_an_inline_node_that_cannot_open_is_not_closed_and_keeps_nobody() -> None:
    def refuse() -> None:
        raise DeviceError("no disk")

    source, middle, broken = Numbers(count=None), Does(), Does(opening=refuse)
    with pytest.raises(DeviceError, match="no disk") as caught:
        run(*inline_chain(source, middle, broken)).raise_error()
    assert caught.value.where == "stage '2'"
    assert (broken.opened, broken.closed, broken.seen, middle.closed) == (1, 0, [], 1) and source.is_full()


@pytest.mark.parametrize("late", [False, True])
def test_a_node_that_fails_ends_the_one_that_runs_in_its_thread(late: bool) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no lens")

    source, inner = Numbers(count=None), Does()
    middle = Does(fail) if late else Does(opening=fail)
    with pytest.raises(StageError, match="stage '1' failed: ValueError: no lens"):
        run(*inline_chain(source, middle, inner)).raise_error()
    assert (inner.opened, inner.closed, inner.seen) == (1, 1, []) and source.is_full()


def stuck() -> tuple[Runner, threading.Event]:
    """A pipeline whose inline node has begun and does not end before the event."""
    release, entered = threading.Event(), threading.Event()

    def hang(result: Result) -> None:
        entered.set()
        release.wait(LIMIT_S)

    nodes = inline_chain(Numbers(count=None), Does(), Does(hang))
    runner = Runner(nodes)
    runner.start()
    assert entered.wait(LIMIT_S) and runner.is_working(nodes[2])
    return runner, release


def test_what_waits_behind_a_slow_inline_node_is_dropped_at_the_end_and_counted() -> None:
    runner, release = stuck()
    runner.stop()
    source = runner.nodes[0].work
    until(lambda: runner.nodes[1].inlet.channels[0].dropped > 0)
    release.set()
    assert runner.wait(LIMIT_S) and isinstance(source, Numbers) and source.is_full()
    summary = summarize(runner.nodes, 10**9, Counts(), 0, {})
    assert summary.frames_in == summary.frames_out + summary.dropped


def until(is_so: Callable[[], bool]) -> None:
    """Waits for it, as long as a test may."""
    done = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if is_so():
            return
        done.wait(0.01)
    raise AssertionError("it never came to that")


def test_an_inline_node_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.runtime.runner._GRACE_S", 0.1)
    monkeypatch.setattr("edgert.runtime.runner._CLOSE_S", 0.1)
    runner, release = stuck()
    with pytest.raises(StageError, match="stage 2 does not end"):
        runner.shut_down()
    assert runner.left and not runner.running
    release.set()
    until(lambda: not runner.left)


def lagging(count: int | None, work: Callable[[Result], None], lag: int = 2) -> list[Node]:
    """A source, a stage, and a node that runs in its thread and may lag behind."""
    nodes = inline_chain(Numbers(count=count), Does(), Does(work))
    nodes[-1].lag = lag
    return nodes


def test_an_inline_node_that_waits_lags_behind_the_node_before_while_there_is_more_to_do_and_no_further() -> None:
    begun, behind = threading.Event(), list[int]()

    def note(result: Result) -> None:
        behind.append(len(outer.seen) - 1 - result.frame.index)

    nodes = lagging(40, note)
    source, outer = nodes[0].work, nodes[1].work
    assert isinstance(source, Numbers) and isinstance(outer, Does)
    outer.function = lambda result: (begun.wait(LIMIT_S) and result) or None
    runner = Runner(nodes)
    runner.start()
    until(lambda: nodes[1].inlet.channels[0].count == 3)  # one that is worked on, and a full queue
    begun.set()
    assert runner.wait(LIMIT_S)
    assert nodes[2].work.indices == list(range(40)) and source.is_full()  # type: ignore[union-attr]
    assert max(behind) == 2 and behind[-1] == 0
    assert summarize(nodes, 10**9, Counts(), 0, {}).dropped == 0


def test_it_does_not_lag_where_nothing_more_comes() -> None:
    """A program that brings the next frame when it has the result of the last would wait for ever."""
    came, given = threading.Semaphore(0), list[int]()

    class Loop(Numbers):
        def frames(self, stop: threading.Event) -> Iterator[Frame]:
            for frame in super().frames(stop):
                yield frame
                assert came.acquire(timeout=LIMIT_S)

    nodes = lagging(None, lambda result: given.append(result.frame.index) or came.release())
    nodes[0].work = Loop(count=5)
    run(*nodes).raise_error()
    assert given == [0, 1, 2, 3, 4]
    assert abs(nodes[1].meter.wait_in_ns) < 10**9


def test_an_inline_node_that_fails_late_keeps_no_frame() -> None:
    def fail(result: Result) -> None:
        raise ValueError("lost")

    nodes = lagging(None, fail)
    with pytest.raises(StageError, match="stage '2' failed: ValueError: lost"):
        run(*nodes).raise_error()
    source = nodes[0].work
    assert isinstance(source, Numbers) and source.is_full() and nodes[2].work.closed == 1  # type: ignore[union-attr]
    summary = summarize(nodes, 10**9, Counts(), 0, {})
    assert nodes[2].meter.results_in + nodes[2].inlet.channels[0].dropped <= summary.frames_in


def test_what_a_node_that_fails_has_passed_on_is_still_worked_on_inline() -> None:
    seen = list[int]()
    nodes = lagging(None, lambda result: seen.append(result.frame.index))

    def fail(result: Result) -> Result:
        if result.frame.index == 4:
            raise ValueError("broken")
        return result

    nodes[1].work = Does(fail)
    with pytest.raises(StageError, match="stage '1' failed: ValueError: broken"):
        run(*nodes).raise_error()
    source = nodes[0].work
    assert seen == [0, 1, 2, 3] and isinstance(source, Numbers) and source.is_full()


def test_an_edge_that_ends_before_another_ends_nothing_else() -> None:
    ended = threading.Event()

    class Second(Numbers):
        def frames(self, stop: threading.Event) -> Iterator[Frame]:
            assert ended.wait(LIMIT_S)
            yield from super().frames(stop)

    nodes = lagging(0, lambda result: None)
    second = Node("second", Second("second", count=3))
    link(second, nodes[1], "second")
    beside = Does(closing=ended.set)  # when the first source has ended
    nodes.append(Node("beside", beside))
    link(nodes[0], nodes[-1])
    run(second, *nodes).raise_error()
    assert nodes[2].work.seen == [("second", index) for index in range(3)]  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["lags", "spared"])
def test_nodes_work_in_their_context_and_what_runs_inline_behind_outside(way: str) -> None:
    found = dict[str, set[bool]]({"outer": set(), "inner": set(), "last": set()})

    class Context(threading.local):
        is_in = False

        def __enter__(self) -> None:
            assert not self.is_in
            self.is_in = True

        def __exit__(self, *_: object) -> None:
            assert self.is_in
            self.is_in = False

    def note(who: str, result: Result) -> Result:
        found[who].add(context.is_in)
        return result

    works = [Does(partial(note, who)) for who in ("outer", "inner", "last")]
    nodes = chain(Numbers(count=9), *works)
    nodes[1].context = nodes[2].context = context = Context()
    if way == "lags":
        nodes[2].runs_in = nodes[3].runs_in = nodes[1]
        nodes[2].lag = 2
    else:
        nodes[2].spared, nodes[3].runs_in = 0.5, nodes[2]
    run(*nodes).raise_error()
    assert found == {"outer": {True}, "inner": {True}, "last": {False}}


def test_the_stages_of_a_branch_have_its_context() -> None:
    branch = Branch((Does(), Does()), context=nullcontext())
    for count, expected in ((1, [True, True]), (2, [False, True, True, True, True, False])):
        nodes = branch_nodes("find", [branch] * count, frozenset({"cam"}), 1)
        assert [node.context is not None for node in nodes] == expected


def test_a_source_that_needs_a_moment_for_each_frame_keeps_the_inline_node_lagging() -> None:
    """While the inline node waits for a GPU, as it sleeps here, the one before has launched two more."""
    behind = list[int]()

    class Decoder(Numbers):
        def frames(self, stop: threading.Event) -> Iterator[Frame]:
            for frame in super().frames(stop):
                time.sleep(0.00005)
                yield frame

    def wait(result: Result) -> None:
        behind.append(len(nodes[1].work.seen) - 1 - result.frame.index)  # type: ignore[union-attr]
        time.sleep(0.002)

    nodes = lagging(60, wait)
    nodes[0].work = Decoder(count=60)
    run(*nodes).raise_error()
    assert statistics.median(behind) == 2


def test_a_context_that_cannot_be_entered_ends_its_stage_with_that_error() -> None:
    class Gone(nullcontext[None]):
        def __enter__(self) -> None:
            raise DeviceError("the GPU was closed")

    nodes = lagging(None, lambda result: None)
    nodes[1].context = Gone()
    with pytest.raises(DeviceError, match="the GPU was closed"):
        run(*nodes).raise_error()
    assert [node.work.closed for node in nodes] == [1, 1, 1]  # type: ignore[union-attr]


def test_a_batch_that_is_due_goes_on_before_an_inline_node_waits() -> None:
    steps, waited = list[str](), threading.Event()

    class Pausing(Numbers):
        """Goes on when the inline node has been worked on."""

        def frames(self, stop: threading.Event) -> Iterator[Frame]:
            yield from super().frames(stop)
            assert waited.wait(LIMIT_S)

    class Batches(Does):
        """Passes the first result on, and holds the second for a moment."""

        def due_ns(self) -> int | None:
            return REAL.now_ns() + 100_000 if len(self.seen) == 2 and "flushed" not in steps else None

        def flush(self, last: bool = False) -> list[Result]:
            steps.append("flushed")
            return []

        def give_up(self) -> list[Result]:
            return []

    nodes = lagging(2, lambda result: steps.append("inner") or waited.set())
    nodes[0].work, nodes[1].work = Pausing(count=2), Batches(lambda result: None if result.frame.index else result)
    run(*nodes).raise_error()
    assert steps[:2] == ["flushed", "inner"]


def test_a_callback_gets_each_of_several_results_that_come_as_one() -> None:
    seen, taken = list[int](), list[int]()

    class Sink(CallbackSink):
        def process(self, result: Result) -> None:
            taken.append(len(result.results) if isinstance(result, Together) else 1)
            super().process(result)

    sink = Sink("2", lambda result: seen.append(result.frame.index))
    nodes = inline_chain(Numbers(count=16), Does(lambda result: [result, result]), sink)
    nodes[2].inlet.channels[0].together = True
    source = nodes[0].work
    run(*nodes).raise_error()
    assert seen == [index for index in range(16) for _ in range(2)] and taken == [2] * 16
    assert isinstance(source, Numbers) and source.is_full()
    summary = summarize(nodes, 10**9, Counts(), 0, {})
    assert (summary.frames_out, summary.dropped, summary.stages["2"].results_in) == (32, 0, 32)
    assert nodes[2].meter.latency.counts().sum() == 32 and nodes[2].inlet.channels[0].count == 32


def test_others_who_listen_get_them_one_by_one() -> None:
    nodes = inline_chain(
        Numbers(count=9), Does(lambda result: [result, result]), CallbackSink("2", lambda result: None)
    )
    nodes[2].inlet.channels[0].together = True
    beside = Does()
    nodes.append(Node("beside", beside))
    link(nodes[1], nodes[-1])
    run(*nodes).raise_error()
    assert beside.indices == [index for index in range(9) for _ in range(2)]
