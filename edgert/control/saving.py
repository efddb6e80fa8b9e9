"""The operation ``save``: the differences from the pipeline's file become its overlay."""

import os
from collections.abc import Mapping
from typing import Any

from edgert import files, installation
from edgert.config.document import read_document
from edgert.config.file_overlay import changed_keys, differences, merge_overlay, overlay_path, to_yaml, without_key
from edgert.config.pipeline_file import changed_pipeline
from edgert.control.controlled import Controlled, copy_data
from edgert.errors import ConfigError, StageError, cause


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
    try:
        mode = (target if target.exists() else path).stat().st_mode & 0o777  # a new one is as private as the file
        if not overlay:
            target.unlink(missing_ok=True)
    except OSError as error:
        raise StageError(f"cannot write {target}", why=cause(error)) from error
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
