"""The verbs pause, resume, add and remove of a running pipeline's sources, swap and back of its models, and save."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgert import files, installation
from edgert.config import SourceStage, flow, pipeline_file
from edgert.config.document import read_document
from edgert.config.file_overlay import changed_keys, differences, merge_overlay, overlay_path, to_yaml, without_key
from edgert.config.pipeline_file import changed_pipeline
from edgert.control.changing import changes_to, make_changes
from edgert.control.controlled import Controlled, copy_data
from edgert.errors import ConfigError, StageError, nearest, raised_as
from edgert.stages.source.kinds import options_unused_by

SHADOW, MIN_AGREEMENT, KEEP_S = 500, 0.97, 600.0
"""Default number of shadow frames, least agreement, and seconds for which the old model is kept."""


def pause(run: Controlled, name: str) -> dict[str, Any]:
    """Pause a source; see :meth:`Control.pause`."""
    return _set_paused(run, name, is_paused=True)


def resume(run: Controlled, name: str) -> dict[str, Any]:
    """Undo :func:`pause`."""
    return _set_paused(run, name, is_paused=False)


def add(run: Controlled, name: str, source: str, like: str = "") -> dict[str, Any]:
    """Add a source; see :meth:`Control.add`."""
    stages = run.file.config.stages
    if name in stages:
        raise StageError(f"stage {name!r} exists already", fix="give the source another name")
    like = like or next(one for one, stage in stages.items() if isinstance(stage, SourceStage))
    _check_source(run, like)
    data = copy_data(run)
    unused = options_unused_by(source, run.file.document.path.parent)  # such as loop: of a file, beside a camera
    common = {key: value for key, value in data["stages"][like].items() if key not in unused}
    data["stages"][name] = {"on_error": "drop", **common, "source": source}
    inputs = {one: [*flow.inputs_of(stage), name] for one, stage in stages.items() if like in flow.inputs_of(stage)}
    _change_sources(run, data, inputs)
    return {"source": name, "listeners": list(inputs)}


def remove(run: Controlled, name: str) -> dict[str, Any]:
    """Remove a source; see :meth:`Control.remove`."""
    stages = run.file.config.stages
    _check_source(run, name)
    if sum(isinstance(stage, SourceStage) for stage in stages.values()) == 1:
        why, fix = "a pipeline needs one", f"edgert ctl pause {name}; or stop the run"
        raise StageError(f"{name!r} is the last source", why=why, fix=fix)
    inputs = {
        one: [other for other in flow.inputs_of(stage) if other != name]
        for one, stage in stages.items()
        if name in flow.inputs_of(stage)
    }
    if alone := [one for one, left in inputs.items() if not left]:
        why = f"{' and '.join(alone)} would listen to nothing"
        raise StageError(f"{name!r} cannot be removed", why=why, fix=f"edgert ctl pause {name}")
    data = copy_data(run)
    del data["stages"][name]
    _change_sources(run, data, inputs)
    return {"source": name, "listeners": list(inputs)}


def _change_sources(run: Controlled, data: dict[str, Any], inputs: Mapping[str, list[str]]) -> None:
    """Change a pipeline's sources to those in ``data``, and the inputs of these stages."""
    for one, names in inputs.items():
        data["stages"][one]["from"] = names
    file = pipeline_file.changed_pipeline(run.file, data)
    make_changes(run, file, changes_to(run, file))


def source_state(run: Controlled, name: str, stats: Mapping[str, Any]) -> str:
    """Return the state of a source in words; ``stats`` are its statistics in the state of the run, or empty."""
    task = run.assembly.ends[name]
    limiter = task.execution.limiter
    if task.meter.status.has_ended:
        return "ended"
    if limiter is not None and limiter.paused:
        return "paused"
    return f"down: {stats.get('reason') or 'no frame yet'}" if stats.get("up") is False else "running"


def _set_paused(run: Controlled, name: str, *, is_paused: bool) -> dict[str, Any]:
    _check_source(run, name)
    run.assembly.ends[name].rate_limiter(run.clock).paused = is_paused
    return {"source": name, "state": source_state(run, name, {})}


def _check_source(run: Controlled, name: str) -> None:
    """Check the name of a source. Raises StageError: there is no source of that name."""
    known = [one for one, stage in run.file.config.stages.items() if isinstance(stage, SourceStage)]
    if name not in known:
        raise StageError(f"unknown source {name!r}{nearest(name, known)}", fix=f"sources: {', '.join(known)}")


