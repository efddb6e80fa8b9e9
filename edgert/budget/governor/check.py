"""Whether a budget can be kept at all, asked before a pipeline starts."""

from __future__ import annotations

import math

from edgert.budget.governor.setting import Budget, Rules, Setting
from edgert.budget.meter.reading import Reading
from edgert.errors import BudgetError


def check_settings(rules: Rules) -> None:
    """Refuses a budget that no setting is predicted to keep.

    Raises:
        BudgetError: it names the closest setting and what that one needs; or there is no setting at all.
    """
    budget = rules.budget
    if not rules.settings:
        raise BudgetError("a governor without settings", why="nothing was planned for this pipeline and board")
    if any(_far(setting, budget) <= 1.0 for setting in rules.settings):
        return
    closest = min(rules.settings, key=lambda setting: _far(setting, budget))
    raise BudgetError(
        "no setting keeps the budgets",
        why=f"the closest, {closest.name}, is predicted to need {_needs(closest, budget)}",
        where="budgets",
        fix=f"{_fix(closest, budget)}; or a larger board: edgert plan --board all; or when_exceeded: warn",
    )


def check_meter(budget: Budget, power: Reading) -> str:
    """What to tell of a power budget on a machine whose power no sensor knows; empty where one does, or none is asked.

    Args:
        power: measured; or modelled, which the budget is then kept by; or unavailable, and then it is not watched.

    Raises:
        BudgetError: ``when_exceeded: stop`` on such a machine: a pipeline is not ended for what a model says.
    """
    if budget.power_w is None or power.kind == "measured":
        return ""
    why = f"{power.source}: {power.why}" if power.why else power.source
    if budget.when_exceeded == "stop":
        raise BudgetError(
            "a power budget cannot be enforced here",
            why=f"this machine has no power sensor ({why})",
            where="budgets.power",
            fix="when_exceeded: warn or degrade use modelled values; or leave budgets.power out",
        )
    if not power.is_known:
        told = f"budgets.power is not watched: no power sensor, and no model of this machine ({why})"
        return f"{told}; budgets.cpu limits CPU time instead"
    return f"budgets.power is kept by modelled values: no power sensor ({why})"


def _far(setting: Setting, budget: Budget) -> float:
    """The largest factor by which a budget is missed; up to 1 when all are kept."""
    pairs = ((setting.power_w, budget.power_w), (setting.latency_ms, budget.latency_ms))
    return max((value / limit for value, limit in pairs if limit), default=0.0)


def _needs(setting: Setting, budget: Budget) -> str:
    power = f"{setting.power_w:.4g} of {budget.power_w:.4g} {budget.unit}" if budget.power_w else ""
    latency = f"{setting.latency_ms:.4g} of {budget.latency_ms:.4g} ms" if budget.latency_ms else ""
    return " and ".join(filter(None, (power, latency)))


def _fix(setting: Setting, budget: Budget) -> str:
    """Budgets that it would keep, as the pipeline file says them."""
    power = _power(math.ceil(10 * setting.power_w) / 10, budget.unit) if budget.power_w else ""
    latency = f"latency: {math.ceil(setting.latency_ms)}ms" if budget.latency_ms else ""
    return f"budgets: {{{', '.join(filter(None, (power, latency)))}}}"


def _power(value: float, unit: str) -> str:
    """``power: 9.1W``, or ``cpu: 0.5`` of CPU time."""
    return f"power: {value:g}W" if unit == "W" else f"cpu: {value:g}"
