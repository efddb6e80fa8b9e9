"""Evaluation of one model: setup, a run of every image on several threads, and metrics."""

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

from edgert.backend import Engine, base, trial_run
from edgert.board.host import core_count
from edgert.cluster import Cluster
from edgert.config import ClassifyTask, DetectTask, KeypointsTask, ModelConfig, TaskConfig
from edgert.dataset import ImageFeed, LabeledDataset, feed_of
from edgert.engine import build_engine, output_shapes
from edgert.errors import ConfigError, ModelError, located_at
from edgert.evaluation.score import Agreement, BoxScorer, ClassScorer, ImageScores, Note
from edgert.evaluation.task_scores import MultiLabelScorer, Scorer, scorer_for
from edgert.graph import Model
from edgert.stages.decode.decoder import Decoder
from edgert.stages.decode.kinds import decoder_for, fitting_decoder, labels_of
from edgert.stages.decode.record_check import CheckedRecords, RecordCheck
from edgert.stages.kinds import ByteTrackStage
from edgert.stages.preprocess import set_opencv_threads

LOWEST_SCORE = 0.01
"""Lowest score of boxes that count, even if the ``score`` of the task is higher.

Average precision covers the full range of a detector's scores. YOLOX's evaluation uses 0.01, and most others use
similar values."""
LEAST_BOXES = 100
_LEAST_CLASSES, _EVERY_CLASS = 5, 100_000

