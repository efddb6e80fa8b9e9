"""Events as spans: waits are found, frames are followed, and nothing overlaps on its lane."""

from itertools import pairwise

from hypothesis import given, strategies as st

from edgert.timeline.stream_times import stream_times
from edgert.timeline.timeline_spans import Span, Spans, Track, lanes, nested, spans_of
from edgert.tracing import Event, Recorded, ThreadEvents


def recorded(**threads: list[Event]) -> Recorded:
    """Return a recording of these threads, from 0 to 1000 ns."""
    each = [ThreadEvents(name, number, events) for number, (name, events) in enumerate(threads.items(), 1)]
    return Recorded("belt", 42, 0, 1000, 0, each)


def track(spans: Spans, kind: str, name: str) -> Track:
    """Return the one track of that kind and name."""
    (found,) = [one for one in spans.tracks if (one.kind, one.name) == (kind, name)]
    return found


def moment(kind: str, at: int, name: str, index: int, more: object = None) -> Event:
    return (kind, at, at, name, "cam", index, more)


GIVEN: list[Event] = [("give", 0, 10, "cam", "cam", 0, 0), moment("put", 11, "find", 0, 0)]


def test_a_result_waits_from_put_to_step() -> None:
    made = spans_of(recorded(cam=GIVEN, find=[("step", 30, 50, "find", "cam", 0, None)]))
    assert track(made, "queue", "find").spans == [Span(11, 30, "cam 0", "wait", (1,))]
    assert track(made, "queue", "find").counts == [(11, 1), (30, 0)]
    assert track(made, "frame", "cam").spans == [Span(0, 50, "cam 0", "frame", (1,))]
    assert track(made, "thread", "find").spans[0].frames == (1,)
    (times,) = stream_times(made)
    assert (times.frames, times.median_ms) == (1, 50 / 1e6) and times.shares[0].place == "find"


def test_a_lost_result_waits_until_it_is_lost_and_says_why() -> None:
    made = spans_of(recorded(cam=[*GIVEN, moment("drop", 40, "find", 0, "queue")]))
    (wait,) = track(made, "queue", "find").spans
    assert (wait.begin_ns, wait.end_ns, wait.category, wait.name) == (11, 40, "drop", "cam 0 lost: queue")
    (times,) = stream_times(made)
    assert times.frames == 0 and times.lost == (("lost before find: queue", 1),)


def test_what_still_waits_ends_with_the_recording() -> None:
    made = spans_of(recorded(cam=GIVEN))
    assert track(made, "queue", "find").spans[0].end_ns == 1000


def test_parts_of_a_frame_wait_for_each_other() -> None:
    events = [*GIVEN, moment("put", 20, "find", 0, 1)]
    made = spans_of(recorded(cam=events, find=[("step", 30, 50, "find", "cam", 0, None)]))
    waits = [one for t in made.tracks if t.kind == "queue" for one in t.spans]
    assert [(one.begin_ns, one.end_ns) for one in waits] == [(11, 30), (20, 30)]


def test_results_of_one_frame_on_one_edge_are_taken_one_by_one() -> None:
    events = [*GIVEN, moment("put", 20, "find", 0, 0)]
    steps: list[Event] = [("step", 30, 50, "find", "cam", 0, None), ("step", 60, 70, "find", "cam", 0, None)]
    made = spans_of(recorded(cam=events, find=steps))
    waits = [one for t in made.tracks if t.kind == "queue" for one in t.spans]
    assert [(one.begin_ns, one.end_ns) for one in waits] == [(11, 30), (20, 60)]


def test_a_run_lasts_from_its_first_frame_to_its_results() -> None:
    both = [("cam", 0), ("cam", 1)]
    events: list[Event] = [
        ("submit", 30, 35, "find", "cam", 0, both[:1]),
        ("submit", 40, 45, "find", "cam", 1, both[1:]),
        ("collect", 80, 90, "find", "cam", 0, both),
    ]
    made = spans_of(recorded(cam=GIVEN, find=events))
    assert track(made, "run", "find").spans == [Span(30, 90, "2 frames", "run", (1, 2))]
    names = [one.name for one in track(made, "thread", "find").spans]
    assert names == ["find: submit", "find: submit", "find: collect"]


def test_a_source_that_starts_over_gives_other_frames() -> None:
    again: list[Event] = [("give", 100, 110, "cam", "cam", 0, 100)]
    made = spans_of(recorded(cam=[*GIVEN, *again]))
    assert made.frames == [("cam", 0), ("cam", 0)]


_SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda one: Span(one[0], one[0] + one[1], "x", "stage"))
)


@given(_SPANS)
def test_spans_of_a_thread_lie_within_each_other(spans: list[Span]) -> None:
    made, around = nested(spans), list[int]()
    assert len(made) == len(spans)
    for span in made:
        while around and around[-1] <= span.begin_ns:
            around.pop()
        assert not around or span.end_ns <= around[-1]
        around.append(span.end_ns)


@given(_SPANS)
def test_no_two_spans_overlap_on_a_lane(spans: list[Span]) -> None:
    made = lanes(spans)
    assert sorted(span for lane in made for span in lane) == sorted(spans)
    for lane in made:
        assert all(one.end_ns <= other.begin_ns for one, other in pairwise(lane))
    most = max((sum(s.begin_ns <= at < s.end_ns for s in spans) for at in range(91)), default=0)
    assert len([lane for lane in made if any(s.end_ns > s.begin_ns for s in lane)]) <= max(most, 0) + any(
        s.end_ns == s.begin_ns for s in spans
    ) * len(spans)
