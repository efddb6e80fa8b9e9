"""Stages that run one after the other in the thread of whoever calls, against the same ones in threads."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from edgert.clock import REAL
from edgert.errors import DeviceError, EdgertError, StageError
from edgert.memory import Counts
from edgert.policy import Dispatcher
from edgert.runtime import Result, Runner, Task, summarize
from edgert.runtime.branches import Dispatch, Reorder
from edgert.runtime.call_loop import CallLoop, EndOfFrames
from edgert.runtime.frame import has_pixels
from edgert.runtime.task import Wiring
from edgert.stages.infer import InferBatch
from tests.helpers.stages import Does, Later, Numbers, chain, link, tag


class Rig:
    """Nodes that run in a call; the last one is a sink if it is called so."""

    def __init__(self, nodes: Sequence[Task], sinks: Sequence[str] = ("sink",)) -> None:
        self.nodes, self.stop = list(nodes), threading.Event()
        self.source: Any = nodes[0].stage
        self.errors = list[EdgertError]()
        self.loop = CallLoop(nodes, REAL, self.stop, self.errors.append, sinks)
        frames = self.source.frames(self.stop)
        self.bring = lambda: list(islice(frames, 1)), 1

    def call(self, count: int = 1) -> list[Result]:
        results = self.loop.run([self.bring] * count)
        for result in results:
            result.frame.lease.release()
        return results

    def close(self) -> EdgertError | None:
        self.loop.close()
        return self.errors.pop(0) if self.errors else None


def fork(*works: Any) -> list[Task]:
    """A source, stages that listen to it side by side, and a sink that joins them."""
    source, end = Task("cam", Numbers(count=None)), Task("sink", Does(lambda result: None))
    sides = [Task(f"side{number}", work) for number, work in enumerate(works)]
    for side in sides:
        link(source, side)
        link(side, end)
    return [source, *sides, end]


def test_a_call_returns_the_records_of_all_stages_in_their_order() -> None:
    sink = Does(lambda result: None)
    nodes = chain(Numbers(count=None), tag("find"), tag("track"), sink)
    nodes[-1].name = "sink"
    rig = Rig(nodes)
    for index in range(5):
        (result,) = rig.call()
        assert result.frame.index == index and dict(result.outputs) == {"find": index, "track": index}
        assert list(result.outputs) == ["find", "track"]
    assert sink.indices == [0, 1, 2, 3, 4]
    assert [one.frame.index for one in rig.call(3)] == [5, 6, 7]
    assert rig.source.is_full() and rig.close() is None
    assert [(node.stage.opened, node.stage.closed) for node in nodes[1:]] == [(1, 1)] * 3


def test_all_of_it_happens_in_this_thread_and_no_thread_is_made() -> None:
    seen: list[str] = []
    note: Callable[[Result], Result] = lambda result: seen.append(threading.current_thread().name) or result  # noqa: E731
    before = threading.active_count()
    rig = Rig(chain(Numbers(count=None), Does(note), Does(note, opening=lambda: seen.append("open"))))
    rig.call(2)
    here = threading.current_thread().name
    assert seen == ["open", *[here] * 4] and threading.active_count() == before
    rig.close()


def test_the_frame_is_lent_until_the_caller_lets_go() -> None:
    rig = Rig(chain(Numbers(count=None), tag("find")))
    (result,) = rig.loop.run([rig.bring])
    assert result.frame.lease.alive and not rig.source.is_full()
    result.frame.lease.release()
    assert not result.frame.lease.alive
    del result
    assert rig.source.is_full()
    rig.close()


def test_parts_of_a_frame_are_joined_before_the_sink_and_in_the_result() -> None:
    rig = Rig(fork(tag("find"), tag("segment")))
    results = rig.call(40)  # more than ever wait in queues
    assert [dict(one.outputs) for one in results] == [{"find": n, "segment": n} for n in range(40)]
    assert rig.nodes[-1].stage.indices == list(range(40))  # type: ignore[union-attr]
    assert rig.nodes[-1].meter.losses.total() == 0
    rig.close()


def test_what_a_filter_keeps_back_has_the_records_before_it_and_is_not_joined_later() -> None:
    keeps_odd = Does(lambda result: result.with_output("odd", True) if result.frame.index % 2 else None)
    rig = Rig(fork(tag("find"), keeps_odd))
    results = rig.call() + rig.call(3)
    assert [dict(one.outputs) for one in results] == [
        {"find": 0}, {"find": 1, "odd": True}, {"find": 2}, {"find": 3, "odd": True},
    ]  # fmt: skip
    assert rig.nodes[-1].stage.indices == [1, 3] and rig.nodes[-1].meter.losses.total() == 2  # type: ignore[union-attr]
    assert rig.source.is_full()
    rig.close()


def test_a_gpu_gets_all_frames_of_a_call_before_the_first_is_waited_for() -> None:
    later = Later(lambda result: result.with_output("find", result.frame.index), limit=9)
    rig = Rig(chain(Numbers(count=None), later, tag("track")))
    assert [one.outputs for one in rig.call(3)] == [{"find": index, "track": index} for index in range(3)]
    assert later.order == ["submit0", "submit1", "submit2", "collect0", "collect1", "collect2"]
    rig.close()


def test_a_call_may_leave_runs_under_way_for_a_later_one_to_return() -> None:
    later = Later(lambda result: result.with_output("find", result.frame.index))
    rig = Rig(chain(Numbers(count=None), later, tag("track")))
    found = [one.outputs["track"] for _ in range(5) for one in rig.loop.run([rig.bring], leaves=True)]
    assert found == [0, 1, 2] and rig.loop.in_flight == 2 and later.most == 3
    assert [one.outputs["track"] for one in rig.loop.run(())] == [3, 4] and not rig.loop.in_flight
    rig.close()


def test_branches_take_turns_and_their_results_keep_their_order() -> None:
    dispatcher = Dispatcher([1, 1])
    dispatch = Dispatch(dispatcher)
    head = Task("head", dispatch, Wiring(branch=dispatch.branch))
    tail = Task("tail", Reorder(dispatcher), Wiring(joins=False))
    source, sides = Task("cam", Numbers(count=None)), [Task(f"side{n}", tag("find")) for n in range(2)]
    link(source, head)
    for side in sides:
        link(head, side)
        link(side, tail)
    rig = Rig([source, head, *sides, tail])
    assert [one.outputs["find"] for one in rig.call() + rig.call(4)] == [0, 1, 2, 3, 4]
    assert sorted(len(side.stage.seen) for side in sides) == [2, 3]  # type: ignore[union-attr]
    rig.close()


class Rows:
    """An engine that notes how many rows each run has, and is never idle."""

    def __init__(self, rows: int) -> None:
        self.rows, self.idle, self.runs = rows, False, list[int]()

    def warm_up(self) -> None: ...

    def fill(self, frame: Any, row: int = 0) -> Any:
        return frame.index

    def run(self, *geometries: Any) -> list[Any]:
        self.runs.append(len(geometries))
        return list(geometries)


def test_a_batch_is_what_one_call_brings() -> None:
    engine = Rows(4)
    stage = InferBatch("find", engine, 4, 0.0, REAL)  # whose wait has always passed
    stage.hold_until_full()
    rig = Rig(chain(Numbers(count=None), stage, tag("track")))
    results = rig.call() + rig.call(4) + rig.call(6)
    assert [one.outputs["find"] for one in results] == list(range(11)) == [one.outputs["track"] for one in results]
    assert engine.runs == [1, 4, 4, 2] and rig.source.is_full()
    rig.close()


def test_one_result_for_each_frame() -> None:
    twice: Callable[[Result], Any] = lambda result: [result, result]  # noqa: E731
    rig = Rig(chain(Numbers(count=None), Does(twice), tag("after")))
    with pytest.raises(StageError, match="stage '1' passed on several results of one frame"):
        rig.call()
    assert rig.source.is_full()
    rig.close()


@pytest.mark.parametrize("error", [ValueError("no parts"), DeviceError("the GPU is lost"), SystemExit(3)])
def test_an_error_has_the_stage_and_lets_everything_go(error: BaseException) -> None:
    def fail(result: Result) -> Result:
        if result.frame.index == 2:
            raise error
        return result

    rig = Rig(fork(tag("find"), Does(fail)))
    with pytest.raises(type(error)):
        rig.call(5)
    found = rig.errors.pop()
    assert found.where == "stage 'side1'" and str(error.args[0]) in found.what
    error.__traceback__ = None
    assert rig.source.is_full() and rig.close() is None


def test_a_call_that_is_broken_off_lets_everything_go_and_says_nothing_else() -> None:
    def interrupted(result: Result) -> Result:
        raise KeyboardInterrupt

    rig = Rig(fork(tag("find"), Does(interrupted)))
    with pytest.raises(KeyboardInterrupt):
        rig.call(2)
    assert rig.source.is_full()
    rig.close()


def test_a_stage_that_cannot_be_opened_closes_those_that_were() -> None:
    def refuse() -> None:
        raise OSError("disk full")

    nodes = chain(Numbers(count=None), Does(opening=refuse), Does())
    rig = Rig(nodes)
    with pytest.raises(OSError):
        rig.call()
    assert "stage '1' failed: OSError: disk full" in rig.errors.pop().what
    assert [(node.stage.opened, node.stage.closed) for node in nodes[1:]] == [(1, 0), (1, 1)]
    assert rig.close() is None and nodes[2].stage.closed == 1


def test_closing_goes_on_after_an_error_and_reports_the_first() -> None:
    def fail() -> None:
        raise OSError("disk full")

    nodes = chain(Numbers(count=None), Does(closing=fail), Does())
    rig = Rig(nodes)
    rig.call()
    found = rig.close()
    assert found is not None and "disk full" in found.what and nodes[2].stage.closed == 1  # type: ignore[union-attr]
    assert nodes[0].stage.closed >= 1 and rig.close() is None


def test_the_end_of_the_source_and_a_stop_are_no_errors_of_a_stage() -> None:
    rig = Rig(chain(Numbers(count=2), tag("find")))
    rig.call(2)
    with pytest.raises(EndOfFrames, match="no more frames") as caught:
        rig.call()
    assert "limit" in caught.value.why
    rig.close()
    rig = Rig(chain(Numbers(count=None), tag("find")))
    rig.stop.set()
    with pytest.raises(EndOfFrames) as caught:
        rig.call()
    assert "stopped" in caught.value.why
    rig.close()


def test_a_governor_holds_a_call_back_until_its_turn() -> None:
    class Limiter:
        throttled, asked = 0, 0

        def passes(self, stop: threading.Event) -> bool:
            self.asked += 1
            return self.asked != 2  # as it is when the pipeline is stopped meanwhile

    nodes = chain(Numbers(count=None), tag("find"))
    nodes[0].execution.limiter = Limiter()  # type: ignore[assignment]
    rig = Rig(nodes)
    rig.call()
    with pytest.raises(EndOfFrames):
        rig.call()
    assert rig.source.is_full()
    rig.close()


def test_counts_and_times_are_those_of_threads() -> None:
    def nodes() -> list[Task]:
        filters = Does(lambda result: result if result.frame.index else None)
        return chain(Numbers(count=6), tag("find"), filters, tag("x"))

    threaded, called = nodes(), nodes()
    runner = Runner(threaded)
    runner.start()
    runner.wait()
    rig = Rig(called)
    rig.call(4)
    rig.call(2)
    rig.close()
    one, other = (summarize(nodes, 10**9, Counts(), 0, {}) for nodes in (threaded, called))
    same = ("results_in", "results_out", "dropped", "waiting")
    for name, stage in one.stages.items():
        assert [getattr(other.stages[name], key) for key in same] == [getattr(stage, key) for key in same]
    assert (
        (other.frames_in, other.frames_out, other.dropped) == (one.frames_in, one.frames_out, one.dropped) == (6, 5, 0)
    )
    assert other.latency_ms.count == 5 and other.stages["1"].busy_ms_per_result > 0


def test_frames_keep_their_pixels_until_the_call_returns_them() -> None:
    """They are held for whoever called, so nothing is gained by frames without."""
    sink = Does(lambda result: None)
    nodes = chain(Numbers(count=None), tag("find"), sink)
    nodes[-1].name = "sink"
    bare: list[bool] = []
    sink.function = lambda result: bare.append(not has_pixels(result.frame))  # type: ignore[func-returns-value]
    nodes[1].wiring.outlets[0].without_pixels = True
    nodes[1].wiring.releases_pixels = True
    rig = Rig(nodes)
    (result,) = rig.loop.run([rig.bring])
    assert bare == [False] and has_pixels(result.frame) and result.frame.planes[0].shape == (2, 2, 3)
    result.frame.lease.release()
    rig.close()


def test_a_drawn_image_is_in_the_result() -> None:
    image = object()
    rig = Rig(chain(Numbers(count=None), Does(lambda result: replace(result, image=image)), tag("after")))
    assert rig.call()[0].image is image
    rig.close()
