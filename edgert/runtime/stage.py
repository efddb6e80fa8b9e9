"""The protocols of sources, stages and sinks. Each is called by one thread."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from edgert.runtime.frame import Frame
from edgert.runtime.records import Result


@dataclass(frozen=True, slots=True)
class SourceStats:
    """Counters and state of a source: images skipped and lost, and connections reopened.

    Attributes:
        skipped: corrupt pieces that gave no frame.
        reconnects: times a live stream was opened again.
        lost: frames known to be missing, by the camera's own numbering.
        up: whether a camera gives frames; None of what is no camera, or was not started.
        state_s: for how many seconds ``up`` has been what it is.
        frame_age_s: seconds since its last frame came; None before the first.
        reason: why it gives none.
        ended: whether its stream came to its end, which is no loss.
    """

    skipped: int = 0
    reconnects: int = 0
    lost: int = 0
    up: bool | None = None
    state_s: float | None = None
    frame_age_s: float | None = None
    reason: str = ""
    ended: bool = False


@runtime_checkable
class Source(Protocol):
    """Producer of frames.

    Attributes:
        live: whether frames are lost when nobody takes them; decides what a full queue does by default.
    """

    live: bool

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yield frames until the stream ends or ``stop`` is set; block in between, at most 0.5 s after ``stop``.

        Each frame's lease belongs to the consumer. Raises DeviceError or StageError.
        """
        ...

    def stats(self) -> SourceStats:
        """Totals so far; callable from any thread."""
        ...

    def close(self) -> None:
        """Give the device back. Called once, in the thread that ran :meth:`frames`."""
        ...


class FrameTaker(Protocol):
    """Receiver of a :class:`ServedSource`'s frames. For one thread at a time."""

    def has_room(self, timeout_s: float | None) -> bool:
        """Wait until :meth:`give` need not wait for room for the first frame; return whether it need not."""
        ...

    def give(self, frames: Sequence[Frame]) -> None:
        """Take frames over, each with a hold on its lease. Only after :meth:`has_room`."""
        ...


@runtime_checkable
class ServedSource(Source, Protocol):
    """A source whose frames are brought by threads of others, in which they are given on."""

    def serve(self, taker: FrameTaker, stop: threading.Event) -> None:
        """Give to ``taker`` what others bring, until the stream ends or ``stop`` is set; from then on, nothing."""
        ...

    def wake(self) -> None:
        """Wake a thread that waits here, so that it looks at ``stop``; called after it was set, from any thread."""
        ...


@runtime_checkable
class Stage(Protocol):
    """Step that turns one result into another, several, or none (a filter or a sink).

    A stage may declare its ``effort``; see :mod:`edgert.runtime.inline_loop`.
    """

    def open(self) -> None:
        """Take what the stage needs, in the thread that will call :meth:`process`."""
        ...

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Work on one result: the hot path. The frame's lease holds until this returns; retain it to keep it longer."""
        ...

    def close(self) -> None:
        """Finishes files and gives everything back. Called once if :meth:`open` was, also after an error."""
        ...


@runtime_checkable
class AsyncStage(Stage, Protocol):
    """A stage that begins work and gives the results out later: runs of a GPU, or frames that wait for a batch.

    It is called by one thread: :meth:`submit` while there is input and room, :meth:`collect` otherwise. ``process`` is
    both, for one result, and waits.

    Attributes:
        limit: the most runs that may be under way; no more is submitted before one is collected.
    """

    limit: int

    @property
    def in_flight(self) -> int:
        """Return how many runs were begun and not collected."""

    @property
    def is_ready(self) -> bool:
        """Return whether :meth:`collect` would give something out at once, asked after each :meth:`submit`."""

    def room(self) -> int:
        """Return how many results :meth:`submit` takes at a time, at least one."""

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        """Begin work on results, or keep them for a batch; never wait for the device.

        Args:
            results: at most :meth:`room`, whose pixels are read. Retain the leases of those that are read later.
            onward: what :meth:`collect` adds the records to: the same results, or the same without their pixels. Retain
                their leases, too.
        """

    def due_ns(self) -> int | None:
        """Return when to call :meth:`collect` if nothing comes, by the pipeline's clock; None while nothing is held."""

    def collect(self, wait: bool) -> list[Result]:
        """Return results that are done, oldest first, each with a hold on its lease.

        Args:
            wait: whether to begin what is held, and to wait for the oldest run.
        """

    def give_up(self) -> Sequence[Result]:
        """Return what is held after a failure, each with its hold. None of it is tried again."""
