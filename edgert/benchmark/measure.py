"""A measured figure, and the two ways of taking one."""

import platform
import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter_ns, thread_time_ns
from typing import Any, Literal

from edgert.board.host import core_count, cpu_name
from edgert.jitter import Quantiles, quantiles_of

# Runs timed by two clocks, and how they jitter when nobody else disturbs them.

_WARM_UP = 3
_DISTURBED = 0.1
"""More than so much of a core taken by other programs, or of its speed changed, and a round's jitter is theirs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an engine of one thread.

    Attributes:
        cpu_ms: processor time of its thread: other programs do not lengthen it.
        wall_ms: what somebody waits for it.
    """

    cpu_ms: float
    wall_ms: float


def jitter(rounds: Sequence[Sequence[Run]]) -> Quantiles:
    """Of the wall clock, in rounds in which the core was left alone; else in the best of them."""
    left_alone = [runs for runs in rounds if _disturbed(runs) < _DISTURBED] or [min(rounds, key=_disturbed)]
    return quantiles_of([[run.wall_ms for run in runs] for runs in left_alone])


def _disturbed(runs: Sequence[Run]) -> float:
    """By other programs on this core, or by a neighbor who made it slower or faster halfway."""
    half = len(runs) // 2
    first, second = (statistics.median(run.cpu_ms for run in part) for part in (runs[: half or 1], runs[half:]))
    # A thread that is alone on a core waits for nothing but other programs.
    taken = 1 - sum(run.cpu_ms for run in runs) / sum(run.wall_ms for run in runs)
    return max(taken, abs(second / first - 1))


def once(run: Callable[[], object]) -> Run:
    """Runs it, by both clocks."""
    began_ns, started_ns = perf_counter_ns(), thread_time_ns()
    run()
    cpu_ns = thread_time_ns() - started_ns
    return Run(cpu_ns / 1e6, (perf_counter_ns() - began_ns) / 1e6)


def timed(run: Callable[[], object], runs: int) -> list[Run]:
    """So many runs, at least one, after a few that warm up."""
    for _ in range(_WARM_UP):
        run()
    return [once(run) for _ in range(max(1, runs))]


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
        """Plain data."""
        return {**asdict(self), "holds": self.holds}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"cpu": cpu_name(), "cores": core_count(), "python": platform.python_version(), "system": platform.system()}


def cpu_ms(work: Callable[[], object]) -> float:
    """User and system CPU milliseconds of this process, all its threads, while ``work`` runs."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


def wall_ms(work: Callable[[], object]) -> float:
    """Wall-clock milliseconds of ``work``."""
    started = perf_counter_ns()
    work()
    return (perf_counter_ns() - started) / 1e6


def in_turn(rounds: int, *works: Callable[[], float]) -> list[list[float]]:
    """Runs the works A B A B …, so that a machine that slows down slows all; their figures, work by work."""
    samples: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for taken, work in zip(samples, works, strict=True):
            taken.append(work())
    return samples


def median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """The median of the pairwise ratios first/second."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))
