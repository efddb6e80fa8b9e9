"""Evaluation of one model: its setup, every image once on several threads, and the metrics that follow."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.backend import Engine
from edgert.backend.base import Array
from edgert.board.host import core_count
from edgert.cluster import Cluster
from edgert.config import ClassifyTask, DetectTask, KeypointsTask, ModelConfig, TaskConfig
from edgert.dataset import ImageFeed, LabeledDataset, feed_of
from edgert.engine import build_engine, one_image
from edgert.errors import EdgertError, ModelError
from edgert.evaluation.score import Agreement, BoxScorer, ImageScores, Note
from edgert.evaluation.task_scores import MultiLabelScorer, Scorer, scorer_for
from edgert.graph import Model
from edgert.stages.decode.decoder import Decoder
from edgert.stages.decode.kinds import decoder_for, fitting_decoder, labels_of
from edgert.stages.decode.record_check import CheckedRecords, RecordCheck
from edgert.stages.kinds import ByteTrackStage
from edgert.stages.preprocess import set_opencv_threads

# Setup of every version of one model: images, labels, input preprocessing, decoder and scorer.

LOWEST_SCORE = 0.01
"""Lowest score of boxes that count, whatever the ``score`` of the task.

Average precision covers the whole range of a detector's scores. YOLOX's evaluation uses 0.01, and most published ones
use a similar value."""
LEAST_BOXES = 100
_LEAST_CLASSES, _EVERY_CLASS = 5, 100_000

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Model as a function from input name → (1, …) array to output name → array.

It is called from several threads at once. A :class:`~edgert.backend.ort.Function` is one."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationSetup:
    """Parts that all candidates of one evaluation share, created by :func:`open_evaluation`.

    Can be pickled: another process opens it there.

    Attributes:
        config: the model's section; its backend and profiles compile candidates that are models.
        dataset: images and labels.
        feed: the images as input tensors.
        decoder: reads the outputs.
        scorer: judges what the decoder read.
        outputs: names of the outputs, in the decoder's order.
        batched: for every output, whether its first dimension is the batch.
        opened: opens the same setup, in any process.
    """

    config: ModelConfig
    dataset: LabeledDataset
    feed: ImageFeed
    decoder: Decoder
    scorer: Scorer
    outputs: tuple[str, ...]
    batched: tuple[bool, ...]
    opened: Callable[[], EvaluationSetup] = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.opened, ()

    def __len__(self) -> int:
        return len(self.feed)

    def image_outputs(self, found: Mapping[str, Array]) -> list[Array]:
        """Return one image's outputs in the form that the decoder reads.

        Raises:
            ModelError: an output is missing; a candidate has the outputs of the model it was made from.
        """
        if missing := [name for name in self.outputs if name not in found]:
            raise ModelError(f"the model has no output {missing[0]!r}", why=f"it has {', '.join(found)}")
        return [
            found[name][0] if batched else found[name] for name, batched in zip(self.outputs, self.batched, strict=True)
        ]


def open_evaluation(
    model: Model,
    config: ModelConfig,
    dataset: LabeledDataset,
    *,
    labels: Sequence[str] | None = None,
    directory: Path | None = None,
    where: str = "",
    tracking: ByteTrackStage | None = None,
) -> EvaluationSetup:
    """Return the setup that evaluates a model as its pipeline would run it.

    Two settings of the task differ, for detectors with labels and for classifiers: boxes count from a score of
    :data:`LOWEST_SCORE` on, and five classes are returned. Agreement without labels uses the task's own settings.

    Args:
        model: has the names and shapes of inputs and outputs; candidates have the same.
        config: the model's section.
        dataset: images and labels.
        labels: the model's class names; read from the task's file by default.
        directory: of the pipeline file, where ``python:`` looks first.
        where: the model's place in it, for errors.
        tracking: how its objects are tracked on labels of a sequence; ByteTrack with its defaults by default.

    Raises:
        ModelError: not a model of one image, or the task does not fit its outputs.
        ConfigError: the labels are not for what the task makes.
        BuildError: the backend refuses the model.
    """
    try:
        names = labels_of(config, where) if labels is None else tuple(labels)
        truth = dataset.ground_truth
        scorer = Agreement() if truth is None else scorer_for(truth, config.task, tracking)
        task = _judged(config.task, isinstance(scorer, BoxScorer), isinstance(scorer, MultiLabelScorer))
        decoder: Decoder = decoder_for(task, names, where, directory)
        feed = feed_of(dataset.images, model, config)
        with closing(build_engine(model, config, threads=1)) as engine:
            outputs, batched = tuple(tensor.name for tensor in engine.outputs), engine.batched
            if engine.outputs_known:
                judged, shapes = config.model_copy(update={"task": task}), tuple(one_image(engine))
                decoder = fitting_decoder(judged, names, shapes, feed.size, where, directory, outputs)
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    checked = CheckedRecords(
        decoder, RecordCheck(config.onnx.stem, decoder)
    )  # leaves out what a pipeline would leave out
    opened = partial(
        open_evaluation, model, config, dataset, labels=labels, directory=directory, where=where, tracking=tracking
    )
    return EvaluationSetup(config, dataset, feed, checked, scorer, outputs, batched, opened)


def runner(engine: Engine) -> Callable[[], Run]:
    """Return a function that makes runs on an engine, one for each thread; each has bound tensors of its own.

    A run raises ModelError for a version of the model whose inputs differ from the model's.
    """

    def make() -> Run:
        session = engine.session()
        names = [tensor.name for tensor in engine.outputs]

        def run(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
            for name, array in feeds.items():
                if name not in session.inputs or session.inputs[name].shape[1:] != array.shape[1:]:
                    takes = ", ".join(f"{own} {list(bound.shape)}" for own, bound in session.inputs.items())
                    raise ModelError(
                        f"a version to compare has no input {name!r} {list(array.shape)}",
                        why=f"it has {takes}; both versions get the same images, prepared once",
                        fix="compare versions of one model, and evaluate another model by itself, with its own --input",
                    )
                session.inputs[name][:1] = array
            return dict(zip(names, session.run(1), strict=True))

        return run

    return make


def _judged(task: TaskConfig, by_boxes: bool, by_class: bool = False) -> TaskConfig:
    if isinstance(task, (DetectTask, KeypointsTask)) and by_boxes:
        most = {"score": min(task.score, LOWEST_SCORE), "limit": max(task.limit, LEAST_BOXES)}
        return task.model_copy(update=most)
    if isinstance(task, ClassifyTask):
        least = _EVERY_CLASS if by_class else _LEAST_CLASSES
        options = {**task.options, "score": 0.0} if task.classify == "multilabel" else task.options
        return task.model_copy(update={"top": max(task.top, least), "options": options})
    return task


Progress = Callable[[int, int], object]
"""Function that is called with images done and all images, from any of the threads."""
Candidate = Model | Engine | Run
"""Version of a model to evaluate.

