"""What models that stand in for each other must have in common, as far as only their engines and files tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgert.config import PipelineFile
from edgert.errors import ConfigError
from edgert.stages.label import read_labels


def check_labels(file: PipelineFile, variants: Sequence[str]) -> None:
    """Raises ConfigError where models that take each other's place number their classes differently."""
    first, *others = [_labels(file, name) for name in variants]
    for name, labels in zip(variants[1:], others, strict=True):
        if labels != first:
            raise ConfigError(
                f"models {variants[0]!r} and {name!r} have other classes",
                why="tracks, crops and whoever reads results go by the class number, which must mean the same in both",
                where=file.where("models", name, "task"),
                fix="the same labels file for both",
            )


def check_together(file: PipelineFile, on_gpu: Mapping[str, bool]) -> None:
    """Raises ConfigError where some of the models that take each other's place are on the GPU and others are not."""
    if len(set(on_gpu.values())) > 1:
        away = [name for name, is_there in on_gpu.items() if not is_there]
        raise ConfigError(
            f"model {away[0]!r} is not on the GPU, as those are that it takes turns with",
            why="frames come to all of them in the same memory",
            where=file.where("models", away[0]),
            fix="the same engine and backend for all, and an input that can be prepared on the GPU",
        )


def _labels(file: PipelineFile, name: str) -> tuple[str, ...]:
    path = file.config.models[name].task.labels
    return read_labels(path, file.where("models", name, "task")) if path else ()
