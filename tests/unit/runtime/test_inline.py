"""Nodes that are worked on in the thread of the one that they listen to, and who shares one."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgert.errors import DeviceError, EdgertError, StageError
from edgert.memory import Counts
from edgert.runtime import Result, Runner, Task, summarize
from edgert.runtime.inline_loop import share_threads
from edgert.runtime.metrics import latency_counts
from edgert.stages.gpu.gpu_crops import AlreadyInferred
from edgert.stages.sink.results import CallbackSink, JsonlSink, NullSink
from tests.helpers.stages import Does, Later, Numbers, chain, link, tag

LIMIT_S = 20.0


def inline_chain(*works: object) -> list[Task]:
    """A chain whose last node runs in the thread of the one before."""
    nodes = chain(*works)
    nodes[-1].execution.carrier = nodes[-2]
    return nodes


def run(*nodes: Task) -> Runner:
    runner = Runner(nodes)
    runner.start()
    try:
        assert runner.wait(LIMIT_S)
    except EdgertError:
        assert not runner.is_running
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
    assert nodes[2].meter.busy_ns > 45_000_000 and latency_counts([nodes[2].meter]).sum() == 1
    assert abs(nodes[1].meter.wait_out_ns) < 20_000_000 and nodes[1].meter.busy_ns < 20_000_000


def test_an_inline_node_passes_on_and_what_it_fails_with_is_its_own() -> None:
    def fail(result: Result) -> Result:
        if result.frame.index == 3:
            raise ValueError("bad box")
        return result

    source, beside, behind = Numbers(count=9), Does(), Does()
    nodes = inline_chain(source, tag("1"), Does(fail))
    inner = nodes[2]
    others = [Task("beside", beside), Task("behind", behind)]
    link(nodes[1], others[0], capacity=20)
    link(inner, others[1])
    with pytest.raises(StageError, match="stage '2' failed: ValueError: bad box"):
        run(*nodes, *others).raise_error()
    assert behind.indices == [0, 1, 2] and beside.indices[:4] == [0, 1, 2, 3]
    assert [one.closed for one in (inner.stage, beside, behind)] == [1, 1, 1]  # type: ignore[union-attr]
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
    source = runner.graph.tasks[0].stage
    until(lambda: runner.graph.tasks[1].wiring.inlet.channels[0].dropped > 0)
    release.set()
    assert runner.wait(LIMIT_S) and isinstance(source, Numbers) and source.is_full()
    summary = summarize(runner.graph.tasks, 10**9, Counts(), 0, {})
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
    assert runner.has_stuck_threads and not runner.is_running
    release.set()
    until(lambda: not runner.has_stuck_threads)


CALLBACK, NULL = CallbackSink("end", lambda result: None), NullSink()
LINES, LOOKED = JsonlSink("end", Path("lines.jsonl")), AlreadyInferred("end")


def shares(end: Any, *others: Any, live: bool = False, on_gpu: bool = False) -> bool:
    """Whether a stage runs in the thread of the one before, to which others listen, too."""
    source, model = Task("cam", Numbers(live=live)), Task("find", Later() if on_gpu else Does())
    listeners = [Task(f"end{number}", one) for number, one in enumerate((end, *others))]
    link(source, model)
    for one in listeners:
        link(model, one)
    tasks = [source, model, *listeners]
    share_threads(tasks)
    assert source.execution.carrier is model.execution.carrier is None
    assert listeners[0].thread is (model if listeners[0].execution.carrier else listeners[0])
    return listeners[0].execution.carrier is model


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_does_little_runs_where_it_is_alone_and_nothing_is_live(on_gpu: bool) -> None:
    assert shares(LINES, on_gpu=on_gpu) and shares(NULL, on_gpu=on_gpu)
    assert not shares(LINES, live=True, on_gpu=on_gpu)  # a disk that is slow costs no frame
    assert not shares(LINES, Does(), on_gpu=on_gpu)  # nor does it hold up others


def test_a_callback_runs_where_a_gpu_works_meanwhile() -> None:
    assert shares(CALLBACK, on_gpu=True)
    assert not shares(CALLBACK) and not shares(CALLBACK, live=True, on_gpu=True)
    assert not shares(CALLBACK, NULL, on_gpu=True)


def test_what_does_nothing_never_has_a_thread() -> None:
    assert shares(LOOKED, live=True) and shares(LOOKED, Does(), live=True)


def test_what_declares_nothing_has_a_thread() -> None:
    assert not shares(Does(), on_gpu=True) and not shares(Later(), on_gpu=True)


def test_a_source_does_no_work_of_others() -> None:
    source, end = Task("cam", Numbers()), Task("end", LINES)
    link(source, end)
    share_threads([source, end])
    assert end.execution.carrier is None