A model is compiled by its section's backend for one thread per run, with as many runs at a time as there are cores. An
engine is run unchanged. A function is called."""


@dataclass(frozen=True, slots=True, eq=False)
class Accuracy:
    """Result of a model.

    Attributes:
        name: for people.
        images: number of images.
        values: metric → its value, mostly 0 to 1 (PSNR in dB, RMSE in meters), the usual one first; empty where only
            a reference could provide one.
        scores: metric → the scores of each image, for comparing.
        seconds: wall clock of all images, decoding and everything.
        run_ms: median time of one run of the model alone, beside ``threads - 1`` others.
        threads: runs at a time.
        notes: the scorer's notes of each image: the reference of other models' agreement.
    """

    name: str
    images: int
    values: Mapping[str, float]
    scores: Mapping[str, ImageScores] = field(repr=False)
    seconds: float
    run_ms: float
    threads: int
    notes: tuple[Note, ...] = field(repr=False)

    @property
    def images_per_s(self) -> float:
        """Images judged per second, decoding and everything."""
        return self.images / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "name": self.name,
            "images": self.images,
            "values": dict(self.values),
            "seconds": round(self.seconds, 3),
            "images_per_s": round(self.images_per_s, 2),
            "run_ms": round(self.run_ms, 3),
            "threads": self.threads,
        }


def evaluate(
    candidate: Candidate,
    setup: EvaluationSetup,
    *,
    name: str = "fp32",
    reference: Accuracy | None = None,
    threads: int | None = None,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Accuracy | None:
    """Evaluate one candidate.

    The values depend neither on the number of threads nor on their timing, nor on who judges an image.

    Args:
        candidate: the model itself, or another version of it with the same inputs and outputs.
        setup: what candidates share.
        name: of the candidate.
        reference: result, with the same setup, of the model to agree with, where there are no labels or for
            ``cosine``.
        threads: images at a time; as many as there are cores by default.
        cluster: its workers judge the images instead, each read by its path.
        progress: called for every image.
        stop: ends it early.

    Returns:
        The result; None when it was stopped.

    Raises:
        ConfigError: an image that cannot be read, or labels of another kind than the task.
        BuildError: the backend refuses the candidate, or fails while running.
        ModelError: the candidate's outputs are not what the decoder reads.
    """
    stop = stop or threading.Event()
    threads = min(threads or core_count(), len(setup))
    started = time.perf_counter()
    if cluster is not None:
        threads = cluster.threads
        found = _judge_there(cluster, candidate, setup, progress, stop)
    else:
        before = set_opencv_threads(1)  # every thread has its own image; threads of OpenCV would only compete with them
        try:
            with _runs(candidate, setup) as make:
                found = _judge_all(setup, make, threads, progress, stop)
        finally:
            set_opencv_threads(before)
    seconds = time.perf_counter() - started
    if found is None:
        return None
    notes, run_s = found
    scores = setup.scorer.scores(notes, reference.notes if reference else None)
    values = {metric: scores[metric].value for metric in setup.scorer.metrics if metric in scores}
    run_ms = float(np.median(run_s)) * 1e3
    return Accuracy(name, len(notes), values, scores, seconds, run_ms, threads, tuple(notes))


def _judge_all(
    setup: EvaluationSetup, make: Callable[[], Run], threads: int, progress: Progress | None, stop: threading.Event
) -> tuple[list[Note], npt.NDArray[np.float64]] | None:
    """Return the notes of all images and the seconds of their runs; None when it was stopped before all were done."""
    notes: list[Note] = [None] * len(setup)
    run_s = np.zeros(len(setup))
    left, done, lock, failed = iter(range(len(setup))), count(1), threading.Lock(), threading.Event()

    def work() -> None:
        try:
            run = make()
            while not stop.is_set() and not failed.is_set():
                with lock:
                    index = next(left, None)
                if index is None:
                    return
                judge(index, run)
        except BaseException:
            failed.set()  # the others need not finish; the pool raises the error
            raise

    def judge(index: int, run: Run) -> None:
        notes[index], run_s[index] = _judged_image(setup, index, run)
        with lock:
            number = next(done)
            if progress is not None:
                progress(number, len(notes))

    with ThreadPoolExecutor(threads, "edgert-eval") as pool:
        waiting = [pool.submit(work) for _ in range(threads)]
    for one in waiting:
        one.result()
    return (notes, run_s) if next(done) > len(setup) else None


def _judged_image(setup: EvaluationSetup, index: int, run: Run) -> tuple[Note, float]:
    """Return the scorer's note of one image, and the seconds of its run."""
    tensor, geometry = setup.feed.image(index)
    started = time.perf_counter()
    outputs = run({setup.feed.input_name: tensor})
    run_s = time.perf_counter() - started
    try:
        return setup.scorer.note(index, setup.decoder(setup.image_outputs(outputs), geometry)), run_s
    except EdgertError as error:
        raise error.at(setup.feed.name(index))  # noqa: B904 - the same error, with its image


