"""Comparison of candidates in interleaved runs, so that changes of the machine's speed affect all of them."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count

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
from edgert.quantization.throughput import ROUNDS, race
from edgert.steps import Stopped
from edgert.tuner.candidates import Tactic, with_tactic

Run = Callable[[], object]
log = logging.getLogger("edgert.tune")


def single_run(session: Session, batch: int) -> Run:
    """Return a blocking function that runs a session once as a pipeline does, from host memory to host memory.

    On a GPU it is a CUDA graph where one can be captured. ``batch`` is the number of frames where it is dynamic.
    """
    run = partial(session.run, batch)
    if not isinstance(session, GpuSession) or not session.recordable:
        return run
    run()  # the first run may allocate, which a CUDA graph cannot record
    try:
        return partial(_replay, session, session.device.capture(session.stream, partial(session.enqueue, batch)))
    except (BuildError, DeviceError) as error:
        log.info("no CUDA graph: %s (%s)", error.what, error.why)
        return run


def _replay(session: GpuSession, graph: Graph) -> None:
    for tensor in session.inputs_on_gpu.values():
        tensor.block.upload(session.stream)
    graph()
    for tensor in session.outputs_on_gpu:
        tensor.block.download(session.stream)
    session.stream.synchronize()


class Candidate(AbstractContextManager["Candidate"]):
    """Compiled engine of a tactic with a session for each replica, as in a pipeline; a context manager.

    The model has the tactic's form. ``feed`` has the array for each input, for all runs. Raises EdgertError: the
    backend is not installed, or refuses the model.
    """

    def __init__(self, tactic: Tactic, model: Model, config: ModelConfig, feed: Mapping[str, Array]) -> None:
        self.tactic = tactic
        with ExitStack() as opened:
            self._engine = build_engine(model, with_tactic(config, tactic), tactic.threads, tactic.batch)
            opened.callback(self._engine.close)
            self._sessions = [self._engine.session() for _ in range(tactic.replicas)]
            for tensors in (session.inputs for session in self._sessions):
                for name in tensors.keys() & feed.keys():
                    tensors[name][...] = feed[name]
            self._runs = [single_run(session, tactic.batch) for session in self._sessions]
            opened.pop_all()
        self._threads = _threads(tactic)

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.shutdown()
        self._engine.close()

    def outputs(self) -> Mapping[str, Array]:
        """Return copies of the engine's outputs for the feed; of one frame where the batch is dynamic."""
        arrays = self._sessions[0].run(1)
        return {tensor.name: array.copy() for tensor, array in zip(self._engine.outputs, arrays, strict=True)}

    def frame_ms(self, frames: int) -> float:
        """Return the milliseconds per frame, for ``frames`` shared among the replicas.

        A run before the measurement gives spinning threads of other engines time to sleep.
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
    """Return a thread for each replica, pinned if required; empty where the calling thread is enough."""
    if tactic.replicas == 1 and not tactic.pinned:
        return ()
    cores = list(core_accelerators().values()) if tactic.pinned else []
    return [
        ThreadPoolExecutor(1, initializer=pin, initargs=(cores[number],)) if cores else ThreadPoolExecutor(1)
        for number in range(tactic.replicas)
    ]


_RUN_MS = 10.0
"""Minimum duration of a run of the first tactic, so that passing work to threads hardly counts."""
_MOST_FRAMES = 256
ROUND_S = 60.0
"""Maximum duration of a round that has enough runs for a comparison."""
_FEWEST = 3
GIVE_UP_RATIO = 3.0
"""Ratio to the first tactic's time, in both of two runs, above which a candidate is left out. A machine's speed varies
less."""


@dataclass(frozen=True)
class RoundSetup:
    """Setup for comparisons of a model's tactics.

    Attributes:
        models: form → model.
        feed: input → array for all runs.
        wrong: (form, outputs) → why the outputs are not accurate enough; empty if they are.
        streams: minimum number of frames in a run, which is the maximum that any tactic has in progress.
        stop: event that ends a round between two runs.
        on_run: function called with the number of each run.
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
    """Result of a round.

    Attributes:
        times: tactic → milliseconds per frame of each run; the first tactic is the reference.
        refused: tactic → why it could not run, or was left out.
    """

    times: Mapping[Tactic, Sequence[float]]
    refused: Mapping[Tactic, str]

    def gain(self, tactic: Tactic) -> float:
        """Return the tactic's speed relative to the first one's, as the median of the runs."""
        first = next(iter(self.times.values()))
        return float(np.median(np.divide(first, self.times[tactic])))


