"""Results handed to a user's function."""

from __future__ import annotations

from collections.abc import Callable

from edgert.runtime.record import Result


class CallbackSink:
    """Calls ``function(result)`` in this stage's thread, one result at a time and in order.

    The frame is valid during the call; whoever keeps it longer retains ``result.frame.lease``. What the function
    returns is ignored; what it raises stops the pipeline.
    """

    def __init__(self, name: str, function: Callable[[Result], object]) -> None:
        self.name = name
        self._function = function

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> None:
        """Calls the function."""
        self._function(result)

    def close(self) -> None:
        """Has nothing to give back."""
