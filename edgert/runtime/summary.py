"""The summary of a run: counts, rates and latencies, as a record and as plain JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgert.clock import REAL
from edgert.memory import Counts
from edgert.runtime.json_form import plain
from edgert.runtime.metrics import LatencyHistogram, Percentiles
from edgert.runtime.recent import History, Recent, losses_of
from edgert.runtime.stage import Source, SourceStats
from edgert.runtime.task import Task


@dataclass(frozen=True, slots=True)
class StageSummary:
    """Work of one stage's thread in a run. Percentages are of the run's wall time.

    Attributes:
        dropped: results this stage never saw because its queues were full or a join never got the other part, or that
            were lost by its failures.
        busy_percent, wait_in_percent, wait_out_percent: working, waiting for input, blocked on a full queue.
        source: for a source, what it skipped and lost.
        losses: what was dropped, per stream, by cause; see :data:`edgert.runtime.metrics.Losses`.
        errors, restarts: failures that the pipeline outlived, and how often it was opened again.
        failing: why results are lost here now, or were when the run ended; empty while none are.
        stuck_s: for how long it has been in one call, once that is longer than its watchdog.
        is_open: whether it was opened; of a source, always.
        in_call: whether it is in a call now.
        thread: the stage in whose thread this one is worked on; empty: in one of its own.
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
    thread: str = ""
    losses: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    errors: int = 0
    restarts: int = 0
    failing: str = ""
    stuck_s: float = 0.0
    is_open: bool = True
    in_call: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a run.

    Attributes:
        frames_in: frames the sources gave.
        frames_out: results the last stages took, per last stage the most of any.
        dropped: frames lost between source and sink, for whatever reason.
        fps: ``frames_out`` per second of ``seconds``.
        latency_ms: from capture to the end of the last stages.
        recent: the last minute, or that before the end.
        budgets: what was done to keep them; empty for a pipeline without.
        copies_per_frame, bytes_copied_per_frame: copies of pixels by the host, and between host and GPU. Copies within
            a GPU's memory, such as out of a decoder's surfaces, are not counted.
        frames: where those of each source are that a model on a GPU reads, who gets copies on the host, and why.
        tracks: from which scores on each tracker follows objects.
        over_current: over-current events of the board in that time, of each limit; empty where nothing counts them.
        left_out: boxes of each model that were not finite, had no size, or lay outside of the image; 0 is not named.
    """

    frames_in: int
    frames_out: int
    dropped: int
    seconds: float
    fps: float
    latency_ms: Percentiles
    recent: Recent
    stages: Mapping[str, StageSummary]
    copies_per_frame: float
    bytes_copied_per_frame: float
    allocations: int
    peak_rss_bytes: int
    engine: Mapping[str, Any] = field(default_factory=dict)
    budgets: Mapping[str, Any] = field(default_factory=dict)
    frames: Mapping[str, str] = field(default_factory=dict)
    tracks: Mapping[str, str] = field(default_factory=dict)
    over_current: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the fields that say nothing where they are empty."""
        optional = ("frames", "tracks", "over_current", "left_out")
        values = {name: getattr(self, name) for name in self.__slots__}
        return dict(plain({name: value for name, value in values.items() if value or name not in optional}))


def summarize(
    tasks: Sequence[Task],
    wall_ns: int,
    counts: Counts,
    peak_rss_bytes: int,
    engine: Mapping[str, Any],
    budgets: Mapping[str, Any] | None = None,
    frames: Mapping[str, str] | None = None,
    tracks: Mapping[str, str] | None = None,
    *,
    recent: Recent | None = None,
    over_current: Mapping[str, int] | None = None,
    left_out: Mapping[str, int] | None = None,
) -> Summary:
    """Return the state of a running or finished pipeline; any thread may ask at any time.

    Without ``recent``, that is the whole run.
    """
    sources = [task for task in tasks if isinstance(task.stage, Source)]
    ends = [task for task in tasks if not task.wiring.outlets]
    frames_in = sum(task.meter.results_out for task in sources)
    frames_out = max((task.meter.results_in for task in ends if task not in sources), default=frames_in)
    stages = {task.name: _stage(task, wall_ns) for task in tasks}
    seconds = wall_ns / 1e9
    return Summary(
        frames_in=frames_in,
        frames_out=frames_out,
        dropped=sum(stage.dropped for stage in stages.values()),
        seconds=seconds,
        fps=frames_out / seconds if seconds else 0.0,
        latency_ms=LatencyHistogram().percentiles(*[task.meter.latency for task in ends]),
        stages=stages,
        copies_per_frame=counts.copies / frames_in if frames_in else 0.0,
        bytes_copied_per_frame=counts.bytes_copied / frames_in if frames_in else 0.0,
        allocations=counts.allocations,
        peak_rss_bytes=peak_rss_bytes,
        recent=recent or History(lambda: tasks, REAL, lambda: 0).recent(wall_ns),
        engine=engine,
        budgets=budgets or {},
        frames=frames or {},
        tracks=tracks or {},
        over_current=over_current or {},
        left_out=left_out or {},
    )


def _stage(task: Task, wall_ns: int) -> StageSummary:
    meter = task.meter
    channels = [channel.stats() for channel in task.wiring.inlet.channels]
    percent = 100 / wall_ns if wall_ns else 0.0
    losses = dict[str, dict[str, int]]()
    for (stream, cause), number in losses_of(task).items():
        losses.setdefault(stream, {})[cause] = number
    return StageSummary(
        results_in=meter.results_in,
        results_out=meter.results_out,
        dropped=meter.unmatched + meter.lost + sum(channel.dropped for channel in channels),
        busy_percent=meter.busy_ns * percent,
        wait_in_percent=meter.wait_in_ns * percent,
        wait_out_percent=meter.wait_out_ns * percent,
        busy_ms_per_result=meter.busy_ns / meter.results_in / 1e6 if meter.results_in else 0.0,
        waiting=sum(channel.waiting for channel in channels),
        source=task.stage.stats() if isinstance(task.stage, Source) else None,
        thread=task.execution.carrier.name if task.execution.carrier is not None else "",
        losses=losses,
        errors=meter.status.errors,
        restarts=meter.status.restarts,
        failing=task.meter.status.failing,
        stuck_s=task.meter.status.stuck_s,
        is_open=isinstance(task.stage, Source) or task.meter.status.was_opened,
        in_call=task.meter.status.since_ns != 0,
    )