def run_round(setup: RoundSetup, tactics: Sequence[Tactic], most: int, give_up_ratio: float = GIVE_UP_RATIO) -> Round:
    """Run tactics interleaved until the fastest is certain, at most ``most`` runs or :data:`ROUND_S`.

    The first tactic is the reference. One that takes ``give_up_ratio`` times as long is left out after two runs. Raises
    EdgertError: the first tactic cannot run. Raises Stopped: a stop was requested.
    """
    refused: dict[Tactic, str] = {}
    with ExitStack() as stack:
        ready = _open_candidates(setup, tactics, stack, refused)
        frames = frames_per_run(_best_ms(ready[0], setup.streams), setup.streams)
        first_ms = _best_ms(ready[0], frames)
        ratios = {ready[0]: 1.0, **{one: _best_ms(one, frames) / first_ms for one in ready[1:]}}
        refused |= {one.tactic: f"given up: {by:.1f} × the time" for one, by in ratios.items() if by > give_up_ratio}
        left = [one for one, by in ratios.items() if by <= give_up_ratio]
        done = count(1)

        def run_all() -> Sequence[float]:
            _check_stop(setup)
            setup.on_run(next(done))
            return [one.frame_ms(frames) for one in left]

        most = run_count(most, frames * first_ms * sum(ratios[one] for one in left))
        taken = race(run_all, most) if most > ROUNDS else list(zip(*[run_all() for _ in range(most)], strict=True))
    return Round({one.tactic: list(times) for one, times in zip(left, taken, strict=True)}, refused)


def _open_candidates(
    setup: RoundSetup, tactics: Sequence[Tactic], stack: ExitStack, refused: dict[Tactic, str]
) -> Sequence[Candidate]:
    found = []
    for tactic in tactics:
        _check_stop(setup)
        try:
            found.append(stack.enter_context(_open_candidate(setup, tactic)))
        except EdgertError as error:
            if tactic == tactics[0]:
                raise
            refused[tactic] = f"refused: {error.why or error.what}"
    return found


def _best_ms(one: Candidate, frames: int) -> float:
    return min(one.frame_ms(frames) for _ in range(2))


def frames_per_run(frame_ms: float, streams: int) -> int:
    """Return the number of frames in a run that takes :data:`_RUN_MS`, the same for each stream."""
    return streams * min(_MOST_FRAMES, math.ceil(_RUN_MS / max(frame_ms * streams, 1e-3)))


def run_count(most: int, run_ms: float) -> int:
    """Return the number of runs that the time allows, but enough for a comparison."""
    fewest = ROUNDS if most > ROUNDS else min(most, _FEWEST)
    return max(fewest, min(most, int(ROUND_S * 1e3 / max(run_ms, 1e-3))))


def _open_candidate(setup: RoundSetup, tactic: Tactic) -> Candidate:
    with ExitStack() as opened:
        one = opened.enter_context(Candidate(tactic, setup.models[tactic.form], setup.config, setup.feed))
        if why := setup.wrong(tactic.form, one.outputs()):
            raise BuildError(f"{tactic} is not accurate enough", why=why, where=str(setup.config.onnx))
        opened.pop_all()
    return one


def _check_stop(setup: RoundSetup) -> None:
    if setup.stop.is_set():
        raise Stopped("the search was stopped", fix="run the same command again to resume it")
