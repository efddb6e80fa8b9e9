"""Keeps budgets while a pipeline runs, by choosing among settings that were planned before. Pure: no clock, no I/O."""

from edgert.budget.governor.check import check_meter, check_settings
from edgert.budget.governor.decide import decide, start
from edgert.budget.governor.setting import Budget, Patience, Rules, Setting, WhenExceeded
from edgert.budget.governor.state import Action, Decision, Observation, State

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
