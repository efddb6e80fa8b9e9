"""Loop of a task that runs in its producer's thread, and the rule for which tasks do.

A result put into such a task's channel is processed before ``put`` returns. A separate thread would let the stage work
in parallel, but costs a wake-up for each result. So a stage declares its ``effort`` per result: ``none``, ``little``,
``callback`` of a program, or ``much``, which is the default.
"""

from collections.abc import Sequence

from edgert.runtime.records import Result
from edgert.runtime.stage import AsyncStage, Source
from edgert.runtime.station import Work
from edgert.runtime.task import Task


class InlineLoop(Work):
    """A task that runs in its producer's thread. A failure ends only this task."""

    def open(self) -> bool:
        """Open the stage, and process its channel's results here; return whether the stage is open."""
        if super().open():
            self.task.wiring.inlet.set_handler(self._take)
        return not self.has_ended

    def _take(self, results: Sequence[Result]) -> None:
        """Process results, and release their frames."""
        ((producer, channel),) = self.task.wiring.edges()
        if self.has_ended:
            for result in results:
                channel.lose(result)
            return
        meter = self.task.meter
        before_ns = meter.busy_ns + meter.wait_out_ns
        if not self.succeeds(lambda: self.station.step(results)):
            self.end()
        # The producer's time here was work, not a wait for room.
        producer.meter.wait_out_ns -= meter.busy_ns + meter.wait_out_ns - before_ns


def share_threads(tasks: Sequence[Task]) -> None:
    """Let tasks run in the thread of their producer where that delays no other task.

    - Tasks of effort ``none`` always do.
    - Where no source is live, a task of ``little`` effort does if its producer has no other listener: the producer
      would wait for it anyway. So does a ``callback`` behind an asynchronous stage, whose thread is idle while the GPU
      works. With cameras, frames would be lost while a disk or a callback delays the producer.

    Args:
        tasks: connected tasks in topological order, before their start.
    """
    live = any(isinstance(task.stage, Source) and task.stage.live for task in tasks)
    for task in tasks:
        edges = list(task.wiring.edges())
        effort = getattr(task.stage, "effort", "much")
        if len(edges) != 1 or effort == "much":
            continue
        ((before, _),) = edges
        if before.wiring.branch is not None:
            continue
        is_only_listener = len(before.wiring.outlets) == 1 and not isinstance(before.stage, Source)
        has_idle_thread = isinstance(before.stage, AsyncStage) and before.stage.limit > 1
        if effort == "none" or (is_only_listener and not live and (effort == "little" or has_idle_thread)):
            task.execution.carrier = before.thread
