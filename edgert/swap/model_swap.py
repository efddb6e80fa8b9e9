"""One swap of a model, from its request to its end: loading, shadow, switch, and the way back.

    loading -> shadow -> switched -> kept until … -> done
       │          │          └────────> back, because …
       └──────────┴─────> refused, because …

Two threads do it, neither of which a frame waits for. One loads the model and runs its shadow. The other watches it, so
that a run that hangs is seen, switches, and waits until the old model is given up.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgert.config.flow import upstream
from edgert.errors import EdgertError, StageError
from edgert.graph import load
from edgert.runtime import Task
from edgert.runtime.recovery import described
from edgert.swap.candidate import Candidate, Run, checked, loaded, with_file
from edgert.swap.guard import Guard, guard_for
from edgert.swap.shadow import Disagreement, Pace, Shadow
from edgert.swap.verdict import NOTHING, Bound, Terms, bound_of, why_refused

_LOG = logging.getLogger(__name__)
Phase = Literal["loading", "shadow", "switched", "done", "back", "refused"]
_UNDER_WAY = ("loading", "shadow", "switched")
_POLL_S, _GRACE_S, _CLOSING_S = 0.05, 2.0, 5.0
_HANG_TIMES, _HANG_S, _LONGEST_HANG_S = 20, 2.0, 60.0
"""A run of a new model hangs when it takes so many times what it may take, within these bounds."""
_DIGEST, _TURN_S = 12, 5e-4


@dataclass(frozen=True, slots=True)
class State:
    """State of a swap, for people and programs.

    Attributes:
        model: its name.
        path: of the new model.
        digests: of the new and the old model, their first characters.
        terms: of the swap.
        phase: see the head of this module.
        frames: compared so far.
        agreement: on them, and at least.
        every: the shadow looked at every n-th frame, on average.
        empty: frames on which neither model found anything.
        waits: why no frame is looked at now.
        run_ms: of the new model, and the most that it may be.
        until_s: when the old model is given up, in seconds of the epoch.
        reason: why it was refused or went back.
    """

    model: str
    path: str
    digests: tuple[str, str]
    terms: Terms
    phase: Phase = "loading"
    frames: int = 0
    agreement: Bound = NOTHING
    every: int = 1
    empty: int = 0
    waits: str = ""
    run_ms: float | None = None
    allowed_ms: float | None = None
    until_s: float | None = None
    reason: str = ""

    @property
    def is_under_way(self) -> bool:
        """Whether two models are loaded."""
        return self.phase in _UNDER_WAY

    def __str__(self) -> str:
        """Return the state in one line."""
        about = f"agreement {self.agreement.mean:.3f}, surely {self.agreement.low:.3f}" if self.frames else ""
        if self.phase == "shadow":
            parts = (f"shadow {self.frames}/{self.terms.shadow}", about, self.waits and f"waits: {self.waits}")
            return ", ".join(filter(None, parts))
        if self.phase == "switched":
            at = time.strftime("%H:%M:%S", time.localtime(self.until_s))
            return ", ".join(filter(None, ("switched", about, f"the old model is kept until {at}")))
        if self.phase in ("back", "refused"):
            said = "went back" if self.phase == "back" else "refused"
            return f"{said}, because {self.reason}"
        return ", ".join(filter(None, (self.phase, about)))

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {**asdict(self), "digests": list(self.digests), "text": str(self)}


class ModelSwap:
    """A swap under way, or one that has ended.

    Args:
        run: the pipeline; its ``changing`` is held by the caller of the constructor and of :meth:`back`.
        name: of the model.
        path: of the new ONNX file.
        terms: when it takes over.

    Raises:
        EdgertError: it cannot be; nothing has changed then.
    """

    def __init__(self, run: Run, name: str, path: Path, terms: Terms) -> None:
        self._new_file = checked(run, name, path, terms)
        self._run, self._name, self._terms = run, name, terms
        self._paths = self._new_file.config.models[name].onnx, run.file.config.models[name].onnx
        is_there = self._paths[1] != self._paths[0] and self._paths[1].exists()  # else it was overwritten
        before = run.swaps[name].working if name in run.swaps else _digest_of(self._paths[1]) if is_there else "unknown"
        self._state = State(name, str(self._paths[0]), (_digest_of(self._paths[0]), before), terms)
        self._cancel, self._fault = threading.Event(), threading.Event()
        self._candidate: Candidate | None = None
        self._shadow: Shadow | None = None
        self._guards: list[tuple[Task, Guard]] = []
        self._old: dict[str, Any] = {}  # what the pipeline had of the old model
        self._error: EdgertError | None = None
        self._pace: Pace | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go, name=f"edgert:swap {name}", daemon=True)

    def start(self) -> None:
        """Begin, in threads of its own. Raises StageError where the system has none."""
        try:
            self._thread.start()
        except RuntimeError as error:
            raise StageError("the swap cannot begin", why=str(error)) from error

    @property
    def state(self) -> State:
        """Its state as it is now."""
        state, shadow = self._state, self._shadow
        if shadow is None or not (state.phase == "shadow" or shadow.looks.values):
            return state
        looks = shadow.looks
        values, times_s = list(looks.values), list(looks.times_s)
        return replace(
            state,
            frames=len(values),
            agreement=bound_of(values),
            run_ms=_ms(sum(times_s) / len(times_s)) if times_s else None,
            allowed_ms=_ms(self._allowed_s),
            every=round(looks.seen / max(len(times_s), 1)),
            empty=looks.empty,
            waits=looks.waits if state.phase == "shadow" else "",
        )

    @property
    def working(self) -> str:
        """First characters of the digest of the model that works."""
        return self._state.digests[self._state.phase not in ("switched", "done")]

    @property
    def disagreements(self) -> tuple[Disagreement, ...]:
        """Frames with the least agreement."""
        return self._shadow.disagreements if self._shadow is not None else ()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether it has ended within ``timeout_s`` seconds, so that one model is loaded."""
        return self._ended.wait(timeout_s)

    def back(self, reason: str) -> None:
        """Switch back to the old model from the next batch on, or give up a swap that has not switched.

        Raises:
            StageError: the old model is not kept any more.
        """
        if not self._state.is_under_way:
            fix = f"edgert ctl swap {self._name} {self._paths[1]}"
            raise StageError("there is no model to go back to", why=f"the swap is {self._state.phase}", fix=fix)
        if self._state.phase == "switched":
            self._go_back(reason)
        else:
            self._state = replace(self._state, phase="refused", reason=reason)
            self._cancel.set()

    def close(self) -> None:
        """End, once the stages of the pipeline have ended; free the model that does not work."""
        self._cancel.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(_CLOSING_S)  # longer where an engine is being compiled, which needs nothing of the run

    # The thread that watches.

    def _go(self) -> None:
        try:
            if self._is_accepted():
                with self._run.changing:
                    if not self._cancel.is_set():
                        self._switch()
                if self._state.phase == "switched":
                    self._keep()
        except Exception as error:  # noqa: BLE001 - a thread of its own: the state says what went wrong
            _LOG.debug("the swap of %s failed", self._name, exc_info=True)
            self._refuse(described(error))
        finally:
            self._finish()
            is_bad = self._state.phase in ("refused", "back")
            _LOG.log(logging.WARNING if is_bad else logging.INFO, "model %s: %s", self._name, self.state)
            self._ended.set()

    def _is_accepted(self) -> bool:
        """Load the model and run its shadow in a thread, and watch that; return whether it takes over."""
        worker = threading.Thread(target=self._judge, name=f"edgert:shadow {self._name}", daemon=True)
        worker.start()
        asked_s = 0.0
        while worker.is_alive():
            worker.join(_POLL_S)
            now_s, shadow = time.monotonic(), self._shadow
            since_s = shadow.looks.since_s if shadow is not None else 0.0
            if not since_s or now_s - since_s < self._hang_s:
                asked_s = 0.0
            elif not asked_s:
                asked_s = now_s
                for place in self._candidate.places if self._candidate else ():
                    getattr(place.new, "interrupt", bool)()
            elif now_s - asked_s > _GRACE_S:  # its memory stays in use: nobody frees it under a call that goes on
                self._candidate = None
                self._refuse(f"a run of the new model has not ended for {now_s - since_s:.0f} s")
                return False
        if self._error is not None:
            self._refuse(described(self._error))
        return self._error is None and not self._cancel.is_set()

    @property
    def _allowed_s(self) -> float:
        return self._pace.allowed_s if self._pace is not None else math.inf

    @property
    def _hang_s(self) -> float:
        return max(_HANG_S, min(_HANG_TIMES * self._allowed_s, _LONGEST_HANG_S))

    def _judge(self) -> None:
        """Load the new model and run its shadow, in a thread of its own."""
        try:
            with _short_turns():
                made = self._candidate = loaded(self._run, self._name, self._new_file, self._cancel)
            if made is None:
                return
            with self._run.changing:
                self._follow(made)
                self._state = replace(self._state, phase="shadow") if not self._cancel.is_set() else self._state
            shadow = self._shadow = self._made_shadow(made)
            if self._terms.shadow:
                shadow.run()
                why = "" if self._cancel.is_set() else why_refused(shadow.looks.values, self._terms)
                if why:
                    raise StageError(why)
        except Exception as error:  # noqa: BLE001 - reported by the thread that watches
            self._error = error if isinstance(error, EdgertError) else StageError(described(error)).caused_by(error)

    def _follow(self, made: Candidate) -> None:
        """Apply live keys of the task and the stages to the new model, including changes made meanwhile."""
        assembly, name = self._run.assembly, self._name
        ours = made.models.decoders.get(name, [])
        task = self._run.file.config.models[name].task
        if task != self._new_file.config.models[name].task:
            for another in ours:
                another(task)()
        if name in assembly.decoders:
            self._old["decoders"] = list(assembly.decoders[name])
            assembly.decoders[name] = [*self._old["decoders"], *ours]
        for place in made.places:
            place.new.every = getattr(assembly.task(place.task).stage, "every", 1)  # type: ignore[attr-defined]

    def _made_shadow(self, made: Candidate) -> Shadow:
        file, assembly = self._run.file, self._run.assembly
        stages = {place.stage: (place.new, place.reads) for place in reversed(made.places)}
        tasks = [assembly.task(place.task) for place in made.places]
        every, recent = getattr(made.places[0].new, "every", 1), self._run.state().get("recent", {}).get("stages", {})
        rate_hz = sum(recent.get(stage, {}).get("fps") or 0.0 for stage in stages)
        pace = self._pace = Pace(file, assembly, tasks, every, rate_hz, bool(made.models.inferences))
        sections = file.config.stages
        hiding = {one for one, stage in sections.items() if getattr(stage, "hides", False)}
        is_private = any(not hiding <= upstream(sections, stage) for stage in stages)
        return Shadow(assembly, stages, self._terms, self._odd(made), pace, is_private, self._cancel)

    def _odd(self, made: Candidate) -> Callable[[], int]:
        """Return what counts the impossible records of the new model; of no interest where the old one makes some."""
        new, old = (checks.get(self._name) for checks in (made.models.checks, self._run.assembly.checks))
        if new is None or (old is not None and old.left_out):
            return int
        new.is_strict = True
        return lambda: new.left_out

    # The switch and the way back, while `changing` is held.

    def _switch(self) -> None:
        """Put the new model in the place of the old one, at all its stages or at none."""
        made, run, name = self._candidate, self._run, self._name
        assert made is not None
        assembly = run.assembly
        try:
            for place in made.places:
                task = assembly.task(place.task)
                old = task.stage.active if isinstance(task.stage, Guard) else task.stage
                place.new.every = getattr(old, "every", 1)  # type: ignore[attr-defined]
                settings = {"odd": self._odd(made), "allowed_s": self._allowed_s}
                guard = guard_for(place.stage, place.new, old, self._state.digests, **settings)  # type: ignore[arg-type]
                guard.on_fault = self._fault.set
                assembly.graph.replace(task, guard)
                self._guards.append((task, guard))
        except BaseException:
            for _, guard in self._guards:
                guard.go_back("another stage could not be switched")
            raise
        self._old |= {"engine": assembly.engines[name], "checks": assembly.checks}
        assembly.engines = {**assembly.engines, **made.models.engines}
        assembly.inferences = (*assembly.inferences, *made.models.inferences)
        assembly.checks = {**assembly.checks, **made.models.checks}
        run.changed(with_file(run.file, name, self._paths[0]))
        until_s = time.time() + self._terms.keep_s
        self._state = replace(self.state, phase="switched", until_s=until_s)
        _LOG.info("model %s: %s", name, self._state)

    def _keep(self) -> None:
        """Wait until the old model need not be kept, and go back before where the new one fails or hangs."""
        until_s, asked = time.monotonic() + self._terms.keep_s, False
        while not self._cancel.is_set() and self._state.phase == "switched":
            left_s = until_s - time.monotonic()
            if self._fault.wait(max(min(left_s, _POLL_S), 0)):
                reason = next(guard.reason for _, guard in self._guards if guard.reason)
                with self._run.changing:
                    if self._state.phase == "switched":
                        self._go_back(reason)
                return
            now_s = time.monotonic()
            hung = [guard for _, guard in self._guards if guard.since_s and now_s - guard.since_s > self._hang_s]
            for guard in hung if not asked else ():
                guard.go_back(f"a run has not ended for {now_s - guard.since_s:.0f} s")
                getattr(guard.new, "interrupt", bool)()
                self._fault.set()
            asked = bool(hung)
            if left_s <= 0 and not hung:
                with self._run.changing:
                    if self._state.phase == "switched":
                        self._state = replace(self._state, phase="done")
                return

    def _go_back(self, reason: str) -> None:
        """Switch back to the old model from the next batch on."""
        for _, guard in self._guards:
            guard.go_back(reason)
        run, name = self._run, self._name
        run.changed(with_file(run.file, name, self._paths[1]))
        self._state = replace(self._state, phase="back", reason=reason)

    # The end.

    def _refuse(self, reason: str) -> None:
        if self._state.phase in ("loading", "shadow"):
            self._state = replace(self.state, phase="refused", reason=reason)

    def _finish(self) -> None:
        """Drop the unused model, and free it once no stage calls it."""
        made, assembly, name = self._candidate, self._run.assembly, self._name
        is_new = self._state.phase in ("done", "switched")
        with self._run.changing:
            if "decoders" in self._old and not assembly.closed:
                new = made.models.decoders.get(name, []) if made is not None else []
                assembly.decoders[name] = new if is_new else self._old["decoders"]
            if made is None:
                return
            own = made.models
            if is_new:
                gone = [one for one in assembly.inferences if one.model == name and one not in own.inferences]
            else:
                gone = list(own.inferences)
            if self._old.get("engine") is not None and not is_new:
                assembly.engines = {**assembly.engines, name: self._old["engine"]}
                assembly.checks = self._old["checks"]
            assembly.inferences = tuple(one for one in assembly.inferences if one not in gone)
            try:
                for task, guard in self._guards:
                    assembly.graph.at_safe_point(task, guard.settle)
            except EdgertError as error:  # it is in a call that does not end: nobody frees memory under that
                _LOG.warning("model %s: %s; the memory of one model is not freed", name, error.what)
                return
        for check in own.checks.values():
            check.is_strict = False
        for inference in gone:
            inference.close()
        for engine in [self._old["engine"]] if is_new else list(own.engines.values()):
            engine.close()


@contextmanager
def _short_turns() -> Iterator[None]:
    """Shorten the switch interval of threads while this one reads a model for long in Python."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(_TURN_S, before_s))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def _digest_of(path: Path) -> str:
    return load(path).digest[:_DIGEST]


def _ms(seconds: float) -> float | None:
    return float(f"{seconds * 1e3:.3g}") if math.isfinite(seconds) else None
