"""``check``: is a model of a pipeline file wired right?"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from edgert.config import ModelConfig, PipelineFile, PipelineSource, TaskConfig, load_pipeline
from edgert.config.model_section import PythonTask, value_of, verb_of
from edgert.engine import one_image
from edgert.errors import ConfigError, EdgertError, ModelError, nearest
from edgert.graph import load
from edgert.reporter import OnProgress
from edgert.stages.decode.kinds import fitting_decoder, labels_of
from edgert.wiring.check_report import CheckReport, Finding, Row, Verdict, described, yaml_value
from edgert.wiring.contradictions import contradictions
from edgert.wiring.exporter_metadata import DeclaredSettings, declared_settings
from edgert.wiring.judge import Judgment, judge, kind_of_photo, lead_of, same_answers
from edgert.wiring.photos import read_photos
from edgert.wiring.prior import Prior, prior_of
from edgert.wiring.search import CLEAR, CPU_SECONDS, SAME, Progress, Ranking, Search, Subject, Tally, subject, trying
from edgert.wiring.settings import GROUPS, Setting, differs, named
from edgert.wiring.trial import in_their_unit, readings

_NAMED = 4  # settings of a tie that are named


def check(
    pipeline: PipelineSource,
    images: Sequence[str | Path] = (),
    *,
    data: str | Path | None = None,
    model: str | None = None,
    overrides: Iterable[str] = (),
    on_progress: OnProgress | None = None,
) -> CheckReport:
    """Run a model with all plausible settings on photos, and compare the results with what its file declares.

    What the file, its exporter and the family's code say (:mod:`~edgert.wiring.prior`) holds until photos contradict it
    by that knowledge's margin. The written setting is right where no setting with other answers comes within two
    standard errors of it. It is wrong where another is two ahead. Otherwise photos cannot decide. Labeled images can:
    settings are then ranked by their score. Blocks for four to six runs of the engine per setting and photo, for one
    with labels.

    Args:
        pipeline: its file, the name of a shipped one, or a result of :func:`edgert.load_pipeline`.
        images: photos or folders of them, showing objects that the model knows; at most 16 are used.
        data: labeled images instead, as :func:`edgert.evaluate` takes them; at most 64 are used.
        model: its name in the file; may be left out when there is only one.
        overrides: ``key.path=value``, as given to ``--set``.
        on_progress: called with runs made and most runs to come; what it raises ends the check.

    Raises:
        ConfigError: no such model, neither images nor data, a photo that cannot be read, or labels that are missing or
            do not fit the model.
        ModelError: the model does not take one image, or nothing can read its outputs.
        BuildError: the backend refuses the model.
    """
    if (not images) == (data is None):
        fix = "--images photo.jpg, or --data FOLDER where there are labels"
        raise ConfigError("check needs either images or labeled data", why="both" if images else "neither", fix=fix)
    file = load_pipeline(pipeline, overrides)
    name = _chosen(file, model)
    config, where = file.config.models[name], file.where("models", name)
    photos = [] if data is not None else read_photos(images)
    try:
        labels = labels_of(config, where)
        found = subject(config, labels, where)
        tasks = readings(config.task, found.engine, labels, found.network)
        tasks, _ = in_their_unit(tasks, found.engine, found.session, found.network)
        with suppress(ModelError):  # of a decoder that reads other outputs, which is a finding
            names = [tensor.name for tensor in found.engine.outputs]
            fitting_decoder(config, labels, tuple(one_image(found.engine)), found.network, where, names=names)
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    written = Setting(config.input, config.task)
    base = Setting(config.input, tasks[0])
    model_file = load(config.onnx)
    declared = declared_settings(model_file)
    prior = prior_for(found, base, declared, tasks)
    against = contradictions(declared, model_file, found)
    favored = Setting(prior.applied(base.input), base.task)
    verb, progress = verb_of(tasks[0]), trying(on_progress)
    search = Search(found, photos, verb, progress) if data is None else labeled(found, data, config, labels, progress)
    with np.errstate(over="ignore", invalid="ignore"):  # boxes of a wrong setting may be too large for float32
        search.explore(favored, tasks, base)
    report = report_of(file, name, written, search, prior, favored, labels)
    cut = f"only some settings were tried, for {CPU_SECONDS:.0f} s of processor time" if search.is_cut_short else ""
    report = replace(report, known="; ".join(filter(None, (report.known, *against, cut))))
    return report if data is None else search.with_summary(report)


def labeled(
    found: Subject, data: str | Path, config: ModelConfig, labels: tuple[str, ...], progress: Progress | None
) -> Search:
    """Return the search on labeled images; imports what only it needs."""
    from edgert.dataset import open_dataset
    from edgert.wiring.labeled import MOST_IMAGES, LabeledSearch

    opened = open_dataset(data, config.task, labels, limit=MOST_IMAGES, where=found.where)
    return LabeledSearch(found, opened, config.task, progress)


def prior_for(found: Subject, base: Setting, declared: DeclaredSettings, tasks: Sequence[TaskConfig] = ()) -> Prior:
    """Return prior knowledge about a subject's input with the task of ``base``, and with other tasks."""
    others = {
        f"{verb_of(task)}: {value_of(task)}": prior_for(found, replace(base, task=task), declared) for task in tasks
    }
    return replace(_prior_for(found, base, declared), others=others)


def _prior_for(found: Subject, base: Setting, declared: DeclaredSettings) -> Prior:
    if isinstance(base.task, PythonTask):
        return Prior(declared)
    inputs, outputs = ([tensor.name for tensor in ends] for ends in (found.engine.inputs, found.engine.outputs))
    shapes = one_image(found.engine)
    length = prod(size or 0 for size in shapes[0]) if len(shapes) == 1 else 0
    tall = found.network[1] == 2 * found.network[0]
    return prior_of(declared, base.task, inputs, outputs, length, tall).taken(base.input, found.dtype)


