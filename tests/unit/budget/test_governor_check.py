import pytest

from edgert.budget.rules import Budget, Rules, Setting, check_meter, check_settings
from edgert.errors import BudgetError
from edgert.meters import measured, modeled, unavailable
from tests.helpers.errors import Exactly, raises

SETTINGS = (Setting("MAXN, gpu", 20.0, 60.0, 20.0), Setting("15W, dla0", 9.04, 30.0, 45.0))


def test_a_budget_that_some_setting_keeps_is_fine() -> None:
    check_settings(Rules(Budget(10.0), SETTINGS))


def test_a_budget_that_none_keeps_names_the_closest_and_what_it_needs() -> None:
    with raises(BudgetError, why="15W, dla0, is predicted to need 9.04 of 8 W") as caught:
        check_settings(Rules(Budget(8.0, 50.0), SETTINGS))
    assert caught.value.fix.startswith("budgets: {power: 9.1W, latency: 50ms}")


def test_no_settings_at_all() -> None:
    with pytest.raises(BudgetError, match="has no settings"):
        check_settings(Rules(Budget(8.0), ()))


@pytest.mark.parametrize("numbers", [(5.0, 0.0), (-1.0, 30.0), (float("nan"), 30.0), (5.0, float("inf"))])
def test_a_prediction_that_nothing_can_be_chosen_by(numbers: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="setting 'odd'"):
        Setting("odd", *numbers)


def test_power_without_a_sensor_is_modeled_and_told_or_refused() -> None:
    missing = unavailable("W", "INA3221", "none here")
    warning = check_meter(Budget(8.0, when_exceeded="degrade"), missing)
    assert "not watched" in warning and "budgets.cpu" in warning
    assert "modeled" in check_meter(Budget(8.0), modeled(7.0, "W", "cost model"))
    assert check_meter(Budget(8.0, when_exceeded="stop"), measured(7.0, "W", "VDD_IN")) == ""
    assert check_meter(Budget(None, 50.0, when_exceeded="stop"), missing) == ""
    with raises(BudgetError, where=Exactly("budgets.power")):
        check_meter(Budget(8.0, when_exceeded="stop"), missing)


def test_a_budget_of_cpu_time_is_told_as_the_file_writes_it() -> None:
    with raises(BudgetError, why="predicted to need 0.42 of 0.1 cores") as caught:
        check_settings(Rules(Budget(0.1, unit="cores"), (Setting("10 % of the frames", 0.42, 3.0),)))
    assert caught.value.fix.startswith("budgets: {cpu: 0.5};")
