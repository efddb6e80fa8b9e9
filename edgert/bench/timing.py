"""Runs timed by two clocks, and how they jitter when nobody else disturbs them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns

from edgert.jitter import Quantiles, quantiles_of

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
    """Of what the wall clock said, in rounds in which the core was left alone; else in the best of them."""
    left_alone = [runs for runs in rounds if _disturbed(runs) < _DISTURBED] or [min(rounds, key=_disturbed)]
    return quantiles_of([[run.wall_ms for run in runs] for runs in left_alone])


def _disturbed(runs: Sequence[Run]) -> float:
    """By other programs on this core, or by a neighbour who made it slower or faster halfway."""
    half = len(runs) // 2
    first, second = (statistics.median(run.cpu_ms for run in part) for part in (runs[: half or 1], runs[half:]))
    return max(_taken(runs), abs(second / first - 1))


def _taken(runs: Sequence[Run]) -> float:
    """How much of its core others had: a thread that is alone on a core waits for nothing but other programs."""
    return 1 - sum(run.cpu_ms for run in runs) / sum(run.wall_ms for run in runs)


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
