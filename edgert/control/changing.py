"""Changes of a running pipeline, each made between two frames of its stage; all of them, or none."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from edgert.config import PipelineConfig, PipelineFile, pipeline_file
from edgert.control.change_plan import Change, changes_between, check_known, live_values, stages_with_every
from edgert.control.controlled import Controlled, copy_data
from edgert.errors import ConfigError, EdgertError, StageError
from edgert.runtime import Source, Stage, recovery

_Step = tuple[Callable[[], object], Callable[[], object]]
"""A function that makes a change, and one that undoes it."""
_SOURCE_EFFECTS = ("adds", "removes", "opens the source again")


def set_keys(run: Controlled, *texts: str) -> dict[str, Any]:
    """Change live keys, all of them or none; see :meth:`Control.set_keys`."""
    before, keys = live_values(run), [text.partition("=")[0].strip() for text in texts]
    for key, text in zip(keys, texts, strict=True):
        check_known(key, run.file.config)  # its error is clearer than that of the file
        if "=" not in text:
            is_now = f"; it is {before[key]!r} now" if key in before else ""
            raise ConfigError(f"set takes KEY=VALUE, not {text!r}", fix=f"edgert ctl set {key or 'KEY'}=VALUE{is_now}")
    try:
        file = pipeline_file.changed_pipeline(run.file, copy_data(run), texts)
    except ConfigError as error:
        for one in (error, *error.others):  # these keys come from ``edgert ctl set``, a program or a ROS parameter
            one.what, one.where, one.fix = (text.replace("--set ", "") for text in (one.what, one.where, one.fix))
        raise
    changes = changes_to(run, file)
    live = {key: one for key in keys for one in before if f"{key}.".startswith(f"{one}.")}
    others = [one for one in changes if one.key not in live.values()]
    if others or len(live) < len({*keys}):
        raise _not_live_error(next((key for key in keys if key not in live), keys[0]), others, before)
    make_changes(run, file, changes)
    now = live_values(run)
    return {"changes": [{"key": one, "was": before[one], "now": now[one]} for one in dict.fromkeys(live.values())]}


def apply_file(run: Controlled, text: str, *, plan: str = "") -> dict[str, Any]:
    """Plan the changes to another pipeline file, or make them; see :meth:`Control.apply`."""
    file = pipeline_file.replacement_pipeline(run.file, text)
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
    """Return the differences between a running pipeline and its new form, both as written in a file."""
    written = run.written or pipeline_file.changed_pipeline(run.file, copy_data(run)).config
    return changes_between(written, file.config, run)


def make_changes(run: Controlled, file: PipelineFile, changes: Sequence[Change]) -> None:
    """Change a running pipeline to its new form, by differences from :func:`changes_to`.

    Raises StageError where a change needs a restart, or cannot be made. As with every other error, nothing has changed,
    unless the error says that a step could not be undone.
    """
    if refused := [one for one in changes if one.effect == "needs a restart"]:
        what = f"{', '.join(one.key for one in refused)} cannot change while the pipeline runs"
        fix = "change it in the file and restart; edgert ctl show lists the keys that are live"
        raise StageError(what, why="; ".join(f"{one.key}: {one.why}" for one in refused), fix=fix)
    before = run.file
    after = PipelineFile(_merge_changes(before.config, file.config, changes), file.document, before.passed_over)
    is_planned = any(one.effect in _SOURCE_EFFECTS or one.place == ("budgets",) for one in changes)
    keep_budgets = run.prepare_budgets(after) if is_planned else None
    done = list[_Step]()
    try:
        steps = _steps(run, before, after, changes)
        if keep_budgets is not None:
            steps.append((keep_budgets, lambda: run.prepare_budgets(before)()))
        for step in steps:
            done.append(step)
            step[0]()
    except BaseException as error:
        run.record_file(after)  # the new stages ran for a moment; those that replace them again follow
        left = [reason for _, undo in reversed(done[:-1]) if (reason := _reason_of_failure(undo))]
        run.record_file(before)
        if not isinstance(error, Exception) or (isinstance(error, EdgertError) and not left):
            raise
        why, fix = recovery.describe_error(error), "correct the change"
        if left:
            why, fix = f"{why}; steps before it could not be undone: {'; '.join(left)}", "restart the pipeline"
        raise StageError("the change failed", why=why, fix=fix) from error
    run.set_file(after, file.config)


def _reason_of_failure(step: Callable[[], object]) -> str:
    """Make a step; return why it failed, or an empty text."""
    try:
        step()
    except Exception as error:  # noqa: BLE001 - a user's code
        return recovery.describe_error(error)
    return ""


def _steps(run: Controlled, before: PipelineFile, after: PipelineFile, changes: Sequence[Change]) -> list[_Step]:
    """Return the steps that make the changes: those likely to fail come first, those that lose something last."""
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
        undo = partial(_reopen_source, run, after, before, name)
        steps.append((partial(_reopen_source, run, before, after, name, source), undo))
    for name in by_effect.get("restarts the stage", ()):
        new = cast("Stage", assembly.make(after, name))
        steps.append((partial(_replace_stage, run, after, name, new), partial(_replace_stage, run, before, name, None)))
    for name in {one.place[1]: None for one in changes if one.place[2:] == ("task",)}:
        steps += zip(_task_changes(run, after, name), _task_changes(run, before, name), strict=True)
    for one in changes:
        if one.effect == "live" and one.place[0] == "stages" and one.field in ("every", "fps"):
            values = (getattr(file.config.stages[one.place[1]], one.field) for file in (after, before))
            make, undo = (partial(_set_stage_key, run, one.place[1], one.field, value) for value in values)
            steps.append((make, undo))
    for name in by_effect.get("removes", ()):
        steps.append((partial(assembly.remove_source, after, name), partial(assembly.add_source, before, name)))
    return steps


def _reopen_source(
    run: Controlled, before: PipelineFile, after: PipelineFile, name: str, source: Source | Stage | None = None
) -> None:
    run.assembly.remove_source(after, name)
    try:
        run.assembly.add_source(after, name, source)
    except BaseException:
        run.assembly.add_source(before, name)
        raise


def _replace_stage(run: Controlled, file: PipelineFile, name: str, stage: Stage | None) -> None:
    """Replace a stage by a new one; None: by one that is made from a file."""
    make, task = run.assembly.make, run.assembly.ends[name]
    assert make is not None
    run.assembly.graph.replace(task, stage or cast("Stage", make(file, name)))
    if task.policy.remake is not None:
        task.policy = replace(task.policy, remake=partial(cast("Callable[..., Stage]", make), file, name))


def _task_changes(run: Controlled, file: PipelineFile, name: str) -> list[Callable[[], object]]:
    """Return functions that apply a model's task, each in the thread that reads the model's outputs."""
    change, task = run.assembly.graph.at_safe_point, file.config.models[name].task
    return [partial(change, one, another(task)) for one, another in run.assembly.readers(file, name)]


def _set_stage_key(run: Controlled, name: str, key: str, value: Any) -> None:
    if key == "fps":
        run.assembly.ends[name].stage.thin(value)  # type: ignore[union-attr]  # live only where the source has it
        return
    for stage in stages_with_every(name, run.assembly):
        setattr(stage, key, value)


def _merge_changes(runs: PipelineConfig, after: PipelineConfig, changes: Sequence[Change]) -> PipelineConfig:
    """Return the running pipeline with the changed fields of its new form; adaptations to this machine stay."""
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


def _not_live_error(key: str, changes: Sequence[Change], live: dict[str, Any]) -> StageError:
    """Return the error for a key that cannot be set, with the effect that its change would have."""
    why, fix = "it applies from the start of a run: this needs a restart", "change it in the file and restart"
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
