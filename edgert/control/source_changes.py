"""Operations on the sources of a running pipeline: pause, resume, add, remove."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgert.config import SourceStage
from edgert.config.flow import inputs_of
from edgert.config.pipeline_file import changed_pipeline
from edgert.control.changing import changes_to, make_changes
from edgert.control.controlled import Controlled, check_source, data_of
from edgert.errors import StageError
from edgert.stages.source.kinds import options_unused_by


def pause(run: Controlled, name: str) -> dict[str, Any]:
    """Pause a source; see :meth:`Control.pause`."""
    return _paused(run, name, is_paused=True)


def resume(run: Controlled, name: str) -> dict[str, Any]:
    """Undo :func:`pause`."""
    return _paused(run, name, is_paused=False)


def add(run: Controlled, name: str, source: str, like: str = "") -> dict[str, Any]:
    """Add a source; see :meth:`Control.add`."""
    stages = run.file.config.stages
    if name in stages:
        raise StageError(f"a stage {name!r} is there already", fix="give the source another name")
    like = like or next(one for one, stage in stages.items() if isinstance(stage, SourceStage))
    check_source(run, like)
    data = data_of(run)
    unused = options_unused_by(source, run.file.document.path.parent)  # such as loop: of a file, beside a camera
    common = {key: value for key, value in data["stages"][like].items() if key not in unused}
    data["stages"][name] = {"on_error": "drop", **common, "source": source}
    inputs = {one: [*inputs_of(stage), name] for one, stage in stages.items() if like in inputs_of(stage)}
    _make(run, data, inputs)
    return {"source": name, "listeners": list(inputs)}


def remove(run: Controlled, name: str) -> dict[str, Any]:
    """Remove a source; see :meth:`Control.remove`."""
    stages = run.file.config.stages
    check_source(run, name)
    if sum(isinstance(stage, SourceStage) for stage in stages.values()) == 1:
        why, fix = "a pipeline needs one", f"edgert ctl pause {name}; or stop the run"
        raise StageError(f"{name!r} is the last source", why=why, fix=fix)
    inputs = {
        one: [other for other in inputs_of(stage) if other != name]
        for one, stage in stages.items()
        if name in inputs_of(stage)
    }
    if alone := [one for one, left in inputs.items() if not left]:
        why = f"{' and '.join(alone)} would listen to nothing"
        raise StageError(f"{name!r} cannot be removed", why=why, fix=f"edgert ctl pause {name}")
    data = data_of(run)
    del data["stages"][name]
    _make(run, data, inputs)
    return {"source": name, "listeners": list(inputs)}


def _make(run: Controlled, data: dict[str, Any], inputs: Mapping[str, list[str]]) -> None:
    """Make a pipeline with other sources, and other inputs of stages."""
    for one, names in inputs.items():
        data["stages"][one]["from"] = names
    file = changed_pipeline(run.file, data)
    make_changes(run, file, changes_to(run, file))


def state_of(run: Controlled, name: str, stats: Mapping[str, Any]) -> str:
    """Return how a source is doing, for people.

    Args:
        run: the pipeline.
        name: of the source.
        stats: of it, from the state of the run; may be empty.
    """
    task = run.assembly.ends[name]
    limiter = task.execution.limiter
    if task.meter.status.has_ended:
        return "ended"
    if limiter is not None and limiter.paused:
        return "paused"
    return f"down: {stats.get('reason') or 'no frame yet'}" if stats.get("up") is False else "running"


def _paused(run: Controlled, name: str, *, is_paused: bool) -> dict[str, Any]:
    check_source(run, name)
    run.assembly.ends[name].limited(run.clock).paused = is_paused
    return {"source": name, "state": state_of(run, name, {})}
