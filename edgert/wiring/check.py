"""``check``: is a model of a pipeline file wired right?"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from edgert.config import PipelineFile, load_pipeline
from edgert.config.model_section import value_of, verb_of
from edgert.errors import ConfigError, EdgertError, nearest
from edgert.stages.decode.kinds import labels_of
from edgert.wiring.check_report import CheckReport, Finding, Row, Verdict, described, yaml_value
from edgert.wiring.evidence import sameness
from edgert.wiring.photos import read_photos
from edgert.wiring.search import DOUBT, SAME, Gap, Progress, Ranking, Search, Tally, subject
from edgert.wiring.settings import Setting, named
from edgert.wiring.trial import readings

_SOMETHING = 0.05
"""Mean evidence of answers below which a model found nothing that its views agree on."""
_NAMED = 4  # settings of a tie that are named
_FITTING = 0.5
"""Fit with what a model remembers from which on that alone is enough for a verdict."""


def check(
    pipeline: str | Path | PipelineFile,
    images: Sequence[str | Path],
    *,
    model: str | None = None,
    overrides: Iterable[str] = (),
    progress: Progress | None = None,
) -> CheckReport:
    """Runs a model over the plausible settings on photos and ranks them by evidence.

    The written setting is right as long as no other is clearly better: by two standard errors of the difference over
    the photos. Blocks for four to six runs of the engine per way to feed the model and photo.

    Args:
        pipeline: its file, the name of a shipped one, or what :func:`edgert.load_pipeline` returned.
        images: photos or folders of them, showing what the model knows; at most 16 are used.
        model: its name in the file; may be left out when there is only one.
        overrides: ``key.path=value``, as given to ``--set``.
        progress: called with runs made and most runs to come.

    Raises:
        ConfigError: no such model, or a photo that cannot be read.
        ModelError: the model does not take one image, or nothing can read its outputs.
        BuildError: the backend refuses the model.
    """
    file = load_pipeline(pipeline, overrides)
    name = _chosen(file, model)
    config, where = file.config.models[name], file.where("models", name)
    photos = read_photos(images)
    try:
        labels = labels_of(config, where)
        found = subject(config, labels, where)
        tasks = readings(config.task, found.engine, labels, found.network)
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    written = Setting(config.input, config.task)
    search = Search(found, photos, verb_of(tasks[0]), progress)
    with np.errstate(over="ignore", invalid="ignore"):  # boxes of a wrong setting may be too large for float32
        search.explore(Setting(config.input, tasks[0]), tasks)
    return _report(file, name, written, search)


def _chosen(file: PipelineFile, model: str | None) -> str:
    names = list(file.config.models)
    if model is None and len(names) == 1:
        return names[0]
    where = file.where("models")
    if not names:
        raise ConfigError("this pipeline has no model to check", where=where)
    if model is None:
        fix = f"--model {names[0]} (or {', '.join(names[1:])})"
        raise ConfigError(f"which model? this pipeline has {len(names)}", where=where, fix=fix)
    if model not in names:
        raise ConfigError(f"no model {model!r}{nearest(model, names)}", where=where, fix=f"models: {', '.join(names)}")
    return model


def _report(file: PipelineFile, name: str, written: Setting, search: Search) -> CheckReport:
    ranking = search.ranking
    best = ranking.best()
    as_written = ranking.find(written)
    advised = advised_of(ranking, written)
    # Whether there is anything to judge by.
    finds = ranking.answers(best) >= _SOMETHING or max(ranking.fits(best), default=0.0) >= _FITTING
    verdict: Verdict = "fine"
    if as_written is None or ranking.gap(best, as_written).clear:
        verdict = "wrong"  # without a tally, the written decoder cannot read the outputs
    else:
        behind = advised is not as_written and ranking.gap(advised, as_written).errors >= DOUBT
        if not finds or (behind and same_answers(advised, as_written) < SAME):
            verdict = "unclear"
    doubtful = verdict != "fine" and (as_written is None or finds)
    findings = _findings(file, name, written, advised.setting, search) if doubtful else ()
    ties = ties_of(ranking, advised, len(search.photos))
    return CheckReport(
        model=name,
        photos=tuple(str(path) for path, _ in search.photos),
        verdict=verdict,
        summary=_summary(verdict, name, findings, ties, len(search.photos)),
        findings=findings,
        ties=ties,
        rows=rows_of(ranking, written),
        runs=search.runs,
        best=advised.setting,
        written=written,
        record=advised.records[0],
        image=search.photos[0][1],
    )


def advised_of(ranking: Ranking, written: Setting) -> Tally:
    """The best setting; but placed as written, as long as no other placement is clearly better.

    Placements differ little, and a network that finds things in one finds nearly the same in another.
    """
    best = ranking.best()
    level = [tally for tally in ranking.tallies if tally is best or not ranking.gap(best, tally).clear]
    placed = [tally for tally in level if "placement" not in written.differing(tally.setting)]
    return max(placed, key=ranking.mean) if placed else best


def rows_of(ranking: Ranking, written: Setting | None) -> tuple[Row, ...]:
    """All settings, the best first; those tried on fewer photos after the rest."""
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
            behind=0.0 if tally is best else ranking.gap(best, tally).errors,
            same=same_answers(best, tally),
            photos=len(tally.evidence),
        )
        rows.append(row)
    return tuple(rows)


def same_answers(first: Tally, second: Tally) -> float:
    """Mean sameness of two settings' records over the photos both were tried on."""
    shared = first.records.keys() & second.records.keys()
    return float(np.mean([sameness(first.records[n], second.records[n]) for n in shared]))


