from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from edgert.clock import REAL, Clock
from edgert.errors import EdgertError
from edgert.policy import OnError
from edgert.runtime import Batching, Frame, Node, Result
from edgert.runtime.branches import connect
from edgert.runtime.node import Station
from edgert.runtime.passing import Together
from edgert.runtime.recovery import FailurePolicy
from edgert.runtime.worker import Worker
from edgert.stages.crop import Geometry
from edgert.stages.infer import InferBatch
from tests.helpers.frames import frame_of, result_of
from tests.helpers.stages import Does, Numbers
from tests.helpers.virtual_clock import VirtualClock

GEOMETRY = Geometry(1, 1, 0, 0, (4, 4), (0.0, 0.0, 4.0, 4.0))


class Rows:
    """An inference slot whose record for a row is the frame that it was filled with."""

    rows = 4

    def __init__(self) -> None:
        self.filled: dict[int, str] = {}
        self.idle = False
        self.runs: list[int] = []

    def warm_up(self) -> None:
        self.runs.append(0)

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        self.filled[row] = f"{frame.stream}{frame.index}"
        return GEOMETRY

    def run(self, *geometries: Geometry) -> list[Any]:
        self.runs.append(len(geometries))
        return [self.filled[row] for row in range(len(geometries))]


def of(stream: str, index: int) -> Result:
    pixels = (np.zeros((4, 4, 3), np.uint8),)
    return result_of(frame_of(4, 4, pixels=pixels, index=index, stream=stream))


def stage(most: int = 3, every: int = 1) -> tuple[InferBatch, Rows, VirtualClock]:
    inference, clock = Rows(), VirtualClock()
    made = InferBatch("find", inference, most, 0.005, clock, every)
    made.open()
    return made, inference, clock


def given(out: Any) -> list[Any]:
    results = [out] if isinstance(out, Result) else list(out)
    return [result.outputs.get("find") for result in results]


def test_a_full_batch_is_run_and_each_frame_gets_its_own_record() -> None:
    find, inference, _ = stage()
    assert isinstance(find, Batching)
    assert given(find.process(of("a", 0))) == given(find.process(of("b", 0))) == []
    assert given(find.process(of("c", 0))) == ["a0", "b0", "c0"]
    assert inference.runs == [0, 3] and find.due_ns() is None and given(find.flush()) == []


def test_a_frame_waits_while_the_engine_is_busy_but_no_longer_than_it_must() -> None:
    find, inference, clock = stage()
    assert given(find.process(of("a", 0))) == []
    assert clock.now_ns() < find.due_ns() < 5_000_000 and given(find.flush()) == []
    clock.wait(threading.Event(), 0.004)
    assert given(find.process(of("b", 0))) == []
    clock.wait(threading.Event(), 0.000999)
    assert find.due_ns() == 5_000_000 and given(find.flush()) == []  # the second frame did not put it off
    clock.wait(threading.Event(), 0.000001)
    assert given(find.flush()) == ["a0", "b0"] and inference.runs == [0, 2]


def test_a_batch_that_is_waited_for_is_slept_through() -> None:
    inference, clock = Rows(), VirtualClock()
    find = InferBatch("find", inference, 3, 0.005, clock, fills=True)
    del inference.idle  # nobody asks for it
    assert find.due_ns() is None
    find.process(of("a", 0))
    assert find.due_ns() == 5_000_000 and given(find.flush()) == []
    clock.wait(threading.Event(), 0.005)
    assert given(find.flush()) == ["a0"]


def test_an_engine_that_is_free_is_not_kept_waiting() -> None:
    find, inference, clock = stage()
    find.process(of("a", 0))
    inference.idle = True
    assert find.due_ns() == clock.now_ns()
    assert given(find.process(of("b", 0))) == []  # what has come already goes with it
    assert given(find.flush()) == ["a0", "b0"] and inference.runs == [0, 2] and find.due_ns() is None


def test_a_frame_that_comes_when_the_batch_is_due_goes_with_it() -> None:
    find, _, clock = stage()
    find.process(of("a", 0))
    clock.wait(threading.Event(), 1)
    assert given(find.process(of("b", 0))) == ["a0", "b0"]


