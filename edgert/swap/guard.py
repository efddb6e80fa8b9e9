"""The stage of a model that was swapped: it runs the new model, and the old one on every frame that the new one fails.

Its task calls one stage. Which model works is one reference, changed between two batches. While the old model is kept,
frames that the new one holds stay held here too, so that the old one can work on them.
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
from edgert.runtime import AsyncStage, Result, Stage
from edgert.runtime.recovery import described

_TIMED = 30
"""Runs whose median is compared with the time that a run may take."""


class Guard:
    """A model's stage while the model can go back, and afterwards.

    Args:
        name: of the stage, under which its records are kept.
        new: the stage of the new model.
        old: that of the old one, warm.
        digests: of the new and the old model.
        odd: returns how many records of the new model were impossible so far.
        allowed_s: longest time of a run of the new model.

    Attributes:
        reason: why the old model works again; empty while the new one does.
        since_s: when the new model's present call began, by the monotonic clock; 0 outside of one.
    """

    def __init__(
        self,
        name: str,
        new: Stage,
        old: Stage,
        digests: tuple[str, str],
        odd: Callable[[], int] = lambda: 0,
        allowed_s: float = math.inf,
    ) -> None:
        self.name, self.new, self.reason, self.since_s = name, new, "", 0.0
        self.old: Stage | None = old
        self.active = new
        self._digests = {id(new): digests[0], id(old): digests[1]}
        self._odd, self._allowed_s = odd, allowed_s
        self._times_s: list[float] = []
        self.on_fault: Callable[[], object] = bool

    @property
    def every(self) -> int:
        """Frames between two that the model looks at; of both models."""
        every: int = cast("Any", self.active).every
        return every

    @every.setter
    def every(self, every: int) -> None:
        for stage in filter(None, (self.new, self.old)):
            cast("Any", stage).every = every

    def open(self) -> None:
        """Run the model that works once, in the thread that will run it."""
        self.active.open()

    def close(self) -> None:
        """Close both stages; their engines are the pipeline's."""
        self.new.close()
        if self.old is not None:
            self.old.close()

    def interrupt(self) -> None:
        """End a run under way, from any thread, where its engine can."""
        getattr(self.active, "interrupt", bool)()

    def go_back(self, reason: str) -> None:
        """Switch back to the old model from the next batch on. Callable from any thread, more than once."""
        if self.old is not None and not self.reason:
            self.reason, self.active = reason, self.old

    def settle(self) -> None:
        """Drop the unused model, in the thread that calls the stage."""
        self.new, self.old = self.active, None

    def process(self, result: Result) -> Any:
        """Work on one result, with the old model where the new one fails."""
        stage = self.active
        if stage is self.new and self.old is not None:
            out = self._watched(lambda: stage.process(result))
            if out is not None:
                return self._named(out, stage)
            stage = self.active
        return self._named(stage.process(result), stage)

    def _watched(self, call: Callable[[], Any]) -> Any:
        """Return what the new model's stage returns; None where that failed, and the old one works again."""
        odd, began_s = self._odd(), time.monotonic()
        self.since_s = began_s
        try:
            out = call()
        except Exception as error:  # noqa: BLE001 - whatever a model's run raises is a reason to go back
            self._fault(f"it failed: {described(error)}")
            return None
        finally:
            self.since_s = 0.0
        if self._odd() > odd:
            self._fault("it reported NaN, or boxes that cannot be")
            return None
        self._timed(time.monotonic() - began_s)
        return out

    def _timed(self, took_s: float) -> None:
        """Note the time of a run; the old model works again where half of the runs take too long."""
        self._times_s.append(took_s)
        if len(self._times_s) == _TIMED:
            self._judge_time(statistics.median(self._times_s))
            self._times_s.clear()

    def _judge_time(self, took_s: float) -> None:
        if took_s > self._allowed_s:
            self._fault(f"a frame takes {took_s * 1e3:.3g} ms, and {self._allowed_s * 1e3:.3g} ms are there for it")

    def _fault(self, reason: str) -> None:
        self.go_back(reason)
        self.on_fault()

    def _named(self, out: Any, stage: Stage) -> Any:
        """Return results with the digest of the model that ran."""
        if isinstance(out, Result):
            return self._with_digest(out, stage)
        return out if out is None else [self._with_digest(one, stage) for one in out]

    def _with_digest(self, result: Result, stage: Stage) -> Result:
        if self.name not in result.outputs:  # the model looks at every n-th frame
            return result
        return replace(result, models={**result.models, self.name: self._digests[id(stage)]})


