"""Live keys, and differences between a running pipeline and its new form, with the effect of each on the run."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from edgert.assemble import Assembly
from edgert.config import DrawStage, PipelineConfig, Section, SourceStage, pipeline_file
from edgert.config.flow import inputs_of, reads_of, sources_of
from edgert.config.stages import CropStage, InferStage, PackageStage, PythonStage, SinkStage, StageConfig, TrackStage
from edgert.control.controlled import Controlled
from edgert.errors import ConfigError, nearest

# Keys that may change while a pipeline runs, with their values.

_UNITS = {"power": "W", "latency": "s", "memory": "B"}
Place = tuple[str, ...]
"""Path of a section, such as ``("models", "parts", "task")`` or ``("budgets",)``; empty for the file itself."""


def sections(config: PipelineConfig) -> Iterator[tuple[Place, Section]]:
    """Yield path and section of every section that may have live keys."""
    yield ("budgets",), config.budgets
    for name, model in config.models.items():
        yield ("models", name, "task"), model.task
    for name, stage in config.stages.items():
        yield ("stages", name), stage


def plain_value(section: Section, key: str) -> Any:
    """Return the value of a key as plain data, as a pipeline file may have it."""
    dumped = partial(section.model_dump, mode="json", include={key}, by_alias=True)
    value = next(iter((dumped(exclude_unset=True) or dumped()).values()))
    unit = _UNITS.get(key, "") if isinstance(section, pipeline_file.BudgetConfig) else ""
    if value is None or not unit:
        return value
    if unit != "B":
        return f"{value:g}{unit}"
    power = next(power for power in (3, 2, 1, 0) if value % 1024**power == 0)
    return f"{value // 1024**power}{('B', 'KiB', 'MiB', 'GiB')[power]}"


def live_values(run: Controlled) -> dict[str, Any]:
    """Return key path → value of every live key of a running pipeline, as plain data."""
    return {
        ".".join((*place, key)): plain_value(section, key)
        for place, section in sections(run.file.config)
        for key in section.live
        if not why_not_live(place, key, run)
    }


def check_known(key: str, config: PipelineConfig) -> None:
    """Check the model or stage in a key path. Raises ConfigError: there is no such model or stage."""
    kind, _, rest = key.partition(".")
    names: Mapping[str, Iterable[str]] = {"models": config.models, "stages": config.stages}
    known = [*names.get(kind, ())]
    name = rest.partition(".")[0]
    if kind in names and name and name not in known:
        what = f"unknown {kind.removesuffix('s')} {name!r}{nearest(name, known)}"
        raise ConfigError(what, fix=f"{kind}: {', '.join(known) or 'none'}")


def why_not_live(place: Place, key: str, run: Controlled) -> str:
    """Return the reason why a key that can be live is not live in this run; empty where it is."""
    if place == ("budgets",):
        return ""
    name, assembly = place[1], run.assembly
    if place[0] == "models":
        return "" if name in assembly.decoders else "no stage runs this model"
    end = assembly.ends[name]
    if key == "fps" and not hasattr(end.stage, "thin"):
        return "the rate of this kind of source is fixed at its start"
    if key == "every" and not stages_with_every(name, assembly):
        return "it runs together with another stage"
    return ""


def stages_with_every(name: str, assembly: Assembly) -> list[Any]:
    """Return the live stages of a stage's tasks that have ``every``."""
    parts = [task for task in assembly.tasks if task.name.partition(":")[0] == name]
    stages = [getattr(task.stage, "stage", task.stage) for task in parts]
    return [stage for stage in stages if hasattr(stage, "every")]


# Differences.

Effect = Literal["live", "restarts the stage", "opens the source again", "adds", "removes", "needs a restart"]
_REPLACEABLE = (DrawStage, TrackStage, CropStage, PythonStage, PackageStage)
"""Stages without an output: a new one is opened beside the old one, and then replaces it."""
_WIRING_KEYS = ("queue", "drop", "on_error", "watchdog")
"""Keys of a stage's connections and thread, which cannot change."""


@dataclass(frozen=True, slots=True)
class Change:
    """A key that differs.

    ``field`` is empty where the section is added or removed. ``why`` is the reason for a restart. ``was`` and ``now``
    are plain data; None for a key that is not live, because it may hold a secret.
    """

    place: Place
    field: str
    effect: Effect
    why: str = ""
    was: Any = None
    now: Any = None

    @property
    def key(self) -> str:
        """Key path as in a pipeline file."""
        return ".".join((*self.place, *filter(None, [{"inputs": "from"}.get(self.field, self.field)])))

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        values = {"was": self.was, "now": self.now} if (self.was, self.now) != (None, None) else {}
        return {"key": self.key, "effect": self.effect, **({"why": self.why} if self.why else {}), **values}


def changes_between(before: PipelineConfig, after: PipelineConfig, run: Controlled) -> tuple[Change, ...]:
    """Return the differences between a running pipeline, as written in its file, and its new form."""
    return (*_file_changes(before, after), *_model_changes(before, after, run), *_stage_changes(before, after, run))


