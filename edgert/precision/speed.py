"""How fast several versions of a model run on this machine, and which runs fastest."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgert.backend import Engine, Session
from edgert.board.host import core_count
from edgert.config import ModelConfig
from edgert.graph.model import Model
from edgert.ready import build_engine

ROUNDS = 15
"""Runs of each version, in turns, so that a machine that slows down slows all."""
_WARM = 3
_SPREAD = (10, 50, 90)  # percentiles


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one run: median, 10th and 90th percentile of so many runs."""

    median_ms: float
    low_ms: float
    high_ms: float
    runs: int


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The fastest version.

    Attributes:
        name, model: of the version.
        run_ms: version → how long one run takes.
    """

    name: str
    model: Model
    run_ms: Mapping[str, Timing]

    @property
    def told(self) -> str:
        """``"fp32 8.1 ms, int8 3.2 ms a run"``."""
        return ", ".join(f"{name} {timing.median_ms:.1f}" for name, timing in self.run_ms.items()) + " ms a run"


def fastest(versions: Mapping[str, Model], config: ModelConfig, threads: int | None = None) -> Choice:
    """Runs the versions in turns; of equals the earlier wins. Raises BuildError when the backend refuses one."""
    times = run_ms(versions, config, threads)
    best = min(times, key=lambda name: times[name].median_ms)
    return Choice(best, versions[best], times)


def run_ms(
    versions: Mapping[str, Model], config: ModelConfig, threads: int | None = None, rounds: int = ROUNDS
) -> Mapping[str, Timing]:
    """Version → milliseconds of one run on zeros, on ``threads`` threads (all cores by default).

    Raises:
        BuildError: the section's backend refuses a version.
    """
    count = threads or config.threads or core_count()
    engines: dict[str, Engine] = {}
    try:
        for name, model in versions.items():
            engines[name] = build_engine(model, config, count)
        sessions = [engine.session() for engine in engines.values()]
        taken = _in_turns(sessions, rounds)
    finally:
        for engine in engines.values():
            engine.close()
    return dict(zip(versions, map(_timing, taken), strict=True))


def _timing(times: Sequence[float]) -> Timing:
    low, median, high = np.percentile(times, _SPREAD).tolist()
    return Timing(median, low, high, len(times))


def _in_turns(sessions: Sequence[Session], rounds: int) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in sessions]
    for turn in range(_WARM + rounds):
        for times, session in zip(taken, sessions, strict=True):
            started = time.perf_counter()
            session.run()
            if turn >= _WARM:
                times.append((time.perf_counter() - started) * 1e3)
    return taken
