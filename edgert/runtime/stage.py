"""Protocols of sources, stages and sinks. One thread calls each object."""

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
        skipped: number of corrupt packets or files that gave no frame.
        reconnects: number of times that a live stream was opened again.
        lost: number of missing frames, from gaps in the camera's numbering.
        up: whether a camera delivers frames; None for other sources, or before the start.
        state_s: seconds since ``up`` changed.
        frame_age_s: seconds since the last frame arrived; None before the first.
        reason: why no frames arrive; empty while they do.
        ended: whether the stream reached its end, which is not a failure.
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
        live: whether frames that are not read in time are lost; sets the default drop policy of queues.
    """

    live: bool

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yield frames until the stream ends or ``stop`` is set; block in between, at most 0.5 s after ``stop``.

        Each frame's lease belongs to the consumer. Raises DeviceError or StageError.
        """

    def stats(self) -> SourceStats:
        """Return totals since the start. Callable from any thread."""

    def close(self) -> None:
        """Release the device. Called once, in the thread that ran :meth:`frames`."""


class FrameTaker(Protocol):
    """Receiver of the frames of a :class:`ServedSource`. For one thread at a time."""

    def has_room(self, timeout_s: float | None) -> bool:
        """Wait until :meth:`give` has room for a frame; return whether it has."""

    def give(self, frames: Sequence[Frame]) -> None:
        """Receive frames, each with a hold on its lease. Call it only after :meth:`has_room`."""


@runtime_checkable
class ServedSource(Source, Protocol):
    """A source whose frames are submitted by other threads, which also pass them on."""

    def serve(self, taker: FrameTaker, stop: threading.Event) -> None:
        """Pass submitted frames to ``taker`` until the stream ends or ``stop`` is set, and none after that."""

    def wake(self) -> None:
        """Wake a thread that waits in :meth:`serve`. Called from any thread after ``stop`` was set."""


@runtime_checkable
class Stage(Protocol):
    """A step that turns one result into another one, several, or none (a filter or a sink).

    A stage may declare its ``effort``; see :mod:`edgert.runtime.inline_loop`.
    """

    def open(self) -> None:
        """Allocate what the stage needs, in the thread that will call :meth:`process`."""

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Process one result, on the hot path. The frame is valid until this returns; retain its lease to keep it."""

    def close(self) -> None:
        """Finish files and release all resources. Called once after :meth:`open`, also after an error."""


class SimpleStage:
    """Base of a :class:`Stage` without resources; override :meth:`process`, and others where needed."""

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@runtime_checkable
class DisplayStage(Stage, Protocol):
    """A stage that keeps showing the newest results after :meth:`process` returns."""

    def forget(self, name: str) -> None:
        """Stop showing results of a source or stage that was removed or replaced. Callable from any thread."""


@runtime_checkable
class AsyncStage(Stage, Protocol):
    """A stage that returns results later than it receives them: runs on a GPU, or frames that wait for a batch.

    One thread calls it: :meth:`submit` while there is input and room, else :meth:`collect`. ``process`` does both for
    one result, and waits.

    Attributes:
        limit: maximum number of runs in flight; at the limit, a run is collected before the next submit.
    """

    limit: int

    @property
    def in_flight(self) -> int:
        """Return the number of runs that were started and not yet collected."""

    @property
    def is_ready(self) -> bool:
        """Return whether :meth:`collect` would return results without waiting. Read after each :meth:`submit`."""

    def room(self) -> int:
        """Return the maximum number of results for one :meth:`submit`, at least one."""

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        """Start work on results, or keep them for a batch. Never waits for the device.

        Args:
            results: at most :meth:`room` results, whose pixels are read. Retain the leases of those that are read
                after the call.
            onward: the same results in the form that is passed on, with or without pixels. :meth:`collect` adds
                records to them. Retain their leases, too.
        """

    def due_ns(self) -> int | None:
        """Return when to call :meth:`collect` if no input comes, by the pipeline's clock; None if nothing is held."""

    def collect(self, wait: bool) -> list[Result]:
        """Return finished results, oldest first, each with a hold on its lease.

        Args:
            wait: whether to start a run of held results and wait for the oldest run.
        """

    def give_up(self) -> Sequence[Result]:
        """Return all held results after a failure, each with its hold. They are not processed again."""
