"""What a pipeline would do on a board: each power mode and placement with its speed, power and memory, and a choice."""

from edgert.plan.make import plan
from edgert.plan.row import BoardPlan, EngineRow, ModelRow, Objective, Plan, Row

__all__ = ["BoardPlan", "EngineRow", "ModelRow", "Objective", "Plan", "Row", "plan"]
