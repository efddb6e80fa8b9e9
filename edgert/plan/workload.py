"""How often each model of a pipeline has to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgert.config import CropStage, InferStage, PipelineConfig, SourceStage, StageConfig
from edgert.config.flow import sources_of, upstream

ASSUMED_HZ = 30.0
"""Of a source whose rate the file does not tell."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a pipeline asks of one model.

    Attributes:
        model: its name in the file.
        rate_hz: runs per second, over all stages that use it.
        stages: those stages.
        notes: what had to be assumed.
    """

    model: str
    rate_hz: float
    stages: tuple[str, ...]
    notes: tuple[str, ...] = ()


def demands(config: PipelineConfig) -> tuple[Demand, ...]:
    """Every model that some stage runs, in the order of the file.

    A stage runs once per frame of each of its sources, or on every n-th; on crops of detections as often as its
    ``limit`` allows, since a plan has to hold on a busy frame.
    """
    rates, assumed = _source_rates(config.stages)
    sources = sources_of(config.stages)
    found = []
    for model in config.models:
        stages = [
            name for name, stage in config.stages.items() if isinstance(stage, InferStage) and stage.infer == model
        ]
        if not stages:
            continue
        runs = {name: _runs_per_frame(config.stages, name) for name in stages}
        rate_hz = sum(runs[name] * rates[source] for name in stages for source in sources[name])
        unsure = sorted({source for name in stages for source in sources[name]} & assumed)
        notes = [f"{source}: {ASSUMED_HZ:g} fps assumed; write fps: to plan for another rate" for source in unsure]
        notes += [f"{name}: planned for {count:g} crops a frame" for name, count in runs.items() if count > 1]
        found.append(Demand(model, rate_hz, tuple(stages), tuple(notes)))
    return tuple(found)


def _source_rates(stages: Mapping[str, StageConfig]) -> tuple[dict[str, float], set[str]]:
    sources = {name: stage for name, stage in stages.items() if isinstance(stage, SourceStage)}
    rates = {name: stage.fps or ASSUMED_HZ for name, stage in sources.items()}
    return rates, {name for name, stage in sources.items() if stage.fps is None}


def _runs_per_frame(stages: Mapping[str, StageConfig], name: str) -> float:
    """Crops multiply along the way: a stage on crops, after a stage that crops, runs once for each."""
    stage = stages[name]
    assert isinstance(stage, InferStage)
    own = stage.crop.limit if stage.crop is not None else 1
    return own * _crops_before(stages, name) / stage.every


def _crops_before(stages: Mapping[str, StageConfig], name: str) -> float:
    count = 1.0
    for other in upstream(stages, name):
        stage = stages[other]
        if isinstance(stage, CropStage) and not isinstance(stage.crop, tuple):
            count *= stage.crop.limit
    return count
