"""The runtime and the simulator decide alike: same arrivals and service times, same drops, batches and turns."""

import queue
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from edgert.placement.schedule import Callback, Timeline
from edgert.placement.segment_engines import Step
from edgert.policy import BoundedQueue, Drop, RateLimiter
from edgert.runtime import Frame, Inlet, SourceRateLimiter
from edgert.simulator.design import Edge, Node, Source, Task
from edgert.simulator.sources import Camera
from edgert.simulator.threads import BatchThread, Channel, Sender, Thread, Token
from edgert.stages.crop import Geometry
from edgert.stages.infer import InferBatch
from tests.helpers.stages import result
from tests.helpers.virtual_clock import VirtualClock

GAPS = st.lists(st.integers(1, 40), min_size=1, max_size=40)
DENSE_GAPS = st.lists(st.integers(1, 9), min_size=2, max_size=40)
SERVICE_MS = st.integers(1, 60).map(lambda ms: ms + 0.3141)  # never at the moment of an arrival
Arrivals = Sequence[tuple[float, int]]
"""When and on which edge; the number of an arrival is its frame's."""


class Virtual:
    """The runtime's inlet, stepped by hand: one thread that takes ``service_ms`` for each result."""

    def __init__(self, edges: int, capacity: int, drop: Drop, service_ms: float) -> None:
        self.inlet, self.service_ms = Inlet(), service_ms
        self.channels = [self.inlet.connect(capacity, drop) for _ in range(edges)]
        self.free_ms, self.taken = 0.0, list[int]()

    def run(self, arrivals: Arrivals) -> list[int]:
        for index, (at_ms, edge) in enumerate(arrivals):
            self.work_until(at_ms)
            self.free_ms = max(self.free_ms, at_ms)
            self.channels[edge].put(result(index))
        self.work_until(float("inf"))
        return self.taken

    def work_until(self, at_ms: float) -> None:
        while self.free_ms < at_ms:
            try:
                item = self.inlet.get(0.0)
            except queue.Empty:
                return
            assert item is not None
            self.taken.append(item[1].frame.index)
            item[1].frame.lease.release()
            self.free_ms += self.service_ms


def simulated(arrivals: Arrivals, edges: int, capacity: int, drop: Drop, service_ms: float) -> list[int]:
    """What a simulated thread takes, in order."""
    time, taken = Timeline(), list[int]()
    task = Task(run=(Step("gpu", service_ms),))
    node = Node("work", tuple(Edge(str(edge), capacity, drop) for edge in range(edges)), task, joins=False)
    thread = Thread(node, performing(time), lambda _, token: taken.append(token.index), time)
    feed(time, thread, arrivals)
    time.run(1e9)
    return taken


def performing(time: Timeline) -> Callable[[Sequence[Step], Callback], None]:
    def perform(steps: Sequence[Step], then: Callback) -> None:
        time.call_at(time.now_ms + sum(step.time_ms for step in steps), then)

    return perform


def feed(time: Timeline, thread: Thread, arrivals: Arrivals) -> None:
    thread.inlets = [Channel(edge, thread, number) for number, edge in enumerate(thread.node.inputs)]
    senders = [Sender() for _ in thread.inlets]
    thread.free()

    def arrive(edge: int, token: Token) -> None:
        senders[edge].send(iter([(thread.inlets[edge], token)]), lambda: None)

    for index, (at_ms, edge) in enumerate(arrivals):
        token = Token(str(edge), index, at_ms, 0)
        time.call_at(at_ms, lambda edge=edge, token=token: arrive(edge, token))  # type: ignore[misc]


def second_newest(self: BoundedQueue[Any], item: Any) -> Any:
    """Another policy: the newest comes in, the one before it goes."""
    victim = self.items.pop()
    self.items.append(item)
    return victim


