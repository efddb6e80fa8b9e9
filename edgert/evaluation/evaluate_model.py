"""The evaluation of one model: every image once, on several threads, and the metrics that follow."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgert.backend import Engine
from edgert.board.host import core_count
from edgert.engine import build_engine
from edgert.errors import EdgertError
from edgert.evaluation.score import ImageScores, Note
from edgert.evaluation.setup import EvaluationSetup, Run, runner
from edgert.graph import Model
from edgert.stages.preprocess import set_opencv_threads

Progress = Callable[[int, int], object]
"""Called with images done and all images; from any of the threads, but never from two at once."""
Candidate = Model | Engine | Run
"""A model is compiled by its section's backend for one thread a run, with as many runs at a time as there are cores;
an engine is run as it is; a function is called."""


@dataclass(frozen=True, slots=True, eq=False)
class Accuracy:
    """How a model did.

    Attributes:
        name: for people.
        images: how many images.
        values: metric → 0 to 1, the usual one first; empty where only a reference could tell.
        scores: metric → what it is made of, for comparing.
        seconds: wall clock of all images, decoding and everything.
        run_ms: median time of one run of the model alone, beside ``threads - 1`` others.
        threads: runs at a time.
        notes: what the scorer kept of each image: the reference of other models' agreement.
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
        """As plain data."""
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
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Accuracy | None:
    """Evaluates one candidate.

    The values depend neither on the number of threads nor on who finishes first.

    Args:
        candidate: the model itself, or another version of it with the same inputs and outputs.
        name: what to call it.
        reference: result, with the same setup, of the model to agree with, where there are no labels or for
            ``cosine``.
        threads: images at a time; as many as there are cores by default.
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
    count = min(threads or core_count(), len(setup))
    started = time.perf_counter()
    before = set_opencv_threads(1)  # every thread has an image of its own; OpenCV's would only get in their way
    try:
        with _runs(candidate, setup) as make:
            run = _EvaluationRun(setup, make, stop, progress)
            run.go(count)
    finally:
        set_opencv_threads(before)
    seconds = time.perf_counter() - started
    if run.done < len(setup):
        return None
    notes = tuple(run.notes)
    scores = setup.scorer.scores(notes, reference.notes if reference else None)
    values = {metric: scores[metric].value for metric in setup.scorer.metrics if metric in scores}
    run_ms = float(np.median(run.run_s)) * 1e3
    return Accuracy(name, len(notes), values, scores, seconds, run_ms, count, notes)


class _EvaluationRun:
    """The evaluation of one candidate: what its threads share."""

    def __init__(
        self, setup: EvaluationSetup, make: Callable[[], Run], stop: threading.Event, progress: Progress | None
    ) -> None:
        self.notes: list[Note] = [None] * len(setup)
        self.run_s = np.zeros(len(setup))
        self.done = 0
        self._setup, self._make, self._stop, self._progress = setup, make, stop, progress
        self._indices = iter(range(len(setup)))
        self._lock = threading.Lock()
        self._failed = threading.Event()

    def go(self, threads: int) -> None:
        """Until all images are done, one fails, or it is stopped."""
        with ThreadPoolExecutor(threads, "edgert-eval") as pool:
            waiting = [pool.submit(self._work) for _ in range(threads)]
        for one in waiting:
            one.result()

    def _work(self) -> None:
        try:
            run = self._make()
            while not self._stop.is_set() and not self._failed.is_set():
                with self._lock:
                    index = next(self._indices, None)
                if index is None:
                    return
                self._judge(index, run)
        except BaseException:
            self._failed.set()  # the others need not finish; the pool hands the error on
            raise

    def _judge(self, index: int, run: Run) -> None:
        feed = self._setup.feed
        tensor, geometry = feed.image(index)
        started = time.perf_counter()
        outputs = run({feed.input_name: tensor})
        self.run_s[index] = time.perf_counter() - started
        try:
            record = self._setup.decoder(self._setup.image_outputs(outputs), geometry)
            self.notes[index] = self._setup.scorer.note(index, record)
        except EdgertError as error:
            raise error.at(feed.name(index))  # noqa: B904 - the same error, with its image
        with self._lock:
            self.done += 1
            if self._progress is not None:
                self._progress(self.done, len(self.notes))


@contextmanager
def _runs(candidate: Candidate, setup: EvaluationSetup) -> Iterator[Callable[[], Run]]:
    """What makes a run for each thread."""
    if isinstance(candidate, Model):
        with closing(build_engine(candidate, setup.config, threads=1)) as engine:
            yield runner(engine)
    elif isinstance(candidate, Engine):
        yield runner(candidate)
    else:
        yield lambda: candidate