Run = Callable[[Mapping[str, base.Array]], Mapping[str, base.Array]]
"""Function from input name → (1, …) array to output name → array, called from several threads at once.

A :class:`~edgert.backend.ort.Function` is one."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationSetup:
    """Setup that all candidates of one evaluation share, from :func:`open_evaluation`.

    It can be pickled: another process opens the same setup.

    Attributes:
        outputs: names of the outputs, in the decoder's order.
        batched: whether the first dimension of each output is the batch.
        opened: function that opens the same setup in any process.
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

    def image_outputs(self, found: Mapping[str, base.Array]) -> list[base.Array]:
        """Return one image's outputs in the form that the decoder takes. Raises ModelError: an output is missing."""
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

    With labels two settings of the task differ: detectors keep boxes from a score of :data:`LOWEST_SCORE` on, and
    classifiers return five classes. Agreement without labels uses the task's own settings. ``labels`` are by default
    those of the task's file; ``tracking`` is used for labels of a sequence. Raises ModelError: the model's input is not
    one image, or the task does not fit its outputs. Raises ConfigError: the labels do not fit the task. Raises
    BuildError: the backend refuses the model.
    """
    with located_at(where):
        names = labels_of(config, where) if labels is None else tuple(labels)
        truth = dataset.ground_truth
        scorer = Agreement() if truth is None else scorer_for(truth, config.task, tracking)
        task = _evaluation_task(config.task, isinstance(scorer, BoxScorer), isinstance(scorer, MultiLabelScorer))
        decoder: Decoder = decoder_for(task, names, where, directory)
        feed = feed_of(dataset.images, model, config)
        with closing(build_engine(model, config, threads=1)) as engine:
            outputs, batched = tuple(tensor.name for tensor in engine.outputs), engine.batched
            if engine.outputs_known:
                judged, shapes = config.model_copy(update={"task": task}), tuple(output_shapes(engine))
                decoder = fitting_decoder(judged, names, shapes, feed.size, where, directory, outputs)
                most = int(max(map(np.prod, shapes)))  # there are not more classes than numbers
                if isinstance(scorer, ClassScorer) and (largest := max(scorer.ground_truth.classes, default=0)) >= most:
                    what, why = f"label {largest} is not a class of the model", f"it has {most}, counted from 0"
                    raise ConfigError(what, why=why, fix="number the labels in the order of training")
    checked = CheckedRecords(decoder, RecordCheck(config.onnx.stem, decoder))  # filters records as a pipeline does
    opened = partial(
        open_evaluation, model, config, dataset, labels=labels, directory=directory, where=where, tracking=tracking
    )
    return EvaluationSetup(config, dataset, feed, checked, scorer, outputs, batched, opened)


def runner(engine: Engine) -> Callable[[], Run]:
    """Return a function that creates a run of an engine for each thread, with separate tensors.

    A run raises ModelError if the engine's inputs differ from those of the model.
    """

    def make() -> Run:
        session = engine.session()
        names = [tensor.name for tensor in engine.outputs]

        def run(feeds: Mapping[str, base.Array]) -> Mapping[str, base.Array]:
            for name, array in feeds.items():
                if name not in session.inputs or session.inputs[name].shape[1:] != array.shape[1:]:
                    takes = ", ".join(f"{own} {list(bound.shape)}" for own, bound in session.inputs.items())
                    raise ModelError(
                        f"a version to compare has no input {name!r} {list(array.shape)}",
                        why=f"it has {takes}; both versions get the same prepared images",
                        fix="compare versions of one model, and evaluate another model separately with its own --input",
                    )
                session.inputs[name][:1] = array
            return dict(zip(names, trial_run(session), strict=True))

        return run

    return make


def _evaluation_task(task: TaskConfig, by_boxes: bool, by_class: bool = False) -> TaskConfig:
    if isinstance(task, (DetectTask, KeypointsTask)) and by_boxes:
        most = {"score": min(task.score, LOWEST_SCORE), "limit": max(task.limit, LEAST_BOXES)}
        return task.model_copy(update=most)
    if isinstance(task, ClassifyTask):
        least = _EVERY_CLASS if by_class else _LEAST_CLASSES
        options = {**task.options, "score": 0.0} if task.classify == "multilabel" else task.options
        return task.model_copy(update={"top": max(task.top, least), "options": options})
    return task


Progress = Callable[[int, int], object]
"""Function that is called with the number of finished images and of all images, from any thread."""
Candidate = Model | Engine | Run
"""Version of a model to evaluate: a model to compile for one thread per run, an engine, or a function."""


@dataclass(frozen=True, slots=True, eq=False)
class Accuracy:
    """Result of a model.

    Attributes:
        values: metric → value, mostly 0 to 1 (PSNR in dB, RMSE in meters), the main one first; empty if only a
            reference would give one.
        scores: metric → scores of each image, for comparisons.
        seconds: wall-clock time of all images, including decoding.
        run_ms: median time of one run of the model, beside ``threads - 1`` others.
        notes: note of each image, to which other models' agreement can be compared.
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
        """Images per second, including decoding."""
        return self.images / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
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
    """Evaluate one candidate; the values do not depend on threads, timing or the place of evaluation.

    ``reference`` is the result to compare with, for ``agreement`` and ``cosine``. Workers of a cluster read images by
    their paths. Return None after a stop. Raises ConfigError: an image cannot be read, or labels do not fit the task.
    Raises BuildError: the backend refuses the candidate, or fails while running. Raises ModelError: the decoder cannot
    decode the candidate's outputs.
    """
    stop = stop or threading.Event()
    threads = min(threads or core_count(), len(setup))
    started = time.perf_counter()
    if cluster is not None:
        threads = cluster.threads
        found = _evaluate_on_cluster(cluster, candidate, setup, progress, stop)
    else:
        before = set_opencv_threads(1)  # every thread has its own image, so OpenCV's threads would only compete
        try:
            with _runs(candidate, setup) as make:
                found = _evaluate_here(setup, make, threads, progress, stop)
        finally:
            set_opencv_threads(before)
    seconds = time.perf_counter() - started
    if any(one is None for one in found):
        return None
    notes, run_s = zip(*found, strict=True)
    scores = setup.scorer.scores(notes, reference.notes if reference else None)
    values = {metric: scores[metric].value for metric in setup.scorer.metrics if metric in scores}
    run_ms = float(np.median(run_s)) * 1e3
    return Accuracy(name, len(notes), values, scores, seconds, run_ms, threads, notes)


