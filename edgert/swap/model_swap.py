"""One swap of a model, from its request to its end.

    loading -> shadow -> switched -> kept until … -> done
       │          │          └────────> back, because …
       └──────────┴─────> refused, because …

Two threads do it, and no frame waits for either. One loads the model and runs its shadow. The other one detects a run
of the new model that hangs, switches, and waits until the old model can be freed.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgert.config.flow import upstream
from edgert.errors import EdgertError, StageError, raised_as
from edgert.graph import load
from edgert.runtime import Task, recovery
from edgert.runtime.worker import SHORT_TURNS
from edgert.swap.candidate import Candidate, Run, check_swap, load_candidate, with_model_file
from edgert.swap.guard import Guard, guard_for
from edgert.swap.shadow import Disagreement, Pace, Shadow
from edgert.swap.verdict import NO_AGREEMENT, Bound, Terms, agreement_bound, why_refused

_LOG = logging.getLogger(__name__)
Phase = Literal["loading", "shadow", "switched", "done", "back", "refused"]
_POLL_S, _GRACE_S, _CLOSING_S = 0.05, 2.0, 5.0
_HANG_TIMES, _HANG_S, _LONGEST_HANG_S = 20, 2.0, 60.0
"""A run of a new model hangs when it takes 20 times the allowed time, but at least 2 s and at most 60 s."""
_DIGEST = 12


@dataclass(frozen=True, slots=True)
class State:
    """State of a swap.

    Attributes:
        digests: first characters of the digests of the new and the old model.
        phase: phase, see the diagram above.
        frames: number of compared frames.
        every: the shadow ran on every n-th frame, on average.
        empty: number of frames on which neither model found anything.
        waits: why the shadow runs on no frame now.
        run_ms: mean time of a run of the new model.
        until_s: time until which the old model is kept, in seconds since the epoch.
        reason: why the swap was refused or undone.
    """

    model: str
    path: str
    digests: tuple[str, str]
    terms: Terms
    phase: Phase = "loading"
    frames: int = 0
    agreement: Bound = NO_AGREEMENT
    every: int = 1
    empty: int = 0
    waits: str = ""
    run_ms: float | None = None
    allowed_ms: float | None = None
    until_s: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        """Return the state in one line."""
        about = f"agreement {self.agreement.mean:.3f}, surely {self.agreement.low:.3f}" if self.frames else ""
        if self.phase == "shadow":
            parts = (f"shadow {self.frames}/{self.terms.shadow}", about, self.waits and f"waiting: {self.waits}")
            return ", ".join(filter(None, parts))
        if self.phase == "switched":
            at = time.strftime("%H:%M:%S", time.localtime(self.until_s))
            return ", ".join(filter(None, ("switched", about, f"the old model is kept until {at}")))
        if self.phase in ("back", "refused"):
            outcome = "went back" if self.phase == "back" else "refused"
            return f"{outcome}, because {self.reason}"
        return ", ".join(filter(None, (self.phase, about)))

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {**asdict(self), "digests": list(self.digests), "text": str(self)}


class ModelSwap:
    """A swap of one model. Raises EdgertError where it cannot be swapped; nothing has changed.

    The caller of the constructor and of :meth:`back` holds the run's lock ``changing``.
    """

    def __init__(self, run: Run, name: str, path: Path, terms: Terms) -> None:
        self._run, self._name, self._terms = run, name, terms
        self._new = check_swap(run, name, path, terms)
        self._paths = self._new.file.config.models[name].onnx, run.file.config.models[name].onnx
        is_there = self._paths[1] != self._paths[0] and self._paths[1].exists()  # else the file was overwritten
        if name in run.swaps:
            before = run.swaps[name].working
        else:
            before = load(self._paths[1]).digest[:_DIGEST] if is_there else "unknown"
        self._state = State(name, str(self._paths[0]), (self._new.digest[:_DIGEST], before), terms)
        self._cancel, self._fault = threading.Event(), threading.Event()
        self._candidate: Candidate | None = None
        self._shadow: Shadow | None = None
        self._guards: list[tuple[Task, Guard]] = []
        self._old: dict[str, Any] = {}  # objects of the old model that the pipeline had
        self._error: Exception | None = None
        self._pace: Pace | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run_swap, name=f"edgert:swap {name}", daemon=True)

    def start(self) -> None:
        """Start the swap's threads. Raises StageError: no thread can start."""
        with raised_as(StageError, "the swap cannot begin", of=RuntimeError):
            self._thread.start()

    @property
    def state(self) -> State:
        """Current state."""
        state, shadow = self._state, self._shadow
        if shadow is None or not (state.phase == "shadow" or shadow.results.values):
            return state
        results = shadow.results
        values, times_s = list(results.values), list(results.times_s)
        return replace(
            state,
            frames=len(values),
            agreement=agreement_bound(values),
            run_ms=_ms(sum(times_s) / len(times_s)) if times_s else None,
            allowed_ms=_ms(self._allowed_s),
            every=round(results.seen / max(len(times_s), 1)),
            empty=results.empty,
            waits=results.waits if state.phase == "shadow" else "",
        )

    @property
    def working(self) -> str:
        """First characters of the active model's digest."""
        return self._state.digests[self._state.phase not in ("switched", "done")]

    @property
    def disagreements(self) -> tuple[Disagreement, ...]:
        """Frames with the least agreement, the worst first."""
        return self._shadow.disagreements if self._shadow is not None else ()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the swap has ended, so that only one model is loaded; return False after ``timeout_s`` seconds."""
        return self._ended.wait(timeout_s)

    def back(self, reason: str) -> None:
        """Switch back to the old model, or give up a swap that has not switched yet. Raises StageError: it is freed."""
        if self._state.phase not in ("loading", "shadow", "switched"):
            fix = f"edgert ctl swap {self._name} {self._paths[1]}"
            raise StageError("the old model is no longer loaded", why=f"the swap is {self._state.phase}", fix=fix)
        if self._state.phase == "switched":
            self._go_back(reason)
        else:
            self._state = replace(self._state, phase="refused", reason=reason)
            self._cancel.set()

    def close(self) -> None:
        """End the swap after the pipeline's stages have ended, and free the inactive model."""
        self._cancel.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(_CLOSING_S)  # compiling an engine may go on, without the run

    # The thread that watches the other one.

    def _run_swap(self) -> None:
        try:
            if self._is_accepted():
                with self._run.changing:
                    if not self._cancel.is_set():
                        self._switch()
                if self._state.phase == "switched":
                    self._keep()
        except Exception as error:  # noqa: BLE001 - a thread of its own: the state says what went wrong
            if not isinstance(error, EdgertError):
                _LOG.exception("the swap of model %s failed", self._name)
            self._refuse(recovery.describe_error(error))
        finally:
            try:
                self._finish()
            except Exception as error:  # noqa: BLE001 - a stage may hang, and an engine may not close
                text = "model %s: %s; the memory of one model is not freed"
                _LOG.warning(text, self._name, recovery.describe_error(error))
            level = logging.WARNING if self._state.phase in ("refused", "back") else logging.INFO
            _LOG.log(level, "model %s: %s", self._name, self.state, extra={"code": "swap.ended"})
            self._ended.set()

    def _is_accepted(self) -> bool:
        """Load the model and run its shadow in a thread, and detect a run that hangs; return whether it takes over."""
        worker = threading.Thread(target=self._load_and_compare, name=f"edgert:shadow {self._name}", daemon=True)
        worker.start()
        interrupted_s = 0.0
        while worker.is_alive():
            worker.join(_POLL_S)
            now_s, shadow = time.monotonic(), self._shadow
            since_s = shadow.results.since_s if shadow is not None else 0.0
            if not since_s or now_s - since_s < self._hang_s:
                interrupted_s = 0.0
            elif not interrupted_s:
                interrupted_s = now_s
                for place in self._candidate.places if self._candidate else ():
                    getattr(place.new, "interrupt", bool)()
            elif now_s - interrupted_s > _GRACE_S:  # memory that a call still uses must not be freed
                self._candidate = None
                self._refuse(f"a run of the new model has not ended for {now_s - since_s:.0f} s")
                return False
        if self._error is not None:
            raise self._error
        return not self._cancel.is_set()

    @property
    def _allowed_s(self) -> float:
        return self._pace.allowed_s if self._pace is not None else math.inf

    @property
    def _hang_s(self) -> float:
        return max(_HANG_S, min(_HANG_TIMES * self._allowed_s, _LONGEST_HANG_S))

    def _load_and_compare(self) -> None:
        """Load the new model and run its shadow; errors are left to the thread that watches."""
        try:
            with SHORT_TURNS:
                made = self._candidate = load_candidate(self._run, self._name, self._new, self._cancel)
            if made is None:
                return
            with self._run.changing:
                self._apply_live_keys(made)
                self._state = replace(self._state, phase="shadow") if not self._cancel.is_set() else self._state
            shadow = self._shadow = self._make_shadow(made)
            if self._terms.shadow:
                shadow.run()
                why = "" if self._cancel.is_set() else why_refused(shadow.results.values, self._terms)
                if why:
                    raise StageError(why)
        except Exception as error:  # noqa: BLE001 - reported by the thread that watches
            self._error = error

    def _apply_live_keys(self, made: Candidate) -> None:
        """Apply live keys of task and stages to the new model, which may have changed while it was loaded."""
        assembly, name = self._run.assembly, self._name
        ours = made.models.decoders.get(name, [])
        task = self._run.file.config.models[name].task
        if task != self._new.file.config.models[name].task:
            for another in ours:
                another(task)()
        if name in assembly.decoders:
            self._old["decoders"] = list(assembly.decoders[name])
            assembly.decoders[name] = [*self._old["decoders"], *ours]
        for place in made.places:
            place.new.every = getattr(assembly.task(place.task).stage, "every", 1)  # type: ignore[attr-defined]

    def _make_shadow(self, made: Candidate) -> Shadow:
        file, assembly = self._run.file, self._run.assembly
        stages = {place.stage: (place.new, place.reads) for place in reversed(made.places)}
        tasks = [assembly.task(place.task) for place in made.places]
        every, recent = getattr(made.places[0].new, "every", 1), self._run.state().get("recent", {}).get("stages", {})
        rate_hz = sum(recent.get(stage, {}).get("fps") or 0.0 for stage in stages)
        pace = self._pace = Pace(file, assembly, tasks, every, rate_hz, bool(made.models.inferences))
        sections = file.config.stages
        hiding = {one for one, stage in sections.items() if getattr(stage, "hides", False)}
        is_private = any(not hiding <= upstream(sections, stage) for stage in stages)
        return Shadow(assembly, stages, self._terms, self._impossible_counter(made), pace, is_private, self._cancel)

    def _impossible_counter(self, made: Candidate) -> Callable[[], int]:
        """Return a function that counts the new model's impossible records; always 0 where the old model has some."""
        new, old = (checks.get(self._name) for checks in (made.models.checks, self._run.assembly.checks))
        if new is None or (old is not None and old.left_out):
            return int
        new.is_strict = True
        return lambda: new.left_out

    # The switch and the way back, which need the lock `changing`.

    def _switch(self) -> None:
        """Replace the old model by the new one, at all its stages or at none."""
        made, run, name = self._candidate, self._run, self._name
        assert made is not None
        assembly = run.assembly
        try:
            for place in made.places:
                task = assembly.task(place.task)
                old = task.stage.active if isinstance(task.stage, Guard) else task.stage
                place.new.every = getattr(old, "every", 1)  # type: ignore[attr-defined]
                settings = {"count_impossible": self._impossible_counter(made), "allowed_s": self._allowed_s}
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
        run.set_file(with_model_file(run.file, name, self._paths[0]))
        until_s = time.time() + self._terms.keep_s
        self._state = replace(self.state, phase="switched", until_s=until_s)
        _LOG.info("model %s: %s", name, self._state, extra={"code": "swap.switched"})

    def _keep(self) -> None:
        """Wait until the old model can be freed; go back to it where the new one fails or hangs."""
        until_s, was_interrupted = time.monotonic() + self._terms.keep_s, False
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
            for guard in hung if not was_interrupted else ():
                guard.go_back(f"a run has not ended for {now_s - guard.since_s:.0f} s")
                getattr(guard.new, "interrupt", bool)()
                self._fault.set()
            was_interrupted = bool(hung)
            if left_s <= 0 and not hung:
                with self._run.changing:
                    if self._state.phase == "switched":
                        self._state = replace(self._state, phase="done")
                return

    def _go_back(self, reason: str) -> None:
        for _, guard in self._guards:
            guard.go_back(reason)
        run, name = self._run, self._name
        run.set_file(with_model_file(run.file, name, self._paths[1]))
        self._state = replace(self._state, phase="back", reason=reason)

    # The end.

    def _refuse(self, reason: str) -> None:
        if self._state.phase in ("loading", "shadow"):
            self._state = replace(self.state, phase="refused", reason=reason)

    def _finish(self) -> None:
        """Drop the inactive model, and free it when no stage calls it any more."""
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
            for task, guard in self._guards:
                assembly.graph.at_safe_point(task, guard.settle)
        for check in own.checks.values():
            check.is_strict = False
        for inference in gone:
            inference.close()
        for engine in [self._old["engine"]] if is_new else list(own.engines.values()):
            engine.close()


def _ms(seconds: float) -> float | None:
    return float(f"{seconds * 1e3:.3g}") if math.isfinite(seconds) else None
