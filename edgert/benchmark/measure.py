"""A measured figure, and the ways of taking one."""

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
    """Return the processor time of this thread for one call, in milliseconds; other programs do not lengthen it."""
    started_ns = thread_time_ns()
    run()
    return (thread_time_ns() - started_ns) / 1e6


def timed_ms(run: Callable[[], object], runs: int) -> list[float]:
    """Return :func:`once_ms` of so many calls, at least one, after a few that warm up."""
    for _ in range(_WARM_UP):
        run()
    return [once_ms(run) for _ in range(max(1, runs))]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        name: what was measured.
        value: the median.
        unit: of ``value``.
        bar: what it has to reach; None for a figure without one.
        better: which side of the bar is the good one.
        n: samples behind the median.
        detail: the figures it was made of.
        is_exact: whether it comes out the same on every machine, however busy: a count or a difference of results. A
            bar on anything else holds for the machine that it was set for.
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
        """Return plain data."""
        return {**asdict(self), "holds": self.holds}


def machine() -> dict[str, Any]:
    """Return the machine that the figures were measured on."""
    return {"cpu": cpu_name(), "cores": core_count(), "python": platform.python_version(), "system": platform.system()}


def cpu_ms(work: Callable[[], object]) -> float:
    """Return user and system CPU milliseconds of this process, all its threads, while ``work`` runs."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


def wall_ms(work: Callable[[], object]) -> float:
    """Return wall-clock milliseconds of ``work``."""
    started = perf_counter_ns()
    work()
    return (perf_counter_ns() - started) / 1e6


def in_turn(rounds: int, *works: Callable[[], float]) -> list[list[float]]:
    """Run the works A B A B …, so that a slow phase affects all; return their figures, work by work."""
    samples: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for taken, work in zip(samples, works, strict=True):
            taken.append(work())
    return samples


def median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of the pairwise ratios first/second."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))