def test_frames_left_out_keep_their_place() -> None:
    find, inference, _ = stage(most=2, every=2)
    assert given(find.process(of("a", 1))) == [None]
    assert given(find.process(of("a", 2))) == given(find.process(of("a", 3))) == []
    assert given(find.process(of("b", 2))) == ["a2", None, "b2"] and inference.runs == [0, 2]


def test_leases_last_until_a_result_has_gone_on() -> None:
    find, _, _ = stage(most=2)
    first, second = of("a", 0), of("b", 0)
    find.process(first)
    first.frame.lease.release()  # as the worker does after process
    assert first.frame.lease.alive
    out = iter(find.process(second))
    assert next(out).frame is first.frame and first.frame.lease.alive
    next(out)
    assert not first.frame.lease.alive
    held = of("c", 0)
    find.process(held)
    held.frame.lease.release()
    find.close()
    assert not held.frame.lease.alive


def run_worker(find: InferBatch, clock: Clock, feed: Any) -> tuple[list[Any], list[EdgertError]]:
    """What a worker passes on of what ``feed`` puts into two edges, and its errors."""
    cameras = [Node(name, find) for name in "ab"]
    node, sink = Node("find", find), Node("sink", find)
    for camera in cameras:
        connect(camera, node, frozenset(camera.name), 8, "never")
    connect(node, sink, frozenset("ab"), 8, "never")
    errors: list[EdgertError] = []
    worker = Worker(node, clock, threading.Event(), errors.append)
    worker.start()
    out: list[Any] = []
    feed(cameras[0].outlets[0], cameras[1].outlets[0], sink.inlet, out)
    worker.join(5)
    assert not worker.is_alive()
    while (left := sink.inlet.get(1)) is not None:
        out.append(left[1].outputs["find"])
    return out, errors


@pytest.mark.parametrize("idle", [True, False])
def test_a_silent_camera_stalls_nobody(idle: bool) -> None:
    inference = Rows()
    inference.idle = idle
    find = InferBatch("find", inference, 2, 0.005, REAL)

    def feed(a: Any, b: Any, out: Any, found: list[Any]) -> None:
        for index in range(2):
            a.put(of("a", index))
            found.append(out.get(5)[1].outputs["find"])  # before "b" has sent anything
        a.close()
        b.close()

    assert run_worker(find, REAL, feed) == (["a0", "a1"], [])


def test_what_is_held_at_the_end_is_run() -> None:
    find, inference, clock = stage(most=4)

    def feed(a: Any, b: Any, out: Any, found: list[Any]) -> None:
        a.put(of("a", 0))
        b.put(of("b", 0))
        a.close()
        b.close()

    found, errors = run_worker(find, clock, feed)
    assert sorted(found) == ["a0", "b0"] and not errors and sum(inference.runs) == 2


def test_several_that_came_are_taken_as_one_as_far_as_there_is_room() -> None:
    made, inference, _ = stage(most=3)
    results = [of("cam", index) for index in range(3)]
    assert made.room() == 3
    assert given(made.process(Together.of(results[:2], {}))) == [] and made.room() == 1
    assert given(made.process(results[2])) == ["cam0", "cam1", "cam2"] and inference.runs == [0, 3]
    for result in results:
        result.frame.lease.release()
    assert not any(result.frame.lease.alive for result in results) and made.room() == 3
    assert stage(most=3, every=2)[0].room() == 1  # those between pass by themselves


