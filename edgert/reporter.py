"""Progress of long work, and its cancellation by the caller: the callback ``on_progress``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

State = Literal["started", "progress", "done", "cached", "damaged", "skipped", "note", "failed"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A report on long work.

    Attributes:
        step: name of the work: ``calibrate``, ``compile`` …
        model: name of the model; empty for the complete pipeline.
        state: ``progress`` counts; ``note`` is a line to show. A step of a build begins with ``started`` and ends with
            ``done``, ``cached`` or ``failed``; ``damaged`` is a discarded cache entry, and ``skipped`` a step that is
            not done on this machine.
        seconds: duration of a step that has ended.
        detail: one line for people.
        done, total: finished and total amount of work, where ``state`` is ``progress``.
    """

    step: str
    model: str = ""
    state: State = "progress"
    seconds: float = 0.0
    detail: str = ""
    done: int = 0
    total: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without keys that do not apply."""
        plain: dict[str, Any] = {"step": self.step, "model": self.model, "state": self.state}
        if self.state in ("done", "cached", "failed"):
            plain["seconds"] = round(self.seconds, 4)
        if self.state == "progress":
            plain |= {"done": self.done, "total": self.total}
        return plain | {"detail": self.detail} if self.detail else plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Progress | None:
        """Return the report of another process from the data of :meth:`to_json`; None for other data."""
        if not isinstance(plain.get("step"), str) or plain.get("state") not in get_args(State):
            return None
        known = {name: plain[name] for name in ("state", "seconds", "detail", "done", "total") if name in plain}
        return cls(plain["step"], str(plain.get("model", "")), **known)


OnProgress = Callable[[Progress], object]
"""A function called with each report, from the thread that does the work.

If it raises, the work is canceled: no file is left incomplete, a later call can resume the work, and the exception
reaches the caller."""

Bar = Callable[[str, int, int], object]
"""A function called with the name of the work, and its finished and total amount."""


def counting(on_progress: OnProgress | None) -> Bar | None:
    """Return a function that reports progress by name and two numbers; None without a receiver."""
    if on_progress is None:
        return None
    return lambda step, done, total: on_progress(Progress(step, done=done, total=total))


class Reporter:
    """Progress callback and stop event of a long job. An exception from the callback ends the job.

    Args:
        on_progress: callback; None: progress is not reported.
        stop: event that ends the job, which others may set, such as a signal's handler.
    """

    def __init__(self, on_progress: OnProgress | None = None, stop: threading.Event | None = None) -> None:
        self._on_progress, self.stop = on_progress, stop or threading.Event()
        self._error: BaseException | None = None

    def __call__(self, progress: Progress) -> None:
        """Call the callback; if it raises, store the exception and end the job."""
        if self._on_progress is None or self._error is not None:
            return
        try:
            self._on_progress(progress)
        except BaseException as error:  # noqa: BLE001 - `ends` raises it after the job has ended
            self._error = error
            self.stop.set()

    def count(self, step: str, done: int, total: int) -> None:
        """Report progress by name and two numbers."""
        self(Progress(step, done=done, total=total))

    def note(self, text: str, step: str = "") -> None:
        """Report a line of text."""
        self(Progress(step, state="note", detail=text))

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Raise the callback's exception after the block, in place of the error that it caused."""
        try:
            yield
        finally:
            if self._error is not None:
                raise self._error


def reporter_of(on_progress: OnProgress | None) -> Reporter:
    """Return a reporter for a callback; the callback itself if it is a reporter."""
    return on_progress if isinstance(on_progress, Reporter) else Reporter(on_progress)
