"""Steps done in order: from the cache where nothing they depend on has changed, else now, checked, and kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from edgert.compiler.cache import StepCache
from edgert.compiler.event import Event, State, Tell
from edgert.compiler.step import Product, Report, Step
from edgert.errors import BuildError, EdgertError

Result = TypeVar("Result")
_EVERY_S = 0.1  # between two events of progress


class Stopped(BuildError):  # noqa: N818 - reads as what it is
    """The build was asked to end, and ended between two steps."""


class Runner:
    """Does steps.

    Args:
        cache: where products are kept.
        tell: told of everything that happens; may be called from several threads at once.
        stop: ends the build before its next step, or where a step looks at it.
    """

    def __init__(self, cache: StepCache, tell: Tell, stop: threading.Event | None = None) -> None:
        self.cache, self.tell, self.stop = cache, tell, stop or threading.Event()

    def do(self, step: Step) -> Product:
        """The step's product.

        Raises:
            EdgertError: the step failed, its promise is not kept, or the build was stopped.
        """
        if self.stop.is_set():
            raise Stopped("the build was stopped", fix="run it again: finished steps are kept")
        started = time.perf_counter()
        self._tell(step, "started")
        kept = self.cache.get(step.key, lambda text: self._tell(step, "damaged", detail=text))
        if kept is not None and step.holds(kept):
            self._tell(step, "cached", time.perf_counter() - started, kept.evidence)
            return kept
        try:
            product = self._made(step)
        except EdgertError as error:
            self._tell(step, "failed", time.perf_counter() - started, error.what)
            raise
        self._tell(step, "done", time.perf_counter() - started, product.evidence)
        return product

    def _made(self, step: Step) -> Product:
        files = step.make(_Told(step, self.tell))
        product = Product(files, step.promise(files))
        self.cache.put(step.key, product)
        return product

    def _tell(
        self,
        step: Step,
        state: State,
        seconds: float = 0.0,
        detail: str = "",
    ) -> None:
        self.tell(Event(step.name, step.subject, state, seconds, detail))


@dataclass
class _Told(Report):
    """Passes on what a step tells, progress not too often."""

    step: Step
    tell: Tell
    _last_s: float = field(default=0.0)

    def progress(self, done: int, total: int, detail: str = "") -> None:
        now = time.monotonic()
        if done >= total or now - self._last_s >= _EVERY_S:
            self._last_s = now
            self.tell(Event(self.step.name, self.step.subject, "progress", detail=detail, done=done, total=total))

    def note(self, text: str) -> None:
        self.tell(Event(self.step.name, self.step.subject, "note", detail=text))


def side_by_side(
    work: Callable[[str], Result], names: Iterable[str], workers: int, stop: threading.Event
) -> Mapping[str, Result]:
    """Name → result, several at a time. The first error, in the order of the names, ends the others at their next
    step and is raised once they have ended."""
    names = list(names)
    if workers <= 1 or len(names) <= 1:
        return {name: work(name) for name in names}

    def guarded(name: str) -> Result:
        try:
            return work(name)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(workers, thread_name_prefix="build") as pool:
        futures = {name: pool.submit(guarded, name) for name in names}
    errors = [error for future in futures.values() if (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
    return {name: future.result() for name, future in futures.items()}