@pytest.mark.parametrize("displace", [None, second_newest])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(GAPS, st.integers(1, 4), st.sampled_from(["oldest", "newest"]), SERVICE_MS, st.data())
def test_same_arrivals_same_drops(
    displace: Any, gaps: list[int], capacity: int, drop: Drop, service_ms: float, data: st.DataObject
) -> None:
    """And they follow when the policy of a full queue is changed, in the one place where it stands."""
    edges = data.draw(st.integers(1, 2))
    on = data.draw(st.lists(st.integers(0, edges - 1), min_size=len(gaps), max_size=len(gaps)))
    arrivals = list(zip(map(float, accumulate(gaps)), on, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        if displace is not None:
            patch.setattr(BoundedQueue, "displace", displace)
        real = Virtual(edges, capacity, drop, service_ms).run(arrivals)
        assert real == simulated(arrivals, edges, capacity, drop, service_ms)


def test_a_changed_policy_drops_others() -> None:
    arrivals = [(float(at), 0) for at in range(1, 11)]
    before = simulated(arrivals, 1, 3, "oldest", 100.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundedQueue, "displace", second_newest)
        assert simulated(arrivals, 1, 3, "oldest", 100.5) == [0, 1, 2, 9] != before == [0, 7, 8, 9]


class Busy:
    """A slot whose filling and running take time on a virtual clock."""

    idle = True

    def __init__(self, clock: VirtualClock, fill_ms: float, run_ms: float) -> None:
        self.clock, self.fill_ms, self.run_ms = clock, fill_ms, run_ms
        self.batches: list[tuple[int, ...]] = []
        self.filled: dict[int, int] = {}

    def fill(self, frame: Frame, row: int) -> Geometry:
        self.filled[row] = frame.index
        wait(self.clock, self.fill_ms)
        return Geometry(1, 1, 0, 0, (4, 4), (0.0, 0.0, 4.0, 4.0))

    def run(self, *geometries: Geometry) -> list[Any]:
        self.batches.append(tuple(self.filled[row] for row in range(len(geometries))))
        wait(self.clock, self.run_ms * len(geometries))
        return [None] * len(geometries)


def wait(clock: VirtualClock, milliseconds: float) -> None:
    clock.wait(threading.Event(), milliseconds / 1e3)


@settings(deadline=None, max_examples=100)
@given(DENSE_GAPS, st.integers(1, 4), st.integers(0, 40), st.integers(1, 8), st.integers(1, 30))
def test_same_arrivals_same_batches(gaps: list[int], most: int, wait_ms: int, fill_ms: int, run_ms: int) -> None:
    """Of frames that all wait in one queue, with any patience."""
    arrivals = [(float(at) + 0.4, 0) for at in accumulate(gaps)]
    clock = VirtualClock()
    slot = Busy(clock, fill_ms, run_ms)
    stage = InferBatch("find", slot, most, wait_ms / 1e3, clock)  # type: ignore[arg-type]
    waiting = list(enumerate(at for at, _ in arrivals))
    while waiting or stage.due_ns() is not None:
        if waiting and waiting[0][1] * 1e6 <= clock.now_ns():
            one = result(waiting.pop(0)[0])
            stage.submit([one], [one])
            if stage.is_ready:
                stage.collect(wait=False)
        elif stage.due_ns() is not None:
            stage.collect(wait=False)
        else:
            wait(clock, waiting[0][1] - clock.now_ns() / 1e6 + 1e-6)
    assert batches_of(arrivals, most, wait_ms, fill_ms, run_ms) == slot.batches


def batches_of(arrivals: Arrivals, most: int, wait_ms: float, fill_ms: float, run_ms: float) -> list[tuple[int, ...]]:
    time, found = Timeline(), list[tuple[int, ...]]()
    task = Task((Step("cpu", fill_ms),), (Step("gpu", run_ms),), batch=most, wait_ms=wait_ms)
    node = Node("find", (Edge("0", 1000, "oldest"),), task, joins=False)

    class Noting(BatchThread):
        def done(self, tokens: Sequence[Token]) -> None:
            found.append(tuple(token.index for token in tokens))
            super().done(tokens)

    thread = Noting(node, performing(time), lambda *_: None, time)
    feed(time, thread, arrivals)
    time.run(1e9)
    return found


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 20)), min_size=1, max_size=6))
def test_a_live_source_s_frames_are_throttled_alike(shares: list[tuple[float, int]]) -> None:
    limiter, time = SourceRateLimiter(True, VirtualClock()), Timeline()
    camera = Camera(Source("cam", 100.0, is_ahead=True), time, Random(0), performing(time))
    assert isinstance(limiter, RateLimiter)
    real = list[bool]()
    for share, frames in shares:
        limiter.share = camera.limiter.share = share
        for _ in range(frames):
            real.append(limiter.passes(threading.Event()))
            camera._offer(0.0)
    assert (camera.passed, camera.throttled) == (sum(real), limiter.throttled)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0.05, 1.0), st.integers(1, 20)), min_size=1, max_size=5), st.integers(1, 50))
def test_a_file_is_slowed_down_alike(shares: list[tuple[float, int]], work_ms: int) -> None:
    """Every frame goes on at the same moment, whatever the shares are from one to the next."""
    clock, never = VirtualClock(), threading.Event()
    limiter = SourceRateLimiter(False, clock)
    each = [share for share, frames in shares for _ in range(frames)]
    real = list[float]()
    for share in each:
        limiter.share = share
        clock.wait(never, work_ms / 1e3)
        assert limiter.passes(never)
        real.append(clock.now_ns() / 1e6)

    time, found = Timeline(), list[float]()

    class Noting(Camera):
        def _schedule_pass(self) -> None:
            self.limiter.share = each[self.passed]
            super()._schedule_pass()

        def _pass(self, born_ms: float) -> None:
            found.append(time.now_ms)
            super()._pass(born_ms)

    source = Source("file", is_ahead=True, is_live=False, steps=(Step("cpu", work_ms),), limit=len(each))
    Noting(source, time, Random(0), performing(time)).start()
    time.run(1e9)
    assert found == pytest.approx(real, rel=1e-6, abs=1e-3)
