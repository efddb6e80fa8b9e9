"""Rings of events: bounded, without a lock, and nothing where nobody records."""

import itertools
import threading
from types import SimpleNamespace

import pytest

from edgert import tracing
from edgert.errors import StageError
from edgert.memory import Counter
from edgert.tracing import HERE, SIZE, Recorder, TaskTrace, Tracing, Window


def clock() -> tuple[itertools.count, Recorder]:
    ticks = itertools.count(1)
    return ticks, Recorder(ticks.__next__)


def frame(index: int = 0, stream: str = "cam") -> SimpleNamespace:
    return SimpleNamespace(stream=stream, index=index, timestamp_ns=0)


def test_a_full_ring_keeps_the_newest_and_says_what_it_lost() -> None:
    _, recorder = clock()
    window, task = Window(recorder), TaskTrace(recorder, "find")
    for index in range(SIZE + 10):
        task.end(task.begin(), "step", index, index + 1, frame(index))
    (thread,) = window.end("belt").threads
    assert len(thread.events) == SIZE and thread.lost == 10
    assert [event[5] for event in thread.events] == [*range(10, SIZE + 10)]
    assert len(recorder.rings[0].events) == SIZE


def test_a_window_has_what_came_within_it() -> None:
    ticks, recorder = clock()
    task = TaskTrace(recorder, "find")
    task.drop(frame(1), "queue")
    window = Window(recorder)
    task.drop(frame(2), "queue")
    late = tracing.ThreadEvents("governor", 0, [("governor", at, at, "warn", "", -1, {}) for at in (0, next(ticks))])
    recorded = window.end("belt", more=[late])
    assert [event[5] for thread in recorded.threads for event in thread.events] == [2, -1]


def test_each_thread_has_a_ring_and_their_number_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_MOST_RINGS", 3)
    _, recorder = clock()
    window, task = Window(recorder), TaskTrace(recorder, "find")
    for number in range(5):
        thread = threading.Thread(target=task.drop, args=(frame(number), "queue"), name=f"thread {number}")
        thread.start()
        thread.join()
    recorded = window.end("belt")
    assert [thread.name for thread in recorded.threads] == ["thread 0", "thread 1", "thread 2", "further threads"]
    assert recorded.lost == 2 and len({thread.thread_id for thread in recorded.threads[:3]}) == 3


def test_parts_and_copies_are_noted_within_a_step_alone() -> None:
    _, recorder = clock()
    task, counter = TaskTrace(recorder, "find"), Counter()
    counter.copied(5)
    ring = task.begin()
    assert HERE.ring is ring
    began_ns = ring.now_ns()
    assert ring.part("engine", began_ns) > began_ns
    counter.copied(7)
    task.end(ring, "step", 1, 9, frame())
    assert HERE.ring is None
    counter.copied(9)
    assert [event[0] for event in ring.events[:4] if event] == ["part", "copy", "step"]
    assert ring.events[1][6] == 7 and counter.read().bytes_copied == 21


def test_a_profiler_gets_a_range_for_each_step() -> None:
    seen: list[str] = []
    marks = SimpleNamespace(push=seen.append, pop=lambda: seen.append("end"))
    task = TaskTrace(Recorder(lambda: 1, marks), "find")
    task.end(task.begin(), "step", 0, 1, frame())
    task.end_all(task.begin(), "collect", 0, 1, [])
    assert seen == ["find", "end", "find", "end"]


def test_ranges_of_nvtx() -> None:
    nvtx = pytest.importorskip("nvtx", reason="needs nvtx")
    if not nvtx.enabled():
        assert tracing.profiler_marks() is None
        return
    marks = tracing.profiler_marks()
    assert marks is not None
    for _ in range(2):
        marks.push("find")
        marks.pop()


def test_one_records_at_a_time_and_the_last_ends_it() -> None:
    recorders: list[Recorder | None] = []
    own = Tracing(recorders.append, lambda: 1)
    first = own.begin()
    with own.window():
        with pytest.raises(StageError, match="a trace is under way"), own.window():
            pass
        assert own.recorder is first and own.begin() is first
    own.end()
    assert own.recorder is first and recorders == [first]
    own.end()
    assert recorders == [first, None] and own.recorder is None
    with own.window():
        assert own.recorder is not first
