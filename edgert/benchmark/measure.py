"""Measured figures, and functions that measure time."""

import platform
import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter_ns, thread_time_ns
from typing import Any, Literal

from edgert.board.host import core_count, cpu_name

_WARM_UP = 3


def once_ms(run: Callable[[], object]) -> float:
    """Return the CPU time of this thread for one call, in milliseconds, which other programs do not affect."""
    started_ns = thread_time_ns()
    run()
    return (thread_time_ns() - started_ns) / 1e6


def timed_ms(run: Callable[[], object], runs: int) -> list[float]:
    """Return :func:`once_ms` of ``runs`` calls, at least one, after a warm-up."""
    for _ in range(_WARM_UP):
        run()
    return [once_ms(run) for _ in range(max(1, runs))]


@dataclass(frozen=True, slots=True)
class Figure:
    """A median of ``n`` samples, with a limit that it must keep; None for none.

    An exact figure, such as a count, is the same on every machine. Other bars hold for the machine they were set for.
    """

    name: str
    value: float
    unit: str
    bar: float | None = None
    better: Literal["lower", "higher"] = "lower"
    n: int = 1
    detail: dict[str, Any] = field(default_factory=dict)
    is_exact: bool = False

    @property
    def holds(self) -> bool:
        """Whether it is on the good side of its bar."""
        if self.bar is None:
            return True
        return self.value <= self.bar if self.better == "lower" else self.value >= self.bar

    def to_json(self) -> dict[str, Any]:
        """Return the figure as JSON values."""
        return {**asdict(self), "holds": self.holds}


def machine() -> dict[str, Any]:
    """Return a description of this machine."""
    return {"cpu": cpu_name(), "cores": core_count(), "python": platform.python_version(), "system": platform.system()}


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the user and system CPU milliseconds of all threads of this process while ``work`` runs."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


def wall_ms(work: Callable[[], object]) -> float:
    """Return the wall-clock milliseconds of ``work``."""
    started = perf_counter_ns()
    work()
    return (perf_counter_ns() - started) / 1e6


def interleave(rounds: int, *works: Callable[[], float]) -> list[list[float]]:
    """Run functions in turn, A B A B …, so that a slow phase affects all, and return the results of each."""
    samples: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for taken, work in zip(samples, works, strict=True):
            taken.append(work())
    return samples


def median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of the pairwise ratios first/second."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))
