from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from edgert.assemble.governing import Controls, Cost, carry_out, rules_of, time_run
from edgert.assemble.run_settings import PowerStep, run_settings
from edgert.budget.governor import Governor
from edgert.budget.rules import Stop, Switch, Warn
from edgert.budget.watch import ALLOWED_TOLERANCES, CPU_TOLERANCES, VARIANT_TOLERANCES
from edgert.config import SourceStage
from edgert.config.flow import streams_of
from edgert.config.pipeline_file import BudgetConfig
from edgert.errors import EdgertError
from edgert.runtime import SourceRateLimiter
from edgert.runtime.branches import ModelLevel
from tests.helpers.virtual_clock import VirtualClock

DOOR = {"door": 30.0}


def test_fewer_frames_then_fewer_streams_then_the_first_alone() -> None:
    found = run_settings(("door", "yard"))
    assert found[0].shares == {"door": 1.0, "yard": 1.0}
    assert [one.shares["door"] for one in found[:8]] == [one.shares["yard"] for one in found[:8]]
    assert [one.name for one in found[7:]] == [
        "30 % of the frames",
        "30 % of the frames, without yard",
        "20 % of the frames, without yard",
        "10 % of the frames, without yard",
    ]
    assert [one.name for one in run_settings(("door",))][::9] == ["all frames", "10 % of the frames"]


def sources(priorities: list[str]) -> dict[str, SourceStage]:
    """One stream of each priority, in that order."""
    return {
        f"cam{number}": SourceStage.model_validate({"source": "usb:0", "priority": priority})
        for number, priority in enumerate(priorities)
    }


def test_streams_stop_by_priority_and_among_equals_from_the_end_of_the_file() -> None:
    stages = sources(["low", "normal", "high", "normal", "low"])
    assert streams_of(stages) == ("cam2", "cam1", "cam3", "cam0", "cam4")
    stopping = [one.name.partition(", ")[2] for one in run_settings(streams_of(stages))[8:]]
    assert stopping[:2] == ["without cam4", "without cam0 and cam4"]
    assert stopping[3:] == ["without cam1 and cam3 and cam0 and cam4"] * 3  # 30 %, 20 % and 10 % of cam2


@given(st.lists(st.sampled_from(["low", "normal", "high"]), min_size=1, max_size=6), st.integers(0, 2))
def test_a_stream_of_higher_priority_is_never_stopped_while_a_lower_one_runs(names: list[str], models: int) -> None:
    stages, ranks = sources(names), {"low": 0, "normal": 1, "high": 2}
    for one in run_settings(streams_of(stages), [("small",)] * models):
        assert set(one.shares) == set(stages) and max(one.shares.values()) > 0
        running = [ranks[stages[name].priority] for name, share in one.shares.items() if share > 0]
        stopped = [ranks[stages[name].priority] for name, share in one.shares.items() if share == 0]
        assert max(stopped, default=0) <= min(running)
        assert len({share for share in one.shares.values() if share > 0}) == 1


def test_settings_take_power_with_their_frames() -> None:
    rules = rules_of(BudgetConfig(cpu=0.5, when_exceeded="degrade"), run_settings(("door",)), [Cost(DOOR, 0.9, 12.0)])
    assert [setting.power_w for setting in rules.settings] == pytest.approx([0.09 * n for n in range(10, 0, -1)])
    assert [setting.throughput for setting in rules.settings] == pytest.approx([3.0 * n for n in range(10, 0, -1)])
    assert rules.settings[0].latency_ms == 12.0
    assert (rules.budget.power_w, rules.budget.unit, rules.tolerances) == (0.5, "cores", ALLOWED_TOLERANCES)


def test_without_degrading_nothing_keeps_the_budget_but_the_look() -> None:
    rules = rules_of(BudgetConfig(cpu=0.5, when_exceeded="stop"), run_settings(("door",)), [Cost(DOOR, 0.9, 12.0)])
    assert rules.tolerances == CPU_TOLERANCES


def test_streams_count_by_their_rate() -> None:
    rules = rules_of(
        BudgetConfig(cpu=1.0), run_settings(("door", "yard")), [Cost({"door": 30.0, "yard": 10.0}, 0.8, 0.0)]
    )
    alone = next(setting for setting in rules.settings if setting.name == "30 % of the frames, without yard")
    assert (alone.throughput, alone.power_w) == pytest.approx((9.0, 0.18))


def test_power_that_nobody_can_predict_begins_with_all_frames() -> None:
    rules = rules_of(
        BudgetConfig.model_validate({"power": "15W", "latency": "60ms"}),
        run_settings(("door",)),
        [Cost(DOOR, 0.9, 0.0)],
    )
    assert (rules.settings[0].power_w, rules.settings[-1].power_w) == pytest.approx((15.0, 1.5))
    assert (rules.budget.unit, rules.budget.latency_ms) == ("W", 60.0)