def _findings(file: PipelineFile, name: str, written: Setting, better: Setting, search: Search) -> tuple[Finding, ...]:
    """The lines to change, those first whose written value alone makes the advised setting worst."""
    costs: dict[str, Gap] = {}  # how far the advised setting falls behind itself with one group as it is written
    for group in written.differing(better):
        if group == "task" and search.ranking.find(written) is None:
            costs[group] = Gap(1.0, float("inf"))  # that decoder cannot read these outputs at all
            continue
        mixed = better.with_part(group, written)
        search.plan(1)
        search.gather([mixed], keep_all=True)
        costs[group] = search.ranking.gap(search.ranking.add(better), search.ranking.add(mixed))
    blamed = [group for group, gap in costs.items() if gap.clear or (group != "placement" and gap.mean > 0)]
    return tuple(
        _finding(file, name, path, lines, costs[group])
        for group in sorted(blamed or costs, key=lambda group: -costs[group].errors)
        for path, lines in _changes(written, better, group)
    )


def _changes(written: Setting, better: Setting, group: str) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Key path within the model's section → what one group has there and what it should have, as YAML."""
    before, after = written.part(group), better.part(group)
    if group != "task":
        for key, new in after.items():
            if (old := getattr(written.input, key)) != new:
                yield ("input", key), (f"{key}: {yaml_value(old)}", f"{key}: {yaml_value(new)}")
        return
    verb = verb_of(written.task)
    if before[verb] == after.get(verb):
        lines = (f"options: {yaml_value(part.get('options', {}))}" for part in (before, after))
        yield ("task", "options"), (next(lines), next(lines))
    else:
        tasks = (f"{verb_of(task)}: {yaml_value(value_of(task))}" for task in (written.task, better.task))
        yield ("task", verb), (next(tasks), next(tasks))


def _finding(file: PipelineFile, name: str, path: tuple[str, str], lines: tuple[str, str], cost: Gap) -> Finding:
    loc, key = ("models", name, *path), ".".join(path)
    # A task is always written, and its decoder is not in doubt once another reads the outputs better.
    is_task = path[0] == "task" and path[1] != "options"
    missing = loc not in file.document.places and not is_task
    return Finding(file.where(*loc), key, lines[0], missing, lines[1], cost.clear or is_task, cost.errors)


def ties_of(ranking: Ranking, chosen: Tally, photos: int) -> tuple[str, ...]:
    """A sentence for every setting that differs from the chosen one in one group and is not clearly worse."""
    best, found = ranking.best(), list[str]()
    these = "this photo" if photos == 1 else f"these {photos} photos"
    ways: dict[str, list[Tally]] = {}
    for tally in ranking.tallies:
        groups = chosen.setting.differing(tally.setting)
        if tally is not chosen and len(groups) == 1 and (tally is best or not ranking.gap(best, tally).clear):
            ways.setdefault(groups[0], []).append(tally)
    for group, tallies in ways.items():
        names = list(dict.fromkeys(named(tally.setting)[group] for tally in (chosen, *tallies)))
        if len(names) > _NAMED + 1:
            names = [*names[:_NAMED], f"{len(names) - _NAMED} others"]
        equal = all(same_answers(chosen, tally) >= SAME for tally in tallies)
        end = "give practically the same answers" if equal else f"cannot be distinguished on {these}; try others"
        found.append(f"{group}: {', '.join(names[:-1])} and {names[-1]} {end}")
    return tuple(found)


def _summary(verdict: Verdict, name: str, findings: Sequence[Finding], ties: Sequence[str], photos: int) -> str:
    these = "this photo" if photos == 1 else f"these {photos} photos"
    if verdict == "fine":
        is_open = any("cannot be distinguished" in tie for tie in ties)
        listed = "; what they cannot distinguish is listed below" if is_open else ""
        return f"{name} is wired right, as far as {these} show: nothing is clearly better{listed}"
    if verdict == "unclear" and findings:
        return f"{name} may be wired wrong: other settings do better on {these}, but not clearly; try more photos"
    if verdict == "unclear":
        return f"{name} finds nothing certain on {these} with any setting; take photos of what it was trained on"
    count = len(findings)
    return f"{name} looks wired wrong: {count} line{'' if count == 1 else 's'} to change"
