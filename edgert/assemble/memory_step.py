"""What gives way in a pipeline for memory, step by step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from edgert.assemble.frame_memory import is_live, queue_before
from edgert.assemble.model import replicas_of
from edgert.budget.footprint import Step
from edgert.config import InferStage, PipelineConfig, PipelineFile
from edgert.config.engine import ORT
from edgert.config.variant import variants_of


def turns_of(config: PipelineConfig) -> list[tuple[str, ...]]:
    """Models that never run together: each chain of ``degrade_to`` in the same threads that no other stage uses."""
    used = dict.fromkeys(stage.infer for stage in config.stages.values() if isinstance(stage, InferStage))
    chains = [variants_of(config.models, name) for name in used]
    runs = Counter(name for chain in chains for name in chain)
    return [
        chain
        for chain in chains
        if len(chain) > 1 and all(runs[name] == 1 and _has_arena(config, name) for name in chain)
    ]


def is_ort(config: PipelineConfig, name: str) -> bool:
    """Whether a model's engine is one of ONNX Runtime on the processor, as far as the file says."""
    model = config.models[name]
    return model.backend == "ort" or (model.backend == "auto" and set(config.engines) <= {ORT})


def _has_arena(config: PipelineConfig, name: str) -> bool:
    """Whether such an engine keeps the memory of its runs."""
    model = config.models[name]
    return is_ort(config, name) and model.placement == "auto" and model.tuning.arena


def _with(file: PipelineFile, config: PipelineConfig) -> PipelineFile:
    return replace(file, config=config)


def _shorter(file: PipelineFile) -> PipelineFile | None:
    """Half of every queue that is longer than one."""
    stages = dict(file.config.stages)
    for name, stage in file.config.stages.items():
        now = queue_before(stage, file)
        if now > 1:
            stages[name] = stage.model_copy(update={"queue": now // 2})
    return None if stages == file.config.stages else _with(file, file.config.model_copy(update={"stages": stages}))


def _fewer(file: PipelineFile) -> PipelineFile | None:
    """One replica less of the model that has most."""
    config = file.config
    used = {stage.infer for stage in config.stages.values() if isinstance(stage, InferStage)}
    live = any(is_live(stage, file) for stage in config.stages.values())
    counts = {name: replicas_of(config, name, live) for name in used if config.models[name].placement == "auto"}
    most = max(counts, key=lambda name: counts[name], default="")
    if not most or counts[most] <= 1:
        return None
    models = {**config.models, most: config.models[most].model_copy(update={"replicas": counts[most] - 1})}
    return _with(file, config.model_copy(update={"models": models}))


def _narrower(file: PipelineFile) -> PipelineFile | None:
    """Half the frames in every batch."""
    stages = dict(file.config.stages)
    for name, stage in file.config.stages.items():
        if isinstance(stage, InferStage) and stage.batch is not None and stage.batch.max > 1:
            stages[name] = stage.model_copy(
                update={"batch": stage.batch.model_copy(update={"max": stage.batch.max // 2})}
            )
    return None if stages == file.config.stages else _with(file, file.config.model_copy(update={"stages": stages}))


def _joined(file: PipelineFile) -> PipelineFile | None:
    """One arena for the models that take turns."""
    config = file.config
    apart = [name for turns in turns_of(config) for name in turns if not config.models[name].tuning.shared_arena]
    if not apart:
        return None
    shared = {
        name: one.model_copy(update={"tuning": one.tuning.model_copy(update={"shared_arena": True})})
        for name, one in config.models.items()
        if name in apart
    }
    return _with(file, config.model_copy(update={"models": {**config.models, **shared}}))


QUEUES: Step[PipelineFile] = ("queues half as long", _shorter)
STEPS: tuple[Step[PipelineFile], ...] = (
    ("one arena for models that take turns", _joined),
    QUEUES,
    ("a replica less", _fewer),
    ("batches half as large", _narrower),
)
"""What gives way for memory, the least harmful first."""
