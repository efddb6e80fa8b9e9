"""Moments in which a shared machine runs as fast as it did for a profile."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, thread_time_ns

from edgert.backend import Engine
from edgert.board.host import core_accelerators, pinned
from edgert.placement.profile import Profile

TOLERANCE, PATIENCE_S = 1.08, 20.0
"""A core is calm when it takes at most this many times as long as in the profile; how long it is waited for."""


class Calm:
    """Whether both cores run as fast as they did for the profile, by running the model on both at once."""

    def __init__(self, found: Profile, engine: Engine) -> None:
        self._expected_ms = {core: found.whole[core].busy_ms for core in found.whole}
        self._sessions = {core: engine.session() for core in self._expected_ms}

    def is_now(self) -> bool:
        """Takes a few runs of the model."""
        return all(times < TOLERANCE for times in self._times_as_long().values())

    def _times_as_long(self) -> dict[str, float]:
        """Core → how many times as long as for the profile it takes now. Takes a few runs of the model."""
        with ThreadPoolExecutor(len(self._sessions)) as pool:
            taken = pool.map(self._median_ms, self._sessions)
        return {core: ms / self._expected_ms[core] for ms, core in zip(taken, self._sessions, strict=True)}

    def is_soon(self) -> bool:
        """Waits for it, but not for ever."""
        end = monotonic() + PATIENCE_S
        while not self.is_now():
            if monotonic() > end:
                return False
        return True

    def _median_ms(self, core: str) -> float:
        taken = []
        with pinned(core_accelerators()[core]):
            for _ in range(5):
                started = thread_time_ns()
                self._sessions[core].run()
                taken.append(thread_time_ns() - started)
        return statistics.median(taken) / 1e6
