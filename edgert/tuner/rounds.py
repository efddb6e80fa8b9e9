"""Candidates compared in interleaved runs, so that a machine that changes its speed does so for all of them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from edgert.backend import Session
from edgert.backend.base import Array
from edgert.backend.gpu import GpuSession
from edgert.board.host import core_accelerators, pin
from edgert.config import ModelConfig
from edgert.engine import build_engine
from edgert.errors import BuildError, DeviceError, EdgertError
from edgert.graph import Model
from edgert.memory.cuda import Graph
from edgert.quantization.throughput import ROUNDS, Timing, race, timing
from edgert.steps import Stopped
from edgert.tuner.candidates import Tactic, applied

# One run of a session as a pipeline does it: on a GPU as a CUDA graph, where it can be captured.

Run = Callable[[], object]
log = logging.getLogger("edgert.tune")


def one_run(session: Session, batch: int) -> Run:
    """Return a function that runs a session once, from inputs in host memory to outputs in host memory; it blocks.

    Args:
        session: to run.
        batch: frames in it, where that is open.
    """
    if isinstance(session, GpuSession) and session.recordable:
        return _recorded(session, batch)
    return partial(session.run, batch)


def _recorded(session: GpuSession, rows: int) -> Run:
    session.run(rows)  # the first run of a size may allocate, which no recording can hold
    try:
        graph = session.device.capture(session.stream, partial(session.enqueue, rows))
    except (BuildError, DeviceError) as error:
        log.info("no CUDA graph: %s (%s)", error.what, error.why)
        return partial(session.run, rows)
    return partial(_replay, session, graph)


def _replay(session: GpuSession, graph: Graph) -> None:
    for tensor in session.inputs_on_gpu.values():
        tensor.block.upload(session.stream)
    graph()
    for tensor in session.outputs_on_gpu:
        tensor.block.download(session.stream)
    session.stream.synchronize()


# An engine with the settings of a tactic, compiled and warm, and how long it takes for a frame.


class Candidate:
    """An engine, and a thread with bound tensors for each of its replicas, as in a pipeline; a context manager.

    Args:
        tactic: the settings.
        model: in the tactic's form.
        config: the model's section.
        feed: input → array, written into every session once; all runs use it.

    Raises:
        EdgertError: the backend is not installed, or refuses the model.
    """

    def __init__(self, tactic: Tactic, model: Model, config: ModelConfig, feed: Mapping[str, Array]) -> None:
        self.tactic = tactic
        self._engine = build_engine(model, applied(config, tactic), tactic.threads, tactic.batch)
        self._sessions = [self._engine.session() for _ in range(tactic.replicas)]
        for tensors in (session.inputs for session in self._sessions):
            for name in tensors.keys() & feed.keys():
                tensors[name][...] = feed[name]
        self._runs = [one_run(session, tactic.batch) for session in self._sessions]
        self._threads = _threads(tactic)

    def __enter__(self) -> Candidate:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.shutdown()
        self._engine.close()

    def outputs(self) -> Mapping[str, Array]:
        """Return copies of the engine's outputs for the feed; of one frame where the batch is open."""
        arrays = self._sessions[0].run(1)
        return {tensor.name: array.copy() for tensor, array in zip(self._engine.outputs, arrays, strict=True)}

    def frame_ms(self, frames: int) -> float:
        """Return milliseconds per frame, over ``frames`` shared among the replicas.

        One run before lets the threads of other engines, which spin for a while, go to sleep.
        """
        self._work(1)
        each = max(1, frames // self.tactic.frames)
        started = time.perf_counter()
        self._work(each)
        return (time.perf_counter() - started) * 1e3 / (each * self.tactic.frames)

    def _work(self, runs: int) -> None:
        if not self._threads:
            _repeat(self._runs[0], runs)
            return
        pairs = zip(self._threads, self._runs, strict=True)
        for future in [thread.submit(_repeat, run, runs) for thread, run in pairs]:
            future.result()


def _repeat(run: Run, times: int) -> None:
    for _ in range(times):
        run()


def _threads(tactic: Tactic) -> Sequence[ThreadPoolExecutor]:
    """Return a thread for each replica, on its core where required; none where the caller's own is enough."""
    if tactic.replicas == 1 and not tactic.pinned:
        return ()
    cores = list(core_accelerators().values()) if tactic.pinned else []
    return [
        ThreadPoolExecutor(1, initializer=pin, initargs=(cores[number],)) if cores else ThreadPoolExecutor(1)
        for number in range(tactic.replicas)
    ]


_RUN_MS = 10.0
"""Least duration of a run of the default: handing work to threads then weighs little."""
_MOST_FRAMES = 256
ROUND_S = 60.0
"""Duration of a round, once it has enough runs to compare anything."""
_FEWEST = 3
GIVE_UP_RATIO = 3.0
"""Times as slow as the first in both of two runs, from which on a candidate is given up. Changes of the machine are
smaller."""


@dataclass(frozen=True)
class RoundSetup:
    """The setup for comparing tactics of one model.

    Attributes:
        config: the model's section.
        models: form → model.
        feed: input → array that all of them run on.
        wrong: returns why outputs on the feed are not accurate enough for a form; empty if they are.
        streams: least number of frames in a run: the most that any tactic has in progress.
        stop: ends a round between two runs.
        on_run: called with the number of finished runs.
    """

    config: ModelConfig
    models: Mapping[str, Model]
    feed: Mapping[str, Array]
    wrong: Callable[[str, Mapping[str, Array]], str]
    streams: int
    stop: threading.Event
    on_run: Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a round.

    Attributes:
        times: tactic → milliseconds per frame, run by run; the first is what the others are compared with.
        refused: tactic → why it could not run, or was not run any further.
    """

    times: Mapping[Tactic, Sequence[float]]
    refused: Mapping[Tactic, str]

    def gain(self, tactic: Tactic) -> float:
        """Return how many times as fast as the first it is: the median of the runs."""
        first = next(iter(self.times.values()))
        return float(np.median(np.divide(first, self.times[tactic])))

    def timing(self, tactic: Tactic) -> Timing:
        """Return the timing of one frame."""
        return timing(self.times[tactic])


def run_round(setup: RoundSetup, tactics: Sequence[Tactic], most: int, give_up_ratio: float = GIVE_UP_RATIO) -> Round:
    """Run tactics interleaved until it is sure which is fastest.

    It ends after ``most`` runs, which may be few, or :data:`ROUND_S`.

    Args:
        setup: model, feed and checks.
        tactics: the first one is the reference.
        most: number of runs.
        give_up_ratio: times as slow as the first, from which on a tactic is left out after two runs.

    Raises:
        EdgertError: the first tactic cannot run; the others may.
        Stopped: a stop was requested.
    """
    refused: dict[Tactic, str] = {}
    with ExitStack() as stack:
        ready = _ready(setup, tactics, stack, refused)
        frames = frames_per_run(_best_ms(ready[0], setup.streams), setup.streams)
        usual_ms = _best_ms(ready[0], frames)
        ratios = {ready[0]: 1.0, **{one: _best_ms(one, frames) / usual_ms for one in ready[1:]}}
        refused |= {one.tactic: f"given up: {by:.1f} × the time" for one, by in ratios.items() if by > give_up_ratio}
        left = [one for one, by in ratios.items() if by <= give_up_ratio]
        run_all = _interleaved(setup, left, frames)
        most = run_count(most, frames * usual_ms * sum(ratios[one] for one in left))
        taken = race(run_all, most) if most > ROUNDS else list(zip(*[run_all() for _ in range(most)], strict=True))
    return Round({one.tactic: list(times) for one, times in zip(left, taken, strict=True)}, refused)


def _ready(
    setup: RoundSetup, tactics: Sequence[Tactic], stack: ExitStack, refused: dict[Tactic, str]
) -> Sequence[Candidate]:
    """Return the candidates that can run, open as long as the stack is; reasons of others go to ``refused``."""
    found = []
    for tactic in tactics:
        _check_stop(setup)
        try:
            found.append(stack.enter_context(_opened(setup, tactic)))
        except EdgertError as error:
            if tactic == tactics[0]:
                raise
            refused[tactic] = f"refused: {error.why or error.what}"
    return found


def _best_ms(one: Candidate, frames: int) -> float:
    """Return the better of two runs: milliseconds a frame."""
    return min(one.frame_ms(frames) for _ in range(2))


def frames_per_run(usual_ms: float, streams: int) -> int:
    """Return the frames in a run: enough for each stream that it takes :data:`_RUN_MS` at ``usual_ms`` a frame."""
    return streams * min(_MOST_FRAMES, math.ceil(_RUN_MS / max(usual_ms * streams, 1e-3)))


def run_count(most: int, run_ms: float) -> int:
    """Return as many runs as time allows; never too few to compare."""
    fewest = ROUNDS if most > ROUNDS else min(most, _FEWEST)
    return max(fewest, min(most, int(ROUND_S * 1e3 / max(run_ms, 1e-3))))


def _opened(setup: RoundSetup, tactic: Tactic) -> Candidate:
    one = Candidate(tactic, setup.models[tactic.form], setup.config, setup.feed)
    why = setup.wrong(tactic.form, one.outputs())
    if why:
        one.__exit__()
        raise BuildError(f"{tactic} is not accurate enough", why=why, where=str(setup.config.onnx))
    return one


def _interleaved(setup: RoundSetup, ready: Sequence[Candidate], frames: int) -> Callable[[], Sequence[float]]:
    """Return a function that runs each once; already warm."""
    done = 0

    def run_all() -> Sequence[float]:
        nonlocal done
        _check_stop(setup)
        done += 1
        setup.on_run(done)
        return [one.frame_ms(frames) for one in ready]

    return run_all


def _check_stop(setup: RoundSetup) -> None:
    if setup.stop.is_set():
        raise Stopped("the search was stopped", fix="run it again: it resumes")
