"""A budget of CPU time on a made-up machine whose cores change their speed: governor, account and limiter together."""

import random
import threading
from collections.abc import Callable

import pytest

from edgert.assemble.governing import Cost, rules_of
from edgert.assemble.run_settings import run_settings
from edgert.budget.loop import Loop
from edgert.budget.rules import Action, Observation
from edgert.budget.watch import CPU_SAMPLES
from edgert.config.pipeline_file import BudgetConfig
from edgert.runtime import SourceRateLimiter
from edgert.runtime.throttle import CpuTokenBucket
from tests.helpers.virtual_clock import VirtualClock

HZ, CAP, COST_S, LOOK_FRAMES = 30.0, 0.5, 0.015, 15
GO = threading.Event()


def run(seconds: float, slowness: Callable[[float], float]) -> tuple[list[float], list[Action], float]:
    """CPU time of each frame's period, what the governor did, and the share that is left at the end."""
    clock, spent_s, actions = VirtualClock(), [0.0], list[Action]()
    bucket = CpuTokenBucket(CAP, clock, lambda: round(1e9 * sum(spent_s)))
    limiter = SourceRateLimiter(True, clock)
    limiter.bucket = bucket
    found = run_settings(("door",))
    rules = rules_of(BudgetConfig(cpu=CAP, when_exceeded="degrade"), found, [Cost({"door": HZ}, COST_S * HZ, 5.0)])

    def carry(action: Action) -> None:
        actions.append(action)
        limiter.share = found[action.setting].shares["door"]

    loop, shares = Loop(rules, carry, 0), [1.0]
    for frame in range(1, round(seconds * HZ)):
        clock.wait(GO, 1 / HZ)
        spent_s.append(COST_S * slowness(frame / HZ) if limiter.passes(GO) else 0.0)
        if frame % LOOK_FRAMES == 0:
            shares = [*shares, bucket.share()][-CPU_SAMPLES:]
            taken = sum(spent_s[-LOOK_FRAMES * CPU_SAMPLES :]) * HZ / (LOOK_FRAMES * CPU_SAMPLES)
            loop.step(Observation(clock.now_ns(), taken * len(shares) / max(sum(shares), 0.05)))
    return spent_s, actions, limiter.share


def over(spent_s: list[float]) -> float:
    """The most that two seconds took of the budget."""
    width = round(2 * HZ)
    return max(sum(spent_s[at : at + width]) for at in range(len(spent_s) - width)) / (2 * CAP)


@pytest.mark.parametrize("seed", range(12))
def test_cores_that_change_their_speed_break_no_two_seconds_and_cost_few_frames(seed: int) -> None:
    chance = random.Random(seed)
    speeds = [chance.choice((1.0, 1.45)) for _ in range(60)]
    spent_s, actions, _ = run(180.0, lambda now_s: speeds[int(now_s / 3)])
    assert over(spent_s) <= 1.02
    possible = sum(min(1.0, 0.97 * CAP / (COST_S * speed * HZ)) for speed in speeds) / len(speeds)
    passed = sum(one > 0 for one in spent_s) / len(spent_s)
    assert passed >= 0.97 * possible
    assert actions == []


def test_all_frames_come_back_when_what_slowed_the_machine_is_gone() -> None:
    spent_s, actions, share = run(90.0, lambda now_s: 2.2 if 20.0 <= now_s < 40.0 else 1.0)
    assert over(spent_s) <= 1.02
    assert "of 0.5 cores" in actions[0].reason and len(actions) <= 4
    assert share == 1.0
    assert "headroom" in actions[-1].reason
    last = spent_s[round(60 * HZ) :]
    assert all(one > 0 for one in last)
