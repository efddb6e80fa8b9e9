"""Frames dispatched to branches by weight come out in order, whatever the branches take."""

import threading
from collections import Counter as Count
from collections.abc import Iterator

import numpy as np
import pytest

from edgert.errors import StageError
from edgert.memory import Counter, Lease, lend
from edgert.policy import Dispatcher
from edgert.runtime import Frame, Result, Runner, SourceStats, Task
from edgert.runtime.branches import Branch, Dispatch, ModelLevel, Reorder, branch_tasks
from edgert.runtime.graph import connect
from tests.helpers.frames import frame_of, result_of

STREAM = frozenset({"cam"})


class Frames:
    """So many frames of one stream; keeps their leases."""

    live = False

    def __init__(self, count: int) -> None:
        self.count, self.counter, self.leases = count, Counter(), list[Lease]()

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        pixels = np.zeros((4, 4, 3), np.uint8)
        for n in range(self.count):
            if stop.is_set():
                return
            lease = lend(pixels, self.counter)
            self.leases.append(lease)
            yield Frame("cam", n, n, n, 4, 4, "bgr", (pixels,), lease)

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None:
        pass


class Work:
    """Marks what it gets; waits at chosen frames until somebody else has passed others."""

    def __init__(self, mark: str, fail_at: int = -1) -> None:
        self.mark, self.fail_at = mark, fail_at

    def open(self) -> None:
        pass

    def process(self, result: Result) -> Result:
        if result.frame.index == self.fail_at:
            raise StageError("broken", where="here")
        return result.with_output(self.mark, threading.current_thread().name)

    def close(self) -> None:
        pass


class Slow(Work):
    """A branch that lets the other get ahead as far as it can."""

    def process(self, result: Result) -> Result:
        threading.Event().wait(0.002)
        return super().process(result)


class Sink(Work):
    def __init__(self) -> None:
        super().__init__("sink")
        self.seen: list[Result] = []

    def process(self, result: Result) -> None:  # type: ignore[override]
        self.seen.append(result)


def run(branches: list[Branch], count: int = 60, every: int = 1) -> tuple[Frames, Sink, Runner]:
    source, sink = Frames(count), Sink()
    own = branch_tasks("work", branches, STREAM, 1, every)
    first, last = Task("cam", source), Task("end", sink)
    connect(first, own[0], STREAM, 2, "never")
    connect(own[-1], last, STREAM, 2, "never")
    runner = Runner([first, *own, last])
    runner.start()
    return source, sink, runner