def test_a_thread_takes_what_waits_for_a_batch_at_once() -> None:
    inference, begun, taken = Rows(), threading.Event(), list[int]()

    class Stage(InferBatch):
        def open(self) -> None:
            assert begun.wait(20)

        def process(self, result: Result) -> Any:
            taken.append(len(result.results) if isinstance(result, Together) else 1)
            return super().process(result)

    stop, errors, seen = threading.Event(), list[EdgertError](), list[Any]()
    source = Numbers(count=12)
    stages = Stage("find", inference, 4, 0.005, REAL, fills=True), Does(lambda one: seen.append(one.outputs["find"]))
    nodes = [Node("cam", source), Node("find", stages[0]), Node("end", stages[1])]
    for before, after in pairwise(nodes):
        connect(before, after, frozenset({"cam"}), 8, "never")
    workers = [Worker(node, REAL, stop, errors.append) for node in nodes]
    for worker in workers:
        worker.start()
    while len(nodes[1].inlet.channels[0].items) < 8:
        threading.Event().wait(0.001)
    begun.set()
    for worker in workers:
        worker.join(20)
    assert not errors and taken[:2] == [4, 4] and sum(taken) == 12
    assert seen == [f"cam{index}" for index in range(12)] and source.is_full()


class Failing(Rows):
    """One whose next run, or next filling of a row, fails."""

    fails_at = ""

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        self._fail(f"{frame.stream}{frame.index}")
        return super().fill(frame, row)

    def run(self, *geometries: Geometry) -> list[Any]:
        self._fail("run")
        return super().run(*geometries)

    def _fail(self, what: str) -> None:
        if what == self.fails_at:
            self.fails_at = ""
            raise OSError("the accelerator is gone")


@pytest.mark.parametrize("on_error", ["log", "drop", "restart"])
@pytest.mark.parametrize("how", ["run", "flush", "b0", "together"])
def test_every_frame_of_a_batch_that_fails_is_lost_and_counted_once(how: str, on_error: OnError) -> None:
    inference, clock = Failing(), VirtualClock()
    node = Node("find", InferBatch("find", inference, 3, 0.005, clock), care=FailurePolicy(on_error))
    station = Station(node, clock)
    station.open()
    results = [of("a", 0), of("b", 0), of("c", 0)][: 2 if how == "flush" else 3]
    inference.fails_at = "b0" if how == "together" else how.replace("flush", "run")
    if how == "b0":  # and the one before it is lost with it, the next comes late
        results = results[:2]
    for one in [Together.of(results, {})] if how == "together" else results:
        station.step(one)
    if how == "flush":
        station.flush(last=True)
    assert node.meter.lost == len(results) and node.meter.errors == 1
    assert node.meter.losses == {(one.frame.stream, "error"): 1 for one in results}
    assert not any(one.frame.lease.alive for one in results)
    if on_error == "drop":
        return
    clock.wait(threading.Event(), 10.0)
    later = [of("a", 1), of("b", 1), of("c", 1)]
    for one in later:
        station.step(one)
    assert inference.filled == {0: "a1", 1: "b1", 2: "c1"} and inference.runs[-1] == 3
    assert node.meter.lost == len(results) and node.meter.results_out == 3
    station.close()


def test_several_that_came_as_one_are_run_in_as_many_batches_as_it_takes() -> None:
    find, inference, _ = stage(most=3)
    several = Together.of([of("a", index) for index in range(8)], {})
    assert given(find.process(several)) == [f"a{index}" for index in range(6)] and inference.runs == [0, 3, 3]
    assert given(find.flush(last=True)) == ["a6", "a7"]


def test_several_that_came_as_one_keep_their_places_behind_what_the_model_leaves_out() -> None:
    find, inference, _ = stage(most=2, every=2)
    several = Together.of([of("a", index) for index in range(1, 7)], {})
    found = [*given(find.process(several)), *given(find.flush(last=True))]
    assert found == [None, "a2", None, "a4", None, "a6"] and inference.runs == [0, 2, 1]


def test_when_a_later_run_of_several_fails_all_of_them_are_let_go() -> None:
    find, inference, _ = stage(most=2)
    results = [of("a", index) for index in range(4)]
    run = inference.run

    def once(*geometries: Geometry) -> list[Any]:
        if len(inference.runs) == 2:
            raise EdgertError("broken")
        return run(*geometries)

    inference.run = once  # type: ignore[method-assign]
    with pytest.raises(EdgertError, match="broken"):
        find.process(Together.of(results, {}))
    for result in find.give_up():
        result.frame.lease.release()
    for result in results:
        result.frame.lease.release()
    assert not any(result.frame.lease.alive for result in results)
