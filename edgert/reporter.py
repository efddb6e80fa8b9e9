"""The progress of work that takes long, and how its caller ends it: one callback, ``on_progress``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

State = Literal["started", "progress", "done", "cached", "damaged", "skipped", "note", "failed"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A report of work that takes long.

    Attributes:
        step: the work: ``calibrate``, ``compile`` …
        model: the model it is about; empty for the whole pipeline.
        state: ``progress`` counts, ``note`` is a line worth showing. The steps of a build begin with ``started`` and
            end with ``done``, ``cached`` or ``failed``; ``damaged`` is a cache entry that was thrown away, and
            ``skipped`` a step that is not done here.
        seconds: how long a step took, once it ended.
        detail: one line for people.
        done, total: how much is done of how much, where ``state`` is ``progress``.
    """

    step: str
    model: str = ""
    state: State = "progress"
    seconds: float = 0.0
    detail: str = ""
    done: int = 0
    total: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data without what does not apply."""
        plain: dict[str, Any] = {"step": self.step, "model": self.model, "state": self.state}
        if self.state in ("done", "cached", "failed"):
            plain["seconds"] = round(self.seconds, 4)
        if self.state == "progress":
            plain |= {"done": self.done, "total": self.total}
        return plain | {"detail": self.detail} if self.detail else plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Progress | None:
        """Return what :meth:`to_json` made of a report of another process; None for other data."""
        if not isinstance(plain.get("step"), str) or plain.get("state") not in get_args(State):
            return None
        known = {name: plain[name] for name in ("state", "seconds", "detail", "done", "total") if name in plain}
        return cls(plain["step"], str(plain.get("model", "")), **known)


OnProgress = Callable[[Progress], object]
"""A function that is called with each report, from the thread that does the work.

What it raises cancels the work: files are left whole, what a later call can resume from is kept, and the exception
reaches the caller."""

Bar = Callable[[str, int, int], object]
"""A function that is called with the name of the work, how much of it is done, and how much there is."""


def counting(on_progress: OnProgress | None) -> Bar | None:
    """Return a function that reports work by its name and two numbers; None where nobody wants to know."""
    if on_progress is None:
        return None
    return lambda step, done, total: on_progress(Progress(step, done=done, total=total))


class Reporter:
    """Progress callback and stop event of a long job. An exception from the callback ends the job.

    Args:
        on_progress: the callback; None: progress is not reported.
        stop: an event that others set to end the work, such as the handler of a signal.
    """

    def __init__(self, on_progress: OnProgress | None = None, stop: threading.Event | None = None) -> None:
        self._on_progress, self.stop = on_progress, stop or threading.Event()
        self._error: BaseException | None = None

    def __call__(self, progress: Progress) -> None:
        """Call the callback; remember what it raises, and end the work."""
        if self._on_progress is None or self._error is not None:
            return
        try:
            self._on_progress(progress)
        except BaseException as error:  # noqa: BLE001 - raised by `ends`, once the work has ended as by Ctrl-C
            self._error = error
            self.stop.set()

    def count(self, step: str, done: int, total: int) -> None:
        """Report work by its name and two numbers."""
        self(Progress(step, done=done, total=total))

    def note(self, text: str, step: str = "") -> None:
        """Report a line worth showing."""
        self(Progress(step, state="note", detail=text))

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Raise what the callback raised, in place of the error that ended the block."""
        try:
            yield
        finally:
            if self._error is not None:
                raise self._error


def reporter_of(on_progress: OnProgress | None) -> Reporter:
    """Return a reporter to a callback; the callback itself where it is one, as the command line's."""
    return on_progress if isinstance(on_progress, Reporter) else Reporter(on_progress)
