"""A pipeline with models in the place of others, level by level, as a governor may choose to run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgert.budget.footprint import Kind
from edgert.config import PipelineFile
from edgert.config.variant import stages_at, stand_ins
from edgert.plan.row import Row

_LOADED: tuple[Kind, ...] = ("weights", "activations", "bindings", "structure")  # of an engine


def levels_of(file: PipelineFile) -> tuple[PipelineFile, ...]:
    """The pipeline as its file has it, then with every model's first stand-in, and so on to the last."""
    config = file.config
    count = 1 + len(stand_ins(config.stages, config.models))
    return tuple(_at(file, level) for level in range(count))


def smaller_of(file: PipelineFile, level: int) -> tuple[str, ...]:
    """The models that are in the place of others at a level; none at 0."""
    return ((), *stand_ins(file.config.stages, file.config.models))[level]


def _at(file: PipelineFile, level: int) -> PipelineFile:
    stages = stages_at(file.config.stages, file.config.models, level)
    return replace(file, config=file.config.model_copy(update={"stages": stages})) if level else file


def with_stand_ins(file: PipelineFile, row: Row, others: Sequence[Row]) -> Row:
    """A row together with those of further levels, all of whose engines are loaded from the start."""
    memory, loaded = list(row.memory), {model.name for model in row.models}
    for other in others:
        added = {model.name for model in other.models} - loaded
        memory += [part for part in other.memory if part.name in added and part.kind in _LOADED]
        loaded |= added
    held_bytes = sum(part.size_bytes for part in memory)

    def held(one: Row) -> Row:
        return replace(one, memory=tuple(memory), memory_bytes=held_bytes)

    named = [held(replace(one, smaller=smaller_of(file, level))) for level, one in enumerate(others, 1)]
    return held(replace(row, stand_ins=tuple(named)))


def counterpart(row: Row, others: Sequence[Row]) -> Row:
    """The row of a further level that a placement goes with: of the same name, else the one with most to spare."""
    return next((one for one in others if one.name == row.name), max(others, key=lambda one: one.headroom))
