"""Which of several versions of a model runs fastest on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgert.backend import Engine, Session
from edgert.board.host import core_count
from edgert.config import ModelConfig
from edgert.graph.model import Model
from edgert.ready import build_engine

ROUNDS = 15
"""Runs of each version, in turns, so that a machine that slows down slows all."""
_WARM = 3


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The fastest version.

    Attributes:
        name, model: of the version.
        run_ms: version → median milliseconds of one run.
    """

    name: str
    model: Model
    run_ms: Mapping[str, float]

    @property
    def told(self) -> str:
        """``"fp32 8.1 ms, int8 3.2 ms a run"``."""
        return ", ".join(f"{name} {ms:.1f}" for name, ms in self.run_ms.items()) + " ms a run"


def fastest(versions: Mapping[str, Model], config: ModelConfig, threads: int | None = None) -> Choice:
    """Runs the versions in turns; of equals the earlier wins. Raises BuildError when the backend refuses one."""
    times = run_ms(versions, config, threads)
    best = min(times, key=lambda name: times[name])
    return Choice(best, versions[best], times)


def run_ms(versions: Mapping[str, Model], config: ModelConfig, threads: int | None = None) -> Mapping[str, float]:
    """Version → median milliseconds of one run on zeros, on ``threads`` threads (all cores by default)."""
    count = threads or config.threads or core_count()
    engines: dict[str, Engine] = {}
    try:
        for name, model in versions.items():
            engines[name] = build_engine(model, config, count)
        sessions = {name: engine.session() for name, engine in engines.items()}
        taken = _in_turns(list(sessions.values()))
    finally:
        for engine in engines.values():
            engine.close()
    return dict(zip(versions, map(statistics.median, taken), strict=True))


def _in_turns(sessions: Sequence[Session]) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in sessions]
    for turn in range(_WARM + ROUNDS):
        for times, session in zip(taken, sessions, strict=True):
            started = time.perf_counter()
            session.run()
            if turn >= _WARM:
                times.append((time.perf_counter() - started) * 1e3)
    return taken
