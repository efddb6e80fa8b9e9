"""One second of a simulation in full: it is what happened, is bounded, and changes nothing."""

from dataclasses import replace
from itertools import pairwise

import pytest

from edgert.placement.contention import Contention
from edgert.placement.segment_engines import Step
from edgert.simulator import Design, Edge, Node, Platform, Simulated, Source, Task, simulate, spans
from edgert.simulator.hardware import ANY_CORE
from edgert.simulator.spans import SHARED, QueueLengths, Second, Span, lanes


def design(rate_hz: float = 40.0, cpu_ms: float = 6.0) -> Design:
    """A model on GPU and DLA whose results are drawn by two threads at once, and written."""
    find = Node("find", (Edge("camera", 3, "oldest"),), Task(run=(Step("gpu", 9.0), Step("dla0", 4.0))))
    paint = Node("paint", (Edge("find", 2, "never"),), Task(steps=(Step(ANY_CORE, cpu_ms, threads=2),)))
    end = Node("end", (Edge("paint", 2, "never"),), Task(steps=(Step(ANY_CORE, 1.0),)))
    return Design((Source("camera", rate_hz, steps=(Step("nvdec", 2.0),)),), (find, paint, end))


PLATFORM = Platform(cores=("cpu0", "cpu1", "cpu2"))


def recorded(
    made: Design, seconds: float = 4.0, platform: Platform = PLATFORM, seed: int = 0
) -> tuple[Simulated, Second]:
    played = simulate(made, platform, seconds, seed=seed, record=True)
    assert played.second is not None
    return played, played.second


def test_recording_changes_nothing() -> None:
    contention = replace(PLATFORM, contention=Contention(1e9))
    for platform in (PLATFORM, contention):
        played, _ = recorded(design(70.0), platform=platform)
        assert replace(played, second=None) == simulate(design(70.0), platform, 4.0)


def test_spans_are_what_kept_the_accelerators_busy() -> None:
    played, second = recorded(design())
    assert (second.start_ms, second.end_ms) == pytest.approx((1000, 2000))  # none is worse than another
    (moment,) = (one for one in played.moments if one.at_s == pytest.approx(2.0))
    busy = {lane.name: sum(span.end_ms - span.start_ms for span in lane.spans) for lane in lanes(second)}
    for name in ("gpu", "dla0", "nvdec"):
        assert busy[name] == pytest.approx(1e3 * moment.busy[name], abs=0.1)
    cores = sum(span.threads * (span.end_ms - span.start_ms) for span in second.spans if span.where == ANY_CORE)
    assert cores == pytest.approx(1e3 * moment.busy[ANY_CORE], abs=0.1)


def test_an_accelerator_does_one_thing_at_a_time_and_all_of_it_within_the_second() -> None:
    models = [Node(f"find{n}", (Edge("camera", 3, "oldest"),), Task(run=(Step("gpu", 9.0),))) for n in range(3)]
    _, second = recorded(
        Design((Source("camera", 120.0),), tuple(models))
    )  # more than the GPU can: models queue for it
    assert {span.stage for span in second.spans} == {"find0", "find1", "find2"}
    for lane in lanes(second):
        assert all(one.end_ms <= other.start_ms + 1e-6 for one, other in pairwise(lane.spans)) or lane.name == SHARED
    assert all(second.start_ms <= one.start_ms < one.end_ms <= second.end_ms for one in second.spans)
    gpu = next(lane for lane in lanes(second) if lane.name == "gpu")
    assert sum(one.end_ms - one.start_ms for one in gpu.spans) == pytest.approx(1000, abs=1)  # without a gap


def test_queues_are_as_long_as_they_were() -> None:
    _, busy = recorded(design(120.0))
    queue = next(one for one in busy.queues if one.producer == "camera")
    assert (queue.consumer, queue.capacity, queue.most) == ("find", 3, 3)
    assert all(0 <= length <= queue.capacity for _, length in queue.changes)
    assert queue.changes[0][0] == busy.start_ms
    assert all(one[0] <= other[0] for one, other in pairwise(queue.changes))
    _, quiet = recorded(design(5.0))
    assert {one.most for one in quiet.queues} <= {0, 1}


def test_the_second_with_the_longest_p99_is_kept_and_never_the_start_alone() -> None:
    slow = replace(design(), sources=(replace(design().sources[0], jitter=0.4),))
    played, second = recorded(slow, 8.0, seed=3)
    later = played.moments[1:]
    worst = max(later, key=lambda one: one.p99_ms or 0.0)
    assert second.p99_ms == pytest.approx(worst.p99_ms, rel=2e-3)
    assert second.start_ms >= 1000


@pytest.mark.parametrize("seconds", [0.35, 1.5])
def test_a_short_run_is_kept_as_far_as_it_went(seconds: float) -> None:
    _, second = recorded(design(), seconds)
    assert second.start_ms == 0 and second.end_ms == pytest.approx(1e3 * min(seconds, 1.0)) and second.spans


def test_a_run_in_which_nothing_happens_is_empty() -> None:
    idle = replace(design(), sources=(replace(design().sources[0], rate_hz=None, times_ms=(10_000.0, 20_000.0)),))
    _, second = recorded(idle, 2.0)
    assert second.spans == () and lanes(second) == ()


def test_of_too_much_only_the_beginning_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans.Recorder.__init__, "__defaults__", (40,))
    _, second = recorded(design(100.0))
    assert second.is_cut and second.start_ms < second.end_ms < second.start_ms + 500
    assert 10 <= len(second.spans) <= 40 + 6  # and what was at work at its end
    assert sum(len(one.changes) for one in second.queues) <= 40 + len(second.queues)


def test_it_is_no_part_of_the_json() -> None:
    played, _ = recorded(design(), 1.5)
    assert "second" not in played.to_json() and played.to_json()["moments"]


def second_of(*found: Span, cores: tuple[str, ...] = ("cpu0", "cpu1")) -> Second:
    return Second(0.0, 100.0, None, found, (), cores)


def test_what_any_core_may_run_is_shown_on_one_that_is_free() -> None:
    made = lanes(second_of(Span("cpu", "a", 0, 10), Span("cpu", "b", 5, 20), Span("cpu", "c", 10, 12)))
    assert [(lane.name, [one.stage for one in lane.spans]) for lane in made] == [("cpu0", ["a", "c"]), ("cpu1", ["b"])]


def test_more_threads_than_cores_share_them() -> None:
    made = lanes(second_of(Span("cpu", "a", 0, 10, threads=2), Span("cpu", "b", 5, 20)))
    assert [(lane.name, [one.stage for one in lane.spans]) for lane in made] == [
        ("cpu0", ["a"]), ("cpu1", ["a"]), (SHARED, ["b"])]  # fmt: skip


def test_accelerators_come_before_cores_in_a_known_order() -> None:
    names = ("cpu1", "nvenc", "vic", "dla1", "gpu", "nvdec", "dla0")
    made = lanes(second_of(*(Span(name, "s", n, n + 1) for n, name in enumerate(names))))
    assert [lane.name for lane in made] == ["gpu", "dla0", "dla1", "nvdec", "nvenc", "vic", "cpu1"]


def test_the_most_that_waited() -> None:
    assert QueueLengths("a", "b", 4, ((0.0, 0), (1.0, 2), (2.0, 1))).most == 2
