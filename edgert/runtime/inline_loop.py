"""The loop of a task that runs in its producer's thread, and the rule that decides which tasks do.

What is put into such a task's channel is worked on before ``put`` returns. A thread of its own would let the stage work
while those before it do; it costs the processor a wake-up for each result. So a stage declares how much it does with a
result, ``effort``: ``none``, ``little``, ``callback`` of a program, or ``much``, which is assumed of those that declare
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgert.runtime.records import Result
from edgert.runtime.stage import AsyncStage, Source
from edgert.runtime.station import Work
from edgert.runtime.task import Task


class InlineLoop(Work):
    """A task without a thread. Its producer does its work, and a failure ends this task alone."""

    def open(self) -> bool:
        """Open the stage, and have its edge lead here; return whether it is open."""
        if super().open():
            self.task.wiring.inlet.handle(self._take)
        return not self.has_ended

    def _take(self, results: Sequence[Result]) -> None:
        """Work on results, and end the holds on their frames."""
        ((producer, channel),) = self.task.wiring.edges()
        if self.has_ended:
            for result in results:
                channel.lose(result)
            return
        meter = self.task.meter
        before_ns = meter.busy_ns + meter.wait_out_ns
        if not self.succeeds(lambda: self.station.step(results)):
            self.end()
        # The producer worked here, and did not wait for room.
        producer.meter.wait_out_ns -= meter.busy_ns + meter.wait_out_ns - before_ns


def share_threads(tasks: Sequence[Task]) -> None:
    """Have tasks run in the thread of the one that they listen to, where that costs no one anything.

    - Those of no ``effort`` at all always do.
    - Where no source is live, those that do ``little``, alone behind a stage, do: it would wait for them anyway.
      So does a ``callback`` behind a stage with several runs under way, whose thread has time while a GPU works.
    Cameras would lose frames while a disk or a callback holds up the stage before.

    Args:
        tasks: every one after those it listens to, connected; none has started.
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
        alone = len(before.wiring.outlets) == 1 and not isinstance(before.stage, Source) and not live
        has_time = isinstance(before.stage, AsyncStage) and before.stage.limit > 1
        if effort == "none" or (alone and (effort == "little" or has_time)):
            task.execution.carrier = before.thread
