"""Threads of real runners over stages made of functions; every test ends because of an event, none sleeps."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edgert.errors import DeviceError, EdgertError, StageError
from edgert.memory import Counts
from edgert.runtime import Result, Runner, Task, summarize
from tests.helpers.stages import Does, Numbers, chain, link, tag

LIMIT_S = 20.0


def run(*nodes: Task) -> Runner:
    """Runs to the end, whatever comes of it."""
    runner = Runner(nodes)
    runner.start()
    assert _ended(runner)
    return runner


def _ended(runner: Runner) -> bool:
    try:
        return runner.wait(LIMIT_S)
    except EdgertError:
        return not runner.is_running


def fails(error: BaseException, at: int = 0) -> Callable[[Result], Result]:
    def function(result: Result) -> Result:
        if result.frame.index == at:
            raise error
        return result

    return function


def test_every_frame_arrives_in_order_and_everything_is_closed() -> None:
    source, middle, sink = Numbers(count=200), tag("middle"), Does()
    runner = run(*chain(source, middle, sink))
    runner.raise_error()
    assert sink.indices == middle.indices == list(range(200))
    assert [stage.opened for stage in (middle, sink)] == [stage.closed for stage in (middle, sink)] == [1, 1]
    assert source.closed == 1 and source.is_full() and not runner.is_running
    assert source.counter.read().allocations == source.size


def test_a_source_that_ends_at_once() -> None:
    source, sink = Numbers(count=0), Does()
    run(*chain(source, sink)).raise_error()
    assert (sink.indices, sink.closed, source.closed) == ([], 1, 1)


def test_a_source_alone() -> None:
    source = Numbers(count=5)
    run(Task("cam", source)).raise_error()
    assert source.given == 5 and source.is_full()


def test_branches_see_the_same_frames_and_meet_again() -> None:
    source, sink = Numbers(count=100), Does()
    nodes = [Task("cam", source), Task("left", tag("left")), Task("right", tag("right")), Task("sink", sink)]
    outputs: list[dict[str, int]] = []
    sink.function = lambda result: outputs.append(dict(result.outputs))  # type: ignore[func-returns-value]
    for middle in nodes[1:3]:
        link(nodes[0], middle)
        link(middle, nodes[3])
    run(*nodes).raise_error()
    assert sink.indices == list(range(100))
    assert outputs == [{"left": n, "right": n} for n in range(100)]
    assert source.is_full() and nodes[3].meter.losses.total() == 0


@pytest.mark.parametrize("passes", [lambda index: index % 3 == 0, lambda index: False])
def test_a_join_beside_a_filter_gives_up_what_the_filter_took(passes: Callable[[int], bool]) -> None:
    source, sink = Numbers(count=500, size=200), Does()
    nodes = [Task("cam", source), Task("all", tag("all")), Task("some", Does()), Task("sink", sink)]
    nodes[2].stage.function = lambda result: result if passes(result.frame.index) else None  # type: ignore[union-attr]
    for middle in nodes[1:3]:
        link(nodes[0], middle)
        link(middle, nodes[3])
    run(*nodes).raise_error()
    assert sink.indices == [index for index in range(500) if passes(index)]
    assert nodes[3].meter.losses.total() == 500 - len(sink.indices)
    assert source.is_full()


def test_a_filter_that_lets_nothing_pass_does_not_starve_the_source() -> None:
    """The join waits for frames that never come, out of a pool that is smaller than the stream is long."""
    source, sink = Numbers(count=300, size=60), Does()
    nodes = [Task("cam", source), Task("all", Does()), Task("none", Does(lambda result: None)), Task("sink", sink)]
    for middle in nodes[1:3]:
        link(nodes[0], middle, capacity=1)
        link(middle, nodes[3], capacity=1)
    run(*nodes).raise_error()
    assert source.given == 300 and sink.indices == [] and source.is_full()


def test_several_sources_into_one_stage_keep_their_own_order() -> None:
    sources = [Numbers(name=name, count=80) for name in ("north", "south")]
    sink = Does()
    nodes = [*(Task(source.name, source) for source in sources), Task("sink", sink)]
    for node, source in zip(nodes, sources, strict=False):
        link(node, nodes[-1], source.name)
    run(*nodes).raise_error()
    for source in sources:
        assert [index for stream, index in sink.seen if stream == source.name] == list(range(80))
        assert source.is_full()


def test_a_stage_may_make_several_results_of_one_and_none_of_another() -> None:
    def spread(result: Result) -> Iterator[Result]:
        for part in range(result.frame.index % 3):
            yield result.with_output("part", part)

    source, sink = Numbers(count=30), Does()
    run(*chain(source, Does(spread), sink)).raise_error()
    assert sink.indices == [index for index in range(30) for _ in range(index % 3)]
    assert source.is_full()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("bad box"), StageError, "stage '1' failed: ValueError: bad box"),
        (DeviceError("gone", where="here"), DeviceError, "gone"),
        (SystemExit(3), StageError, "stage '1' failed: SystemExit: 3"),
        (StopIteration(), StageError, "stage '1' failed: StopIteration"),
        (KeyError("x"), StageError, "stage '1' failed: KeyError: 'x'"),
    ],
)
def test_the_error_of_a_stage_ends_everything_and_is_raised(
    error: BaseException, kind: type[EdgertError], text: str
) -> None:
    source, middle, sink = Numbers(count=None), Does(fails(error, at=5)), Does()
    runner = run(*chain(source, middle, sink))
    with pytest.raises(kind, match=text) as caught:
        runner.raise_error()
    assert caught.value.where
    assert caught.value is error or caught.value.__cause__ is error
    assert sink.indices == list(range(5))
    assert (middle.closed, sink.closed, source.closed) == (1, 1, 1)
    del caught, runner
    error.__traceback__ = None
    assert source.is_full()


def test_the_error_of_a_source_lets_what_it_gave_arrive() -> None:
    source, sink = Numbers(count=None, fails_at=7), Does()
    runner = run(*chain(source, Does(), sink))
    with pytest.raises(StageError, match="lens cap on"):
        runner.raise_error()
    assert sink.indices == list(range(7)) and source.closed == 1 and source.is_full()


def test_a_stage_that_cannot_open_is_not_closed_and_nothing_hangs() -> None:
    def refuse() -> None:
        raise DeviceError("no disk")

    source, broken = Numbers(count=None), Does(opening=refuse)
    runner = run(*chain(source, Does(), broken))
    with pytest.raises(DeviceError, match="no disk") as caught:
        runner.raise_error()
    assert caught.value.where == "stage '2'"
    assert (broken.opened, broken.closed, broken.seen) == (1, 0, []) and source.is_full()


def test_an_error_while_closing_is_raised() -> None:
    def refuse() -> None:
        raise StageError("disk full at the end")

    source, sink = Numbers(count=3), Does(closing=refuse)
    runner = run(*chain(source, sink))
    with pytest.raises(StageError, match="disk full at the end"):
        runner.raise_error()
    assert source.is_full()


def test_an_error_while_closing_does_not_hide_the_one_before() -> None:
    def refuse() -> None:
        raise OSError("and now this")

    source, sink = Numbers(count=None), Does(fails(OSError("disk full")), closing=refuse)
    with pytest.raises(StageError, match="disk full"):
        run(*chain(source, sink)).raise_error()
    assert sink.closed == 1 and source.is_full()


def test_the_first_of_two_errors_wins() -> None:
    second_may_fail = threading.Event()

    def late(result: Result) -> Result:
        assert second_may_fail.wait(LIMIT_S)
        raise ValueError("second")

    def early(result: Result) -> Result:
        raise ValueError("first")

    source, left, right = Numbers(count=None), Does(early), Does(late)
    left.closing = second_may_fail.set
    nodes = [Task("cam", source), Task("left", left), Task("right", right)]
    for node in nodes[1:]:
        link(nodes[0], node)
    with pytest.raises(StageError, match="first"):
        run(*nodes).raise_error()
    assert left.closed == right.closed == 1 and source.is_full()


def test_a_generator_that_fails_half_way_loses_no_lease() -> None:
    def half(result: Result) -> Iterator[Result]:
        yield result
        raise ValueError("half way")

    source, sink = Numbers(count=None), Does()
    runner = run(*chain(source, Does(half), sink))
    with pytest.raises(StageError, match="half way"):
        runner.raise_error()
    assert sink.indices == [0] and source.closed == 1


def test_a_frame_passed_on_after_its_end_is_an_error() -> None:
    kept: list[Result] = []

    def late(result: Result) -> Result | None:
        kept.append(result)
        return kept[0] if result.frame.index == 3 else None

    with pytest.raises(StageError, match="a lease was used after its release"):
        run(*chain(Numbers(count=10), Does(late), Does())).raise_error()


def test_a_stop_lets_what_is_under_way_arrive() -> None:
    source, seen = Numbers(count=None), threading.Event()
    sink = Does(lambda result: seen.set() if result.frame.index == 20 else None)  # type: ignore[func-returns-value]
    runner = Runner(chain(source, Does(), sink))
    runner.start()
    assert seen.wait(LIMIT_S)
    runner.shut_down()
    assert sink.indices == list(range(source.given)) and len(sink.seen) > 20
    assert sink.closed == source.closed == 1 and source.is_full() and runner.is_stopping


@pytest.mark.timing
def test_a_stop_ends_within_two_seconds_however_much_waits_for_a_slow_stage() -> None:
    """Each result would take half a second, and dozens wait: they are dropped and counted."""
    source, started = Numbers(count=None, size=100), threading.Event()
    never = threading.Event()

    def slow(result: Result) -> None:
        started.set()
        never.wait(0.5)

    sink = Does(slow)
    nodes = chain(source, Does(), sink, capacity=40)
    runner = Runner(nodes)
    runner.start()
    assert started.wait(LIMIT_S)
    before = time.monotonic()
    runner.shut_down()
    assert time.monotonic() - before < 2.0
    assert sink.closed == 1 and source.is_full()
    summary = summarize(nodes, 10**9, Counts(), 0, {})
    assert summary.frames_in == source.given == len(sink.seen) + summary.dropped


def test_a_stage_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.runtime.runner._GRACE_S", 0.1)
    release, entered = threading.Event(), threading.Event()

    def hang(result: Result) -> None:
        entered.set()
        release.wait(LIMIT_S)

    runner = Runner(chain(Numbers(count=1), Does(hang)))
    runner.start()
    assert entered.wait(LIMIT_S)
    with pytest.raises(StageError, match="stage 1 does not end"):
        runner.shut_down()
    release.set()


def test_stopping_twice_and_from_several_threads() -> None:
    source = Numbers(count=None)
    runner = Runner(chain(source, Does()))
    runner.start()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(runner.stop)
    assert _ended(runner) and source.is_full()


def test_a_stop_before_the_start_gives_nothing() -> None:
    source, sink = Numbers(count=None), Does()
    runner = Runner(chain(source, sink))
    runner.stop()
    runner.start()
    assert _ended(runner)
    assert (source.given, sink.indices, sink.closed) == (0, [], 1)


def test_waiting_for_what_never_started_is_over_at_once() -> None:
    assert Runner(chain(Numbers(), Does())).wait(0) is True


def test_waiting_may_end_before_the_run() -> None:
    go_on = threading.Event()
    runner = Runner(chain(Numbers(count=1), Does(lambda result: go_on.wait(LIMIT_S) and None)))
    runner.start()
    assert runner.wait(0) is False and runner.is_running
    go_on.set()
    assert _ended(runner) and not runner.is_running


@pytest.mark.parametrize("drop", ["oldest", "newest"])
def test_a_slow_branch_drops_what_it_must_and_leases_come_back(drop: str) -> None:
    source, go_on = Numbers(count=50, size=8), threading.Event()

    def first_waits(result: Result) -> None:
        go_on.wait(LIMIT_S)

    slow, fast = Does(first_waits), Does()
    nodes = [Task("cam", source), Task("slow", slow), Task("fast", fast)]
    link(nodes[0], nodes[1], capacity=2, drop=drop)  # type: ignore[arg-type]
    link(nodes[0], nodes[2])
    fast.closing = go_on.set
    runner = run(*nodes)
    runner.raise_error()
    assert fast.indices == list(range(50))
    stats = nodes[1].wiring.inlet.channels[0].stats()
    assert stats.put == 50 and stats.dropped == 50 - len(slow.seen) >= 40
    assert slow.indices == sorted(slow.indices)
    if drop == "oldest":
        assert slow.indices[-1] == 49
    assert source.is_full()


def test_a_listener_may_join_while_the_producer_runs_and_leave_again() -> None:
    source = Numbers(count=None)
    nodes = chain(source, Does())
    runner = Runner(nodes)
    runner.start()
    for _ in range(5):
        tap = Task("tap", Does())
        link(nodes[0], tap, capacity=1)
        indices = []
        for _ in range(4):
            item = tap.wiring.inlet.get(LIMIT_S)
            assert item is not None
            indices.append(item[1].frame.index)
            item[1].frame.lease.release()
            del item
        assert indices == list(range(indices[0], indices[0] + 4))
        tap.wiring.inlet.abandon()
    runner.shut_down()
    assert source.is_full()


def test_what_a_user_keeps_stays_as_it_was() -> None:
    source, kept = Numbers(count=100, size=4), []

    def paint_and_keep(result: Result) -> None:
        image = np.asarray(result.frame)
        image[:] = result.frame.index
        if result.frame.index % 10 == 0:
            kept.append(image[0, :1])

    run(*chain(source, Does(paint_and_keep))).raise_error()
    assert [int(view.max()) for view in kept] == [int(view.min()) for view in kept] == list(range(0, 100, 10))
