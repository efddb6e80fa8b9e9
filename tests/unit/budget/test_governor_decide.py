from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from edgert.budget.expected_power import estimate_w
from edgert.budget.governor import Governor
from edgert.budget.rules import Action, Budget, Observation, Rules, Setting, State, Switch, Tolerances
from tests.helpers.plant import play, scenario

FAST = Setting("gpu, 918 MHz", 20.0, 60.0, 20.0, 0, 5.0)
MIDDLE = Setting("gpu, 612 MHz", 14.0, 45.0, 30.0, 0, 5.0)
SLOW = Setting("dla0", 9.0, 30.0, 45.0, 0, 5.0)
ALL = (FAST, MIDDLE, SLOW)


def rules(power_w: float | None = 15.0, when: str = "degrade", latency_ms: float | None = None) -> Rules:
    return Rules(Budget(power_w, latency_ms, when_exceeded=when), ALL)  # type: ignore[arg-type]


def start(law: Rules) -> State:
    return Governor(law).start()


def looks(law: Rules, state: State, *seen: Observation) -> tuple[list[Action], State]:
    """Half-second looks one after the other, from where the state is."""
    actions = []
    for look in seen:
        state, action = Governor(law).step(state, look)
        actions.append(action)
    return actions, state


def steady(
    first: float, last: float, power_w: float | None, margin_c: float | None = None, latency_ms: float | None = None
) -> list[Observation]:
    return [
        Observation(round(look * 5e8), power_w, 100.0, latency_ms, margin_c)
        for look in range(round(first * 2), round(last * 2))
    ]


def test_it_begins_with_the_best_that_is_predicted_to_fit() -> None:
    assert [start(rules(cap)).index for cap in (25.0, 15.0, 10.0, 1.0, None)] == [0, 1, 2, 2, 0]


def test_too_much_power_is_answered_in_the_same_look_with_the_reason() -> None:
    actions, state = looks(rules(), start(rules()), *steady(0.5, 2.0, 14.0), *steady(2.0, 2.5, 17.0))
    assert [action.kind for action in actions] == ["keep", "keep", "keep", "switch"]
    assert actions[-1].reason == "gpu, 612 MHz -> dla0: power 17 of 15 W"
    assert state.index == 2


def test_up_only_after_headroom_and_not_soon_after_a_switch() -> None:
    law = rules(25.0)
    state = replace(start(law), index=2)
    actions, state = looks(law, state, *steady(0.5, 30.0, 9.0))
    switches = [(number / 2 + 0.5, action) for number, action in enumerate(actions) if isinstance(action, Switch)]
    assert [(at, action.setting) for at, action in switches] == [(10.0, 0)]
    assert "headroom for" in switches[0][1].reason


def test_a_rise_that_failed_is_not_tried_again_soon() -> None:
    law = rules(21.0)
    actions, state = looks(law, replace(start(law), index=1), *steady(0.5, 10.5, 14.0))
    assert (actions[-1].kind, state.index) == ("switch", 0)
    actions, state = looks(law, state, *steady(10.5, 12.0, 22.5))
    assert state.index == 1
    actions, state = looks(law, state, *steady(12.0, 41.0, 14.0))
    assert {action.kind for action in actions} == {"keep"}


def test_without_demand_for_more_nothing_is_raised() -> None:
    law = rules(25.0)
    quiet = [replace(look, demand=20.0) for look in steady(0.5, 60.0, 7.6)]
    actions, _ = looks(law, replace(start(law), index=2), *quiet)
    assert {action.kind for action in actions} == {"keep"}


def test_a_more_accurate_model_is_worth_a_rise() -> None:
    better = replace(SLOW, name="large model", accuracy_rank=0, power_w=12.0)
    law = Rules(Budget(15.0, when_exceeded="degrade"), (replace(SLOW, accuracy_rank=1), better))
    _, state = looks(law, replace(start(law), index=0), *steady(0.5, 20.0, 9.0))
    assert law.settings[state.index].name == "large model"


def test_without_a_sensor_the_model_decides_and_says_so() -> None:
    law = rules(13.0)
    actions, state = looks(law, replace(start(law), index=0), *steady(0.5, 1.0, None))
    assert (actions[0].kind, state.index) == ("switch", 2)
    assert actions[0].reason.endswith("modeled: no sensor")


def test_heat_is_answered_with_less_power_one_step_at_a_time() -> None:
    law = rules(None)
    hot = [replace(look, margin_c=2.5 - number / 100) for number, look in enumerate(steady(6.0, 12.0, 20.0))]
    actions, _ = looks(law, start(law), *hot)
    switches = [action for action in actions if isinstance(action, Switch)]
    assert [action.setting for action in switches] == [1, 2]
    assert "C to throttling" in switches[0].reason


def test_heat_that_falls_already_needs_no_more() -> None:
    law = rules(None)
    cooling = [replace(look, margin_c=1.5 + number / 100) for number, look in enumerate(steady(6.0, 20.0, 20.0))]
    assert {action.kind for action in looks(law, start(law), *cooling)[0]} == {"keep"}


