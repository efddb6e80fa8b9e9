"""The sink that keeps nothing; for measuring everything else."""

from __future__ import annotations

from edgert.runtime.record import Result


class NullSink:
    """Takes results and forgets them."""

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> None:
        """Forgets the result."""

    def close(self) -> None:
        """Has nothing to give back."""
