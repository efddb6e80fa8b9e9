"""Speed of several versions of a model on this machine, and choice of the fastest."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from edgert.board.host import core_count
from edgert.config import ModelConfig
from edgert.engine import build_engine
from edgert.graph import Model

ROUNDS = 15
"""Runs of each version per round, in turns, so that a machine that slows down slows all."""
MOST_ROUNDS = 120
"""Largest number of runs of each version."""
_WARM = 3
_SURE = 3.0
"""Standard deviations of a fair coin by which wins must exceed losses. Two would be too few, since the test is repeated
after every round."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds per run, as median, 10th and 90th percentile of ``runs`` runs."""

    median_ms: float
    low_ms: float
    high_ms: float
    runs: int


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The fastest version. Times are those of a run by version."""

    name: str
    model: Model
    run_ms: Mapping[str, Timing]

    @property
    def times(self) -> str:
        """Median times as text, ``"fp32 8.1, int8 3.2 ms a run"``."""
        return ", ".join(f"{name} {timing.median_ms:.1f}" for name, timing in self.run_ms.items()) + " ms a run"


def fastest(versions: Mapping[str, Model], config: ModelConfig, batch: int = 1) -> Choice:
    """Return the fastest version; all run in turns until it is certain.

    After :data:`MOST_ROUNDS` runs it is the first version that none surely beats, so pass the preferred one first.
    Raises BuildError: the backend refuses a version.
    """
    with _racing(versions, config, batch) as turn:
        taken = race(turn)
    times = dict(zip(versions, map(timing, taken), strict=True))
    best = list(versions)[winner(taken)]
    return Choice(best, versions[best], times)


def race(turn: Callable[[], Sequence[float]], most: int = MOST_ROUNDS) -> list[list[float]]:
    """Run turns until the fastest version is certain, at most ``most``; return the times of each version."""
    taken: list[list[float]] = []
    while not taken or len(taken[0]) < most:
        columns = zip(*(turn() for _ in range(ROUNDS)), strict=True)
        taken = [[*before, *now] for before, now in zip_longest(taken, columns, fillvalue=())]
        best = min(taken, key=np.median)
        if all(_beats(best, other) for other in taken if other is not best):
            break
    return taken


def winner(taken: Sequence[Sequence[float]]) -> int:
    """Return the index of the first version that none surely beats."""
    return next(i for i, own in enumerate(taken) if not any(_beats(other, own) for other in taken if other is not own))


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether a version surely takes less time, by a sign test over turns, robust to single slow ones."""
    wins = np.sign(np.subtract(other, one)).sum()
    return bool(wins > _SURE * np.sqrt(len(one)))


@contextmanager
def _racing(versions: Mapping[str, Model], config: ModelConfig, batch: int) -> Iterator[Callable[[], Sequence[float]]]:
    """Yield a function that runs each version once and returns the times in ms; warm up first."""
    count = config.threads or core_count()
    with ExitStack() as stack:
        made = [build_engine(model, config, count, batch) for model in versions.values()]
        engines = [stack.enter_context(closing(engine)) for engine in made]
        sessions = [engine.session() for engine in engines]

        def turn() -> Sequence[float]:
            times = []
            for session in sessions:
                session.run()  # meanwhile spinning threads of other engines go to sleep
                started = time.perf_counter()
                session.run()
                times.append((time.perf_counter() - started) * 1e3)
            return times

        for _ in range(_WARM):
            turn()
        yield turn


def timing(times: Sequence[float]) -> Timing:
    """Return the summary of these times."""
    low, median, high = np.percentile(times, (10, 50, 90)).tolist()
    return Timing(median, low, high, len(times))
