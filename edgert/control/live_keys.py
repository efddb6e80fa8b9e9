"""The keys of a pipeline that may change while it runs, and how each change is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from edgert.assemble import Assembly
from edgert.config import PipelineConfig, PipelineFile, Section, SourceStage
from edgert.errors import ConfigError, StageError, nearest
from edgert.runtime import Stage, Task

Apply = Callable[[], object]
_Place = tuple[str, ...]


def live_values(config: PipelineConfig, assembly: Assembly) -> dict[str, Any]:
    """Return every live key of a pipeline with its value, as plain data."""
    found = {}
    for place, section in _sections(config):
        for key in section.live:
            if not _why_not(place, key, assembly):
                dumped = partial(section.model_dump, mode="json", include={key}, by_alias=True)
                found[".".join((*place, key))] = (dumped(exclude_unset=True) or dumped())[key]
    return found


def check_known(key: str, config: PipelineConfig) -> None:
    """Raise ConfigError where a key is of a model or stage that is not there."""
    kind, _, rest = key.partition(".")
    names: Mapping[str, Iterable[str]] = {"models": config.models, "stages": config.stages}
    known = [*names.get(kind, ())]
    name = rest.partition(".")[0]
    if kind in names and name and name not in known:
        what = f"no {kind.removesuffix('s')} {name!r}{nearest(name, known)}"
        raise ConfigError(what, fix=f"{kind}: {', '.join(known) or 'none'}")


def check_live(key: str, config: PipelineConfig, assembly: Assembly) -> tuple[_Place, str]:
    """Return the section that a key is in, by its path, and the section's own key.

    Raises:
        StageError: the key is not live; says what the change needs.
    """
    words = tuple(key.split("."))
    for place, section in _sections(config):
        own = words[len(place)] if words[: len(place)] == place and len(words) > len(place) else ""
        if own in section.live:
            if why := _why_not(place, own, assembly):
                raise _not_live(key, why, config, assembly)
            return place, own
    why = "it holds for the whole run"
    if words[0] == "models":
        why = "the model would be loaded again"
    elif words[0] == "stages" and len(words) > 1:
        is_source = isinstance(config.stages[words[1]], SourceStage)
        why = f"the {'source' if is_source else 'stage'} would be opened again"
    raise _not_live(key, why, config, assembly)


def applied(place: _Place, key: str, file: PipelineFile, assembly: Assembly) -> list[Apply]:
    """Return what makes a change, ready to be called: whatever can fail before a frame is touched has been done.

    Args:
        place: path of the section, from :func:`check_live`.
        key: its own key.
        file: the pipeline with the change.
        assembly: the one that runs.

    Raises:
        EdgertError: the stage or decoder cannot be made with this value.
    """
    name, config = place[1], file.config
    if place[0] == "models":
        return [another(config.models[name].task) for another in assembly.decoders[name]]
    section = config.stages[name]
    end = assembly.ends[name]
    if isinstance(section, SourceStage):
        return [partial(end.stage.thin, section.fps)]  # type: ignore[union-attr]  # _why_not looked for it
    if key == "every":
        return [partial(setattr, stage, key, getattr(section, key)) for stage in _skipping(name, assembly)]
    assert assembly.make is not None
    return [partial(assembly.graph.replace, end, cast("Stage", assembly.make(file, name)))]


def with_section(config: PipelineConfig, place: _Place, changed: PipelineConfig, key: str) -> PipelineConfig:
    """Return a configuration in which one key of one section is that of another configuration."""
    name = place[1]
    if place[0] == "models":
        task = config.models[name].task
        task = task.model_copy(update={key: getattr(changed.models[name].task, key)})
        models = {**config.models, name: config.models[name].model_copy(update={"task": task})}
        return config.model_copy(update={"models": models})
    stage = config.stages[name].model_copy(update={key: getattr(changed.stages[name], key)})
    return config.model_copy(update={"stages": {**config.stages, name: stage}})


def _sections(config: PipelineConfig) -> Iterator[tuple[_Place, Section]]:
    """Yield every section that may have live keys, and its path."""
    for name, model in config.models.items():
        yield ("models", name, "task"), model.task
    for name, stage in config.stages.items():
        yield ("stages", name), stage


def _why_not(place: _Place, key: str, assembly: Assembly) -> str:
    """Return why a key that is mostly live is not so here; empty where it is."""
    name = place[1]
    if place[0] == "models":
        return "" if name in assembly.decoders else "the GPU reads this model's boxes, with numbers of the start"
    end = assembly.ends[name]
    if key == "fps" and not hasattr(end.stage, "thin"):
        return "this kind of source has its rate from the start"
    if key == "every" and not _skipping(name, assembly):
        return "it runs together with another stage"
    return ""


def _skipping(name: str, assembly: Assembly) -> list[Any]:
    """Return the parts of a stage that leave frames out."""
    stages = [getattr(task.stage, "stage", task.stage) for task in assembly.tasks if _is_part(task, name)]
    return [stage for stage in stages if hasattr(stage, "every")]


def _is_part(task: Task, name: str) -> bool:
    return task.name.partition(":")[0] == name


def _not_live(key: str, why: str, config: PipelineConfig, assembly: Assembly) -> StageError:
    live = live_values(config, assembly)
    return StageError(
        f"{key} cannot change while the pipeline runs",
        why=f"{why}: this needs a restart",
        fix=f"change it in the file and restart; live here: {', '.join(live) or 'nothing'}",
    )
