"""A pipeline predicted on a board: speed, power and memory of each power mode and placement, and a choice."""

from edgert.placement.plan_record import BoardPlan, EngineRow, ModelRow, Objective, Plan, Row
from edgert.planner.planning import plan

__all__ = ["BoardPlan", "EngineRow", "ModelRow", "Objective", "Plan", "Row", "plan"]
