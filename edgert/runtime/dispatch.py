"""Stages before and behind several branches: one sends each frame into a branch, the other restores the order.

A branch is one stage, or a chain of them, with one way in and one way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from edgert.policy import Dispatcher, ReorderBuffer
from edgert.runtime.records import Result


class Dispatch:
    """A stage that passes everything on; its node asks it to which branch.

    Args:
        level: the level whose branches get the frame, asked for every frame.
    """

    def __init__(self, dispatcher: Dispatcher, level: Callable[[], int] = lambda: 0) -> None:
        self.dispatcher, self._level = dispatcher, level

    def branch(self, result: Result) -> int:
        """The branch of this result, which is now under way."""
        return self.dispatcher.branch(id(result.frame), result.frame.index, self._level())

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> Result:
        """Passes it on."""
        return result

    def close(self) -> None:
        """Has nothing to give back."""


class Reorder:
    """The stage behind the branches. Holds a result back until those dispatched before it have come."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._buffer: ReorderBuffer[Result] = ReorderBuffer(dispatcher)

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> Iterator[Result]:
        """Passes on what is due, this result among it or not."""
        result.frame.lease.retain()
        self._buffer.add(id(result.frame), result)
        while (due := self._buffer.pop()) is not None:
            yield due
            due.frame.lease.release()

    def close(self) -> None:
        """Lets go of what waits for a frame that was lost, as when a pipeline is broken off."""
        for result in self._buffer.drain():
            result.frame.lease.release()
