import json

import pytest

from edgert.budget.footprint import Footprint, Part, check_footprint, shrunk
from edgert.errors import BudgetError

MIB = 2**20
PROCESS = Part("process", "cpu", "runtime", 80 * MIB)


def plan(weights: int = 10, frames: int = 30, budget: int | None = 100, machine: int = 1000) -> Footprint:
    parts = (PROCESS, Part("m", "cpu", "weights", weights * MIB), Part("cam", "cpu", "frames", frames * MIB))
    return Footprint(parts, None if budget is None else budget * MIB, machine * MIB)


def halved(frames: int) -> int | None:
    return frames // 2 if frames > 1 else None


def test_what_fits_stays_as_it_is() -> None:
    found, footprint = shrunk(5, lambda frames: plan(frames=frames), [("shorter queues", halved)])
    assert (found, footprint.steps, footprint.fits) == (5, (), True)
    check_footprint(footprint, "p.yaml:1 budgets.memory")


def test_steps_are_taken_in_order_until_it_fits_and_told() -> None:
    found, footprint = shrunk(30, lambda frames: plan(frames=frames), [("shorter queues", halved)])
    assert (found, footprint.total_bytes) == (7, 97 * MIB)
    assert footprint.steps == ("shorter queues: 15.0 MiB less", "shorter queues: 8.0 MiB less")


def test_a_step_that_saves_nothing_is_left_out() -> None:
    found, footprint = shrunk(30, lambda frames: plan(weights=90), [("useless", halved), ("shorter queues", halved)])
    assert (found, footprint.steps, footprint.fits) == (30, (), False)


def test_what_does_not_fit_is_refused_with_the_largest_parts_and_what_would_do() -> None:
    _, footprint = shrunk(2, lambda frames: plan(60, frames), [("shorter queues", halved)])
    with pytest.raises(BudgetError) as caught:
        check_footprint(footprint, "p.yaml:1 budgets.memory")
    assert caught.value.what == "the pipeline needs up to 141.0 MiB of memory, the budget has 100.0 MiB"
    assert "process runtime 80.0 MiB, m weights 60.0 MiB" in caught.value.why
    assert "already tried: shorter queues: 1.0 MiB less" in caught.value.why
    assert caught.value.where == "p.yaml:1 budgets.memory"
    assert caught.value.fix.startswith("budgets: {memory: 141MiB};")


def test_a_machine_that_is_too_small_is_told_apart() -> None:
    with pytest.raises(BudgetError) as caught:
        check_footprint(plan(budget=None, machine=90), "")
    assert (
        caught.value.what
        == "the pipeline needs at least 120.0 MiB of memory, this machine has 90.0 MiB, including swap"
    )
    assert caught.value.fix.startswith("a machine with more memory, or a higher limit where a container")


def test_a_budget_that_fits_a_machine_that_does_not_is_the_machines_fault() -> None:
    with pytest.raises(BudgetError, match="this machine has") as caught:
        check_footprint(plan(budget=500, machine=90), "")
    assert "budgets:" not in caught.value.fix


def test_what_the_machine_has_is_held_against_the_least_that_a_prediction_can_mean() -> None:
    assert Footprint((PROCESS,), None, 74 * MIB, error=0.08).fits  # 8 % less than 80
    assert not Footprint((PROCESS,), None, 73 * MIB, error=0.08).fits
    assert Footprint((PROCESS,), None, 73 * MIB, error=0.08, doubt_bytes=MIB).fits
    unknown = Footprint((PROCESS,), None, 0, error=0.08)
    assert unknown.fits and unknown.limit_bytes == 0


def test_it_is_json() -> None:
    data = json.loads(json.dumps(plan().to_json()))
    assert (data["total_bytes"], data["limit_bytes"], data["fits"]) == (120 * MIB, 100 * MIB, False)
    assert data["parts"][1] == {"name": "m", "on": "cpu", "kind": "weights", "size_bytes": 10 * MIB, "note": ""}


def test_a_promise_is_kept_with_the_error_of_the_prediction_to_spare() -> None:
    exact = Footprint((PROCESS,), 85 * MIB, 1000 * MIB)
    assert exact.fits
    unsure = Footprint((PROCESS,), 85 * MIB, 1000 * MIB, error=0.08)
    assert (unsure.total_bytes, unsure.most_bytes, unsure.fits) == (80 * MIB, round(86.4 * MIB), False)
