"""The summary of a run: counts, rates and latencies, as a record and as plain JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from edgert.clock import REAL
from edgert.memory import Counts
from edgert.runtime.json_form import plain
from edgert.runtime.metrics import Percentiles, latency_counts, percentiles_of
from edgert.runtime.recent import History, Recent, losses_of
from edgert.runtime.stage import Source, SourceStats
from edgert.runtime.task import Task


@dataclass(frozen=True, slots=True)
class StageState:
    """State of one stage at present, or at the end of the run, and its failures so far.

    Attributes:
        errors, restarts: number of failures that did not end the pipeline, and of restarts of the stage.
        failing: why results are lost here; empty while none are lost.
        stuck_s: duration of the current call once it exceeds the watchdog; else 0.
        is_open: whether the stage was opened; always true for a source.
        in_call: whether a call is in progress.
    """

    errors: int
    restarts: int
    failing: str
    stuck_s: float
    is_open: bool
    in_call: bool


@dataclass(frozen=True, slots=True)
class StageSummary:
    """Summary of one stage. Percentages are of the run's wall time.

    Attributes:
        results_in, results_out: number of results received and passed on.
        dropped: number of results that the stage did not process: its queues were full, a join never got the other
            part, or the stage failed.
        busy_percent, wait_in_percent, wait_out_percent: time working, waiting for input, blocked by a full queue.
        thread: name of the stage in whose thread this one runs; empty if it has a separate thread.
        losses: dropped results by stream and cause; see :data:`edgert.runtime.metrics.Losses`.
    """

    results_in: int
    results_out: int
    dropped: int
    busy_percent: float
    wait_in_percent: float
    wait_out_percent: float
    busy_ms_per_result: float
    waiting: int
    source: SourceStats | None
    thread: str
    losses: Mapping[str, Mapping[str, int]]
    state: StageState

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data, in which the state has no level of its own."""
        return flat(self, "state")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory that a run used.

    Attributes:
        copies_per_frame, bytes_copied_per_frame: copies of pixels on the host, and between host and GPU. Copies within
            GPU memory, such as from a decoder's surfaces, are not counted.
        allocations: number of buffers allocated for frames.
        peak_rss_bytes: largest amount of memory that the process used.
    """

    copies_per_frame: float
    bytes_copied_per_frame: float
    allocations: int
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class RunNotes:
    """Further notes on a run. Each is empty, and left out of JSON, where there is nothing to report.

    Attributes:
        frames: where the frames of each source that a model on a GPU reads are, which stages get host copies, and why.
        tracks: lowest scores from which each tracker follows objects.
        over_current: number of the board's over-current events during the run, by limit.
        left_out: number of each model's boxes that were not finite, empty, or outside of the image; without zeros.
    """

    frames: Mapping[str, str] = field(default_factory=dict)
    tracks: Mapping[str, str] = field(default_factory=dict)
    over_current: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a run.

    Attributes:
        frames_in: number of frames from the sources.
        frames_out: number of results that the last stage received; the largest number if there are several.
        dropped: number of frames lost between source and sink, for any reason.
        fps: ``frames_out`` per second of ``seconds``.
        latency_ms: time from capture to the end of the last stages.
        recent: statistics of the last minute, or of the minute before the end.
        engine: details of the engine of each model, by stage.
        budgets: actions that kept the budgets; empty for a pipeline without budgets.
    """

    frames_in: int
    frames_out: int
    dropped: int
    seconds: float
    fps: float
    latency_ms: Percentiles
    recent: Recent
    stages: Mapping[str, StageSummary]
    memory: MemoryUse
    engine: Mapping[str, Any]
    budgets: Mapping[str, Any]
    notes: RunNotes

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data, in which memory and notes have no level of their own."""
        values = flat(self, "memory", "notes")
        optional = RunNotes.__slots__
        return dict(plain({name: value for name, value in values.items() if value or name not in optional}))


def flat(record: Any, *inner: str) -> dict[str, Any]:
    """Return the fields of a record, with the fields of the records ``inner`` in their place."""
    found: dict[str, Any] = {}
    for name in record.__slots__:  # each call of dataclasses.fields leaves a tuple in Python's free lists
        value = getattr(record, name)
        found |= flat(value) if name in inner else {name: value}
    return found


def summarize(
    tasks: Sequence[Task],
    wall_ns: int,
    counts: Counts,
    peak_rss_bytes: int,
    engine: Mapping[str, Any],
    budgets: Mapping[str, Any] | None = None,
    notes: RunNotes | None = None,
    removed_frames: int = 0,
    *,
    recent: Recent | None = None,
) -> Summary:
    """Return the summary of a running or finished pipeline. Callable from any thread, at any time.

    Without ``recent``, its statistics cover the complete run. ``removed_frames`` came from sources that were removed.
    """
    sources = [task for task in tasks if isinstance(task.stage, Source)]
    ends = [task for task in tasks if not task.wiring.outlets]
    frames_in = removed_frames + sum(task.meter.results_out for task in sources)
    frames_out = max((task.meter.results_in for task in ends if task not in sources), default=frames_in)
    stages = {task.name: _stage(task, wall_ns) for task in tasks}
    seconds, copied = wall_ns / 1e9, frames_in or inf
    return Summary(
        frames_in=frames_in,
        frames_out=frames_out,
        dropped=sum(stage.dropped for stage in stages.values()),
        seconds=seconds,
        fps=frames_out / seconds if seconds else 0.0,
        latency_ms=percentiles_of(latency_counts(task.meter for task in ends))[0],
        recent=recent or History(lambda: tasks, REAL, lambda: 0).recent(wall_ns),
        stages=stages,
        memory=MemoryUse(counts.copies / copied, counts.bytes_copied / copied, counts.allocations, peak_rss_bytes),
        engine=engine,
        budgets=budgets or {},
        notes=notes or RunNotes(),
    )


def _stage(task: Task, wall_ns: int) -> StageSummary:
    meter, status = task.meter, task.meter.status
    channels = [channel.stats() for channel in task.wiring.inlet.channels]
    percent = 100 / wall_ns if wall_ns else 0.0
    losses = dict[str, dict[str, int]]()
    dropped = losses_of(task)
    for (stream, cause), number in dropped.items():
        losses.setdefault(stream, {})[cause] = number
    failures = status.errors, status.restarts, status.failing, status.stuck_s
    return StageSummary(
        results_in=meter.results_in,
        results_out=meter.results_out,
        dropped=dropped.total(),
        busy_percent=meter.busy_ns * percent,
        wait_in_percent=meter.wait_in_ns * percent,
        wait_out_percent=meter.wait_out_ns * percent,
        busy_ms_per_result=meter.busy_ns / meter.results_in / 1e6 if meter.results_in else 0.0,
        waiting=sum(channel.waiting for channel in channels),
        source=task.stage.stats() if isinstance(task.stage, Source) else None,
        thread=task.execution.carrier.name if task.execution.carrier is not None else "",
        losses=losses,
        state=StageState(*failures, isinstance(task.stage, Source) or status.was_opened, status.since_ns != 0),
    )
