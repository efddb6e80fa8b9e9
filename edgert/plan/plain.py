"""A plan as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from edgert.plan.row import BoardPlan, ModelRow, Plan, Row
from edgert.plan.words import headline

SCHEMA = 1


def to_json(plan: Plan) -> dict[str, Any]:
    """Dicts, lists, strings and numbers; every number is predicted."""
    return {
        "schema": SCHEMA,
        "pipeline": plan.pipeline,
        "objective": plan.objective,
        "verdict": headline(plan),
        "smallest": plan.smallest,
        "predicted": True,
        "notes": list(plan.notes),
        "boards": [_board(board) for board in plan.boards],
    }


def _board(board: BoardPlan) -> dict[str, Any]:
    return {
        "board": board.board,
        "title": board.title,
        "chosen": board.chosen,
        "advice": list(board.advice),
        "skipped": list(board.skipped),
        "rows": [_row(row, place == board.chosen) for place, row in enumerate(board.rows)],
    }


def _row(row: Row, is_chosen: bool) -> dict[str, Any]:
    return {
        "mode": row.mode,
        "placement": row.name,
        "fps": row.fps,
        "headroom": row.headroom,
        "p99_ms": row.p99_ms,
        "power_w": row.power_w,
        "memory_bytes": row.memory_bytes,
        "memory": [asdict(part) for part in row.memory] if is_chosen else [],
        "memory_steps": list(row.steps),
        "energy_mj_per_frame": row.energy_mj,
        "busy": dict(row.busy),
        "relative_error": row.error,
        "misses": list(row.misses),
        "pareto": row.is_best,
        "models": [_model(model, is_chosen) for model in row.models],
        "smaller": list(row.smaller),
        "stand_ins": [_row(one, False) for one in row.stand_ins],
    }


def _model(model: ModelRow, with_units: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "model": model.name,
        "rate_hz": model.rate_hz,
        "latency_ms": model.latency_ms,
        "p50_ms": model.p50_ms,
        "p99_ms": model.p99_ms,
        "dla_share": model.dla_share,
        "loadables": dict(model.loadables),
        "engines": [{"share": engine.share, "accelerators": list(engine.accelerators)} for engine in model.engines],
    }
    if with_units:
        for engine, data in zip(model.engines, told["engines"], strict=True):
            units = zip(model.network.units, engine.assignment, strict=True)
            data["units"] = [
                {
                    "name": unit.name,
                    "nodes": list(unit.nodes),
                    "on": where,
                    "ms": {name: cost.time_ms for name, cost in unit.costs.items()},
                    "mj": {name: cost.energy_mj for name, cost in unit.costs.items()},
                }
                for unit, where in units
            ]
    return told