class AsyncGuard(Guard):
    """The same of stages that give results out later: in batches, or from a GPU."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._stage = cast("AsyncStage", self.new)  # that has what is under way
        self._ready: list[Result] = []
        self._taken = deque[tuple[Result, Result]]()  # what the new model has and has not given out
        self._busy_s, self._out = 0.0, 0

    @property
    def limit(self) -> int:
        """See :class:`~edgert.runtime.AsyncStage`, here and below."""
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
        self._change()
        return self._stage.room()

    def due_ns(self) -> int | None:
        return 0 if self._ready else self._stage.due_ns()

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        self._change()
        if not self._is_guarding:
            self._stage.submit(results, onward)
            return
        for one in results:
            one.frame.lease.retain()
        self._taken.extend(zip(results, onward, strict=True))
        with self._tried():
            self._stage.submit(results, onward)

    def collect(self, wait: bool) -> list[Result]:
        out, self._ready = self._ready, []
        if self._is_guarding:
            out += self._collected(wait and not out)
            out, self._ready = out + self._ready, []
        else:
            out += self._named(self._stage.collect(wait and not out), self._stage)
        return out

    def settle(self) -> None:
        """Drop the unused model, and the frames that were kept for it."""
        self._change()
        super().settle()
        self._released(len(self._taken))

    def process(self, result: Result) -> list[Result]:
        """Run what is held together with one more result, and return all that is done."""
        self.submit((result,), (result,))
        return self.collect(wait=True)

    def give_up(self) -> Sequence[Result]:
        held = [*self._ready, *self._stage.give_up()]
        self._ready = []
        self._released(len(self._taken))
        return held

    def close(self) -> None:
        for one in self.give_up():
            one.frame.lease.release()
        super().close()

    @property
    def _is_guarding(self) -> bool:
        return self._stage is self.new and self.old is not None

    def _change(self) -> None:
        """Switch to the wanted model, once the other has passed on its results."""
        if self._stage is self.active:
            return
        while self._stage is not self.active and self._stage.due_ns() is not None:
            self._ready += self._collected(wait=True)
        self._stage = cast("AsyncStage", self.active)

    def _collected(self, wait: bool) -> list[Result]:
        """Return what the new model has done, named; what it failed on is done by the old one then."""
        out: list[Result] = []
        with self._tried() as odd:
            out = self._stage.collect(wait)
            if self._odd() > odd:
                for one in out:
                    one.frame.lease.release()
                out = []
                raise StageError("it reported NaN, or boxes that cannot be")
        if out:
            self._released(len(out))
            self._out += len(out)
            if self._out >= _TIMED:
                self._judge_time(self._busy_s / self._out)
                self._busy_s, self._out = 0.0, 0
        return [self._with_digest(one, self.new) for one in out]

    @contextmanager
    def _tried(self) -> Iterator[int]:
        """Time a call of the new model's stage; where it fails, have the old one work on all that it has."""
        began_s = self.since_s = time.monotonic()
        try:
            yield self._odd()
        except Exception as error:  # noqa: BLE001 - whatever a model's run raises is a reason to go back
            self._fault(f"it failed: {described(error)}")
            self._redo()
        finally:
            self.since_s = 0.0
            self._busy_s += time.monotonic() - began_s

    def _redo(self) -> None:
        """Process results again by the old model that the new one has not passed on."""
        for one in self._stage.give_up():
            one.frame.lease.release()
        stage = self._stage = cast("AsyncStage", self.active)
        while self._taken:
            if (room := stage.room()) < 1 or stage.in_flight >= stage.limit:
                self._ready += self._named(stage.collect(wait=True), stage)
                continue
            some = [self._taken[number] for number in range(min(room, len(self._taken)))]
            stage.submit([result for result, _ in some], [kept for _, kept in some])
            self._released(len(some))

    def _released(self, count: int) -> None:
        """End the holds on the oldest frames that the new model had."""
        for _ in range(count):
            result, _ = self._taken.popleft()
            result.frame.lease.release()


def guard_for(name: str, new: Stage, old: Stage, digests: tuple[str, str], **settings: Any) -> Guard:
    """Return the guard of a stage's two models; arguments are those of :class:`Guard`."""
    return (AsyncGuard if isinstance(new, AsyncStage) else Guard)(name, new, old, digests, **settings)
