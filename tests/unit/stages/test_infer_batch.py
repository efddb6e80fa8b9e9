import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from edgert.clock import REAL, Clock
from edgert.errors import EdgertError
from edgert.policy import OnError
from edgert.runtime import AsyncStage, Frame, Result, Task
from edgert.runtime.graph import connect
from edgert.runtime.station import Station
from edgert.runtime.task import FailurePolicy
from edgert.runtime.thread_loop import ThreadLoop
from edgert.stages.crop import Geometry
from edgert.stages.infer import InferBatch
from tests.helpers.frames import frame_of, result_of
from tests.helpers.stages import Does, Numbers, Rows
from tests.helpers.virtual_clock import VirtualClock


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


def give(find: InferBatch, *results: Result) -> list[Any]:
    """What comes out at once when results come in."""
    find.submit(results, results)
    return given(find.collect(wait=False)) if find.is_ready else []


def test_a_full_batch_is_run_and_each_frame_gets_its_own_record() -> None:
    find, inference, _ = stage()
    assert isinstance(find, AsyncStage)
    assert give(find, of("a", 0)) == give(find, of("b", 0)) == []
    assert give(find, of("c", 0)) == ["a0", "b0", "c0"]
    assert inference.runs == [0, 3] and find.due_ns() is None and given(find.collect(wait=False)) == []


def test_a_frame_waits_while_the_engine_is_busy_but_no_longer_than_it_must() -> None:
    find, inference, clock = stage()
    assert give(find, of("a", 0)) == []
    assert clock.now_ns() < find.due_ns() < 5_000_000 and given(find.collect(wait=False)) == []
    clock.wait(threading.Event(), 0.004)
    assert give(find, of("b", 0)) == []
    clock.wait(threading.Event(), 0.000999)
    assert find.due_ns() == 5_000_000 and given(find.collect(wait=False)) == []  # the second frame did not put it off
    clock.wait(threading.Event(), 0.000001)
    assert given(find.collect(wait=False)) == ["a0", "b0"] and inference.runs == [0, 2]


def test_a_batch_that_is_waited_for_is_slept_through() -> None:
    inference, clock = Rows(), VirtualClock()
    find = InferBatch("find", inference, 3, 0.005, clock, fills=True)
    del inference.idle  # nobody asks for it
    assert find.due_ns() is None
    give(find, of("a", 0))
    assert find.due_ns() == 5_000_000 and given(find.collect(wait=False)) == []
    clock.wait(threading.Event(), 0.005)
    assert given(find.collect(wait=False)) == ["a0"]


def test_an_engine_that_is_free_is_not_kept_waiting() -> None:
    find, inference, clock = stage()
    give(find, of("a", 0))
    inference.idle = True
    assert find.due_ns() == clock.now_ns()
    assert give(find, of("b", 0)) == []  # what has come already goes with it
    assert given(find.collect(wait=False)) == ["a0", "b0"] and inference.runs == [0, 2] and find.due_ns() is None


def test_a_frame_that_comes_when_the_batch_is_due_goes_with_it() -> None:
    find, _, clock = stage()
    give(find, of("a", 0))
    clock.wait(threading.Event(), 1)
    assert give(find, of("b", 0)) == ["a0", "b0"]


def test_frames_left_out_keep_their_place() -> None:
    find, inference, _ = stage(most=2, every=2)
    assert give(find, of("a", 1)) == [None]
    assert give(find, of("a", 2)) == give(find, of("a", 3)) == []
    assert give(find, of("b", 2)) == ["a2", None, "b2"] and inference.runs == [0, 2]


def test_leases_last_until_a_result_has_gone_on() -> None:
    find, _, _ = stage(most=2)
    first, second = of("a", 0), of("b", 0)
    give(find, first)
    first.frame.lease.release()  # as the worker does after process
    assert first.frame.lease.alive
    find.submit([second], [second])
    out = find.collect(wait=False)
    assert [one.frame for one in out] == [first.frame, second.frame] and first.frame.lease.alive
    out[0].frame.lease.release()
    assert not first.frame.lease.alive
    held = of("c", 0)
    give(find, held)
    held.frame.lease.release()
    find.close()
    assert not held.frame.lease.alive


