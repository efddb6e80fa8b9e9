"""``check``: whether a model's input and task in a pipeline file are right."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from edgert.config import ModelConfig, PipelineFile, PipelineSource, TaskConfig, load_pipeline
from edgert.config.model_section import PythonTask, value_of, verb_of
from edgert.engine import output_shapes
from edgert.errors import ConfigError, ModelError, located_at, nearest
from edgert.graph import Model, inputs, load
from edgert.reporter import OnProgress
from edgert.stages.decode.kinds import fitting_decoder, labels_of
from edgert.wiring import search as limits
from edgert.wiring.check_report import CheckReport, Finding, Row, Verdict, setting_json, yaml_value
from edgert.wiring.exporter_metadata import DeclaredSettings, declared_settings
from edgert.wiring.judge import Judgment, answer_similarity, judge, kind_of_photo, lead_of
from edgert.wiring.photos import read_photos
from edgert.wiring.prior import Prior, declared_task, prior_of
from edgert.wiring.search import Progress, Ranking, Search, Subject, Tally, load_subject, search_progress
from edgert.wiring.settings import GROUPS, Setting, differs, setting_words
from edgert.wiring.trial import can_read, readings, refine_tasks

_LISTED_SETTINGS = 4  # settings of a tie that a sentence lists


def check(
    pipeline: PipelineSource,
    images: Sequence[str | Path] = (),
    *,
    data: str | Path | None = None,
    model: str | None = None,
    overrides: Iterable[str] = (),
    on_progress: OnProgress | None = None,
) -> CheckReport:
    """Run a model with all plausible settings on photos, and judge the setting that the pipeline file has.

    Declarations of the model's file, its exporter and its family (:mod:`~edgert.wiring.prior`) count until photos
    contradict them by their margin. The written setting is right where no setting with other answers comes within two
    standard errors of it. It is wrong where another setting is two standard errors ahead. Otherwise photos cannot
    decide. With labeled images, settings are ranked by their score instead.

    Blocks for four to six runs of the engine per setting and photo; for one per setting and labeled image.

    Args:
        pipeline: path of the pipeline file, name of a shipped pipeline, or result of :func:`edgert.load_pipeline`.
        images: photos or folders of them, showing objects that the model knows; at most 16 are used.
        data: labeled images instead of photos, as for :func:`edgert.evaluate`; at most 64 are used.
        model: name of the model in the file; may be None when there is only one.
        overrides: ``key.path=value`` strings, as of ``--set``.
        on_progress: function called with the number of runs so far and at most; an error it raises ends the check.

    Raises:
        ConfigError: the model does not exist, neither images nor data or both are given, a photo cannot be read, or
            labels are missing or do not fit the model.
        ModelError: the model's input is not one image, or no decoder can read its outputs.
        BuildError: the backend refuses the model.
    """
    if (not images) == (data is None):
        fix = "--images photo.jpg, or --data FOLDER where there are labels"
        raise ConfigError("check needs either images or labeled data", why="both" if images else "neither", fix=fix)
    file = load_pipeline(pipeline, overrides)
    name = _model_name(file, model)
    config, where = file.config.models[name], file.where("models", name)
    photos = [] if data is not None else read_photos(images)
    with located_at(where):
        labels = labels_of(config, where)
        found = load_subject(config, labels, where)
        tasks = readings(config.task, found.engine, labels, found.network)
        tasks, _ = refine_tasks(tasks, found.engine, found.session, found.network)
        with suppress(ModelError):  # the written decoder reads other outputs, which becomes a finding
            names = [tensor.name for tensor in found.engine.outputs]
            fitting_decoder(config, labels, tuple(output_shapes(found.engine)), found.network, where, names=names)
    written = Setting(config.input, config.task)
    base = Setting(config.input, tasks[0])
    model_file = load(config.onnx)
    declared = declared_settings(model_file)
    prior = prior_for(found, base, declared, tasks)
    against = find_contradictions(declared, model_file, found)
    favored = Setting(prior.applied(base.input), base.task)
    verb, progress = verb_of(tasks[0]), search_progress(on_progress)
    if data is None:
        search = Search(found, photos, verb, progress)
    else:
        search = labeled_search(found, data, config, labels, progress)
    with np.errstate(over="ignore", invalid="ignore"):  # boxes of a wrong setting may be too large for float32
        search.explore(favored, tasks, base)
    report = report_of(file, name, written, search, prior, favored, labels)
    cut = (
        f"only some settings were tried, for {limits.CPU_SECONDS:.0f} s of processor time"
        if search.is_cut_short
        else ""
    )
    report = replace(report, known="; ".join(filter(None, (report.known, *against, cut))))
    return report if data is None else search.with_summary(report)


def labeled_search(
    found: Subject, data: str | Path, config: ModelConfig, labels: tuple[str, ...], progress: Progress | None
) -> Search:
    """Return a search on labeled images."""
    from edgert.dataset import open_dataset
    from edgert.wiring.labeled import MOST_IMAGES, LabeledSearch

    opened = open_dataset(data, config.task, labels, limit=MOST_IMAGES, where=found.where)
    return LabeledSearch(found, opened, config.task, progress)


def prior_for(found: Subject, base: Setting, declared: DeclaredSettings, tasks: Sequence[TaskConfig] = ()) -> Prior:
    """Return the prior knowledge about a model with the task of ``base``, and in ``others`` with each of ``tasks``."""
    others = {
        f"{verb_of(task)}: {value_of(task)}": prior_for(found, replace(base, task=task), declared) for task in tasks
    }
    return replace(_prior_for_task(found, base, declared), others=others)


def _prior_for_task(found: Subject, base: Setting, declared: DeclaredSettings) -> Prior:
    if isinstance(base.task, PythonTask):
        return Prior(declared)
    inputs, outputs = ([tensor.name for tensor in ends] for ends in (found.engine.inputs, found.engine.outputs))
    shapes = output_shapes(found.engine)
    length = prod(size or 0 for size in shapes[0]) if len(shapes) == 1 else 0
    tall = found.network[1] == 2 * found.network[0]
    return prior_of(declared, base.task, inputs, outputs, length, tall).taken(base.input, found.dtype)


def _model_name(file: PipelineFile, model: str | None) -> str:
    names = list(file.config.models)
    if model is None and len(names) == 1:
        return names[0]
    where = file.where("models")
    if not names:
        raise ConfigError("this pipeline has no model to check", where=where)
    if model is None:
        fix = f"--model {names[0]} (or {', '.join(names[1:])})"
        raise ConfigError(f"cannot tell which of {len(names)} models to check", where=where, fix=fix)
    if model not in names:
        raise ConfigError(f"no model {model!r}{nearest(model, names)}", where=where, fix=f"models: {', '.join(names)}")
    return model


def report_of(
    file: PipelineFile,
    name: str,
    written: Setting,
    search: Search,
    prior: Prior,
    favored: Setting,
    labels: Sequence[str] = (),
) -> CheckReport:
    """Return the report on a written setting after a search; ``favored`` is what the prior knowledge suggests."""
    ranking = search.ranking
    judgment = judge(ranking, prior, ranking.add(favored))
    chosen, as_written = judgment.chosen, ranking.find(written)
    verdict: Verdict = "unclear"
    if as_written is None or (judgment.finds and _is_wrong(judgment, as_written)):
        verdict = "wrong"  # a setting without a tally has a decoder that cannot read the outputs
    elif judgment.settled and (as_written is chosen or judgment.as_good(as_written)):
        verdict = "fine"
    doubtful = verdict == "wrong" or (verdict == "unclear" and judgment.finds and as_written is not chosen)
    findings = _findings(file, name, written, chosen.setting, search, prior) if doubtful else ()
    ties = ties_of(judgment, len(search.photos))
    return CheckReport(
        model=name,
        photos=tuple(str(path) for path, _ in search.photos),
        verdict=verdict,
        summary=_summary(verdict, name, findings, ties, judgment, labels, len(search.photos)),
        findings=findings,
        ties=ties,
        known=prior.of(chosen.setting.task).source,
        more_photos=judgment.more_photos if verdict == "unclear" else 0,
        rows=rows_of(ranking, written),
        runs=search.runs,
        best=chosen.setting,
        written=written,
        record=chosen.records[0],
        image=search.photos[0][1],
    )


def _is_wrong(judgment: Judgment, as_written: Tally) -> bool:
    """Return whether the chosen setting is clearly better; another placement with the same answers is not wrong."""
    if as_written is judgment.chosen or judgment.behind(as_written) < limits.CLEAR:
        return False
    groups = [group for group in GROUPS if differs(judgment.chosen.setting, as_written.setting, group)]
    return groups != ["placement"] or not judgment.as_good(as_written)


def rows_of(ranking: Ranking, written: Setting | None) -> tuple[Row, ...]:
    """Return a row for each setting, the best first; settings tried on fewer photos come last."""
    best, rows = ranking.best(), []
    for tally in sorted(ranking.tallies, key=lambda tally: (-len(tally.evidence), -ranking.mean(tally))):
        parts = [(e.found, e.confirmed, e.chance) for e in tally.evidence.values()]
        found, confirmed, chance = (float(value) for value in np.mean(parts, axis=0))
        fits = zip(ranking.memories, ranking.fits(tally), strict=True)
        row = Row(
            setting=setting_json(tally.setting),
            names=setting_words(tally.setting),
            written=written is not None and tally.setting.key == written.key,
            score=ranking.mean(tally),
            answers=ranking.answers(tally),
            memory={memory.source: fit for memory, fit in fits},
            found=found,
            confirmed=confirmed,
            chance=chance,
            behind=max(0.0 if tally is best else ranking.lead(best, tally), 0.0),
            same=answer_similarity(best, tally),
            photos=len(tally.evidence),
        )
        rows.append(row)
    return tuple(rows)


def _findings(
    file: PipelineFile, name: str, written: Setting, better: Setting, search: Search, prior: Prior
) -> tuple[Finding, ...]:
    """Return the lines to change, those whose written value costs most first."""
    costs: dict[str, float] = {}  # standard errors that the better setting loses with one group as written
    ranking = search.ranking
    for group in written.differing(better):
        if group == "task" and ranking.find(written) is None:
            costs[group] = float("inf")  # the written decoder cannot read these outputs
            continue
        mixed = better.with_part(group, written)
        search.plan(1)
        search.gather([mixed], keep_all=True)
        if ranking.find(mixed) is None:  # its decoder refused the answers
            costs[group] = float("inf")
            continue
        costs[group] = lead_of(ranking, prior, ranking.add(better), ranking.add(mixed))
    blamed = [group for group, cost in costs.items() if cost >= limits.CLEAR or (group != "placement" and cost > 0)]
    return tuple(
        _finding(file, name, path, lines, costs[group])
        for group in sorted(blamed or costs, key=lambda group: -costs[group])
        for path, lines in _changed_lines(written, better, group)
    )


def _changed_lines(written: Setting, better: Setting, group: str) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield each line of a group to change: the key path in the model's section, then old and new line as YAML."""
    before, after = written.part(group), better.part(group)
    if group != "task":
        for key, new in after.items():
            if before.get(key, old := getattr(written.input, key)) != new:
                yield ("input", key), (f"{key}: {yaml_value(old)}", f"{key}: {yaml_value(new)}")
        return
    verb = verb_of(written.task)
    if before[verb] == after.get(verb):
        lines = (f"options: {yaml_value(part.get('options', {}))}" for part in (before, after))
        yield ("task", "options"), (next(lines), next(lines))
    else:
        tasks = (f"{verb_of(task)}: {yaml_value(value_of(task))}" for task in (written.task, better.task))
        yield ("task", verb), (next(tasks), next(tasks))


