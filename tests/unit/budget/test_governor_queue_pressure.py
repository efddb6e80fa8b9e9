"""What full queues and lost frames tell a governor."""

from dataclasses import replace

from hypothesis import given, settings, strategies as st

from edgert.budget.governor import Governor
from edgert.budget.loop import Loop
from edgert.budget.rules import Budget, Observation, Rules, Setting, State

ALL, HALF = Setting("all frames", 10.0, 30.0, 20.0, 0, 5.0), Setting("half of them", 7.5, 15.0, 20.0, 0, 5.0)
FASTER = Setting("all frames, faster clock", 12.0, 30.0, 10.0, 0, 5.0)
CAMERAS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.0])), min_size=30, max_size=90)


def rules(*found: Setting, latency_ms: float | None = None) -> Rules:
    return Rules(Budget(20.0, latency_ms, when_exceeded="degrade"), found)


def start(law: Rules) -> State:
    return Governor(law).start()


def at(look: int, queued: float | None = None, lost: int = 0, latency_ms: float | None = 5.0) -> Observation:
    return Observation(round(look * 5e8), 7.5, latency_ms=latency_ms, queued=queued, lost=lost)


def after(law: Rules, state: State, seconds: float, queued: float | None, lost: int) -> State:
    for look in range(1, round(2 * seconds)):
        state, _ = Governor(law).step(state, at(look, queued, lost))
    return state


def test_more_frames_are_not_taken_where_some_are_lost_already() -> None:
    law = rules(ALL, HALF)
    halved = replace(start(law), index=1)
    assert after(law, halved, 30.0, 0.5, 0).index == 0
    assert after(law, halved, 30.0, 0.5, 2).index == 1
    assert after(law, halved, 30.0, 1.0, 0).index == 1


def test_a_faster_way_is_taken_all_the_more() -> None:
    law = rules(ALL, HALF, FASTER)
    assert after(law, replace(start(law), index=1), 30.0, 1.0, 2).index == 2


@settings(deadline=None, max_examples=60)
@given(CAMERAS)
def test_no_rise_to_more_of_the_same_follows_two_overloaded_seconds(seen: list[tuple[int, float]]) -> None:
    law = rules(ALL, HALF)
    state, overloaded = replace(start(law), index=1), 0
    for look, (lost, queued) in enumerate(seen, 1):
        state, action = Governor(law).step(state, at(look, queued, lost))
        overloaded = overloaded + 1 if lost or queued == 1.0 else 0
        assert action.kind != "switch" or overloaded < 4


def test_a_pipeline_that_stands_still_breaks_its_latency() -> None:
    law = rules(replace(ALL, latency_ms=20.0), replace(HALF, latency_ms=15.0), latency_ms=50.0)
    state, reasons = start(law), []
    for look in range(1, 14):
        state, action = Governor(law).step(state, at(look, 1.0, 7, latency_ms=None))
        reasons += [action.reason] if action.kind == "switch" else []
    assert reasons and "queues are full and nothing comes out" in reasons[0] and state.index == 1
    quiet = start(law)
    for look in range(1, 20):
        quiet, _ = Governor(law).step(quiet, at(look, 0.0, 0, latency_ms=None))
    assert quiet.index == 0  # a camera that sends nothing is no trouble


def test_what_queues_held_and_lost_is_told() -> None:
    loop = Loop(rules(ALL), lambda action: None, 0)
    for look, queued in enumerate((0.0, 0.5, 1.0), 1):
        loop.step(at(look, queued, lost=2))
    assert (loop.report().queued, loop.report().lost) == (0.5, 6)
    assert Loop(rules(ALL), lambda action: None, 0).report().queued is None
