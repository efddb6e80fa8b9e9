"""Models that stand in for others when a budget is exceeded: ``degrade_to``, followed to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from edgert.config.model import TASK_VERBS, ModelConfig
from edgert.config.stage import InferStage, StageConfig
from edgert.errors import ConfigError, nearest

Where = Callable[[Iterable["str | int"]], str]


def variants_of(models: Mapping[str, ModelConfig], name: str) -> tuple[str, ...]:
    """A model and those that take its place, one after the other."""
    found = [name]
    while (smaller := models[found[-1]].degrade_to) is not None:
        found.append(smaller)
    return tuple(found)


def users_of(stages: Mapping[str, StageConfig], models: Mapping[str, ModelConfig], name: str) -> list[InferStage]:
    """The stages that run a model, be it in the place of another."""
    infers = [stage for stage in stages.values() if isinstance(stage, InferStage)]
    return [stage for stage in infers if name in variants_of(models, stage.infer)]


def check_variants(models: Mapping[str, ModelConfig], where: Where) -> None:
    """Raises ConfigError for a stand-in that is not there, leads back, or does something else."""
    for name, model in models.items():
        if model.degrade_to is not None:
            _check(name, model, model.degrade_to, models, where(("models", name, "degrade_to")))
    for name in models:
        _check_ends(name, models, where)


def _check(name: str, model: ModelConfig, smaller: str, models: Mapping[str, ModelConfig], where: str) -> None:
    if smaller not in models:
        known = ", ".join(other for other in models if other != name) or "none"
        raise ConfigError(
            f"model {name!r} degrades to {smaller!r}, which is not among models{nearest(smaller, models)}",
            where=where,
            fix=f"other models here: {known}",
        )
    tasks = [_task(one) for one in (model, models[smaller])]
    if tasks[0] != tasks[1]:
        raise ConfigError(
            f"model {name!r} cannot degrade to {smaller!r}",
            why=f"one is for {tasks[0]}, the other for {tasks[1]}; what comes after them expects one kind of result",
            where=where,
            fix=f"a model with task: {{{tasks[0]}: …}}",
        )


def _check_ends(name: str, models: Mapping[str, ModelConfig], where: Where) -> None:
    seen = [name]
    while (smaller := models[seen[-1]].degrade_to) is not None:
        if smaller in seen:
            raise ConfigError(
                f"degrade_to leads in a circle: {' -> '.join((*seen, smaller))}",
                where=where(("models", seen[-1], "degrade_to")),
                fix="leave it out at the smallest model",
            )
        seen.append(smaller)


def _task(model: ModelConfig) -> str:
    """``detect``, ``classify`` …"""
    return next(verb for verb in TASK_VERBS if hasattr(model.task, verb))
