"""How fast the machine is while something else runs: one network, timed twice a second by a process beside it.

    python tests/bench/pace.py      # until its standard input is closed; then the times in ms, as JSON

The process has the lowest priority and counts the processor time of its thread, so it neither delays what it watches
nor is slowed by waiting for it. Of two runs the second counts: the first brings the network back into the caches.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).parents[2]))

from unseen import REFERENCE, Bench

from edgert.board.host import core_accelerators, pinned

PERIOD_S = 0.5
FEWEST = 6
"""Readings that make a median."""


class Pace:
    """The process, for as long as a block lasts."""

    def __enter__(self) -> Pace:
        self._readings_ms = list[float]()
        self._child = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        self._child.stdout.readline()  # it is ready
        self._ready_s = self._cpu_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._readings_ms = json.loads(self._child.communicate()[0])

    def used_s(self) -> float:
        """Processor time of the process since the block began; within the block."""
        return self._cpu_s() - self._ready_s

    def _cpu_s(self) -> float:
        words = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def median_ms(self) -> float | None:
        """Behind the block. None: others left it too little time."""
        return statistics.median(self._readings_ms) if len(self._readings_ms) >= FEWEST else None


def _main() -> None:
    bench, found = Bench(REFERENCE), list[float]()
    os.nice(19)
    print(flush=True)
    for core in cycle(core_accelerators().values()):
        if select.select([sys.stdin], [], [], PERIOD_S)[0]:
            break
        with pinned(core):
            found.append(bench.second_ms())
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
