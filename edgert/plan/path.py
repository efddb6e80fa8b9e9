"""A frame's way through a pipeline: how often one comes, and how long models keep it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgert.config import InferStage, PipelineConfig, SourceStage
from edgert.config.flow import inputs_of, order
from edgert.plan.workload import ASSUMED_HZ


def frame_rate_hz(config: PipelineConfig) -> float:
    """Frames a second of all sources together."""
    return sum(stage.fps or ASSUMED_HZ for stage in config.stages.values() if isinstance(stage, SourceStage))


def longest_ms(config: PipelineConfig, latency_ms: Mapping[str, float]) -> float:
    """The longest chain of models that a frame passes, crops one after the other.

    Adding up what each model needs at worst is more than a frame needs at worst, so a plan is on the safe side.

    Args:
        latency_ms: of one run of every model.
    """
    ends: dict[str, float] = {}
    for name in order(config.stages):
        stage = config.stages[name]
        before = max((ends[other] for other in inputs_of(stage)), default=0.0)
        own = 0.0
        if isinstance(stage, InferStage):
            own = latency_ms.get(stage.infer, math.nan) * (stage.crop.limit if stage.crop is not None else 1)
        ends[name] = before + own
    return max(ends.values(), default=0.0)