def _file_changes(before: PipelineConfig, after: PipelineConfig) -> Iterator[Change]:
    for field in _different_fields(before, after):
        if field not in ("models", "stages", "budgets"):
            yield Change((), field, "needs a restart", "it applies from the start of a run")


def _model_changes(before: PipelineConfig, after: PipelineConfig, run: Controlled) -> Iterator[Change]:
    yield from _section_changes(("budgets",), before.budgets, after.budgets, run, "")
    for name in before.models.keys() | after.models.keys():
        old, new, place = before.models.get(name), after.models.get(name), ("models", name)
        if old is None or new is None:
            yield Change(place, "", "needs a restart", f"the model would be {'loaded' if old is None else 'freed'}")
            continue
        why = "the model would be loaded again"
        for field in _different_fields(old, new):
            if field != "task" or type(old.task) is not type(new.task):
                yield Change(place, field, "needs a restart", why)
        if type(old.task) is type(new.task):
            yield from _section_changes((*place, "task"), old.task, new.task, run, why)


def _stage_changes(before: PipelineConfig, after: PipelineConfig, run: Controlled) -> Iterator[Change]:
    moved = {
        name
        for name in before.stages.keys() ^ after.stages.keys()
        if isinstance(before.stages.get(name) or after.stages[name], SourceStage)
    }
    recorded = _recorded_sources(before) | _recorded_sources(after)
    for name in (*before.stages, *(name for name in after.stages if name not in before.stages)):
        old, new, place = before.stages.get(name), after.stages.get(name), ("stages", name)
        if old is None or new is None:
            effect: Effect = "adds" if old is None else "removes"
            why = "" if name in moved else f"only sources are {'added' if old is None else 'removed'} live"
            why = why or (recorded.get(name, "") if old is None else "")
            yield Change(place, "", "needs a restart" if why else effect, why)
        elif isinstance(old, SourceStage) and isinstance(new, SourceStage):
            why = recorded.get(name, "")
            yield from _section_changes(
                place, old, new, run, why, "needs a restart" if why else "opens the source again"
            )
        else:
            yield from _stage_key_changes(place, old, new, run, moved, before, after)


def _stage_key_changes(
    place: Place,
    old: StageConfig,
    new: StageConfig,
    run: Controlled,
    moved: set[str],
    before: PipelineConfig,
    after: PipelineConfig,
) -> Iterator[Change]:
    name = place[1]
    if inputs_of(old) != inputs_of(new):
        only_sources = set(inputs_of(old)) ^ set(inputs_of(new)) <= moved
        has_source = any(isinstance(before.stages.get(one), SourceStage) for one in inputs_of(old))
        why = "" if only_sources and has_source else "it would listen to other stages"
        yield Change(place, "inputs", "needs a restart" if why else "live", why)
    kind = next((kind for kind in _REPLACEABLE if isinstance(old, kind) and isinstance(new, kind)), None)
    if kind is None and type(old) is not type(new):
        yield Change(place, "", "needs a restart", "it would be another kind of stage")
        return
    devices = run.assembly.devices
    reads_alike = reads_of(before.stages, devices)[name] == reads_of(after.stages, devices)[name]
    fields = _different_fields(old, new) if type(old) is type(new) else [kind.__name__.removesuffix("Stage").lower()]  # type: ignore[union-attr]
    for field in fields:
        if field == "inputs":
            continue
        is_live = field in old.live and not why_not_live(place, field, run)
        values = (plain_value(old, field), plain_value(new, field)) if is_live else (None, None)
        if is_live and field == "every":
            yield Change(place, field, "live", "", *values)
        elif kind is not None and field not in _WIRING_KEYS and reads_alike:
            yield Change(place, field, "restarts the stage", "", *values)
        else:
            yield Change(place, field, "needs a restart", _restart_reason(new, field))


def _restart_reason(stage: StageConfig, field: str) -> str:
    if isinstance(stage, InferStage):
        return "the model would be loaded again"
    if field in _WIRING_KEYS:
        return "its queue and its thread exist already"
    return "its output is open" if isinstance(stage, SinkStage) else "its frames would come from other memory"


def _section_changes(
    place: Place, old: Section, new: Section, run: Controlled, why: str, effect: Effect = "needs a restart"
) -> Iterator[Change]:
    """Yield the differences in a section whose keys are live, or have another effect for the reason ``why``."""
    for field in _different_fields(old, new):
        why_not = why_not_live(place, field, run) if field in old.live else ""
        if field in old.live and not why_not:
            yield Change(place, field, "live", "", plain_value(old, field), plain_value(new, field))
        else:
            yield Change(place, field, effect, "" if effect == "opens the source again" else why_not or why)


def _recorded_sources(config: PipelineConfig) -> dict[str, str]:
    """Return each source that a sink records → the reason why it cannot be added."""
    why = "records packets only of the cameras that it started with"
    return {
        source: f"{name!r} {why}"
        for name, reached in sources_of(config.stages).items()
        if getattr(config.stages[name], "sink", "") in ("record", "mcap")
        for source in reached
    }


def _different_fields(old: Section, new: Section) -> list[str]:
    return [field for field in type(old).model_fields if getattr(old, field) != getattr(new, field)]
