"""What a run amounted to, as one record and as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgert.memory import Counts
from edgert.runtime.history import WINDOW_NS
from edgert.runtime.metric import LatencyHistogram, Percentiles
from edgert.runtime.stage import Source, SourceStats
from edgert.runtime.worker import Node
from edgert.spread import EVEN, Spread


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One thread's share of a run. Percentages are of the run's wall time.

    Attributes:
        dropped: results this stage never saw because its queues were full or a join lost its other half.
        busy_percent, wait_in_percent, wait_out_percent: working, waiting for input, blocked on a full queue.
        source: for a source, what it had to put up with.
        busy_spread, busy_spells: how the time of one result, or of each in a batch, scattered in the last minute of a
            run that has ended, at any moment and from one to the next; see :class:`edgert.spread.Scatter`.
        kept_ms: of that time, what it takes until a result waits for others, in stages that pass several on at once.
        opened_ms: when it was ready, after the first result of all threads went on; 0: before that.
        first_ms: when its first result went on, after that of the first of all threads; None where none ever did.
        woken_ms: how late it went on when something came that it waited for, or how late a live source's frames came
            by the stream's own times: quantiles at :data:`edgert.spread.AT`.
    """

    results_in: int
    results_out: int
    dropped: int
    busy_percent: float
    wait_in_percent: float
    wait_out_percent: float
    busy_ms_per_result: float
    waiting: int
    source: SourceStats | None = None
    busy_spread: Spread = ()
    busy_spells: tuple[float, ...] = ()
    woken_ms: tuple[float, ...] = ()
    kept_ms: float = 0.0
    opened_ms: float = 0.0
    first_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole run.

    Attributes:
        frames_in: frames the sources gave.
        frames_out: results the last stages took, per last stage the most of any.
        dropped: frames lost on the way, for whatever reason.
        fps: ``frames_out`` per second of ``seconds``.
        latency_ms: from capture to the end of the last stages.
        budgets: what was done to keep them; empty for a pipeline without.
        copies_per_frame, bytes_copied_per_frame: copies of pixels in host memory, from every ``to_x`` call.
    """

    frames_in: int
    frames_out: int
    dropped: int
    seconds: float
    fps: float
    latency_ms: Percentiles
    stages: Mapping[str, StageSummary]
    copies_per_frame: float
    bytes_copied_per_frame: float
    allocations: int
    peak_rss_bytes: int
    engine: Mapping[str, Any] = field(default_factory=dict)
    budgets: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def summarise(
    nodes: Sequence[Node],
    wall_ns: int,
    counts: Counts,
    peak_rss_bytes: int,
    engine: Mapping[str, Any],
    budgets: Mapping[str, Any] | None = None,
    *,
    has_ended: bool = True,
) -> Summary:
    """The state of a running or finished pipeline; callable at any time from any thread.

    How times scatter, which takes some milliseconds per thread, is told of one that has ended.
    """
    sources = [node for node in nodes if isinstance(node.work, Source)]
    ends = [node for node in nodes if not node.outlets]
    frames_in = sum(node.meter.results_out for node in sources)
    frames_out = max((node.meter.results_in for node in ends if node not in sources), default=frames_in)
    span_ns = _last_minute(nodes) if has_ended else None
    start_ns = min((node.meter.first_ns for node in nodes if node.meter.first_ns is not None), default=0)
    stages = {node.name: _stage(node, wall_ns, span_ns, start_ns) for node in nodes}
    seconds = wall_ns / 1e9
    return Summary(
        frames_in=frames_in,
        frames_out=frames_out,
        dropped=sum(stage.dropped for stage in stages.values()),
        seconds=seconds,
        fps=frames_out / seconds if seconds else 0.0,
        latency_ms=LatencyHistogram().percentiles(*(node.meter.latency for node in ends)),
        stages=stages,
        copies_per_frame=counts.copies / frames_in if frames_in else 0.0,
        bytes_copied_per_frame=counts.bytes_copied / frames_in if frames_in else 0.0,
        allocations=counts.allocations,
        peak_rss_bytes=peak_rss_bytes,
        engine=engine,
        budgets=budgets or {},
    )


def _last_minute(nodes: Sequence[Node]) -> tuple[int, int] | None:
    """From when to when all threads are looked at, so that spells that struck several of them do so in each."""
    spans = [span for node in nodes if (span := node.meter.history.span_ns)]
    if not spans:
        return None
    end_ns = max(end for _, end in spans)
    return max(min(start for start, _ in spans), end_ns - WINDOW_NS), end_ns


def _stage(node: Node, wall_ns: int, span_ns: tuple[int, int] | None, start_ns: int) -> StageSummary:
    meter = node.meter
    channels = [channel.stats() for channel in node.inlet.channels]
    percent = 100 / wall_ns if wall_ns else 0.0
    scatter = meter.history.scatter(*span_ns) if span_ns else EVEN
    return StageSummary(
        results_in=meter.results_in,
        results_out=meter.results_out,
        dropped=meter.unmatched + sum(channel.dropped for channel in channels),
        busy_percent=meter.busy_ns * percent,
        wait_in_percent=meter.wait_in_ns * percent,
        wait_out_percent=meter.wait_out_ns * percent,
        busy_ms_per_result=meter.busy_ns / meter.results_in / 1e6 if meter.results_in else 0.0,
        waiting=sum(channel.waiting for channel in channels),
        source=node.work.stats() if isinstance(node.work, Source) else None,
        busy_spread=scatter.spread,
        busy_spells=scatter.spells,
        woken_ms=node.inlet.woken.quantiles_ms(),
        kept_ms=meter.kept_ns / meter.kept / 1e6 if meter.kept else 0.0,
        opened_ms=max(meter.opened_ns - start_ns, 0) / 1e6,
        first_ms=(meter.first_ns - start_ns) / 1e6 if meter.first_ns is not None else None,
    )
