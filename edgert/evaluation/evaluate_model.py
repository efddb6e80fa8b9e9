"""The evaluation of one model: every image once, on several threads, and the metrics that follow."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

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
    threads = min(threads or core_count(), len(setup))
    started = time.perf_counter()
    before = set_opencv_threads(1)  # every thread has an image of its own; OpenCV's would only get in their way
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
    """The notes of all images and the seconds of their runs; None when it was stopped before all were done."""
    notes: list[Note] = [None] * len(setup)
    run_s = np.zeros(len(setup))
    left, done, lock, failed = iter(range(len(setup))), count(1), threading.Lock(), threading.Event()
    feed = setup.feed

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
            failed.set()  # the others need not finish; the pool hands the error on
            raise

    def judge(index: int, run: Run) -> None:
        tensor, geometry = feed.image(index)
        started = time.perf_counter()
        outputs = run({feed.input_name: tensor})
        run_s[index] = time.perf_counter() - started
        try:
            notes[index] = setup.scorer.note(index, setup.decoder(setup.image_outputs(outputs), geometry))
        except EdgertError as error:
            raise error.at(feed.name(index))  # noqa: B904 - the same error, with its image
        with lock:
            number = next(done)
            if progress is not None:
                progress(number, len(notes))

    with ThreadPoolExecutor(threads, "edgert-eval") as pool:
        waiting = [pool.submit(work) for _ in range(threads)]
    for one in waiting:
        one.result()
    return (notes, run_s) if next(done) > len(setup) else None


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
