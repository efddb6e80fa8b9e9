"""``check``: is a model of a pipeline file wired right?"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from edgert.config import PipelineFile, load_pipeline
from edgert.config.model_section import value_of, verb_of
from edgert.errors import ConfigError, EdgertError, nearest
from edgert.stages.decode.kinds import read_labels
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
        labels = read_labels(config.task.labels, where) if config.task.labels else ()
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
        raise ConfigError(
            f"which model? this pipeline has {len(names)}",
            where=where,
            fix=f"--model {names[0]} (or {', '.join(names[1:])})",
        )
    if model not in names:
        raise ConfigError(f"no model {model!r}{nearest(model, names)}", where=where, fix=f"models: {', '.join(names)}")
    return model


def _report(file: PipelineFile, name: str, written: Setting, search: Search) -> CheckReport:
    ranking = search.ranking
    best = ranking.best()
    as_written = ranking.find(written)
    advised = advised_of(ranking, written)
    verdict = _verdict(ranking, best, as_written, advised)
    doubtful = verdict != "fine" and (as_written is None or _finds(ranking, best))
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


def _verdict(ranking: Ranking, best: Tally, own: Tally | None, advised: Tally) -> Verdict:
    if own is None or ranking.gap(best, own).clear:
        return "wrong"  # without a tally, the written decoder cannot read the outputs
    ahead = advised is not own and ranking.gap(advised, own).errors >= DOUBT and same_answers(advised, own) < SAME
    return "unclear" if ahead or not _finds(ranking, best) else "fine"


def _finds(ranking: Ranking, best: Tally) -> bool:
    """Whether there is anything to judge by."""
    return ranking.answers(best) >= _SOMETHING or max(ranking.fits(best), default=0.0) >= _FITTING


def rows_of(ranking: Ranking, written: Setting | None) -> tuple[Row, ...]:
    """All settings, the best first; those tried on fewer photos after the rest."""
    best = ranking.best()
    ordered = sorted(ranking.tallies, key=lambda tally: (-len(tally.evidence), -ranking.mean(tally)))
    key = written.key if written else ""
    return tuple(_row(ranking, tally, best, tally.setting.key == key) for tally in ordered)


def _row(ranking: Ranking, tally: Tally, best: Tally, written: bool) -> Row:
    parts = [(e.found, e.confirmed, e.chance) for e in tally.evidence.values()]
    found, confirmed, chance = (float(value) for value in np.mean(parts, axis=0))
    fits = {memory.source: fit for memory, fit in zip(ranking.memories, ranking.fits(tally), strict=True)}
    behind = 0.0 if tally is best else ranking.gap(best, tally).errors
    return Row(
        setting=described(tally.setting),
        names=named(tally.setting),
        written=written,
        score=ranking.mean(tally),
        answers=ranking.answers(tally),
        memory=fits,
        found=found,
        confirmed=confirmed,
        chance=chance,
        behind=behind,
        same=same_answers(best, tally),
        photos=len(tally.evidence),
    )


def same_answers(first: Tally, second: Tally) -> float:
    """Mean sameness of two settings' records over the photos both were tried on."""
    shared = first.records.keys() & second.records.keys()
    return float(np.mean([sameness(first.records[n], second.records[n]) for n in shared]))


def _findings(file: PipelineFile, name: str, written: Setting, better: Setting, search: Search) -> tuple[Finding, ...]:
    """The lines to change, those first whose written value alone makes the advised setting worst."""
    costs = {group: _cost(search, better, written, group) for group in written.differing(better)}
    blamed = [group for group, gap in costs.items() if gap.clear or (group != "placement" and gap.mean > 0)]
    blamed = blamed or list(costs)
    return tuple(
        finding
        for group in sorted(blamed, key=lambda group: -costs[group].errors)
        for finding in _group_findings(file, name, written, better, group, costs[group])
    )


def _cost(search: Search, better: Setting, written: Setting, group: str) -> Gap:
    """How far the advised setting falls behind itself with one group as it is written."""
    if group == "task" and search.ranking.find(written) is None:
        return Gap(1.0, float("inf"))  # that decoder cannot read these outputs at all
    mixed = better.with_part(group, written)
    search.plan(1)
    search.gather([mixed], keep_all=True)
    return search.ranking.gap(search.ranking.add(better), search.ranking.add(mixed))


def _group_findings(
    file: PipelineFile, name: str, written: Setting, better: Setting, group: str, cost: Gap
) -> list[Finding]:
    before, after = written.part(group), better.part(group)
    if group == "task":
        verb = verb_of(written.task)
        if before[verb] != after.get(verb):
            old, new = (yaml_value({v: value_of(t)})[1:-1] for t in (written.task, better.task) for v in [verb_of(t)])
            return [
                Finding(file.where("models", name, "task", verb), f"task.{verb}", old, False, new, True, cost.errors)
            ]
        return [_finding(file, name, ("task", "options"), before.get("options", {}), after.get("options", {}), cost)]
    given = {key: getattr(written.input, key) for key in after}
    return [
        _finding(file, name, ("input", key), given[key], after[key], cost) for key in after if given[key] != after[key]
    ]


def _finding(file: PipelineFile, name: str, path: tuple[str, str], old: object, new: object, cost: Gap) -> Finding:
    loc, key = ("models", name, *path), path[-1]
    return Finding(
        where=file.where(*loc),
        key=".".join(path),
        written=f"{key}: {yaml_value(old)}",
        missing=loc not in file.document.places,
        better=f"{key}: {yaml_value(new)}",
        sure=cost.clear,
        behind=cost.errors,
    )


def ties_of(ranking: Ranking, chosen: Tally, photos: int) -> tuple[str, ...]:
    """A sentence for every setting that differs from the chosen one in one group and is not clearly worse."""
    best, found = ranking.best(), []
    ways: dict[str, list[Tally]] = {}
    for tally in ranking.tallies:
        groups = chosen.setting.differing(tally.setting)
        if tally is not chosen and len(groups) == 1 and (tally is best or not ranking.gap(best, tally).clear):
            ways.setdefault(groups[0], []).append(tally)
    for group, tallies in ways.items():
        names = _listed(list(dict.fromkeys(named(tally.setting)[group] for tally in (chosen, *tallies))))
        equal = all(same_answers(chosen, tally) >= SAME for tally in tallies)
        these = "this photo" if photos == 1 else f"these {photos} photos"
        found.append(
            f"{group}: {names} give practically the same answers"
            if equal
            else f"{group}: {names} cannot be distinguished on {these}; try others"
        )
    return tuple(found)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    shown = [*names[:_NAMED], f"{more} others"] if more > 1 else list(names)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _summary(verdict: Verdict, name: str, findings: Sequence[Finding], ties: Sequence[str], photos: int) -> str:
    these = "this photo" if photos == 1 else f"these {photos} photos"
    if verdict == "fine":
        open_questions = (
            "; what they cannot distinguish is listed below"
            if any("cannot be distinguished" in tie for tie in ties)
            else ""
        )
        return f"{name} is wired right, as far as {these} show: nothing is clearly better{open_questions}"
    if verdict == "unclear" and findings:
        return f"{name} may be wired wrong: other settings do better on {these}, but not clearly; try more photos"
    if verdict == "unclear":
        return f"{name} finds nothing certain on {these} with any setting; take photos of what it was trained on"
    count = len(findings)
    return f"{name} looks wired wrong: {count} line{'' if count == 1 else 's'} to change"
