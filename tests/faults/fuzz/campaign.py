"""Cases of every format up to a count, over as many sittings as it takes: what was done is noted in a file."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

from tests.faults.fuzz.sitting import Result, fuzz, keep

GOALS: Mapping[str, int] = {"yaml": 100_000, "ros2": 100_000, "mcap": 100_000, "onnx": 20_000}
GOAL = 10_000
"""Cases of each format that is not in :data:`GOALS`."""
_SLICE_S = 180.0
_SLICE_CASES = 2000


@dataclass
class Count:
    """What was done of a format. ``next``: number of the case that nobody has begun. ``cpu_s``: of the cases.
    ``failed``: place → numbers of cases that failed there and have not been right since."""

    next: int = 0
    cases: int = 0
    taken: int = 0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    most_bytes: int = 0
    failed: dict[str, list[int]] = field(default_factory=dict)

    @property
    def failures(self) -> int:
        return sum(map(len, self.failed.values()))

    def add(self, result: Result) -> None:
        self.cases, self.taken = self.cases + result.cases, self.taken + result.taken
        self.cpu_s += result.cpu_s
        self.slowest_s = max(self.slowest_s, result.slowest_s)
        self.most_bytes = max(self.most_bytes, result.most_bytes)
        for place, numbers in result.failed.items():
            self.failed.setdefault(place, []).extend(numbers)


class Campaign:
    """The counts of all formats, and the file that holds them.

    Args:
        state: JSON; made when there is none.
        seed: of the cases; another one than the file's begins anew.
        goals: format → cases.
    """

    def __init__(self, state: Path, seed: int, goals: Mapping[str, int]) -> None:
        self._state, self._seed, self._goals, self._lock = state, seed, goals, Lock()
        known = json.loads(state.read_text()) if state.exists() else {}
        counts = known.get("formats", {}) if known.get("seed") == seed else {}
        self.counts = {name: Count(**counts.get(name, {})) for name in goals}
        self._others = {name: one for name, one in counts.items() if name not in goals}

    def run(self, seconds: float, jobs: int, kept: Path, failed: Callable[[str, Result], None]) -> bool:
        """Runs those again that failed, then others for a time, of the format that had the least of it; whether all
        goals are reached.

        Args:
            jobs: processes at once.
            kept: folder for inputs that fail.
            failed: called with a format and what failed of it.
        """
        until = time.monotonic() + seconds
        for name, count in self.counts.items():
            again, count.failed = [one for numbers in count.failed.values() for one in numbers], {}
            for number in again:
                self._note(name, fuzz(name, self._seed, _SLICE_S, number + 1, first=number), kept, failed, is_new=False)
        with ThreadPoolExecutor(jobs) as pool:
            for done in [pool.submit(self._work, until, kept, failed) for _ in range(jobs)]:
                done.result()
        return not self._behind()

    def _behind(self) -> Sequence[str]:
        """Formats whose cases are not all begun, that with the least processor time first: all get as much of it."""
        left = [name for name, goal in self._goals.items() if self.counts[name].next < goal]
        return sorted(left, key=lambda name: self.counts[name].cpu_s)

    def _work(self, until: float, kept: Path, failed: Callable[[str, Result], None]) -> None:
        while time.monotonic() < until:
            with self._lock:
                behind = self._behind()
                if not behind:
                    return
                name = behind[0]
                count = self.counts[name]
                first, count.next = count.next, min(count.next + _SLICE_CASES, self._goals[name])
                last = count.next
            result = fuzz(name, self._seed, min(_SLICE_S, until - time.monotonic()), last, first=first)
            with self._lock:
                if count.next == last:  # time ended the slice: what is left of it is the next one's
                    count.next = first + result.cases
                self._note(name, result, kept, failed)

    def _note(
        self, name: str, result: Result, kept: Path, failed: Callable[[str, Result], None], is_new: bool = True
    ) -> None:
        keep(name, result, kept)
        count = self.counts[name]
        count.add(result if is_new else Result(failed=result.failed))
        self._write()
        if result.failed:
            failed(name, result)

    def _write(self) -> None:
        formats = {**self._others, **{name: asdict(count) for name, count in self.counts.items()}}
        self._state.parent.mkdir(parents=True, exist_ok=True)
        new = self._state.with_suffix(".new")
        new.write_text(json.dumps({"seed": self._seed, "formats": formats}, indent=1) + "\n")
        new.replace(self._state)
