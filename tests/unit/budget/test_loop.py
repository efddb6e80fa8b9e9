import pytest

from edgert.budget.loop import PERIOD_S, Loop
from edgert.budget.rules import Action, Budget, Observation, Rules, Setting

FAST, SLOW = Setting("all frames", 2.0, 30.0, idle_w=0.1), Setting("every other frame", 1.05, 15.0, idle_w=0.1)


def loop(cap: float, when: str = "degrade") -> tuple[Loop, list[Action]]:
    carried: list[Action] = []
    rules = Rules(Budget(cap, when_exceeded=when, unit="cores"), (FAST, SLOW))  # type: ignore[arg-type]
    return Loop(rules, carried.append, 0), carried


def look(made: Loop, first_s: float, last_s: float, power_w: float) -> None:
    for number in range(round(first_s / PERIOD_S), round(last_s / PERIOD_S)):
        made.step(Observation(round(number * PERIOD_S * 1e9), power_w))


def test_what_was_decided_is_carried_out_and_told_with_time_and_reason() -> None:
    made, carried = loop(2.1)
    look(made, 0.5, 4.0, 2.0)
    look(made, 4.0, 4.5, 3.0)
    assert [(action.kind, action.setting) for action in carried] == [("switch", 1)]
    report = made.report(("no sensor",))
    assert (report.setting, report.switches, report.warnings, report.notes) == (SLOW.name, 1, 0, ("no sensor",))
    assert (report.events[0].at_s, report.events[0].setting) == (4.0, SLOW.name)
    assert report.events[0].reason == "all frames -> every other frame: CPU time 3 of 2.1 cores"
    look(made, 4.5, 6.5, 1.5)
    assert made.report().seconds == pytest.approx({FAST.name: 4.0, SLOW.name: 2.0})


def test_it_begins_in_the_setting_that_is_predicted_to_fit() -> None:
    made, carried = loop(1.5)
    assert [action.setting for action in carried] == [1]
    assert made.setting == SLOW
    assert made.report().switches == 0


def test_a_budget_that_is_exceeded_for_long_stops() -> None:
    made, carried = loop(2.1, "stop")
    look(made, 0.5, 8.0, 3.0)
    assert carried[0].kind == "stop"
    assert made.report().events[0].reason.endswith("for 2 s")


def test_a_warning_comes_once() -> None:
    made, carried = loop(2.1, "warn")
    look(made, 0.5, 8.0, 3.0)
    assert [action.kind for action in carried] == ["warn"]
    assert made.report().warnings == 1


def test_frames_of_a_setting_that_are_left_out_are_carried_and_told() -> None:
    carried: list[Action] = []
    part = Setting("all frames", 2.0, 30.0, idle_w=0.5, least_share=0.5)
    made = Loop(Rules(Budget(1.7, when_exceeded="degrade"), (part,)), carried.append, 0)
    assert [(action.setting, action.share) for action in carried] == [(0, 0.8)]
    look(made, 0.5, 3.0, 1.75)
    assert [action.share for action in carried] == [0.8, 0.73]
    assert made.report().events[0].setting == "all frames, 73% of that"
