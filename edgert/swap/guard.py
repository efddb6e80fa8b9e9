"""The stage of a swapped model: it runs the new model, and the old one on every frame on which the new one fails.

A task has one stage. The active model is one reference, which changes between two batches. While the old model is kept,
the guard also retains the frames that the new one has, so that the old one can process them.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from edgert.errors import StageError
from edgert.runtime import AsyncStage, Result, Stage, recovery

_JUDGED_RUNS = 30
"""Number of runs whose median is compared with the allowed time."""


class Guard:
    """The stage of a swapped model, while the swap can be undone and afterwards.

    Args:
        name: name of the stage, under which results have its record.
        new: stage of the new model.
        old: stage of the old model, which stays warm.
        digests: digests of the new and the old model.
        count_impossible: function that returns the number of the new model's impossible records so far.
        allowed_s: longest time of a run of the new model.

    Attributes:
        reason: why the old model runs again; empty while the new one does.
        since_s: start of the current call of the new model, by the monotonic clock; 0 outside of a call.
        on_fault: function that is called when the guard goes back to the old model.
    """

    def __init__(
        self,
        name: str,
        new: Stage,
        old: Stage,
        digests: tuple[str, str],
        count_impossible: Callable[[], int] = lambda: 0,
        allowed_s: float = math.inf,
    ) -> None:
        self.name, self.new, self.reason, self.since_s = name, new, "", 0.0
        self.old: Stage | None = old
        self.active = new
        self._digests = {id(new): digests[0], id(old): digests[1]}
        self._count_impossible, self._allowed_s = count_impossible, allowed_s
        self._times_s: list[float] = []
        self.on_fault: Callable[[], object] = bool

    @property
    def every(self) -> int:
        """Every n-th frame is run, by either model."""
        every: int = cast("Any", self.active).every
        return every

    @every.setter
    def every(self, every: int) -> None:
        for stage in filter(None, (self.new, self.old)):
            cast("Any", stage).every = every

    def open(self) -> None:
        """Open the active stage, in the thread that will call it."""
        self.active.open()

    def close(self) -> None:
        """Close both stages; the pipeline closes their engines."""
        self.new.close()
        if self.old is not None:
            self.old.close()

    def interrupt(self) -> None:
        """End the current run where its engine can; callable from any thread."""
        getattr(self.active, "interrupt", bool)()

    def go_back(self, reason: str) -> None:
        """Switch back to the old model from the next batch on. Callable from any thread, more than once."""
        if self.old is not None and not self.reason:
            self.reason, self.active = reason, self.old

    def settle(self) -> None:
        """Drop the inactive stage; call this in the thread that calls the stage."""
        self.new, self.old = self.active, None

    def process(self, result: Result) -> Any:
        """Process one result, by the old model if the new one fails."""
        stage = self.active
        if stage is self.new and self.old is not None:
            out = self._try_new(lambda: stage.process(result))
            if out is not None:
                return self._add_digests(out, stage)
            stage = self.active
        return self._add_digests(stage.process(result), stage)

    def _try_new(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call of the new model's stage; None if it failed, after going back."""
        impossible, began_s = self._count_impossible(), time.monotonic()
        self.since_s = began_s
        try:
            out = call()
        except Exception as error:  # noqa: BLE001 - whatever a model's run raises is a reason to go back
            self._fault(f"it failed: {recovery.describe_error(error)}")
            return None
        finally:
            self.since_s = 0.0
        if self._count_impossible() > impossible:
            self._fault("it reported NaN or impossible boxes")
            return None
        self._add_time(time.monotonic() - began_s)
        return out

    def _add_time(self, took_s: float) -> None:
        """Note the time of a run; go back to the old model where the median is too long."""
        self._times_s.append(took_s)
        if len(self._times_s) == _JUDGED_RUNS:
            self._judge_time(statistics.median(self._times_s))
            self._times_s.clear()

    def _judge_time(self, took_s: float) -> None:
        if took_s > self._allowed_s:
            self._fault(f"a frame takes {took_s * 1e3:.3g} ms, but may take {self._allowed_s * 1e3:.3g} ms")

    def _fault(self, reason: str) -> None:
        self.go_back(reason)
        self.on_fault()

    def _add_digests(self, out: Any, stage: Stage) -> Any:
        if isinstance(out, Result):
            return self._with_digest(out, stage)
        return out if out is None else [self._with_digest(one, stage) for one in out]

    def _with_digest(self, result: Result, stage: Stage) -> Result:
        if self.name not in result.outputs:  # the model runs on every n-th frame
            return result
        return replace(result, models={**result.models, self.name: self._digests[id(stage)]})


