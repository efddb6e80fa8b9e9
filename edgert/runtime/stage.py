"""The protocols of sources, stages and sinks. Each is called by one thread."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from edgert.runtime.frame import Frame
from edgert.runtime.records import Result


@dataclass(frozen=True, slots=True)
class SourceStats:
    """What a source skipped, lost and reopened, and how it is doing.

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
    """Makes frames.

    Attributes:
        live: whether frames are lost when nobody takes them; decides what a full queue does by default.
    """

    live: bool

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yields frames until the stream ends or ``stop`` is set; blocks in between, never longer than 0.5 s
        after ``stop``. Each frame's lease belongs to whoever takes it. Raises DeviceError or StageError."""
        ...

    def stats(self) -> SourceStats:
        """Totals so far; callable from any thread."""
        ...

    def close(self) -> None:
        """Gives the device back. Called once, in the thread that ran :meth:`frames`."""
        ...


@runtime_checkable
class BurstSource(Source, Protocol):
    """A source that has several frames at a time, such as a decoder's."""

    @property
    def at_hand(self) -> int:
        """How many frames come next without a wait; asked by the thread that runs :meth:`frames`."""
        ...


class FrameTaker(Protocol):
    """Where a :class:`ServedSource` puts its frames. For one thread at a time."""

    def has_room(self, timeout_s: float | None, frames: int = 1) -> bool:
        """Whether :meth:`give` will not wait for room for the first of so many; waits for that, without a timeout as
        long as it takes."""
        ...

    def give(self, frames: Sequence[Frame]) -> None:
        """Takes frames over, each with a hold on its lease. Only after :meth:`has_room`."""
        ...


@runtime_checkable
class ServedSource(Source, Protocol):
    """A source whose frames are brought by threads of others, in which they are given on."""

    def serve(self, taker: FrameTaker, stop: threading.Event) -> None:
        """Gives to ``taker`` what others bring, until the stream ends or ``stop`` is set; from then on, nothing."""
        ...

    def wake(self) -> None:
        """Has whoever waits here look at ``stop`` at once; called when it was set, from any thread."""
        ...


@runtime_checkable
class Stage(Protocol):
    """Turns one result into another, several, or none (a filter or a sink)."""

    def open(self) -> None:
        """Takes what it needs, in the thread that will call :meth:`process`."""
        ...

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """The hot path. The frame's lease holds until the call returns; retain it to keep it longer."""
        ...

    def close(self) -> None:
        """Finishes files and gives everything back. Called once if :meth:`open` was, also after an error."""
        ...


@runtime_checkable
class Batching(Stage, Protocol):
    """A stage that collects results to work on several together, but no longer than until :meth:`due_ns`."""

    def due_ns(self) -> int | None:
        """When :meth:`flush` is to be called if nothing else has come, by the pipeline's clock; at once if that has
        passed; None while nothing is held."""
        ...

    def flush(self, last: bool = False) -> Iterable[Result]:
        """Returns what must wait no longer. Called in the stage's thread: when it is due, and, ``last``, at the end
        of the input, where it returns everything."""
        ...

    def give_up(self) -> Sequence[Result]:
        """What it holds, after it failed: each with its hold, and none of them for another try."""
        ...


@runtime_checkable
class Gathering(Batching, Protocol):
    """A batching stage that takes several results at once, as :class:`~edgert.runtime.passing.Together`, however many
    came as one."""

    def room(self) -> int:
        """How many it takes before it passes something on, at least one."""
        ...
