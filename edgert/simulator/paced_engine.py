"""Engines that compute here, paced to take as long as an emulated board would."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from edgert.backend import Engine, Session
from edgert.backend.base import Array
from edgert.clock import Clock
from edgert.placement.contention import Contention
from edgert.placement.schedule import Used
from edgert.placement.segment_engines import Step
from edgert.runtime import Result, Stage
from edgert.simulator.hardware import ANY_CORE


class Pacer:
    """Accelerators by the clock: each runs one step at a time, first come first served. For any number of threads.

    A step that others run beside when it begins is slowed down by them for all of its time.
    """

    def __init__(self, clock: Clock, contention: Contention | None, cores: int = 1) -> None:
        self._clock, self._contention = clock, contention
        self._cores = [0] * cores  # when each is free
        self._lock, self._never = threading.Lock(), threading.Event()
        self.here = threading.local()
        """``at_ns``: since when the thread works on its next run of a model."""
        self._busy: dict[str, tuple[int, float]] = {}  # accelerator → when it is free, what it asks of the memory
        self._used: dict[str, Used] = {}
        self.runs = self.late = 0
        self.clock = 1.0
        """Part of its speed that heat leaves the board; for steps that begin from then on."""
        self.late_ns = 0

    def begin(self, step: Step, at_ns: int) -> int:
        """Takes the accelerator when it is free, not before ``at_ns``; returns when the step will have ended."""
        if step.accelerator is None:
            return at_ns + round(1e6 * step.time_ms)
        if step.accelerator == ANY_CORE:
            return self._on_cores(step, at_ns)
        with self._lock:
            begins_ns = max(at_ns, self._busy.get(step.accelerator, (0, 0.0))[0])
            asked = 1e3 * step.traffic_bytes / step.time_ms
            busy = self._busy.items()
            others = sum(rate for name, (ends, rate) in busy if name != step.accelerator and ends > begins_ns)
            slowdown = 1.0 if self._contention is None else self._contention.slowdown(asked, others)
            busy_ms = step.time_ms * slowdown / self.clock
            ends_ns = begins_ns + round(1e6 * busy_ms)
            self._busy[step.accelerator] = ends_ns, asked
            used = self._used.setdefault(step.accelerator, Used())
            used.busy_ms += busy_ms
            used.worked_ms += step.time_ms
            used.traffic_bytes += step.traffic_bytes
            used.energy_mj += step.energy_mj
        return ends_ns

    def _on_cores(self, step: Step, at_ns: int) -> int:
        """On those that are free first, one after the other where more threads work than there are cores."""
        with self._lock:
            self._cores.sort()
            taken = min(step.threads, len(self._cores))
            ends_ns = max(at_ns, self._cores[taken - 1]) + round(1e6 * step.time_ms)
            self._cores[:taken] = [ends_ns] * taken
            used = self._used.setdefault(ANY_CORE, Used())
            used.busy_ms += step.time_ms * taken
            used.worked_ms += step.time_ms * taken
        return ends_ns

    def carry_out(self, steps: Sequence[Step], at_ns: int) -> None:
        """Waits until all of them would have ended, one after the other, that began then."""
        for step in steps:
            at_ns = self.begin(step, at_ns)
            self.wait(at_ns)

    def wait(self, until_ns: int) -> None:
        """Until then, if that is not over."""
        left_ns = until_ns - self._clock.now_ns()
        if left_ns > 0:
            self._clock.wait(self._never, left_ns / 1e9)

    def now_ns(self) -> int:
        """On the board's clock."""
        return self._clock.now_ns()

    def note(self, late_ns: int) -> None:
        """Counts a run, and by how much this machine was too slow for it; 0 or less where it was not."""
        with self._lock:
            self.runs += 1
            self.late += late_ns > 0
            self.late_ns += max(late_ns, 0)

    def used(self) -> Mapping[str, Used]:
        """Accelerator → what it did, or has begun to do."""
        with self._lock:
            return {
                name: Used(one.busy_ms, one.worked_ms, one.traffic_bytes, one.energy_mj)
                for name, one in self._used.items()
            }


class PacedStage:
    """A stage that takes a board's time for each result.

    Args:
        steps: what it does for one.
    """

    def __init__(self, stage: Stage, steps: Sequence[Step], pacer: Pacer) -> None:
        self._stage, self._steps, self._pacer = stage, steps, pacer

    def open(self) -> None:
        """See :class:`edgert.runtime.stage.Stage`."""
        self._stage.open()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Does it while the board's time goes by, and waits for what is left of it."""
        began_ns = self._pacer.now_ns()
        out = self._stage.process(result)
        made = out if out is None or isinstance(out, Result) else tuple(out)
        self._pacer.carry_out(self._steps, began_ns)
        return made

    def close(self) -> None:
        """See :class:`edgert.runtime.stage.Stage`."""
        self._stage.close()


class PacedInference:
    """A stage with a model: what it does before its first run goes by in the board's time of that.

    Everything that it is asked for is the stage's own.
    """

    def __init__(self, stage: Stage, pacer: Pacer) -> None:
        self._stage, self._pacer = stage, pacer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def open(self) -> None:
        """See :class:`edgert.runtime.stage.Stage`."""
        self._stage.open()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Notes when it began."""
        self._pacer.here.at_ns = self._pacer.now_ns()
        return self._stage.process(result)

    def close(self) -> None:
        """See :class:`edgert.runtime.stage.Stage`."""
        self._stage.close()


class PacedEngine:
    """An engine whose runs take a board's time.

    Args:
        slots: steps of a run, for each of the engines that the board would have; sessions take them in turn.
        board: what stands in ``info``.
    """

    def __init__(self, engine: Engine, slots: Sequence[tuple[Step, ...]], pacer: Pacer, board: str) -> None:
        self._engine, self._pacer, self._slots = engine, pacer, cycle(slots)
        self.profiles, self.inputs, self.outputs = engine.profiles, engine.inputs, engine.outputs
        self.outputs_known, self.batched = engine.outputs_known, engine.batched
        self.dynamic_batch = engine.dynamic_batch
        self.info: Mapping[str, Any] = {**engine.info, "simulated": board}

    def session(self, profile: str | None = None) -> Session:
        """A new set of bound tensors. Raises ModelError for an unknown profile."""
        return PacedSession(self._engine.session(profile), next(self._slots), self._pacer)

    def close(self) -> None:
        """Gives the engine's memory back."""
        self._engine.close()


class PacedSession:
    """See :class:`edgert.backend.Session`."""

    def __init__(self, session: Session, steps: tuple[Step, ...], pacer: Pacer) -> None:
        self._session, self._steps, self._pacer = session, steps, pacer
        self.inputs = session.inputs

    def run(self, rows: int | None = None) -> Sequence[Array]:
        """Computes while the board's time goes by, and waits for what is left of it."""
        pacer = self._pacer
        count = rows or next(iter(self.inputs.values())).shape[0]
        first, *rest = [step.times(count) for step in self._steps]
        ends_ns = pacer.begin(first, getattr(pacer.here, "at_ns", None) or pacer.now_ns())
        outputs = self._session.run(rows)
        done_ns = pacer.now_ns()
        for step in rest:
            pacer.wait(ends_ns)
            ends_ns = pacer.begin(step, ends_ns)
        pacer.note(done_ns - ends_ns)
        pacer.wait(ends_ns)
        pacer.here.at_ns = ends_ns if ends_ns > done_ns else None
        return outputs
