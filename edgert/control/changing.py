"""Make changes of a running pipeline, each between two frames of its stage: all of them, or none."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from edgert.config import PipelineConfig, PipelineFile
from edgert.config.pipeline_file import changed_pipeline, replacement_pipeline
from edgert.control.change_plan import Change, changes_between
from edgert.control.controlled import Controlled, data_of
from edgert.control.live_keys import check_known, live_values, skipping
from edgert.errors import ConfigError, EdgertError, StageError
from edgert.runtime import Source, Stage

_LOG = logging.getLogger(__name__)
_Step = tuple[Callable[[], object], Callable[[], object]]
"""Makes a change, and takes it back."""
_MOVES = ("adds", "removes", "opens the source again")


def set_key(run: Controlled, text: str) -> dict[str, Any]:
    """Change a live key; see :meth:`Control.set`."""
    key, before = text.partition("=")[0].strip(), live_values(run)
    if "=" not in text:
        now = f"; it is {before[key]!r} now" if key in before else ""
        raise ConfigError(f"set takes KEY=VALUE, not {text!r}", fix=f"edgert ctl set {key or 'KEY'}=VALUE{now}")
    try:
        file = changed_pipeline(run.file, data_of(run), [text])
    except ConfigError:
        check_known(key, run.file.config)  # whose error is clearer
        raise
    changes = changes_to(run, file)
    own = next((one for one in before if f"{key}.".startswith(f"{one}.")), "")
    if not own or any(one.key != own for one in changes):
        raise _not_live(key, changes, before)
    make_changes(run, file, changes)
    return {"key": own, "was": before[own], "is": live_values(run)[own]}


def apply_file(run: Controlled, text: str, *, plan: str = "") -> dict[str, Any]:
    """Return what it takes to run another file, or do it; see :meth:`Control.apply`."""
    file = replacement_pipeline(run.file, text)
    changes = changes_to(run, file)
    state = json.dumps([run.file.document.data, text], sort_keys=True, default=str)
    own = hashlib.sha256(state.encode()).hexdigest()[:12]
    if plan and plan != own:
        why, fix = "the pipeline or the file has changed since", "edgert ctl apply FILE makes a new plan"
        raise StageError(f"plan {plan} is stale", why=why, fix=fix)
    if plan:
        make_changes(run, file, changes)
    is_possible = not any(one.effect == "needs a restart" for one in changes)
    about = {"plan": own, "possible": is_possible, "applied": bool(plan)}
    return {**about, "changes": [one.to_json() for one in changes]}


def changes_to(run: Controlled, file: PipelineFile) -> tuple[Change, ...]:
    """Return what differs between a running pipeline and another form of it, as both are written."""
    written = run.written or changed_pipeline(run.file, data_of(run)).config
    return changes_between(written, file.config, run)


def make_changes(run: Controlled, file: PipelineFile, changes: Sequence[Change]) -> None:
    """Make a running pipeline what another form of it is.

    Args:
        run: the pipeline.
        file: its other form, as it is written.
        changes: between the two, from :func:`changes_to`.

    Raises:
        StageError: one of them needs a restart, or cannot be made; nothing has changed then.
        BudgetError: there is too little memory for it, or the budgets cannot be kept.
        EdgertError: a source, stage or decoder cannot be made with these values.
    """
    if refused := [one for one in changes if one.effect == "needs a restart"]:
        what = f"{', '.join(one.key for one in refused)} cannot change while the pipeline runs"
        fix = "change it in the file and restart; edgert ctl show lists the keys that are live"
        raise StageError(what, why="; ".join(f"{one.key}: {one.why}" for one in refused), fix=fix)
    before = run.file
    after = PipelineFile(_as_it_runs(before.config, file.config, changes), file.document, before.passed_over)
    is_planned = any(one.effect in _MOVES or one.place == ("budgets",) for one in changes)
    keep_budgets = run.admitted(after) if is_planned else None
    steps, done = _steps(run, before, after, changes), list[_Step]()
    if keep_budgets is not None:
        steps.append((keep_budgets, lambda: run.admitted(before)()))
    try:
        for step in steps:
            done.append(step)
            step[0]()
    except BaseException:
        run.note(after)  # what worked for a moment is replayed so, and then what takes its place again
        for _, undo in reversed(done[:-1]):
            try:
                undo()
            except EdgertError as error:
                _LOG.error("a change could not be taken back: %s", error)
        run.note(before)
        raise
    run.changed(after, file.config)


def _steps(run: Controlled, before: PipelineFile, after: PipelineFile, changes: Sequence[Change]) -> list[_Step]:
    """Return what makes the changes: what is likely to fail comes first, and what cannot be taken back last.

    Raises:
        EdgertError: a stage or decoder cannot be made; nothing has changed.
    """
    assembly, steps = run.assembly, list[_Step]()
    by_effect: dict[str, dict[str, None]] = {}
    for one in changes:
        by_effect.setdefault(one.effect, {})[".".join(one.place[1:2])] = None
    assert assembly.make is not None
    for name in by_effect.get("adds", ()):
        source = assembly.make(after, name)
        steps.append((partial(assembly.add_source, after, name, source), partial(assembly.remove_source, before, name)))
    for name in by_effect.get("opens the source again", ()):
        source = assembly.make(after, name)
        steps.append((partial(_reopen, run, before, after, name, source), partial(_reopen, run, after, before, name)))
    for name in by_effect.get("restarts the stage", ()):
        new = cast("Stage", assembly.make(after, name))
        steps.append((partial(_replace, run, after, name, new), partial(_replace, run, before, name, None)))
    for name in {one.place[1]: None for one in changes if one.place[2:] == ("task",)}:
        steps += zip(_readings(run, after, name), _readings(run, before, name), strict=True)
    for one in changes:
        if one.effect == "live" and one.place[0] == "stages" and one.field in ("every", "fps"):
            values = (getattr(file.config.stages[one.place[1]], one.field) for file in (after, before))
            make, undo = (partial(_assign, run, one.place[1], one.field, value) for value in values)
            steps.append((make, undo))
    for name in by_effect.get("removes", ()):
        steps.append((partial(assembly.remove_source, after, name), partial(assembly.add_source, before, name)))
    return steps


def _reopen(
    run: Controlled, before: PipelineFile, after: PipelineFile, name: str, source: Source | Stage | None = None
) -> None:
    """Put a source in the place of another one of its name."""
    run.assembly.remove_source(after, name)
    try:
        run.assembly.add_source(after, name, source)
    except BaseException:
        run.assembly.add_source(before, name)
        raise


def _replace(run: Controlled, file: PipelineFile, name: str, stage: Stage | None) -> None:
    """Put a stage in the place of another one; None: made from a file."""
    make, task = run.assembly.make, run.assembly.ends[name]
    assert make is not None
    run.assembly.graph.replace(task, stage or cast("Stage", make(file, name)))
    if task.policy.remake is not None:
        task.policy = replace(task.policy, remake=partial(cast("Callable[..., Stage]", make), file, name))


def _readings(run: Controlled, file: PipelineFile, name: str) -> list[Callable[[], object]]:
    """Return what has a model be read as a file has it, each in the thread that reads it."""
    change, task = run.assembly.graph.at_safe_point, file.config.models[name].task
    return [partial(change, one, another(task)) for one, another in run.assembly.readers(file, name)]


def _assign(run: Controlled, name: str, key: str, value: Any) -> None:
    if key == "fps":
        run.assembly.ends[name].stage.thin(value)  # type: ignore[union-attr]  # it is live only where there is one
        return
    for stage in skipping(name, run.assembly):
        setattr(stage, key, value)


def _as_it_runs(runs: PipelineConfig, after: PipelineConfig, changes: Sequence[Change]) -> PipelineConfig:
    """Return what a pipeline is after changes, with the sections that were made to fit this machine as they are."""
    fields: dict[tuple[str, ...], list[str]] = {}
    for one in changes:
        fields.setdefault(one.place, []).append(one.field)
    stages = {}
    for name, new in after.stages.items():
        old, changed = runs.stages.get(name), fields.get(("stages", name), [])
        if type(old) is not type(new):
            stages[name] = new
        else:
            stages[name] = old.model_copy(update={field: getattr(new, field) for field in changed})
    models = dict(runs.models)
    for name, model in models.items():
        if ("models", name, "task") in fields:
            task = after.models[name].task
            update = {field: getattr(task, field) for field in fields["models", name, "task"]}
            models[name] = model.model_copy(update={"task": model.task.model_copy(update=update)})
    budgets = after.budgets if ("budgets",) in fields else runs.budgets
    return runs.model_copy(update={"stages": stages, "models": models, "budgets": budgets})


def _not_live(key: str, changes: Sequence[Change], live: dict[str, Any]) -> StageError:
    """Return why a key cannot be set."""
    why, fix = "it holds for the whole run: this needs a restart", "change it in the file and restart"
    if changes:
        effect = changes[0].effect
        why = f"{changes[0].why}: this needs a restart"
        if effect != "needs a restart":
            why = f"that {effect}" if "source" in effect else "the stage would be opened again"
            fix = "edgert ctl apply FILE does that"
    what, section = f"{key} cannot change while the pipeline runs", ".".join(key.split(".")[:2])
    near = [one for one in live if one.startswith(f"{section}.")]
    live_here = f"live in {section}: {', '.join(near)}" if near else "edgert ctl show lists the live keys"
    return StageError(what, why=why, fix=f"{fix}; {live_here}")
