"""What is told while the engines of a bundle are compiled: events, one model after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from edgert.backend.chain import Skipped
from edgert.backend.tensorrt.trt_backend import Listener
from edgert.errors import EdgertError
from edgert.steps import Event, OnEvent

COMPILE, CHECK = "compile", "check"


@dataclass
class Ended:
    """How a step ended; filled in by who does it."""

    cached: bool = False
    detail: str = ""


class BuildEvents:
    """Turns what happens into events.

    Args:
        on_event: called for them; nobody by default.
    """

    def __init__(self, on_event: OnEvent | None = None) -> None:
        self._emit = on_event or (lambda event: None)
        self._model = ""

    @contextmanager
    def step(self, name: str, model: str) -> Iterator[Ended]:
        """A step from its beginning to its end; an error ends it as failed and goes on."""
        self._model, started, ended = model, time.perf_counter(), Ended()
        self._emit(Event(name, model, "started"))
        try:
            yield ended
        except EdgertError as error:
            self._emit(Event(name, model, "failed", time.perf_counter() - started, error.what))
            raise
        state = "cached" if ended.cached else "done"
        self._emit(Event(name, model, state, time.perf_counter() - started, ended.detail))  # type: ignore[arg-type]

    def note(self, text: str) -> None:
        """A line about the model that is being compiled."""
        self._emit(Event(COMPILE, self._model, "note", detail=text))

    def skipped(self, one: Skipped) -> None:
        """An engine that does not run a model, or any."""
        self._emit(Event(COMPILE, one.model, "skipped", detail=f"{one.engine}: {one.why}"))

    def refused(self, one: Skipped) -> None:
        """An engine that does not run one model; those that run none are told by whoever starts the pipeline."""
        if one.model:
            self.skipped(one)

    def listener(self, stop: threading.Event) -> Listener:
        """For the backend that compiles."""
        return Listener(self.note, self._progress, stop)

    def _progress(self, title: str, done: int, total: int) -> None:
        self._emit(Event(COMPILE, self._model, "progress", detail=title, done=done, total=total))
