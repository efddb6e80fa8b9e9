"""The shadow of a model: a new one that runs on some of the frames that the old one ran on, and is compared with it."""

import math
import queue
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgert.assemble import Assembly
from edgert.assemble.batches import is_paced
from edgert.config import PipelineFile
from edgert.errors import EdgertError, StageError
from edgert.evaluation.score import Agreement, Found, Note
from edgert.runtime import AsyncStage, Crops, Execution, Result, Stage, Task
from edgert.runtime.frame import has_pixels
from edgert.runtime.metrics import RecentLatency
from edgert.runtime.records import Record
from edgert.runtime.recovery import described
from edgert.stages.draw import ImagePainter, Overlay
from edgert.stages.sink.web.live_images import ELEMENTS, encode_jpeg
from edgert.swap.verdict import EARLY, Terms, allowed_s, cannot_agree, has_turn

MOST_SHOWN = 8
"""Frames with the least agreement whose images the report has."""
_EMPTY_TIMES = 10
"""So many times the frames of the shadow may be looked at: those on which neither model finds anything do not count."""
_POLL_S, _FIRST, _QUALITY, _IMAGE_PX = 0.2, 10, 60, 480
_LOOKS, _LOOK_S = 4, 0.5
_AGREEMENT = Agreement()


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A frame on which two models disagree.

    Attributes:
        images: what the old model found and what the new one found, as JPEG; empty where images are private.
    """

    agreement: float
    stream: str
    frame: int
    stage: str
    images: tuple[bytes, ...]


@dataclass(slots=True)
class Looks:
    """What a shadow found so far; written by its thread, and read by any.

    Attributes:
        values: agreement on each frame that counts, in order.
        empty: frames on which neither model found anything.
        seen: frames that it could have looked at.
        times_s: of each run of the new model.
        waits: why it looks at none at the moment; empty while it does.
        since_s: when its present run began, by the monotonic clock; 0 outside of one.
    """

    values: list[float]
    times_s: list[float]
    empty: int = 0
    seen: int = 0
    waits: str = ""
    since_s: float = 0.0


def agreement_of(old: Record, new: Record) -> float | None:
    """Return how far two records of one frame agree, as ``edgert eval`` counts it; None where both are empty.

    Raises:
        ConfigError: a user's own kind of record, which cannot be compared.
    """
    if isinstance(old, Crops) and isinstance(new, Crops):
        if len(old.records) != len(new.records):
            return 0.0
        pairs = [agreement_of(*pair) for pair in zip(old.records, new.records, strict=True)]
        known = [one for one in pairs if one is not None]
        return statistics.fmean(known) if known else None
    return agreement_of_notes(_AGREEMENT.note(0, old), _AGREEMENT.note(0, new))


def agreement_of_notes(old: Note, new: Note) -> float | None:
    """Return the same of what :class:`~edgert.evaluation.score.Agreement` notes of two records."""
    if isinstance(old, Found) and isinstance(new, Found) and not len(old.boxes) + len(new.boxes):
        return None
    if type(old) is not type(new) or np.shape(old) != np.shape(new):
        return 0.0
    found = _AGREEMENT.of_image(new, old)
    return found if np.isfinite(found) else 0.0


class Pace:
    """What a running pipeline leaves for another model. For one thread.

    Args:
        file: the pipeline.
        assembly: its tasks.
        tasks: those that run the old model.
        every: frames between two that it looks at.
        rate_hz: frames a second that came to it lately; 0: unknown.
        is_on_gpu: whether it runs on a GPU, where a task's time is not the model's.

    Attributes:
        allowed_s: longest time of a run of the new model.
    """

    def __init__(
        self,
        file: PipelineFile,
        assembly: Assembly,
        tasks: Sequence[Task],
        every: int,
        rate_hz: float,
        is_on_gpu: bool,
    ) -> None:
        self._budgets, self._assembly, self._tasks = file.config.budgets, assembly, tasks
        self._every, self._rate_hz, self._is_on_gpu = every, rate_hz, is_on_gpu
        folder = file.document.path.parent
        self._is_paced = any(is_paced(stage, folder) for stage in file.config.stages.values())
        ends = [task.meter.latency for task in assembly.tasks if not task.wiring.outlets]
        self._recent = RecentLatency(ends, _LOOKS)
        self._latency = self._recent.percentiles()
        self._next_s, self._pressure = 0.0, ""
        self.allowed_s = self._limit_s()

    def too_slow(self, run_s: float, rate_hz: float) -> str:
        """Return why a run of the new model takes too long; empty where it does not.

        Args:
            run_s: its time.
            rate_hz: frames a second that come to the old model.
        """
        self._rate_hz = max(self._rate_hz, rate_hz)
        self.allowed_s = self._limit_s()
        if run_s <= self.allowed_s:
            return ""
        return f"a run of the new model takes {run_s * 1e3:.3g} ms, and {self.allowed_s * 1e3:.3g} ms are there for it"

    def _limit_s(self) -> float:
        """Return the longest time of a run of the new model."""
        meters = [task.meter for task in self._tasks]
        old_s = self._every * sum(one.busy_ns for one in meters) / 1e9 / max(sum(one.results_in for one in meters), 1)
        left_s, budget_s, interval_s = None, self._budgets.latency, None
        if budget_s is not None:
            left_s = max(budget_s - max(self._latency.p50 / 1e3 - old_s, 0.0), 0.0)
        if self._is_paced and self._rate_hz:
            interval_s = len(self._tasks) * self._every / self._rate_hz
        if self._is_on_gpu and interval_s is None and left_s is None:
            return math.inf
        return allowed_s(old_s, interval_s, left_s)

    def pressure(self) -> str:
        """Return which budget leaves no room for a shadow at the moment; empty where all do."""
        if time.monotonic() >= self._next_s:
            self._next_s, self._latency = time.monotonic() + _LOOK_S, self._recent.percentiles()
            self._pressure = self._over_budget()
        return self._pressure

    def _over_budget(self) -> str:
        budgets, p99_ms = self._budgets, self._latency.p99
        if budgets.latency is not None and p99_ms > budgets.latency * 1e3:
            return f"the latency is {p99_ms:.0f} ms, and its budget {budgets.latency * 1e3:.0f} ms"
        if budgets.power is None and budgets.cpu is None:
            return ""
        limiters = [one for task in self._assembly.tasks if (one := task.execution.limiter) is not None]
        is_short = self._assembly.choice.level > 0 or any(one.share < 1 for one in limiters)
        return "a budget of power or CPU time leaves frames out" if is_short else ""


class Shadow:
    """A model on trial beside a running one.

    Args:
        assembly: of the running pipeline.
        stages: stage name → the new model's stage, and which pixels it reads.
        terms: of the swap.
        odd: returns how many records of the new model were impossible so far.
        pace: says whether there is time for the new model's runs.
        is_private: whether the report has no images.
        cancel: ends it.

    Attributes:
        looks: what it found so far.
        disagreements: the frames with the least agreement, those first.
    """

    def __init__(
        self,
        assembly: Assembly,
        stages: Mapping[str, tuple[Stage, Any]],
        terms: Terms,
        odd: Callable[[], int],
        pace: Pace,
        is_private: bool,
        cancel: threading.Event,
    ) -> None:
        self._assembly, self._stages, self._terms, self._odd = assembly, stages, terms, odd
        self._pace, self._is_private, self._cancel = pace, is_private, cancel
        self.looks = Looks([], [])
        self.disagreements: tuple[Disagreement, ...] = ()
        self._overlay, self._images = Overlay(ELEMENTS), ImagePainter()
        self._began_s = self._spent_s = 0.0

    def run(self) -> None:
        """Compare both models on as many frames as the terms ask for.

        Raises:
            StageError: the new model fails, is too slow, or cannot reach the agreement; or the pipeline ended.
        """
        names = list(self._stages)
        listener = Task("shadow of " + " and ".join(names), self._stages[names[0]][0])
        # Where some model reads pixels on the host, all are brought there.
        reads = {one for _, one in self._stages.values()}
        listener.execution = Execution(reads="host" if "host" in reads else "anywhere")
        try:
            for name in names:
                self._assembly.listen(name, listener, 1, "oldest")
            self._compare_all(listener, names)
        finally:
            self._assembly.graph.leave(listener)
            with suppress(queue.Empty):
                while (left := listener.wiring.inlet.get(0)) is not None:
                    left[1].frame.lease.release()
            self._images.close()

    def _compare_all(self, listener: Task, names: Sequence[str]) -> None:
        inlet, looks, terms = listener.wiring.inlet, self.looks, self._terms
        began = self._made(names), time.monotonic()
        self._began_s = began[1]
        while len(looks.values) < terms.shadow and not self._cancel.is_set():
            try:
                item = inlet.get(_POLL_S)
            except queue.Empty:
                continue
            if item is None:
                raise StageError("the pipeline ended before the new model was judged")
            edge, result = item
            if listener.execution.download is not None:
                result = listener.execution.download(result)
            try:
                if has_pixels(result.frame) and names[edge] in result.outputs:
                    made, now_s = self._made(names) - began[0], time.monotonic()
                    self._look(names[edge], result, made / max(now_s - began[1], 1e-9), made >= _FIRST)
            finally:
                result.frame.lease.release()
                del result, item  # a variable left over would keep the frame's memory in use
            if cannot_agree(looks.values, terms):
                raise StageError(f"{len(looks.values)} frames are enough to see that the models do not agree")
            if looks.empty + len(looks.values) >= _EMPTY_TIMES * terms.shadow:
                raise StageError(f"on {looks.empty} frames neither model finds anything, so that nothing is compared")

    def _made(self, names: Sequence[str]) -> int:
        """Return how many results the stages have made so far."""
        return sum(self._assembly.ends[name].meter.results_out for name in names)

    def _look(self, name: str, result: Result, rate_hz: float, is_known: bool) -> None:
        """Run the new model on a frame whose turn it is, and compare."""
        looks = self.looks
        looks.seen += 1
        began_s = time.monotonic()
        if not (is_known and has_turn(self._spent_s, began_s - self._began_s)):
            return
        looks.waits = self._pace.pressure()
        if looks.waits:
            return
        record = self._record_of(name, result)
        looks.times_s.append(time.monotonic() - began_s)
        found = agreement_of(result.outputs[name], record)
        if found is None:
            looks.empty += 1
        else:
            looks.values.append(found)
            if found < 1:
                self._keep(name, result, record, found)
        self._spent_s += time.monotonic() - began_s
        if len(looks.times_s) >= EARLY and (why := self._pace.too_slow(_usual(looks.times_s), rate_hz)):
            raise StageError(why)

    def _record_of(self, name: str, result: Result) -> Record:
        """Return what the new model finds on the frame of a result. Raises StageError where it fails."""
        stage, _ = self._stages[name]
        odd, before = self._odd(), result.outputs[name]
        self.looks.since_s = time.monotonic()
        try:
            made = stage.process(result)
        except Exception as error:
            raise StageError(f"the new model fails on a frame: {described(error)}") from error
        finally:
            self.looks.since_s = 0.0
        results = [made] if isinstance(made, Result) else list(made or ())
        if isinstance(stage, AsyncStage):
            for one in results:
                one.frame.lease.release()
        record = results[-1].outputs[name] if results else None
        if self._odd() > odd:
            raise StageError("the new model reports NaN, or boxes that cannot be")
        if record is None or record is before:
            raise StageError("the new model finds nothing to work on in a frame of the old one")
        return record

    def _keep(self, name: str, result: Result, record: Record, agreement: float) -> None:
        """Keep a frame for the report where it is among those with the least agreement."""
        shown = self.disagreements
        if len(shown) == MOST_SHOWN and agreement >= shown[-1].agreement:
            return
        frame, images = result.frame, tuple[bytes, ...]()
        if not self._is_private:
            both = ({**result.outputs, name: one} for one in (result.outputs[name], record))
            with suppress(EdgertError):  # a frame that cannot be drawn is listed without its images
                images = tuple(self._drawn(replace(result, outputs=outputs, image=None)) for outputs in both)
        more = Disagreement(agreement, frame.stream, frame.index, name, images)
        self.disagreements = tuple(sorted((*shown, more), key=lambda one: one.agreement)[:MOST_SHOWN])

    def _drawn(self, result: Result) -> bytes:
        width = min(_IMAGE_PX, result.frame.width)
        image = self._images.paint(result, width, lambda size: self._overlay.shapes(size, result))
        return encode_jpeg(self._images.host_image(replace(result, image=image)), _QUALITY)


def _usual(times_s: Sequence[float]) -> float:
    """Return the time that a fourth of the runs took at most: others waited for the old model's threads."""
    return statistics.quantiles(times_s, n=4)[0]