def swap(
    run: Controlled,
    model: str,
    path: str,
    shadow: int = SHADOW,
    min_agreement: float = MIN_AGREEMENT,
    keep: float = KEEP_S,
) -> dict[str, Any]:
    """Begin to swap a model; see :meth:`Control.swap`."""
    from edgert.swap.model_swap import ModelSwap  # imported for the first swap
    from edgert.swap.swap_page import render_page
    from edgert.swap.verdict import Terms

    for name, other in run.swaps.items():
        if not other.wait(0) and (name == model or other.state.phase != "switched"):
            fix = f"wait until it has ended, or edgert ctl back {name}"
            raise StageError("a swap is under way", why=f"model {name!r}: {other.state}", fix=fix)
    made = ModelSwap(run, model, Path(path), Terms(shadow, min_agreement, keep))
    made.start()
    run.swaps[model] = made
    run.assembly.hooks.swap_page = lambda: render_page(run.file.config.name, made.state, made.disagreements)
    return made.state.to_json()


def back(run: Controlled, model: str) -> dict[str, Any]:
    """Switch back to the previous model; see :meth:`Control.back`."""
    models = run.file.config.models
    if model not in models:
        raise StageError(f"unknown model {model!r}{nearest(model, models)}", fix=f"models: {', '.join(models)}")
    if model not in run.swaps:
        raise StageError(f"model {model!r} was not swapped", fix=f"edgert ctl swap {model} NEW.onnx")
    run.swaps[model].back("edgert ctl back requested it")
    return run.swaps[model].state.to_json()


def save(run: Controlled) -> dict[str, Any]:
    """Write the overlay of the pipeline's file; see :meth:`Control.save`."""
    document = run.file.document
    path, base = document.path, document.base
    if run.prepared_why or base is None or not path.is_file():
        why = run.prepared_why or "it was given as a mapping, or its file was removed"
        raise StageError("this pipeline cannot be saved", why=why, fix="run it from a file")
    if path.parent == installation.data_folder("pipelines"):
        raise StageError("this pipeline cannot be saved", why="its file comes with edgert", fix=f"run a copy of {path}")
    changes = differences(_with_null_sinks(base), _with_null_sinks(document.data))
    if (
        changed_pipeline(run.file, merge_overlay(base, changes)).config
        != changed_pipeline(run.file, copy_data(run)).config
    ):
        raise StageError("this pipeline cannot be saved", why="an argument of code became null", fix="change the file")
    now = read_document(path, has_overlay=False).data  # as it is now
    overlay, target = _without_defaults(run, now, differences(now, merge_overlay(now, changes))), overlay_path(path)
    is_removed = not overlay and target.exists()
    with raised_as(StageError, f"cannot write {target}"):
        mode = (target if target.exists() else path).stat().st_mode & 0o777  # a new one is as private as the file
        if not overlay:
            target.unlink(missing_ok=True)
    if overlay:
        head = f"# Loaded after {path.name}, by edgert ctl save. Delete this file to leave it out.\n"
        with files.replacing(target) as file:
            os.fchmod(file.fileno(), mode)
            file.write((head + to_yaml(overlay, document.written)).encode())
            file.flush()
            os.fsync(file.fileno())  # a power cut leaves the old overlay or the new one
    keys = [".".join(loc) for loc in changed_keys(overlay, now)]
    return {"path": str(target.absolute()), "keys": keys, "removed": is_removed}


def _without_defaults(run: Controlled, data: Mapping[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    """Return an overlay without the keys that were set back to their default."""
    wanted = changed_pipeline(run.file, merge_overlay(data, overlay)).config
    for loc in changed_keys(overlay, overlay):
        less = without_key(overlay, loc)
        try:
            if changed_pipeline(run.file, merge_overlay(data, less)).config == wanted:
                overlay = less
        except ConfigError:  # the pipeline needs this key
            continue
    return overlay


def _with_null_sinks(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's data with ``sink: null`` as a text, because a key without a value removes one in an overlay."""
    stages = data.get("stages", {})
    named = {name: {**stage, "sink": "null"} for name, stage in stages.items() if stage.get("sink", "") is None}
    return {**data, "stages": {**stages, **named}}
