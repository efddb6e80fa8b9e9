"""Build steps: from the cache where nothing they depend on has changed, else done, checked, and cached."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from edgert._version import __version__
from edgert.errors import ArtifactError, BuildError, EdgertError, raised_as
from edgert.files import FileStore
from edgert.installation import checkout
from edgert.reporter import OnProgress, Progress, State
from edgert.zip_archive import ZipContainer, pack

# A step of a build, and its product.


@dataclass(frozen=True)
class Product:
    """Output of a step.

    Attributes:
        files: name → content.
        summary: line on how the product was checked.
    """

    files: Mapping[str, bytes]
    summary: str = ""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the names and contents of the files."""
        return digest_of({name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()})

    def json(self, name: str) -> Any:
        """Return a file as plain data. Raises ArtifactError if the step made no such file, or it is no JSON."""
        what, fix = f"a step of the build left no {name!r}", "clear the cache: EDGERT_CACHE"
        with raised_as(ArtifactError, what, of=(KeyError, ValueError), fix=fix):
            return json.loads(self.files[name])


@dataclass
class Report:
    """Events and rate-limited progress of a running step."""

    step: Step
    on_progress: OnProgress
    _last_s: float = 0.0

    def progress(self, done: int, total: int, detail: str = "") -> None:
        """Report the finished and total amount of work."""
        now = time.monotonic()
        if done >= total or now - self._last_s >= _PROGRESS_PERIOD_S:
            self._last_s = now
            self.on_progress(
                Progress(self.step.name, self.step.model, "progress", detail=detail, done=done, total=total)
            )

    def note(self, text: str) -> None:
        """Report a line of text."""
        self.on_progress(Progress(self.step.name, self.step.model, "note", detail=text))


@dataclass(frozen=True)
class Step:
    """Work that is done once for equal facts.

    Attributes:
        name: name of the step, such as ``calibrate``.
        model: name of the model; empty for a step of the complete pipeline.
        recipe: number that is raised when the step's code makes other files from the same facts.
        facts: everything that the product depends on, as plain data; files as their digests.
        make: function that does the work and returns the files.
        promise: function that checks the files and returns a line on that; it raises if the check fails.
        holds: function that returns whether a cached product is still valid, where facts alone do not decide that.
    """

    name: str
    model: str
    recipe: int
    facts: Any
    make: Callable[[Report], Mapping[str, bytes]]
    promise: Callable[[Mapping[str, bytes]], str] = field(default=lambda files: "")
    holds: Callable[[Product], bool] = field(default=lambda product: True)

    @cached_property
    def key(self) -> str:
        """Key of the product in the cache; it does not depend on the model's name."""
        return digest_of([self.name, self.recipe, code_version(), self.facts])[:40]


@lru_cache(maxsize=1)
def code_version() -> str:
    """Return this edgert's version; in a checkout, with a digest of the code."""
    root = checkout()
    if root is None:
        return __version__
    found = hashlib.sha256()
    for package in ("dla", "edgert"):
        for path in sorted((root / package).rglob("*.py")):
            found.update(path.read_bytes())
    return f"{__version__}+{found.hexdigest()[:16]}"


def digest_of(data: Any) -> str:
    """Return the SHA-256 of plain data in hex."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, allow_nan=False).encode()).hexdigest()


def to_json(data: Any) -> bytes:
    """Return plain data as the bytes of a JSON file; equal data give equal bytes."""
    return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


# Cache of products on disk: one archive each, written atomically and checked when read.

LIMIT_BYTES = 16 * 2**30
_SUMMARY = "summary.txt"
_FILES = "files/"


class StepCache:
    """A folder of products. Several processes may use it at once, and never see an incomplete product.

    Args:
        folder: folder, which the first write creates.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str, warn: Callable[[str], object]) -> Product | None:
        """Return the product of a key; None if there is none, or after a warning if it is damaged."""
        packed = FileStore(self.folder, LIMIT_BYTES, warn).get(key)
        if packed is None:
            return None
        try:
            with ZipContainer(Path(key), io.BytesIO(packed)) as archive:
                content = {name: archive.read(name) for name in archive.sizes}
        except ArtifactError as error:  # written by another edgert
            warn(f"cache entry {key} of {self.folder} cannot be used ({error.why}); it is made afresh")
            return None
        summary = content.pop(_SUMMARY, b"").decode("utf-8", "replace")
        return Product({name.removeprefix(_FILES): data for name, data in content.items()}, summary)

    def put(self, key: str, product: Product) -> None:
        """Store a product. Raises ArtifactError when it cannot be written."""
        content = {f"{_FILES}{name}": data for name, data in product.files.items()}
        archive = io.BytesIO()
        pack({**content, _SUMMARY: product.summary.encode()}, archive)
        FileStore(self.folder, LIMIT_BYTES).put(key, archive.getvalue())


Result = TypeVar("Result")
_PROGRESS_PERIOD_S = 0.1  # least time between two events of progress


class Stopped(BuildError):  # noqa: N818 - it is no failure
    """The build was stopped between two steps."""


class Runner:
    """Executor of steps.

    Args:
        cache: cache of products.
        on_progress: function called for every event, possibly from several threads at once.
        stop: event that ends the build before its next step, or within a step that checks it.
    """

    def __init__(self, cache: StepCache, on_progress: OnProgress, stop: threading.Event | None = None) -> None:
        self.cache, self.on_progress, self.stop = cache, on_progress, stop or threading.Event()

    def do(self, step: Step) -> Product:
        """Return the step's product.

        Raises:
            EdgertError: the step or the check of its product failed, or the build was stopped.
        """
        if self.stop.is_set():
            raise Stopped("the build was stopped", fix="run it again: finished steps are cached")
        started = time.perf_counter()
        self._emit(step, "started")
        cached = self.cache.get(step.key, lambda text: self._emit(step, "damaged", detail=text))
        if cached is not None and step.holds(cached):
            self._emit(step, "cached", time.perf_counter() - started, cached.summary)
            return cached
        try:
            files = step.make(Report(step, self.on_progress))
            product = Product(files, step.promise(files))
            self.cache.put(step.key, product)
        except EdgertError as error:
            self._emit(step, "failed", time.perf_counter() - started, error.what)
            raise
        self._emit(step, "done", time.perf_counter() - started, product.summary)
        return product

    def _emit(self, step: Step, state: State, seconds: float = 0.0, detail: str = "") -> None:
        self.on_progress(Progress(step.name, step.model, state, seconds, detail))


def run_in_parallel(
    work: Callable[[str], Result], names: Iterable[str], workers: int, stop: threading.Event
) -> Mapping[str, Result]:
    """Return name → result of ``work``, several at a time.

    After an error, the others end at their next step; then the first error in the order of the names is raised.
    """
    names = list(names)
    if workers <= 1 or len(names) <= 1:
        return {name: work(name) for name in names}
    with ThreadPoolExecutor(workers, thread_name_prefix="build") as pool:
        futures = {name: pool.submit(work, name) for name in names}
        for future in futures.values():
            future.add_done_callback(lambda done: stop.set() if done.exception() is not None else None)
    errors = [error for future in futures.values() if (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
    return {name: future.result() for name, future in futures.items()}