def run_worker(find: InferBatch, clock: Clock, feed: Any) -> tuple[list[Any], list[EdgertError]]:
    """What a worker passes on of what ``feed`` puts into two edges, and its errors."""
    cameras = [Task(name, find) for name in "ab"]
    node, sink = Task("find", find), Task("sink", find)
    for camera in cameras:
        connect(camera, node, frozenset(camera.name), 8, "never")
    connect(node, sink, frozenset("ab"), 8, "never")
    errors: list[EdgertError] = []
    worker = ThreadLoop(node, clock, threading.Event(), errors.append)
    worker.start()
    out: list[Any] = []
    feed(cameras[0].wiring.outlets[0], cameras[1].wiring.outlets[0], sink.wiring.inlet, out)
    worker.join(5)
    assert not worker.is_alive()
    while (left := sink.wiring.inlet.get(1)) is not None:
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
    assert give(made, *results[:2]) == [] and made.room() == 1
    assert give(made, results[2]) == ["cam0", "cam1", "cam2"] and inference.runs == [0, 3]
    for result in results:
        result.frame.lease.release(2)  # that of who gave it, and that of who got it
    assert not any(result.frame.lease.alive for result in results) and made.room() == 3


def test_a_thread_takes_what_waits_for_a_batch_at_once() -> None:
    inference, begun, taken = Rows(), threading.Event(), list[int]()

    class Stage(InferBatch):
        def open(self) -> None:
            assert begun.wait(20)

        def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
            taken.append(len(results))
            super().submit(results, onward)

    stop, errors, seen = threading.Event(), list[EdgertError](), list[Any]()
    source = Numbers(count=12)
    stages = Stage("find", inference, 4, 0.005, REAL, fills=True), Does(lambda one: seen.append(one.outputs["find"]))
    nodes = [Task("cam", source), Task("find", stages[0]), Task("end", stages[1])]
    for before, after in pairwise(nodes):
        connect(before, after, frozenset({"cam"}), 8, "never")
    workers = [ThreadLoop(node, REAL, stop, errors.append) for node in nodes]
    for worker in workers:
        worker.start()
    while len(nodes[1].wiring.inlet.channels[0].items) < 8:
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
@pytest.mark.parametrize("how", ["run", "flush", "b0", "at once"])
def test_every_frame_of_a_batch_that_fails_is_lost_and_counted_once(how: str, on_error: OnError) -> None:
    inference, clock = Failing(), VirtualClock()
    node = Task("find", InferBatch("find", inference, 3, 0.005, clock), policy=FailurePolicy(on_error))
    station = Station(node, clock)
    station.open()
    results = [of("a", 0), of("b", 0), of("c", 0)][: 2 if how == "flush" else 3]
    inference.fails_at = "b0" if how == "at once" else how.replace("flush", "run")
    if how == "b0":  # and the one before it is lost with it, the next comes late
        results = results[:2]
    for group in [results] if how == "at once" else [[one] for one in results]:
        station.step(group)
    if how == "flush":
        station.finish()
    assert node.meter.losses.total() == len(results) and node.meter.status.errors == 1
    assert node.meter.losses == {(one.frame.stream, "error"): 1 for one in results}
    assert not any(one.frame.lease.alive for one in results)
    if on_error == "drop":
        return
    clock.wait(threading.Event(), 10.0)
    later = [of("a", 1), of("b", 1), of("c", 1)]
    for one in later:
        station.step([one])
    assert inference.filled == {0: "a1", 1: "b1", 2: "c1"} and inference.runs[-1] == 3
    assert node.meter.losses.total() == len(results) and node.meter.results_out == 3
    station.close()
