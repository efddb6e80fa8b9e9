"""How fast the machine is while something else runs: one network, timed four times a second by a process beside it.

    python tests/bench/pace.py      # until its standard input is closed; then the times in ms, as JSON

The process gets what nobody else wants (SCHED_IDLE: whatever wakes up preempts it) and counts the processor time of its
thread, so it neither delays what it watches nor is slowed by waiting for it. Of two runs the second counts: the first
brings the network back into the caches.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from types import TracebackType

from scipy.stats import trim_mean

PERIOD_S = 0.25
FEWEST = 6
"""Readings of which a mean is taken."""
_LEFT_OUT = 0.1
"""Of the readings, at each end."""


def mean_ms(readings_ms: Sequence[float]) -> float:
    """What a run took. No median: a core that shares its parts with somebody goes at one of two paces, in turns, and
    a median is one of them."""
    return float(trim_mean(readings_ms, _LEFT_OUT))


class Pace:
    """The process, for as long as a block lasts.

    Attributes:
        readings_ms: one after another; behind the block.
    """

    def __enter__(self) -> Pace:
        self.readings_ms = list[float]()
        self._child = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        self._child.stdout.readline()  # it is ready
        self._ready_s = self._cpu_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.readings_ms = json.loads(self._child.communicate()[0])

    def used_s(self) -> float:
        """Processor time of the process since the block began; within the block."""
        return self._cpu_s() - self._ready_s

    def _cpu_s(self) -> float:
        words = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def __bool__(self) -> bool:
        """Behind the block: whether others left it time enough."""
        return len(self.readings_ms) >= FEWEST


def _main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from unseen import REFERENCE, Bench

    from edgert.board.host import core_accelerators, pinned

    bench, found = Bench(REFERENCE), list[float]()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print(flush=True)
    for core in cycle(core_accelerators().values()):
        if select.select([sys.stdin], [], [], PERIOD_S)[0]:
            break
        with pinned(core):
            found.append(bench.second_ms())
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
