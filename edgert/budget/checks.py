"""Whether budgets can be kept at all, checked before a pipeline starts."""

import math

from edgert.budget.rules import Budget, Rules, Setting
from edgert.errors import BudgetError
from edgert.meters.reading import Reading


def check_settings(rules: Rules) -> None:
    """Refuse a budget that no setting is predicted to keep.

    Raises:
        BudgetError: it names the closest setting and what that one needs; or there is no setting at all.
    """
    budget = rules.budget
    if not rules.settings:
        raise BudgetError("the governor has no settings", why="nothing was planned for this pipeline and board")
    if any(_excess(setting, budget) <= 1.0 for setting in rules.settings):
        return
    closest = min(rules.settings, key=lambda setting: _excess(setting, budget))
    needs, would_keep = [], []  # the latter in the form of the pipeline file
    if budget.power_w:
        needs.append(f"{closest.power_w:.4g} of {budget.power_w:.4g} {budget.unit}")
        most = math.ceil(10 * closest.power_w) / 10
        would_keep.append(f"power: {most:g}W" if budget.unit == "W" else f"cpu: {most:g}")
    if budget.latency_ms:
        needs.append(f"{closest.latency_ms:.4g} of {budget.latency_ms:.4g} ms")
        would_keep.append(f"latency: {math.ceil(closest.latency_ms)}ms")
    fix = f"budgets: {{{', '.join(would_keep)}}}"
    raise BudgetError(
        "no setting keeps the budgets",
        why=f"the closest, {closest.name}, is predicted to need {' and '.join(needs)}",
        where="budgets",
        fix=f"{fix}; or a larger board: edgert plan --board all; or when_exceeded: warn",
        code="E702",
    )


def check_meter(budget: Budget, power: Reading) -> str:
    """Return a warning about a power budget on a machine without a power sensor; empty if none is needed.

    Args:
        budget: the budget.
        power: measured; or modeled, which the budget is then kept by; or unavailable, and then it is not watched.

    Raises:
        BudgetError: ``when_exceeded: stop`` on such a machine: a pipeline is not ended because of modeled power.
    """
    if budget.power_w is None or power.kind == "measured":
        return ""
    why = f"{power.source}: {power.why}" if power.why else power.source
    if budget.when_exceeded == "stop":
        raise BudgetError(
            "a power budget cannot be enforced here",
            why=f"this machine has no power sensor ({why})",
            where="budgets.power",
            fix="when_exceeded: warn or degrade use modeled values; or leave budgets.power out",
        )
    if not power.is_known:
        warning = f"budgets.power is not watched: no power sensor, and no model of this machine ({why})"
        return f"{warning}; budgets.cpu limits CPU time instead"
    return f"budgets.power is kept by modeled values: no power sensor ({why})"


def _excess(setting: Setting, budget: Budget) -> float:
    """Return the largest factor by which a budget is missed; up to 1 when all are kept."""
    pairs = ((setting.power_w, budget.power_w), (setting.latency_ms, budget.latency_ms))
    return max((value / limit for value, limit in pairs if limit), default=0.0)
