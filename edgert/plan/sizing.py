"""The rows of a plan that count, played as whole pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgert.config import PipelineFile, SourceStage
from edgert.plan.design import Scene, design_of
from edgert.plan.lane import BoardLanes
from edgert.plan.level import levels_of
from edgert.plan.row import BoardPlan, Row
from edgert.plan.workload import ASSUMED_HZ
from edgert.simulate import Rig, simulate

_FRAMES = 240  # of the slowest source: enough for a 99th percentile

Judge = Callable[[list[Row]], BoardPlan]
"""Orders rows by the budgets and takes one."""


def sized(file: PipelineFile, rows: list[Row], judge: Judge, rig_of: Callable[[str], Rig]) -> BoardPlan:
    """A board's plan whose chosen row, or closest where there is none, has a simulated p99.

    What the models need at worst, one after the other, comes first; a row that keeps its budgets by that is played, and
    has to keep them then, too.

    Args:
        rig_of: called with a power mode's name.
    """
    made = judge(rows)
    live = levels_of(as_live(file))
    while made.rows and not (picked := made.rows[made.chosen or 0]).is_simulated:
        played = _played(live, picked, rig_of(picked.mode))
        made = judge([played if row is picked else row for row in made.rows])
    return made


def as_live(file: PipelineFile) -> PipelineFile:
    """The pipeline with all sources at their rate, as it will run on cameras, whatever stands in for them."""
    stages = {
        name: stage.model_copy(update={"realtime": True, "fps": stage.fps or ASSUMED_HZ, "limit": None})
        if isinstance(stage, SourceStage)
        else stage
        for name, stage in file.config.stages.items()
    }
    return replace(file, config=file.config.model_copy(update={"stages": stages}))


def _played(levels: Sequence[PipelineFile], row: Row, rig: Rig) -> Row:
    """The row with the p99 of a simulation, and each of its stand-ins with its own."""
    stand_ins = [_played([file], one, rig) for file, one in zip(levels[1:], row.stand_ins, strict=True)]
    file = levels[0]
    slowest_hz = min(stage.fps or ASSUMED_HZ for stage in file.config.stages.values() if isinstance(stage, SourceStage))
    played = simulate(design_of(file, BoardLanes(file, row), Scene({})), rig, _FRAMES / slowest_hz)
    p99_ms = played.latency_ms.p99 if played.frames_out else row.p99_ms
    return replace(row, p99_ms=p99_ms, is_simulated=True, stand_ins=tuple(stand_ins))
