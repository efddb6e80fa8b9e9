"""The shadow of a running model: a new model that runs on some of its frames, and is compared with it."""

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

from edgert.assemble import Assembly, batches
from edgert.config import PipelineFile
from edgert.errors import EdgertError, StageError
from edgert.evaluation.score import Agreement, Found, Note
from edgert.runtime import AsyncStage, Crops, Execution, Result, Stage, Task, metrics, records, recovery
from edgert.runtime.frame import has_pixels
from edgert.stages.draw import ImagePainter, Overlay
from edgert.stages.sink.web.live_images import ELEMENTS, encode_jpeg
from edgert.swap.verdict import JUDGED_RUNS, Terms, allowed_s, cannot_agree, has_turn

SHOWN_DISAGREEMENTS = 8
"""Number of frames with the least agreement that the report shows."""
_MOST_EMPTY = 10
"""Largest number of frames, in multiples of ``shadow``: frames on which neither model finds anything do not count."""
_POLL_S, _FIRST, _QUALITY, _IMAGE_PX = 0.2, 10, 60, 480
_PRESSURE_WINDOWS, _PRESSURE_EVERY_S = 4, 0.5
_AGREEMENT = Agreement()


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A frame on which two models disagree, with both results drawn on it as JPEG, unless images are private."""

    agreement: float
    stream: str
    frame: int
    stage: str
    images: tuple[bytes, ...]


@dataclass(slots=True)
class ShadowResults:
    """Results of a shadow so far; its thread writes them, and any thread may read them.

    Attributes:
        values: agreement on each counted frame, in order.
        seen: number of frames that were available.
        waits: why the shadow runs on no frame now; empty while it does.
        since_s: start of the current run, by the monotonic clock; 0 outside of a run.
    """

    values: list[float]
    times_s: list[float]
    empty: int = 0
    seen: int = 0
    waits: str = ""
    since_s: float = 0.0


def agreement_of(old: records.Record, new: records.Record) -> float | None:
    """Return the agreement of two records of one frame, as in ``edgert eval``; None where both are empty.

    Raises ConfigError for records of a user's own kind, which cannot be compared.
    """
    if isinstance(old, Crops) and isinstance(new, Crops):
        if len(old.records) != len(new.records):
            return 0.0
        pairs = [agreement_of(*pair) for pair in zip(old.records, new.records, strict=True)]
        known = [one for one in pairs if one is not None]
        return statistics.fmean(known) if known else None
    return agreement_of_notes(_AGREEMENT.note(0, old), _AGREEMENT.note(0, new))


def agreement_of_notes(old: Note, new: Note) -> float | None:
    """Return the agreement of two records, given their notes of :class:`~edgert.evaluation.score.Agreement`."""
    if isinstance(old, Found) and isinstance(new, Found) and not len(old.boxes) + len(new.boxes):
        return None
    if type(old) is not type(new) or np.shape(old) != np.shape(new):
        return 0.0
    found = _AGREEMENT.of_image(new, old)
    return found if np.isfinite(found) else 0.0


class Pace:
    """The time that a running pipeline leaves for another model, for use in one thread.

    ``rate_hz`` is the recent rate of frames for the old model, 0 where unknown, of which every n-th is run. On a GPU,
    the time of a task is not that of the model.
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
        self._is_paced = any(batches.is_paced(stage, folder) for stage in file.config.stages.values())
        ends = [task.meter for task in assembly.tasks if not task.wiring.outlets]
        self._recent = metrics.RecentLatency(ends, _PRESSURE_WINDOWS)
        self._latency = self._recent.percentiles()
        self._next_s, self._pressure = 0.0, ""
        self.allowed_s = self._limit_s()

    def too_slow(self, run_s: float, rate_hz: float) -> str:
        """Return why a run of the new model takes too long; empty where it does not."""
        self._rate_hz = max(self._rate_hz, rate_hz)
        self.allowed_s = self._limit_s()
        if run_s <= self.allowed_s:
            return ""
        return f"a run of the new model takes {run_s * 1e3:.3g} ms, but may take {self.allowed_s * 1e3:.3g} ms"

    def _limit_s(self) -> float:
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
        """Return which budget leaves no time for a shadow now; empty where all do."""
        if time.monotonic() >= self._next_s:
            self._next_s, self._latency = time.monotonic() + _PRESSURE_EVERY_S, self._recent.percentiles()
            self._pressure = self._over_budget()
        return self._pressure

    def _over_budget(self) -> str:
        budgets, p99_ms = self._budgets, self._latency.p99
        if budgets.latency is not None and p99_ms > budgets.latency * 1e3:
            return f"the latency is {p99_ms:.0f} ms, but its budget is {budgets.latency * 1e3:.0f} ms"
        if budgets.power is None and budgets.cpu is None:
            return ""
        limiters = [one for task in self._assembly.tasks if (one := task.execution.limiter) is not None]
        is_short = self._assembly.choice.level > 0 or any(one.share < 1 for one in limiters)
        return "frames are dropped to keep a budget of power or CPU time" if is_short else ""


