"""Live keys: keys of a pipeline that may change while it runs, with their values."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from edgert.assemble import Assembly
from edgert.config import PipelineConfig, Section
from edgert.config.pipeline_file import BudgetConfig
from edgert.control.controlled import Controlled
from edgert.errors import ConfigError, nearest

_UNITS = {"power": "W", "latency": "s", "memory": "B"}
"""Units of budgets in a pipeline file."""
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
    unit = _UNITS.get(key, "") if isinstance(section, BudgetConfig) else ""
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