def test_a_latency_that_is_too_long_twice_takes_a_quicker_setting() -> None:
    law = Rules(Budget(None, 35.0, when_exceeded="degrade"), (replace(MIDDLE, throughput=70.0), FAST))
    actions, state = looks(law, start(law), *steady(4.0, 5.0, None, latency_ms=50.0))
    assert ([action.kind for action in actions], state.index) == (["keep", "switch"], 1)
    assert "latency p99 50 of 35 ms" in actions[1].reason


def test_warn_tells_once_each_time_and_changes_nothing() -> None:
    law = rules(13.0, "warn")
    seen = [*steady(2.0, 5.0, 16.0), *steady(5.0, 8.0, 12.0), *steady(8.0, 11.0, 16.0)]
    actions, state = looks(law, replace(start(law), index=1), *seen)
    assert [action.kind for action in actions if action.kind != "keep"] == ["warn", "warn"]
    assert state.index == 1


def test_stop_ends_what_lasts_and_not_what_passes() -> None:
    law = rules(13.0, "stop")
    state = replace(start(law), index=1)
    assert "stop" not in {a.kind for a in looks(law, state, *steady(2.0, 3.5, 16.0), *steady(3.5, 6.0, 12.0))[0]}
    actions, _ = looks(law, state, *steady(2.0, 5.0, 16.0))
    assert (actions[-1].kind, "for 2 s" in actions[-1].reason) == ("stop", True)


def test_when_even_the_most_frugal_is_too_much_the_user_is_told_once() -> None:
    law = rules(5.0)
    actions, _ = looks(law, start(law), *steady(2.0, 20.0, 9.0))
    taken = [action for action in actions if action.kind != "keep"]
    assert [action.kind for action in taken] == ["warn"]
    assert taken[0].reason.endswith("no setting keeps it")


def test_the_same_look_gives_the_same_decision() -> None:
    law = rules()
    state, seen = start(law), Observation(2_000_000_000, 17.0, 100.0)
    assert Governor(law).step(state, seen) == Governor(law).step(state, seen)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 199))
def test_on_a_plant_made_by_chance_the_cap_is_held_and_little_is_given_away(seed: int) -> None:
    outcome = play(scenario(seed))
    assert outcome.over_s <= 2.0
    assert outcome.share >= 0.9
    assert outcome.rate <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 400_000], ids=["the set", "seeds that no rule was made on"])
def test_all_two_hundred_scenarios_keep_every_promise(first: int) -> None:
    broken = {
        seed: (outcome.over_s, outcome.share, outcome.rate)
        for seed in range(first, first + 200)
        if (outcome := play(scenario(seed))).over_s > 2.0 or outcome.share < 0.9 or outcome.rate > 1.0
    }
    assert broken == {}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(0.0, 100.0)),
            st.one_of(st.none(), st.floats(0.1, 200.0)),
            st.one_of(st.none(), st.floats(-10.0, 60.0)),
        ),
        max_size=80,
    )
)
def test_whatever_is_seen_up_comes_at_most_every_ten_seconds(seen: list[tuple[float | None, ...]]) -> None:
    law = rules()
    state, last_s = start(law), -10.0
    for number, (power_w, demand, margin_c) in enumerate(seen, 1):
        before = state.index
        look = Observation(number * 500_000_000, power_w, demand, margin_c=margin_c)
        state, action = Governor(law).step(state, look)
        if not isinstance(action, Switch):
            assert state.index == before
            continue
        assert action.setting == state.index
        if "headroom" in action.reason:
            assert number / 2 - last_s >= 10.0
        last_s = number / 2


def test_memory_is_told_once_and_holds_no_frames_back() -> None:
    law = Rules(Budget(25.0, when_exceeded="degrade", memory_bytes=100), ALL)
    state = replace(start(law), index=2)
    seen = [replace(look, memory_bytes=101) for look in steady(0.5, 30.0, 9.0)]
    actions, state = looks(law, state, *seen)
    assert [action.kind for action in actions if action.kind != "keep"] == ["warn", "switch"]
    assert "memory 101 B of 100 B" in actions[0].reason
    assert state.index == 0


def test_memory_stops_where_that_was_asked_for() -> None:
    law = Rules(Budget(None, when_exceeded="stop", memory_bytes=100), ALL[:1])
    actions, _ = looks(law, start(law), *[Observation(round(n * 5e8), memory_bytes=101) for n in range(1, 8)])
    assert next(n for n, action in enumerate(actions) if action.kind == "stop") == 4