def test_a_pipeline_without_engines_is_governed_too() -> None:
    rules = rules_of(BudgetConfig(cpu=0.5), run_settings(("door",)), [Cost(DOOR, None, 0.0)])
    assert rules.settings[0].power_w == 0.5


def test_power_and_cpu_are_one_promise() -> None:
    with pytest.raises(ValueError, match="limit the same thing in two units"):
        BudgetConfig.model_validate({"power": "15W", "cpu": 1.0})


def test_a_smaller_model_gives_all_the_ways_once_more() -> None:
    found = run_settings(("door",), [("small",), ("tiny",)])
    assert [(one.name, one.level) for one in found[9:12]] == [
        ("10 % of the frames", 0),
        ("all frames, with small", 1),
        ("90 % of the frames, with small", 1),
    ]
    costs = [Cost(DOOR, 0.9, 12.0), Cost(DOOR, 0.4, 5.0), Cost(DOOR, 0.1, 2.0)]
    rules = rules_of(BudgetConfig(cpu=0.5, when_exceeded="degrade"), found, costs)
    first = [setting for setting in rules.settings if setting.throughput == 30.0]
    assert [(one.power_w, one.latency_ms, one.accuracy_rank) for one in first] == [
        (0.9, 12.0, 0),
        (0.4, 5.0, 1),
        (0.1, 2.0, 2),
    ]
    assert rules.settings[Governor(rules).start().index].name == "all frames, with small"
    assert rules.tolerances == VARIANT_TOLERANCES


@pytest.mark.parametrize(
    ("fallback", "power_w"),
    [
        (Cost(DOOR, 0.4, 4.0), 5.0),
        (Cost(DOOR, 0.9, 20.0), 13.5),  # as the same model on a DLA: slower, and named for what it saves
    ],
)
def test_power_that_nobody_can_predict_falls_with_the_time_of_the_fallback_but_at_least_by_a_tenth(
    fallback: Cost, power_w: float
) -> None:
    budget = BudgetConfig.model_validate({"power": "15W"})
    rules = rules_of(budget, run_settings(("door",), [("other",)]), [Cost(DOOR, 0.9, 12.0), fallback])
    assert [rules.settings[index].power_w for index in (0, 10)] == pytest.approx([15.0, power_w])
    assert [rules.settings[index].latency_ms for index in (0, 10)] == [12.0, fallback.engine_ms]


@pytest.mark.parametrize(("when_exceeded", "is_whole"), [("warn", True), ("stop", True), ("degrade", False)])
def test_only_a_budget_that_degrades_throttles_frames(when_exceeded: str, is_whole: bool) -> None:
    """Where fewer frames are predicted to keep it, too."""
    budgets = BudgetConfig.model_validate({"power": "4.9W", "when_exceeded": when_exceeded})
    predicted = [PowerStep("", 5.0, 3.0, 2.0, 5.0)]
    rules = rules_of(budgets, run_settings(("door",))[:1], [Cost(DOOR, None, 12.0)], predicted)
    assert (Governor(rules).start().share == 1.0) == is_whole


def test_one_function_carries_out_what_a_governor_decides() -> None:
    settings, failed = run_settings(("door", "yard"), [("small",)]), list[EdgertError]()
    limiters = {name: SourceRateLimiter(True, VirtualClock()) for name in ("door", "yard")}
    controls = Controls(settings, ModelLevel(), limiters, None, failed.append, "pipeline.yaml:3")
    smaller = next(index for index, one in enumerate(settings) if one.level == 1)
    carry_out(controls, Switch(smaller, 0.5, "power 17 of 15 W"))
    assert controls.choice.level == 1
    assert [one.share for one in limiters.values()] == [0.5 * one for one in settings[smaller].shares.values()]
    carry_out(controls, Warn("memory 2 of 1 GiB"))
    assert not failed and controls.choice.level == 1
    carry_out(controls, Stop("power 17 of 15 W, for 2 s"))
    assert [(error.why, error.where) for error in failed] == [("power 17 of 15 W, for 2 s", "pipeline.yaml:3")]


@pytest.mark.parametrize(("run_ns", "count"), [(0, 100), (100_000_000, 3)])
def test_an_engine_is_run_at_most_a_hundred_times(monkeypatch: pytest.MonkeyPatch, run_ns: int, count: int) -> None:
    """A pipeline starts at once however short its model's runs are, as on an emulated board."""
    runs = list[int]()
    now = SimpleNamespace(perf_counter_ns=lambda: len(runs) * run_ns, process_time_ns=lambda: 0)
    monkeypatch.setattr("edgert.assemble.governing.time", now)
    engine = SimpleNamespace(session=lambda: SimpleNamespace(run=runs.append))
    assert time_run(cast(Any, engine)) == (0, run_ns / 1e9) and len(runs) == 1 + count
