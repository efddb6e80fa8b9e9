"""Stages that begin work and give the results out later."""

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.memory import Counts
from edgert.runtime import AsyncStage, Execution, Frame, Result, Runner, Task, summarize
from edgert.runtime.frame import has_pixels
from edgert.runtime.graph import release_pixels
from edgert.runtime.metrics import latency_counts
from edgert.stages.context import Context
from edgert.stages.source.api import ApiSource
from tests.helpers.stages import Does, Later, Numbers, chain, link
from tests.helpers.waiting import wait_until

LIMIT_S = 20.0


def later(**options: object) -> Later:
    return Later(lambda result: result.with_output("find", result.frame.index), **options)  # type: ignore[arg-type]


def run(tasks: Sequence[Task]) -> None:
    runner = Runner(tasks)
    runner.start()
    assert runner.wait(LIMIT_S)


@pytest.mark.parametrize("is_free", [False, True])
def test_results_leave_in_order_and_no_more_runs_are_under_way_than_may_be(is_free: bool) -> None:
    stage, seen = later(is_free=is_free), list[Result]()
    source = Numbers(count=40)
    tasks = chain(source, stage, Does(lambda result: seen.append(result)))
    assert isinstance(stage, AsyncStage)
    run(tasks)
    assert [one.outputs["find"] for one in seen] == list(range(40)) and source.is_full()
    assert stage.most <= 3 and stage.closed == 1
    stages = summarize(tasks, 10**9, Counts(), 0, {}).stages
    assert {(one.results_in, one.dropped) for one in stages.values()} == {(40, 0)}


def test_frames_are_submitted_while_there_is_input_and_collected_when_there_is_no_room() -> None:
    begun, stage = threading.Event(), later()
    tasks = chain(Numbers(count=4), stage, Does(lambda result: None), capacity=4)
    stage.opening = lambda: begun.wait(LIMIT_S)
    runner = Runner(tasks)
    runner.start()
    wait_until(lambda: tasks[1].wiring.inlet.channels[0].count == 4)
    begun.set()
    assert runner.wait(LIMIT_S)
    assert stage.order == ["submit0", "submit1", "submit2", "collect0", "submit3", "collect1", "collect2", "collect3"]


def test_a_program_that_waits_for_the_last_result_before_the_next_frame_gets_it() -> None:
    came, given, stage = threading.Semaphore(0), list[int](), later()

    class Loop(Numbers):
        def frames(self, stop: threading.Event) -> Iterator[Frame]:
            for frame in super().frames(stop):
                yield frame
                stage.is_free = True  # the GPU is done a while later
                assert came.acquire(timeout=LIMIT_S)

    run(chain(Loop(count=5), stage, Does(lambda result: given.append(result.frame.index) or came.release())))
    assert given == [0, 1, 2, 3, 4]


def test_a_run_that_never_ends_is_a_call_that_never_returns() -> None:
    stage = later()
    tasks = chain(Numbers(count=None), stage, Does(), capacity=1)
    stage.collect = lambda wait: []  # type: ignore[method-assign]
    held, stage.limit = threading.Event(), 9
    tasks[0].stage.function = lambda: held.wait(LIMIT_S)  # type: ignore[union-attr]
    runner = Runner(tasks)
    runner.start()
    wait_until(lambda: tasks[1].meter.status.since_ns)
    runner.stop()
    stage.collect = lambda wait: stage.give_up()  # type: ignore[method-assign,return-value,assignment]
    held.set()
    runner.wait(LIMIT_S)


@pytest.mark.parametrize("reads", ["nothing", "host"])
def test_pixels_that_no_one_behind_reads_are_released_when_a_frame_is_submitted(reads: str) -> None:
    camera, stage, seen = Numbers(count=20), later(), list[bool]()
    tasks = chain(camera, stage, Does(lambda result: seen.append(has_pixels(result.frame))))
    for task, own in zip(tasks, ("nothing", "anywhere", reads), strict=True):
        task.execution = Execution(reads=own)  # type: ignore[arg-type]
    release_pixels(tasks)
    run(tasks)
    assert seen == [reads == "host"] * 20 and camera.is_full()


def test_an_error_behind_gives_back_what_was_under_way() -> None:
    camera, stage = Numbers(count=None), later()

    def fail(result: Result) -> None:
        raise ValueError("enough")

    with pytest.raises(StageError, match="enough"):
        run(chain(camera, stage, Does(fail)))
    assert camera.is_full() and not stage.runs


def test_a_callback_in_its_thread_gets_results_one_by_one_and_each_is_counted() -> None:
    source, seen = Numbers(count=32), list[int]()

    class Twos(Later):
        def collect(self, wait: bool) -> list[Result]:
            return [*super().collect(wait), *super().collect(wait)]

    stage = Twos(lambda result: result.with_output("find", 1))
    tasks = chain(source, stage, Does(lambda result: seen.append(result.frame.index)))
    tasks[2].execution.carrier = tasks[1]
    run(tasks)
    assert seen == list(range(32)) and source.is_full()
    summary = summarize(tasks, 10**9, Counts(), 0, {})
    assert (summary.frames_out, summary.dropped, summary.stages["2"].results_in) == (32, 0, 32)
    assert latency_counts([tasks[2].meter]).sum() == 32 and tasks[2].wiring.inlet.channels[0].count == 32


@pytest.mark.parametrize("on_error", ["stop", "log"])
def test_a_callback_that_fails_on_one_of_several_results_loses_that_one_alone(on_error: str) -> None:
    from edgert.runtime.task import FailurePolicy

    source, seen = Numbers(count=8), list[int]()

    def take(result: Result) -> None:
        if result.frame.index == 2:
            raise ValueError("bad box")
        seen.append(result.frame.index)

    class Fours(Later):
        def collect(self, wait: bool) -> list[Result]:
            return [one for _ in range(4) for one in super(Fours, self).collect(wait)]

    tasks = chain(source, Fours(lambda result: result, limit=4), Does(take))
    tasks[2].execution.carrier, tasks[2].policy = tasks[1], FailurePolicy(on_error)  # type: ignore[arg-type]
    if on_error == "stop":
        with pytest.raises(StageError, match="bad box"):
            run(tasks)
        assert seen == [0, 1]
    else:
        run(tasks)
        assert seen == [0, 1, 3, 4, 5, 6, 7]
        assert tasks[2].meter.losses.total() == 1 and tasks[2].meter.results_in == 7
    assert source.is_full()


def test_batches_that_a_program_submits_are_all_worked_on_and_given_back() -> None:
    source, leases, came = ApiSource("cam", SourceStage(source="api", queue=16), Context()), [], list[int]()
    real = source.images

    def images(*given: object, **options: object) -> object:
        found = real(*given, **options)  # type: ignore[arg-type]
        leases.append(found[0].lease)
        return found

    source.images = images  # type: ignore[method-assign,assignment]
    tasks = [Task("cam", source), Task("find", later()), Task("end", Does(lambda one: came.append(one.frame.index)))]
    for before, after in pairwise(tasks):
        link(before, after, capacity=8)
    runner = Runner(tasks)
    runner.start()
    for count in (4, 4, 9, 3, 1, 2):
        source.submit(np.zeros((count, 4, 6, 3), np.uint8), timeout_s=LIMIT_S)
    source.finish()
    assert runner.wait(LIMIT_S)
    assert came == list(range(23)) and [task.meter.results_in for task in tasks] == [23, 23, 23]
    assert len(leases) == 6 and not any(lease.alive for lease in leases)