def _finding(file: PipelineFile, name: str, path: tuple[str, str], lines: tuple[str, str], cost: float) -> Finding:
    loc, key = ("models", name, *path), ".".join(path)
    # Every file has a task, and another decoder that reads the outputs better is a sure finding.
    is_task = path[0] == "task" and path[1] != "options"
    missing = loc not in file.document.places and not is_task
    return Finding(file.where(*loc), key, lines[0], missing, lines[1], cost >= limits.CLEAR or is_task, cost)


def ties_of(judgment: Judgment, photos: int) -> tuple[str, ...]:
    """Return a sentence for each group in which other settings are not clearly worse than the chosen one."""
    chosen, found = judgment.chosen, list[str]()
    these = "this photo" if photos == 1 else f"these {photos} photos"
    ways: dict[str, list[Tally]] = {}
    for tally in judgment.ranking.tallies:
        groups = chosen.setting.differing(tally.setting)
        if tally is not chosen and len(groups) == 1 and tally.evidence and judgment.behind(tally) < limits.CLEAR:
            ways.setdefault(groups[0], []).append(tally)
    for group, tallies in ways.items():
        names = list(dict.fromkeys(setting_words(tally.setting)[group] for tally in (chosen, *tallies)))
        if len(names) > _LISTED_SETTINGS + 1:
            names = [*names[:_LISTED_SETTINGS], f"{len(names) - _LISTED_SETTINGS} others"]
        equal = all(answer_similarity(chosen, tally) >= limits.SAME for tally in tallies)
        end = "give practically the same answers" if equal else f"cannot be distinguished on {these}; try others"
        found.append(f"{group}: {', '.join(names[:-1])} and {names[-1]} {end}")
    return tuple(found)


