"""Models that stand in for others when a budget is exceeded: ``degrade_to``, followed to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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


def stand_ins(stages: Mapping[str, StageConfig], models: Mapping[str, ModelConfig]) -> list[tuple[str, ...]]:
    """For each level of degrading, the models that are in the place of others then; fewest first."""
    used = dict.fromkeys(stage.infer for stage in stages.values() if isinstance(stage, InferStage))
    chains = [chain for name in used if len(chain := variants_of(models, name)) > 1]
    deepest = max(map(len, chains), default=1)
    return [tuple(in_use(chain, level) for chain in chains) for level in range(1, deepest)]


def in_use(chain: Sequence[str], level: int) -> str:
    """The model of a chain at a level; its last for all further ones."""
    return chain[min(level, len(chain) - 1)]


def stages_at(
    stages: Mapping[str, StageConfig], models: Mapping[str, ModelConfig], level: int
) -> dict[str, StageConfig]:
    """The stages with the models that they run at a level of degrading."""
    return {name: _at(stage, models, level) for name, stage in stages.items()}


def _at(stage: StageConfig, models: Mapping[str, ModelConfig], level: int) -> StageConfig:
    if not isinstance(stage, InferStage):
        return stage
    return stage.model_copy(update={"infer": in_use(variants_of(models, stage.infer), level)})


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