_SHARD, _AHEAD, _TICK_S = (
    8,
    2,
    0.1,
)  # images of a task; tasks for each thread of the cluster; between two checks of stop


class _Judge:
    """A candidate and its setup on a worker, whose engine is compiled there once; can be pickled."""

    def __init__(self, candidate: Candidate, setup: EvaluationSetup) -> None:
        self._candidate, self._setup = candidate, setup
        self._lock, self._local = threading.Lock(), threading.local()
        self._held = _runs(candidate, setup)  # until Dask drops the judge
        self._make: Callable[[], Run] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Judge, (self._candidate, self._setup)

    def judged(self, images: range) -> list[tuple[Note, float]]:
        """Return the notes of these images and the seconds of their runs."""
        with self._lock:
            if self._make is None:
                set_opencv_threads(1)
                self._make = self._held.__enter__()
        if not hasattr(self._local, "run"):
            self._local.run = self._make()
        return [_judged_image(self._setup, index, self._local.run) for index in images]


def judged_there(judge: _Judge, images: range) -> list[tuple[Note, float]]:
    """Judge images, as a task of a cluster; see :func:`evaluate`."""
    return judge.judged(images)


def _judge_there(
    cluster: Cluster, candidate: Candidate, setup: EvaluationSetup, progress: Progress | None, stop: threading.Event
) -> tuple[list[Note], npt.NDArray[np.float64]] | None:
    """Evaluate all images on the workers of a cluster; see :func:`_judge_all`."""
    notes, run_s, done = [None] * len(setup), np.zeros(len(setup)), 0
    judge, left = cluster.submit(_Judge, candidate, setup), deque(range(0, len(setup), _SHARD))
    running: dict[Any, range] = {}
    try:
        while (left or running) and not stop.is_set():
            while left and len(running) < _AHEAD * max(1, cluster.threads):
                images = range(left[0], min(left.popleft() + _SHARD, len(setup)))
                running[cluster.submit(judged_there, judge, images)] = images
            for future in cluster.ended(running, _TICK_S):
                images = running.pop(future)
                for index, (note, seconds) in zip(images, cluster.result(future), strict=True):
                    notes[index], run_s[index] = note, seconds
                    done += 1
                    if progress is not None:
                        progress(done, len(setup))
    finally:
        cluster.cancel([judge, *running])
    return (notes, run_s) if done == len(setup) else None


@contextmanager
def _runs(candidate: Candidate, setup: EvaluationSetup) -> Iterator[Callable[[], Run]]:
    """Yield a function that makes a run for each thread."""
    if isinstance(candidate, Model):
        with closing(build_engine(candidate, setup.config, threads=1)) as engine:
            yield runner(engine)
    elif isinstance(candidate, Engine):
        yield runner(candidate)
    else:
        yield lambda: candidate