def _evaluate_here(
    setup: EvaluationSetup, make: Callable[[], Run], threads: int, progress: Progress | None, stop: threading.Event
) -> list[tuple[Note, float] | None]:
    """Return the note of each image and the seconds of its run; None for images after a stop."""
    done, lock, local = count(1), threading.Lock(), threading.local()

    def evaluate_one(index: int) -> tuple[Note, float] | None:
        if stop.is_set():
            return None
        if not hasattr(local, "run"):
            local.run = make()
        found = _evaluate_image(setup, index, local.run)
        with lock:
            number = next(done)
            if progress is not None:
                progress(number, len(setup))
        return found

    with ThreadPoolExecutor(threads, "edgert-eval") as pool:
        return list(pool.map(evaluate_one, range(len(setup))))  # after an error it cancels the rest


def _evaluate_image(setup: EvaluationSetup, index: int, run: Run) -> tuple[Note, float]:
    tensor, geometry = setup.feed.image(index)
    started = time.perf_counter()
    outputs = run({setup.feed.input_name: tensor})
    run_s = time.perf_counter() - started
    with located_at(setup.feed.name(index)):
        return setup.scorer.note(index, setup.decoder(setup.image_outputs(outputs), geometry)), run_s


_SHARD, _AHEAD = 8, 2  # images of a task, and tasks for each thread of the cluster
_TICK_S = 0.1  # interval of checks for a stop


class _ClusterEvaluator:
    """Candidate and setup on a worker, which compiles the engine once; can be pickled."""

    def __init__(self, candidate: Candidate, setup: EvaluationSetup) -> None:
        self._candidate, self._setup = candidate, setup
        self._lock, self._local = threading.Lock(), threading.local()
        self._held = _runs(candidate, setup)  # held until Dask drops this object
        self._make: Callable[[], Run] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _ClusterEvaluator, (self._candidate, self._setup)

    def evaluate(self, images: range) -> list[tuple[Note, float]]:
        """Return the notes on these images, and the seconds of their runs."""
        with self._lock:
            if self._make is None:
                set_opencv_threads(1)
                self._make = self._held.__enter__()
        if not hasattr(self._local, "run"):
            self._local.run = self._make()
        return [_evaluate_image(self._setup, index, self._local.run) for index in images]


def _evaluate_on_cluster(
    cluster: Cluster, candidate: Candidate, setup: EvaluationSetup, progress: Progress | None, stop: threading.Event
) -> list[tuple[Note, float] | None]:
    """Evaluate all images on the workers of a cluster; return as :func:`_evaluate_here` does."""
    found: list[tuple[Note, float] | None] = [None] * len(setup)
    done = 0
    evaluator, left = cluster.submit(_ClusterEvaluator, candidate, setup), deque(range(0, len(setup), _SHARD))
    running: dict[Any, range] = {}
    try:
        while (left or running) and not stop.is_set():
            while left and len(running) < _AHEAD * max(1, cluster.threads):
                images = range(left[0], min(left.popleft() + _SHARD, len(setup)))
                running[cluster.submit(_ClusterEvaluator.evaluate, evaluator, images)] = images
            for future in cluster.ended(running, _TICK_S):
                images = running.pop(future)
                found[images.start : images.stop] = cluster.result(future)
                done += len(images)
                if progress is not None:
                    progress(done, len(setup))
    finally:
        cluster.cancel([evaluator, *running])
    return found


@contextmanager
def _runs(candidate: Candidate, setup: EvaluationSetup) -> Iterator[Callable[[], Run]]:
    if isinstance(candidate, Model):
        with closing(build_engine(candidate, setup.config, threads=1)) as engine:
            yield runner(engine)
    elif isinstance(candidate, Engine):
        yield runner(candidate)
    else:
        yield lambda: candidate