def turns(weights: tuple[int, ...]) -> tuple[int, ...]:
    """Whose turn it is, over as many turns as it takes each weight to be paid."""
    dispatcher = Dispatcher(weights)
    return tuple(dispatcher.branch(turn, turn) for turn in range(sum(weights)))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ((1,), (0,)),
        ((1, 1), (0, 1)),
        ((4, 4), (0, 1) * 4),
        ((2, 1), (0, 1, 0)),
        ((5, 1, 1), (0, 0, 1, 0, 2, 0, 0)),
    ],
)
def test_turns_are_spread_evenly(weights: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert turns(weights) == expected


def test_every_branch_gets_its_share_of_the_turns() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        weights = tuple(int(n) for n in random.integers(1, 9, size=random.integers(1, 6)))
        found = Count(turns(weights))
        assert len({weights[branch] / count for branch, count in found.items()}) == 1
        assert len(found) == len(weights)


def test_frames_between_use_up_no_turn() -> None:
    dispatch = Dispatch(Dispatcher((1, 1), every=2))
    branches = [dispatch.branch(result_of(frame_of(4, 4, index=index))) for index in range(6)]
    assert branches[::2] == [0, 1, 0]


@pytest.mark.parametrize("weights", [(1, 1), (2, 1), (1, 3), (1, 1, 1)])
def test_results_come_out_in_order_and_each_from_the_branch_whose_turn_it_was(weights: tuple[int, ...]) -> None:
    branches = [Branch((Slow("by") if n == 0 else Work("by"),), weight) for n, weight in enumerate(weights)]
    source, sink, runner = run(branches)
    assert runner.wait(20)
    assert [result.frame.index for result in sink.seen] == list(range(60))
    order = turns(weights)
    took = [result.outputs["by"] for result in sink.seen]
    assert took == [f"edgert:work:{order[n % len(order)]}" for n in range(60)]
    assert not any(lease.alive for lease in source.leases)


def test_a_chain_of_segments_runs_each_in_its_own_thread() -> None:
    source, sink, runner = run([Branch((Work("a"), Work("b"), Work("c")))])
    assert runner.wait(20)
    threads = {(r.outputs["a"], r.outputs["b"], r.outputs["c"]) for r in sink.seen}
    assert threads == {("edgert:work:0", "edgert:work:1", "edgert:work")}
    assert len(sink.seen) == 60 and not any(lease.alive for lease in source.leases)


def test_chains_can_be_dispatched_to_as_well() -> None:
    _, sink, runner = run([Branch((Work("a"), Slow("b")), 2), Branch((Work("a"),))])
    assert runner.wait(20)
    assert [result.frame.index for result in sink.seen] == list(range(60))
    assert Count("b" in result.outputs for result in sink.seen) == {True: 40, False: 20}


def test_an_error_in_one_branch_ends_the_run_and_every_lease() -> None:
    source, sink, runner = run([Branch((Work("by"),)), Branch((Work("by", fail_at=21),))], 10_000)
    with pytest.raises(StageError, match="broken"):
        runner.wait(20)
    indices = [result.frame.index for result in sink.seen]
    assert indices == list(range(len(indices))) and len(indices) <= 21
    assert not any(lease.alive for lease in source.leases)


def test_a_camera_loses_its_oldest_frames_before_they_are_dispatched() -> None:
    source, sink = Frames(400), Sink()
    own = branch_tasks("work", [Branch((Slow("by"),)), Branch((Slow("by"),))], STREAM, 1)
    first, last = Task("cam", source), Task("end", sink)
    connect(first, own[0], STREAM, 1, "oldest")
    connect(own[-1], last, STREAM, 2, "never")
    runner = Runner([first, *own, last])
    runner.start()
    assert runner.wait(20)
    indices = [result.frame.index for result in sink.seen]
    lost = own[0].wiring.inlet.channels[0].stats().dropped
    assert indices == sorted(set(indices)) and indices[-1] == 399 and lost > 0
    assert len(indices) + lost == 400  # what was dispatched is never lost
    assert not any(lease.alive for lease in source.leases)


def test_stopping_leaves_no_frame_behind() -> None:
    source, sink, runner = run([Branch((Slow("by"),)), Branch((Work("by"),))], 10_000)
    runner.stop()
    assert runner.wait(20)
    assert [result.frame.index for result in sink.seen] == list(range(len(source.leases)))
    assert not any(lease.alive for lease in source.leases)


def test_what_waits_behind_a_lost_frame_is_given_back() -> None:
    dispatch = Dispatch(Dispatcher((1, 1)))
    reorder = Reorder(dispatch.dispatcher)
    lost, late = (dispatch.process(result_of(frame_of(4, 4, index=index))) for index in range(2))
    assert (dispatch.branch(lost), dispatch.branch(late)) == (0, 1)
    assert list(reorder.process(late)) == []
    late.frame.lease.release()
    assert late.frame.lease.alive
    reorder.close()
    assert not late.frame.lease.alive


def test_frames_are_dispatched_among_the_branches_of_the_level_that_is_asked_for() -> None:
    choice = ModelLevel()
    dispatch = Dispatch(Dispatcher([1, 2, 1], levels=[0, 1, 1]), choice)

    def branches(count: int, first: int) -> list[int]:
        return [dispatch.branch(Result(frame_of(index=first + number))) for number in range(count)]

    assert branches(3, 0) == [0, 0, 0]
    choice.level = 1
    assert sorted(branches(6, 3)) == [1, 1, 1, 1, 2, 2]
    choice.level = 7  # the last stands for all beyond
    assert set(branches(3, 9)) == {1, 2}
    choice.level = 0
    assert branches(2, 12) == [0, 0]
