"""``check --data``: the score of each setting on labeled images, of which a few dozen usually decide."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgert import dataset
from edgert.config import ClassifyTask, DetectTask, TaskConfig
from edgert.config.model_section import verb_of
from edgert.errors import ConfigError
from edgert.evaluation import evaluate_model, score, task_scores
from edgert.stages.decode.decoder import Decoder
from edgert.wiring.check_report import CheckReport
from edgert.wiring.evidence import NOTHING
from edgert.wiring.photos import View
from edgert.wiring.search import F64, Progress, Ranking, Search, Subject, Tally
from edgert.wiring.settings import Setting, with_checking_thresholds
from edgert.wiring.trial import decoder_of

MOST_IMAGES = 64
"""Largest number of images used; more change the result little."""
POINT = 0.01
"""Smallest difference of the metric that matters."""
_LARGEST_ERROR = 0.03
"""Largest standard error of a difference with which a setting can be called no better than another."""
_RESAMPLES = 200
_LEAST_CLASSES = 5


class Scores(Ranking):
    """A ranking of settings by their score.

    Standard errors are those of a bootstrap over the images (Efron and Tibshirani, "An Introduction to the Bootstrap",
    1993).
    """

    def __init__(self, scorer: task_scores.Scorer, images: int) -> None:
        super().__init__(())
        self.scorer, self.metric = scorer, scorer.metrics[0]
        self.notes: dict[Tally, list[score.Note]] = {}
        self._weights: F64 = (
            np.random.default_rng(0).multinomial(images, [1 / images] * images, _RESAMPLES).astype(float)
        )
        self._known: dict[Tally, tuple[float, F64]] = {}

    def answers(self, tally: Tally) -> float:
        return self._score(tally)[0]

    def mean(self, tally: Tally) -> float:
        """Return the metric, 0 to 1; minus infinity without images."""
        return self._score(tally)[0] if tally.evidence else -math.inf

    def lead(self, first: Tally, second: Tally) -> float:
        """Return the standard errors by which ``first`` scores more than ``second``."""
        return (self.answers(first) - self.answers(second)) / math.hypot(self._error(first, second), POINT / 2)

    def as_good(self, first: Tally, second: Tally) -> bool:
        """Return whether ``second`` scores at most a point more than ``first``, and there are enough images to tell."""
        return self.answers(second) - self.answers(first) <= POINT and self._error(first, second) <= _LARGEST_ERROR

    def _error(self, first: Tally, second: Tally) -> float:
        return float(np.std(self._score(first)[1] - self._score(second)[1]))

    def _score(self, tally: Tally) -> tuple[float, F64]:
        if tally not in self._known:
            made = self.scorer.scores(self.notes[tally], None)[self.metric]
            self._known[tally] = made.value, np.nan_to_num(made.values(self._weights))
        return self._known[tally]


class LabeledSearch(Search):
    """A search on labeled images, which ranks settings by their score."""

    def __init__(
        self, subject: Subject, data: dataset.LabeledDataset, task: TaskConfig, progress: Progress | None
    ) -> None:
        if data.ground_truth is None:
            fix = "give labels in one of these layouts, or check by photos alone: --images instead of --data"
            raise ConfigError(f"{data.path} has no labels", why=f"looked for {dataset.LOOKED_FOR}", fix=fix)
        self._images, count = data.images, len(data.images)
        first = self._images.frame(0).planes[0].copy()
        super().__init__(
            subject, [(Path(self._images.name(number)), first) for number in range(count)], verb_of(task), progress
        )
        self.ranking: Scores = Scores(task_scores.scorer_for(data.ground_truth, task), count)

    def plan(self, inputs: int) -> None:
        self._planned += inputs * len(self._images)

    def gather(self, settings: Sequence[Setting], always: Collection[str] = (), keep_all: bool = False) -> None:
        tallies = [one for one in dict.fromkeys(map(self.ranking.add, settings)) if not one.evidence]
        for number in range(len(self._images)):
            view = View(self._images.frame(number))
            for tally in tallies:
                self._judge(tally, number, view)
            self._trial.forget()

    def with_summary(self, report: CheckReport) -> CheckReport:
        ranking, count = self.ranking, len(self.photos)
        best, written = ranking.find(report.best), ranking.find(report.written)
        on = f"on {count} labeled image{'' if count == 1 else 's'}"
        scores = [None if one is None else f"{ranking.metric} {ranking.answers(one):.3f}" for one in (written, best)]
        if report.verdict == "fine":
            text = f"{report.model} is wired right: {scores[0]} {on}, and nothing that was tried does better by a point"
        elif report.verdict == "wrong":
            lines = f"{len(report.findings)} line{'' if len(report.findings) == 1 else 's'} to change"
            text = f"{report.model} is wired wrong: {lines}; {scores[0] or 'nothing'}, {scores[1]} if changed, {on}"
        else:
            more = f"about {report.more_photos} more" if report.more_photos else "more, or labels that fit the model"
            text = f"cannot tell {on}: {scores[0] or 'nothing'} as written, {scores[1]} at best; take {more}"
        return replace(report, summary=text, metric=ranking.metric)

    def _judge(self, tally: Tally, number: int, view: View) -> None:
        outputs, geometry = self._trial.answer(tally.setting.input, view)
        task = tally.setting.task
        tasks = with_scoring_thresholds(task), with_checking_thresholds(task)
        with np.errstate(all="ignore"):  # numbers of a wrong setting may overflow
            record, shown = (self._decoder(one)(list(outputs), geometry) for one in tasks)
        self.ranking.notes.setdefault(tally, []).append(self.ranking.scorer.note(number, record))
        tally.evidence[number], tally.records[number], tally.looks[number] = NOTHING, shown, ()

    def _decoder(self, task: TaskConfig) -> Decoder:
        if repr(task) not in self._decoders:
            found = self.subject
            self._decoders[repr(task)] = decoder_of(task, found.labels, found.engine, found.network)
        return self._decoders[repr(task)]


def with_scoring_thresholds(task: TaskConfig) -> TaskConfig:
    """Return a task with the thresholds that the metrics need."""
    if isinstance(task, DetectTask):
        most = {"score": evaluate_model.LOWEST_SCORE, "limit": max(task.limit, evaluate_model.LEAST_BOXES)}
        return task.model_copy(update=most)
    return task.model_copy(update={"top": max(task.top, _LEAST_CLASSES)}) if isinstance(task, ClassifyTask) else task
