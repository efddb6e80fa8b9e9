"""How fast the machine is right before and after something ran: one network, timed four times a second by a process.

    python tests/bench/pace.py      # for each line of its standard input some times in ms, as JSON

Not while it runs: whatever else uses the processor then takes the network out of the caches and interrupts it, so that
its time would have in it what the run itself does to others, which is foretold already; and where all cores are busy it
would hardly come to anything. The process waits meanwhile. A reading is the median of several runs right after another,
as the machine was measured: the first after a rest is slower by a tenth and more.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType

from scipy.stats import trim_mean

PERIOD_S, READINGS = 0.25, 6
"""Between readings; and how many there are before, and after."""
_RUNS = 7
"""Of a reading."""
_LEFT_OUT = 0.1
"""Of the readings, at each end."""


def mean_ms(readings_ms: Sequence[float]) -> float:
    """What a run took. No median: a core that shares its parts with somebody goes at one of two paces, in turns, and
    a median is one of them."""
    return float(trim_mean(readings_ms, _LEFT_OUT))


class Pace:
    """Around a block.

    Attributes:
        readings_ms: one after another; behind the block, all of them.
    """

    def __enter__(self) -> Pace:
        self._child = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.readings_ms = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.readings_ms += self._read()
        self._child.communicate()

    def _read(self) -> list[float]:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(b"\n")
        self._child.stdin.flush()
        return [float(one) for one in json.loads(self._child.stdout.readline())]


def _main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from unseen import REFERENCE
    from unseen_networks import Bench

    from edgert.board.host import core_accelerators, pinned

    bench, cores = Bench(REFERENCE), core_accelerators().values()
    for _ in sys.stdin:
        found = list[float]()
        for core in islice(cycle(cores), READINGS):
            time.sleep(PERIOD_S)
            with pinned(core):
                found.append(statistics.median(bench.second_ms() for _ in range(_RUNS)))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _main()