class AsyncGuard(Guard):
    """A guard of stages that return results later: in batches, or from a GPU."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._stage = cast("AsyncStage", self.new)  # the stage that has submitted results
        self._ready: list[Result] = []
        self._taken = deque[tuple[Result, Result]]()  # results that the new model has not returned yet
        self._busy_s, self._returned = 0.0, 0

    @property
    def limit(self) -> int:
        """As in :class:`~edgert.runtime.AsyncStage`; so are the methods below."""
        return self._stage.limit

    @property
    def in_flight(self) -> int:
        return self._stage.in_flight

    @property
    def is_ready(self) -> bool:
        return bool(self._ready) or self._stage.is_ready

    def hold_until_full(self) -> None:
        """Run only full batches from now on."""
        for stage in filter(None, (self.new, self.old)):
            getattr(stage, "hold_until_full", bool)()

    def room(self) -> int:
        self._switch_when_empty()
        return self._stage.room()

    def due_ns(self) -> int | None:
        return 0 if self._ready else self._stage.due_ns()

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        self._switch_when_empty()
        if not self._is_guarding:
            self._stage.submit(results, onward)
            return
        for one in results:
            one.frame.lease.retain()
        self._taken.extend(zip(results, onward, strict=True))
        with self._guarded():
            self._stage.submit(results, onward)

    def collect(self, wait: bool) -> list[Result]:
        out, self._ready = self._ready, []
        if self._is_guarding:
            out += self._collect_new(wait and not out)
            out, self._ready = out + self._ready, []
        else:
            out += self._add_digests(self._stage.collect(wait and not out), self._stage)
        return out

    def settle(self) -> None:
        """Drop the inactive stage, and the frames that were kept for it."""
        self._switch_when_empty()
        super().settle()
        self._release_taken(len(self._taken))

    def process(self, result: Result) -> list[Result]:
        """Submit one more result, and return all that are done."""
        self.submit((result,), (result,))
        return self.collect(wait=True)

    def give_up(self) -> Sequence[Result]:
        held = [*self._ready, *self._stage.give_up()]
        self._ready = []
        self._release_taken(len(self._taken))
        return held

    def close(self) -> None:
        for one in self.give_up():
            one.frame.lease.release()
        super().close()

    @property
    def _is_guarding(self) -> bool:
        return self._stage is self.new and self.old is not None

    def _switch_when_empty(self) -> None:
        """Switch to the active model after the other one has returned its results."""
        if self._stage is self.active:
            return
        while self._stage is not self.active and self._stage.due_ns() is not None:
            self._ready += self._collect_new(wait=True)
        self._stage = cast("AsyncStage", self.active)

    def _collect_new(self, wait: bool) -> list[Result]:
        """Return results of the new model, with its digest; where it fails, the old one processes them again."""
        out: list[Result] = []
        with self._guarded() as impossible:
            out = self._stage.collect(wait)
            if self._count_impossible() > impossible:
                for one in out:
                    one.frame.lease.release()
                out = []
                raise StageError("it reported NaN or impossible boxes")
        if out:
            self._release_taken(len(out))
            self._returned += len(out)
            if self._returned >= _JUDGED_RUNS:
                self._judge_time(self._busy_s / self._returned)
                self._busy_s, self._returned = 0.0, 0
        return [self._with_digest(one, self.new) for one in out]

    @contextmanager
    def _guarded(self) -> Iterator[int]:
        """Time a call of the new model's stage; if it fails, process its results again by the old model."""
        began_s = self.since_s = time.monotonic()
        try:
            yield self._count_impossible()
        except Exception as error:  # noqa: BLE001 - whatever a model's run raises is a reason to go back
            self._fault(f"it failed: {recovery.describe_error(error)}")
            self._redo()
        finally:
            self.since_s = 0.0
            self._busy_s += time.monotonic() - began_s

    def _redo(self) -> None:
        """Submit to the old model the results that the new one has not returned."""
        for one in self._stage.give_up():
            one.frame.lease.release()
        stage = self._stage = cast("AsyncStage", self.active)
        while self._taken:
            if (room := stage.room()) < 1 or stage.in_flight >= stage.limit:
                self._ready += self._add_digests(stage.collect(wait=True), stage)
                continue
            some = [self._taken[number] for number in range(min(room, len(self._taken)))]
            stage.submit([result for result, _ in some], [kept for _, kept in some])
            self._release_taken(len(some))

    def _release_taken(self, count: int) -> None:
        for _ in range(count):
            result, _ = self._taken.popleft()
            result.frame.lease.release()


def guard_for(name: str, new: Stage, old: Stage, digests: tuple[str, str], **settings: Any) -> Guard:
    """Return a guard of the kind that the stages need; arguments are those of :class:`Guard`."""
    return (AsyncGuard if isinstance(new, AsyncStage) else Guard)(name, new, old, digests, **settings)