class Shadow:
    """A model on trial beside a running one.

    ``stages`` has the new model's stages by name, with where each reads pixels. If ``is_private``, the report has no
    images. ``disagreements`` are the frames with the least agreement, the worst first.
    """

    def __init__(
        self,
        assembly: Assembly,
        stages: Mapping[str, tuple[Stage, Any]],
        terms: Terms,
        count_impossible: Callable[[], int],
        pace: Pace,
        is_private: bool,
        cancel: threading.Event,
    ) -> None:
        self._assembly, self._stages, self._terms = assembly, stages, terms
        self._count_impossible = count_impossible
        self._pace, self._is_private, self._cancel = pace, is_private, cancel
        self.results = ShadowResults([], [])
        self.disagreements: tuple[Disagreement, ...] = ()
        self._overlay, self._images = Overlay(ELEMENTS), ImagePainter()
        self._began_s = self._spent_s = 0.0

    def run(self) -> None:
        """Compare both models on as many frames as the terms demand.

        Raises StageError where the new model fails, is too slow or cannot reach the agreement, or the pipeline ended.
        """
        names = list(self._stages)
        listener = Task("shadow of " + " and ".join(names), self._stages[names[0]][0])
        # If any of the stages reads pixels on the host, all frames are copied there.
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
        inlet, results, terms = listener.wiring.inlet, self.results, self._terms
        began = self._count_results(names), time.monotonic()
        self._began_s = began[1]
        while len(results.values) < terms.shadow and not self._cancel.is_set():
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
                    made, now_s = self._count_results(names) - began[0], time.monotonic()
                    self._compare(names[edge], result, made / max(now_s - began[1], 1e-9), made >= _FIRST)
            finally:
                result.frame.lease.release()
                del result, item  # these variables would keep the frame's memory in use
            if cannot_agree(results.values, terms):
                raise StageError(f"after {len(results.values)} frames the agreement can no longer be reached")
            if results.empty + len(results.values) >= _MOST_EMPTY * terms.shadow:
                raise StageError(f"neither model finds anything on {results.empty} frames, so nothing can be compared")

    def _count_results(self, names: Sequence[str]) -> int:
        return sum(self._assembly.ends[name].meter.results_out for name in names)

    def _compare(self, name: str, result: Result, rate_hz: float, is_known: bool) -> None:
        """Run the new model on a frame, and compare, if there is time for it."""
        results = self.results
        results.seen += 1
        began_s = time.monotonic()
        if not (is_known and has_turn(self._spent_s, began_s - self._began_s)):
            return
        results.waits = self._pace.pressure()
        if results.waits:
            return
        record = self._record_of(name, result)
        results.times_s.append(time.monotonic() - began_s)
        found = agreement_of(result.outputs[name], record)
        if found is None:
            results.empty += 1
        else:
            results.values.append(found)
            if found < 1:
                self._keep(name, result, record, found)
        self._spent_s += time.monotonic() - began_s
        if len(results.times_s) >= JUDGED_RUNS:
            quartile_s = statistics.quantiles(results.times_s, n=4)[0]  # slower runs waited for the old model's threads
            if why := self._pace.too_slow(quartile_s, rate_hz):
                raise StageError(why)

    def _record_of(self, name: str, result: Result) -> records.Record:
        """Return the new model's record for the frame of a result. Raises StageError: it fails."""
        stage, _ = self._stages[name]
        impossible, before = self._count_impossible(), result.outputs[name]
        self.results.since_s = time.monotonic()
        try:
            made = stage.process(result)
        except Exception as error:
            raise StageError(f"the new model fails on a frame: {recovery.describe_error(error)}") from error
        finally:
            self.results.since_s = 0.0
        results = [made] if isinstance(made, Result) else list(made or ())
        if isinstance(stage, AsyncStage):
            for one in results:
                one.frame.lease.release()
        record = results[-1].outputs[name] if results else None
        if self._count_impossible() > impossible:
            raise StageError("the new model reports NaN or impossible boxes")
        if record is None or record is before:
            raise StageError("the new model made no record for a frame of the old one")
        return record

    def _keep(self, name: str, result: Result, record: records.Record, agreement: float) -> None:
        """Keep a frame for the report if it is among those with the least agreement."""
        shown = self.disagreements
        if len(shown) == SHOWN_DISAGREEMENTS and agreement >= shown[-1].agreement:
            return
        frame, images = result.frame, tuple[bytes, ...]()
        if not self._is_private:
            both = ({**result.outputs, name: one} for one in (result.outputs[name], record))
            with suppress(EdgertError):  # a frame that cannot be drawn is listed without its images
                images = tuple(self._drawn(replace(result, outputs=outputs, image=None)) for outputs in both)
        more = Disagreement(agreement, frame.stream, frame.index, name, images)
        self.disagreements = tuple(sorted((*shown, more), key=lambda one: one.agreement)[:SHOWN_DISAGREEMENTS])

    def _drawn(self, result: Result) -> bytes:
        width = min(_IMAGE_PX, result.frame.width)
        image = self._images.paint(result, width, lambda size: self._overlay.shapes(size, result))
        return encode_jpeg(self._images.host_image(replace(result, image=image)), _QUALITY)
