"""Tactics run in turns, so that a machine that changes its speed does so for all of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from edgert.backend.base import Array
from edgert.compiler.build import Stopped
from edgert.config import ModelConfig
from edgert.errors import BuildError, EdgertError
from edgert.graph.model import Model
from edgert.precision.speed import ROUNDS, Timing, race, timing
from edgert.tune.contestant import Contestant
from edgert.tune.tactic import Tactic

_TURN_MS = 10.0
"""What a turn of the default takes at least: handing work to threads then weighs little."""
_MOST_FRAMES = 256


@dataclass(frozen=True)
class Track:
    """Where tactics of one model are raced.

    Attributes:
        config: the model's section.
        models: form → model.
        feed: input → array that all of them run on.
        wrong: why outputs on the feed cannot be those of a form; empty for outputs that are near enough.
        streams: frames that are dealt at least: as many as any tactic has replicas.
        stop: ends a race between two turns.
        told: called with turns that are done and the most there can be.
    """

    config: ModelConfig
    models: Mapping[str, Model]
    feed: Mapping[str, Array]
    wrong: Callable[[str, Mapping[str, Array]], str]
    streams: int
    stop: threading.Event
    told: Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Heat:
    """What came of one.

    Attributes:
        times: tactic → milliseconds per frame, turn by turn; the first is what the others are compared with.
        refused: tactic → why it could not run.
    """

    times: Mapping[Tactic, Sequence[float]]
    refused: Mapping[Tactic, str]

    def gain(self, tactic: Tactic) -> float:
        """How many times as fast as the first, the median of the turns."""
        first = next(iter(self.times.values()))
        return float(np.median(np.divide(first, self.times[tactic])))

    def timing(self, tactic: Tactic) -> Timing:
        """Of one frame."""
        return timing(self.times[tactic])


def heat(track: Track, tactics: Sequence[Tactic], most: int) -> Heat:
    """Runs tactics in turns: until it is sure which is fastest, or ``most`` of them, which may be few.

    Raises:
        EdgertError: the first tactic cannot run; the others may.
        Stopped: it was asked to.
    """
    refused: dict[Tactic, str] = {}
    with ExitStack() as stack:
        ready = []
        for tactic in tactics:
            _check_stop(track)
            try:
                ready.append(stack.enter_context(_opened(track, tactic)))
            except EdgertError as error:
                if tactic == tactics[0]:
                    raise
                refused[tactic] = error.why or error.what
        turn = _turns(track, ready)
        taken = race(turn, most) if most > ROUNDS else list(zip(*[turn() for _ in range(most)], strict=True))
    return Heat({one.tactic: list(times) for one, times in zip(ready, taken, strict=True)}, refused)


def _opened(track: Track, tactic: Tactic) -> Contestant:
    one = Contestant(tactic, track.models[tactic.form], track.config, track.feed)
    why = track.wrong(tactic.form, one.outputs())
    if why:
        one.__exit__(None, None, None)
        raise BuildError(f"{tactic} is not accurate enough", why=why, where=str(track.config.onnx))
    return one


def _turns(track: Track, ready: Sequence[Contestant]) -> Callable[[], Sequence[float]]:
    """A function that runs each once; already warm."""
    usual_ms, *_ = (min(one.frame_ms(track.streams) for _ in range(2)) for one in ready)
    frames = track.streams * min(_MOST_FRAMES, math.ceil(_TURN_MS / max(usual_ms * track.streams, 1e-3)))
    done = 0

    def turn() -> Sequence[float]:
        nonlocal done
        _check_stop(track)
        done += 1
        track.told(done)
        return [one.frame_ms(frames) for one in ready]

    return turn


def _check_stop(track: Track) -> None:
    if track.stop.is_set():
        raise Stopped("the search was stopped", fix="run it again: it goes on from where it was")