def _summary(
    verdict: Verdict,
    name: str,
    findings: Sequence[Finding],
    ties: Sequence[str],
    judgment: Judgment,
    labels: Sequence[str],
    photos: int,
) -> str:
    these, show = ("this photo", "shows") if photos == 1 else (f"these {photos} photos", "show")
    if verdict == "fine":
        is_open = any("cannot be distinguished" in tie for tie in ties)
        listed = "; settings that they cannot distinguish are listed below" if is_open else ""
        return f"{name} is wired right, as far as {these} {show}: nothing is clearly better{listed}"
    if verdict == "wrong":
        count = len(findings)
        return f"{name} looks wired wrong: {count} line{'' if count == 1 else 's'} to change"
    kind, more = kind_of_photo(judgment, labels), judgment.more_photos
    if not judgment.finds and judgment.others_find:
        how = f"finds nothing certain on {these} with its family's settings, but does with those of the first row"
        return f"cannot tell: {name} {how}; take more {kind}"
    if not judgment.finds:
        return f"cannot tell: {name} finds nothing certain on {these} with any setting; take some {kind}"
    if more is None:
        return "cannot tell: photos will not settle it; labeled images do (edgert eval --data)"
    photo = "photo" if more == 1 else "photos"
    return f"cannot tell yet: about {more} more {photo} {kind} may settle it; labeled images will (edgert eval --data)"


def find_contradictions(declared: DeclaredSettings, model: Model, found: Subject) -> Iterator[str]:
    """Yield a sentence for each declaration that the graph contradicts; the declaration is then ignored."""
    meant = declared_task(declared, tuple(output_shapes(found.engine)))
    if meant and not can_read(meant, found.engine, found.network):
        yield f"its metadata mean {meant}, which contradicts its outputs and is left out"
    sizes = {size for spec in inputs(model) for size in spec.shape[1:]}
    if declared.size and not set(declared.size) <= sizes and all(isinstance(size, int) for size in sizes):
        (width, height), network = declared.size, found.network
        yield f"its metadata say {width}x{height}, which contradicts its input of {network[0]}x{network[1]}"