def test_an_untried_setting_is_judged_by_those_beside_it() -> None:
    ladder = tuple(Setting(f"{n}0 %", 0.1 * n, 3.0 * n) for n in range(10, 0, -1))
    law = Rules(Budget(0.6, when_exceeded="degrade"), ladder)
    state = replace(start(law), index=8, common=1.0)  # 20 %, of a pipeline whose source alone takes 0.4
    known = {0: 1.0, 5: 1.2, 8: 2.5}
    records = tuple(replace(record, own=known.get(n)) for n, record in enumerate(state.records))
    state = replace(state, records=records)
    assert estimate_w(law, state, 2, None) == pytest.approx(0.8 * 1.08)
    assert estimate_w(law, state, 7, None) == pytest.approx(0.3 * (2.5 - 1.3 / 3))
    assert estimate_w(law, state, 9, None) == pytest.approx(0.1 * 2.5)


def test_what_a_setting_cannot_be_to_blame_for_is_common_to_all() -> None:
    """The cores got slower by half: the setting that was left is not thought to need half more than the others."""
    law = Rules(Budget(15.0, when_exceeded="degrade"), ALL, Tolerances(own_error=0.1))
    _, state = looks(law, start(law), *steady(0.5, 5.0, 14.0), *steady(5.0, 12.0, 21.0), *steady(12.0, 20.0, 9.0 * 1.5))
    assert all(record.own is None or 1 / 1.1 <= record.own <= 1.1 + 1e-9 for record in state.records)
    _, state = looks(law, state, *steady(20.0, 23.0, 9.0))
    assert estimate_w(law, state, 1, 100.0) == pytest.approx(14.0, rel=0.15)


PARTS = tuple(replace(one, least_share=0.5) for one in ALL)


def test_a_better_setting_that_was_never_tried_is_tried_at_fewer_frames() -> None:
    """Whole it would take all of the budget: first it is run so that 4 % are left, and whole when it was measured."""
    law = Rules(Budget(20.2, when_exceeded="degrade"), PARTS)
    actions, state = looks(law, replace(start(law), index=1), *steady(0.5, 10.5, 14.0))
    tried = actions[-1]
    assert isinstance(tried, Switch) and (tried.setting, tried.share) == (0, 0.95)
    assert tried.reason.startswith("gpu, 612 MHz -> gpu, 918 MHz, 95% of that: headroom")
    actions, state = looks(law, state, *steady(10.5, 30.0, 19.25 * 0.97))
    assert (state.index, state.share) == (0, 1.0)


def test_too_much_power_leaves_frames_out_where_that_costs_fewer_than_another_setting() -> None:
    law = Rules(Budget(20.2, when_exceeded="degrade"), PARTS)
    actions, _ = looks(law, start(law), *steady(0.5, 5.0, 21.0))
    assert next((action.setting, action.share) for action in actions if isinstance(action, Switch)) == (0, 0.91)


def test_a_share_that_failed_is_blocked_and_less_of_the_same_is_not() -> None:
    law = Rules(Budget(20.2, when_exceeded="degrade"), PARTS)
    state = replace(start(law), index=0, share=0.95, rose=True)
    _, state = looks(law, state, *steady(2.0, 3.0, 20.9))
    assert (state.index, state.records[0].refused) == (0, 0.95)
    assert state.share < 0.95 * 0.97
    _, state = looks(law, state, *steady(3.0, 31.0, 18.0))
    assert state.share <= 0.95 * 0.97


def test_without_a_sensor_one_step_is_enough() -> None:
    """However long none tells, the doubt that grows meanwhile is allowed for at once."""
    law = Rules(Budget(20.5, when_exceeded="degrade"), PARTS)
    _, state = looks(law, start(law), *steady(0.5, 5.0, 20.0))
    actions, _ = looks(law, state, *steady(5.0, 60.0, None))
    assert len([action for action in actions if isinstance(action, Switch)]) == 1


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"impossible least share of throughput: 1\.5"):
        replace(FAST, least_share=1.5)


def test_after_three_switches_a_rise_waits_until_it_may_be_taken_back() -> None:
    law = rules(25.0)
    busy = replace(start(law), index=2, lately_ns=(0, 1_000_000_000, 2_000_000_000), switched_ns=2_000_000_000)
    actions, _ = looks(law, busy, *steady(2.5, 39.5, 9.0))
    assert {action.kind for action in actions} == {"keep"}
    actions, _ = looks(law, busy, *steady(2.5, 41.0, 9.0))
    assert "switch" in {action.kind for action in actions}


def test_after_a_long_time_an_untried_setting_is_tried_at_as_many_frames() -> None:
    """With 4 % to spare it gives hardly more than there is now; run whole it may give a third more."""
    law = Rules(Budget(17.0, when_exceeded="degrade"), PARTS[:2])
    actions, _ = looks(law, replace(start(law), index=1, share=1.0), *steady(0.5, 40.0, 14.0))
    tried = [(number / 2 + 0.5, action) for number, action in enumerate(actions) if isinstance(action, Switch)]
    assert len(tried) == 1
    assert (tried[0][1].setting, tried[0][1].share) == (0, 0.75)
    assert tried[0][0] >= 30.0
