"""A measured figure, and the two ways of taking one."""

from __future__ import annotations

import platform
import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter_ns
from typing import Any, Literal

from edgert.board.host import core_count


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        name: what was measured.
        value: the median.
        unit: of ``value``.
        bar: what it has to reach; None for a figure that is only told.
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
    return {"cpu": _cpu_name(), "cores": core_count(), "python": platform.python_version(), "system": platform.system()}


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


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - a virtual file
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
