"""The governor: keeps budgets while a pipeline runs, by choosing among planned settings. Pure: no clock, no I/O."""

from edgert.budget.governor.decide import decide, start
from edgert.budget.governor.feasible import check_meter, check_settings
from edgert.budget.governor.settings import (
    Action,
    Budget,
    Decision,
    Observation,
    Patience,
    Rules,
    Setting,
    State,
    WhenExceeded,
)

__all__ = [
    "Action",
    "Budget",
    "Decision",
    "Observation",
    "Patience",
    "Rules",
    "Setting",
    "State",
    "WhenExceeded",
    "check_meter",
    "check_settings",
    "decide",
    "start",
]