def _chosen(file: PipelineFile, model: str | None) -> str:
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
    """Return the report of a search on a written setting."""
    ranking = search.ranking
    judgment = judge(ranking, prior, ranking.add(favored))
    chosen, as_written = judgment.chosen, ranking.find(written)
    verdict: Verdict = "unclear"
    if as_written is None or (judgment.finds and _is_wrong(judgment, as_written)):
        verdict = "wrong"  # without a tally, the written decoder cannot read the outputs
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
    """Return whether the chosen setting is clearly ahead. A placement with the same answers is as good."""
    if as_written is judgment.chosen or judgment.behind(as_written) < CLEAR:
        return False
    groups = [group for group in GROUPS if differs(judgment.chosen.setting, as_written.setting, group)]
    return groups != ["placement"] or not judgment.as_good(as_written)


def rows_of(ranking: Ranking, written: Setting | None) -> tuple[Row, ...]:
    """Return all settings, the best first; those tried on fewer photos after the rest."""
    best, rows = ranking.best(), []
    for tally in sorted(ranking.tallies, key=lambda tally: (-len(tally.evidence), -ranking.mean(tally))):
        parts = [(e.found, e.confirmed, e.chance) for e in tally.evidence.values()]
        found, confirmed, chance = (float(value) for value in np.mean(parts, axis=0))
        fits = zip(ranking.memories, ranking.fits(tally), strict=True)
        row = Row(
            setting=described(tally.setting),
            names=named(tally.setting),
            written=written is not None and tally.setting.key == written.key,
            score=ranking.mean(tally),
            answers=ranking.answers(tally),
            memory={memory.source: fit for memory, fit in fits},
            found=found,
            confirmed=confirmed,
            chance=chance,
            behind=max(0.0 if tally is best else ranking.gap(best, tally).errors, 0.0),
            same=same_answers(best, tally),
            photos=len(tally.evidence),
        )
        rows.append(row)
    return tuple(rows)


def _findings(
    file: PipelineFile, name: str, written: Setting, better: Setting, search: Search, prior: Prior
) -> tuple[Finding, ...]:
    """Return the lines to change, first those whose written value alone costs the advised setting most."""
    costs: dict[str, float] = {}  # how far the advised setting falls behind itself with one group as it is written
    ranking = search.ranking
    for group in written.differing(better):
        if group == "task" and ranking.find(written) is None:
            costs[group] = float("inf")  # that decoder cannot read these outputs at all
            continue
        mixed = better.with_part(group, written)
        search.plan(1)
        search.gather([mixed], keep_all=True)
        if ranking.find(mixed) is None:  # its decoder refused the answers
            costs[group] = float("inf")
            continue
        costs[group] = lead_of(ranking, prior, ranking.add(better), ranking.add(mixed))
    blamed = [group for group, cost in costs.items() if cost >= CLEAR or (group != "placement" and cost > 0)]
    return tuple(
        _finding(file, name, path, lines, costs[group])
        for group in sorted(blamed or costs, key=lambda group: -costs[group])
        for path, lines in _changes(written, better, group)
    )


def _changes(written: Setting, better: Setting, group: str) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield key path within the model's section → present and advised value of one group, as YAML."""
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
    # A task is always written, and its decoder is not in doubt once another reads the outputs better.
    is_task = path[0] == "task" and path[1] != "options"
    missing = loc not in file.document.places and not is_task
    return Finding(file.where(*loc), key, lines[0], missing, lines[1], cost >= CLEAR or is_task, cost)


def ties_of(judgment: Judgment, photos: int) -> tuple[str, ...]:
    """Return a sentence for every setting that differs from the chosen one in one group and is not clearly worse."""
    chosen, found = judgment.chosen, list[str]()
    these = "this photo" if photos == 1 else f"these {photos} photos"
    ways: dict[str, list[Tally]] = {}
    for tally in judgment.ranking.tallies:
        groups = chosen.setting.differing(tally.setting)
        if tally is not chosen and len(groups) == 1 and tally.evidence and judgment.behind(tally) < CLEAR:
            ways.setdefault(groups[0], []).append(tally)
    for group, tallies in ways.items():
        names = list(dict.fromkeys(named(tally.setting)[group] for tally in (chosen, *tallies)))
        if len(names) > _NAMED + 1:
            names = [*names[:_NAMED], f"{len(names) - _NAMED} others"]
        equal = all(same_answers(chosen, tally) >= SAME for tally in tallies)
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
        listed = "; what they cannot distinguish is listed below" if is_open else ""
        return f"{name} is wired right, as far as {these} {show}: nothing is clearly better{listed}"
    if verdict == "wrong":
        count = len(findings)
        return f"{name} looks wired wrong: {count} line{'' if count == 1 else 's'} to change"
    kind, more = kind_of_photo(judgment, labels), judgment.more_photos
    if not judgment.finds and judgment.others_find:
        how = f"finds nothing certain on {these} as models of its kind are fed, but does as the first row has it"
        return f"cannot tell: {name} {how}; take more {kind}"
    if not judgment.finds:
        return f"cannot tell: {name} finds nothing certain on {these} with any setting; take some {kind}"
    if more is None:
        return "cannot tell: photos will not settle it; labeled images do (edgert eval --data)"
    photo = "photo" if more == 1 else "photos"
    return f"cannot tell yet: about {more} more {photo} {kind} may settle it; labeled images will (edgert eval --data)"
