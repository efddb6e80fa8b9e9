"""What a pipeline would do on a board: each power mode and placement with its speed, power and memory, and a choice."""

from edgert.placement.plan_record import BoardPlan, EngineRow, ModelRow, Objective, Plan, Row
from edgert.planner.planning import plan

__all__ = ["BoardPlan", "EngineRow", "ModelRow", "Objective", "Plan", "Row", "plan"]
