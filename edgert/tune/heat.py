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
HEAT_S = 60.0
"""What a heat takes, as long as it has had turns enough to tell anything."""
_FEWEST = 3
HOPELESS = 3.0
"""Times as slow as the first in both of two runs: no turns are spent on it. A machine's own changes are smaller."""


@dataclass(frozen=True)
class Track:
    """Where tactics of one model are raced.

    Attributes:
        config: the model's section.
        models: form → model.
        feed: input → array that all of them run on.
        wrong: why outputs on the feed cannot be those of a form; empty for outputs that are near enough.
        streams: frames that are dealt at least: as many as any tactic has under way.
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
        refused: tactic → why it could not run, or was not run any further.
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


def heat(track: Track, tactics: Sequence[Tactic], most: int, hopeless: float = HOPELESS) -> Heat:
    """Runs tactics in turns: until it is sure which is fastest, ``most`` of them, which may be few, or
    :data:`HEAT_S`.

    Args:
        hopeless: times as slow as the first, from which on a tactic is left out after two runs.

    Raises:
        EdgertError: the first tactic cannot run; the others may.
        Stopped: it was asked to.
    """
    refused: dict[Tactic, str] = {}
    with ExitStack() as stack:
        ready = _ready(track, tactics, stack, refused)
        frames = frames_of(_best_ms(ready[0], track.streams), track.streams)
        usual_ms = _best_ms(ready[0], frames)
        ratios = {ready[0]: 1.0, **{one: _best_ms(one, frames) / usual_ms for one in ready[1:]}}
        refused |= {one.tactic: f"given up: {by:.1f} × the time" for one, by in ratios.items() if by > hopeless}
        left = [one for one, by in ratios.items() if by <= hopeless]
        turn = _turns(track, left, frames)
        most = turns_of(most, frames * usual_ms * sum(ratios[one] for one in left))
        taken = race(turn, most) if most > ROUNDS else list(zip(*[turn() for _ in range(most)], strict=True))
    return Heat({one.tactic: list(times) for one, times in zip(left, taken, strict=True)}, refused)


def _ready(
    track: Track, tactics: Sequence[Tactic], stack: ExitStack, refused: dict[Tactic, str]
) -> Sequence[Contestant]:
    """Those that can run, open as long as the stack is; the others' reasons go to ``refused``."""
    found = []
    for tactic in tactics:
        _check_stop(track)
        try:
            found.append(stack.enter_context(_opened(track, tactic)))
        except EdgertError as error:
            if tactic == tactics[0]:
                raise
            refused[tactic] = f"refused: {error.why or error.what}"
    return found


def _best_ms(one: Contestant, frames: int) -> float:
    """The better of two turns: milliseconds a frame."""
    return min(one.frame_ms(frames) for _ in range(2))


def frames_of(usual_ms: float, streams: int) -> int:
    """Frames in a turn: so many for each stream that the turn takes :data:`_TURN_MS` at ``usual_ms`` a frame."""
    return streams * min(_MOST_FRAMES, math.ceil(_TURN_MS / max(usual_ms * streams, 1e-3)))


def turns_of(most: int, turn_ms: float) -> int:
    """As many turns as there is time for; never so few that they could not tell."""
    fewest = ROUNDS if most > ROUNDS else min(most, _FEWEST)
    return max(fewest, min(most, int(HEAT_S * 1e3 / max(turn_ms, 1e-3))))


def _opened(track: Track, tactic: Tactic) -> Contestant:
    one = Contestant(tactic, track.models[tactic.form], track.config, track.feed)
    why = track.wrong(tactic.form, one.outputs())
    if why:
        one.__exit__(None, None, None)
        raise BuildError(f"{tactic} is not accurate enough", why=why, where=str(track.config.onnx))
    return one


def _turns(track: Track, ready: Sequence[Contestant], frames: int) -> Callable[[], Sequence[float]]:
    """A function that runs each once; already warm."""
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
