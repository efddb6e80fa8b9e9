"""Whether others leave the machine alone: what is measured while they do not is measured again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

QUIET_CORES = 0.10
"""What others may take of the processor."""
TRIES, WAIT_S = 15, 120
"""How often something is measured until others left it alone; and how long they are waited for each time."""
T = TypeVar("T")


class BusyError(Exception):
    """Others never left the machine alone for long enough."""


class Watch:
    """What others take from now on."""

    def __init__(self) -> None:
        self._began = self._now()

    def others(self) -> float:
        """Cores that others took since this was made."""
        taken, mine, wall = (now - before for now, before in zip(self._now(), self._began, strict=True))
        return max(taken - mine, 0.0) / wall

    @staticmethod
    def _now() -> tuple[float, float, float]:
        words = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
        ticks = [int(word) for word in words[1:9]]
        busy = sum(ticks) - ticks[3] - ticks[4]  # without idle and waiting; what was stolen is somebody's
        mine_s = sum(os.times()[:4])  # with children that have ended
        return busy / os.sysconf("SC_CLK_TCK"), mine_s, time.perf_counter()


def counts_all() -> bool:
    """Whether it is to be measured however busy the machine is."""
    return bool(os.environ.get("EDGERT_BENCH_BUSY"))


def wait() -> None:
    """Until others take nothing for a second."""
    for _ in range(0 if counts_all() else WAIT_S):
        watch = Watch()
        time.sleep(1)
        if watch.others() <= QUIET_CORES:
            break


def quietly(take: Callable[[], T], forget: Callable[[], object] = lambda: None) -> T:
    """What is measured while others leave the machine alone; ``forget`` is called for what was not.

    Raises:
        BusyError: they never did.
    """
    for _ in range(TRIES):
        wait()
        watch = Watch()
        found = take()
        if counts_all() or watch.others() <= QUIET_CORES:
            return found
        forget()
    raise BusyError
