"""The files of jobs on the board: bundles by their digest, and a folder for each run."""

import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import ArtifactError, cause
from edgert.files import cache_folder

BUNDLE_LIFETIME_S = 7 * 86400.0
"""How long a bundle stays after it was last used."""
RUN_LIFETIME_S = 3600.0
"""How long a job's files stay: longer than a workstation that lost its link tries to come back."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RUN = re.compile(r"([0-9a-f]{64})\.[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Content:
    """A bundle, known by the SHA-256 of its bytes; ``lock`` is held while it is received, ``work`` by its job."""

    digest: str
    folder: Path

    @property
    def bundle(self) -> Path:
        """The bundle, once it is here whole."""
        return self.folder / "bundle.edgert"

    @property
    def part(self) -> Path:
        """As much of it as has come so far."""
        return self.folder / "bundle.part"

    @property
    def lock(self) -> Path:
        return self.folder / "receive.lock"

    @property
    def work(self) -> Path:
        """Held by the job; its text names the run."""
        return self.folder / "work.lock"


@dataclass(frozen=True, slots=True)
class Run:
    """One job's files.

    Attributes:
        name: content's digest, a dot, and the twelve hexadecimal digits that the workstation gave it.
    """

    name: str
    content: Content

    @property
    def folder(self) -> Path:
        return self.content.folder / self.name

    @property
    def events(self) -> Path:
        """What the compiler wrote on standard output: a JSON object per line."""
        return self.folder / "events.jsonl"

    @property
    def log(self) -> Path:
        """What it wrote on standard error."""
        return self.folder / "log.txt"

    @property
    def output(self) -> Path:
        """The bundle with its engines."""
        return self.folder / "out.edgert"

    @property
    def addition(self) -> Path:
        """What the workstation does not have of it."""
        return self.folder / "addition.zip"

    @property
    def canceled(self) -> Path:
        """Exists once it was asked to end."""
        return self.folder / "canceled"

    @property
    def strict(self) -> Path:
        """Exists where an engine that would be skipped is an error."""
        return self.folder / "strict"

    @property
    def process(self) -> Path:
        """Process id of the job."""
        return self.folder / "pid"

    @property
    def end(self) -> Path:
        """How it ended; exists once it has."""
        return self.folder / "end.json"


def content_of(digest: str) -> Content:
    """Raises ArtifactError for anything but a SHA-256 in hex."""
    if not _DIGEST.fullmatch(digest):
        raise ArtifactError(f"{digest!r} names no content", why="it is no SHA-256 in hexadecimal digits")
    return Content(digest, _root() / digest)


def run_of(name: str) -> Run:
    """Raises ArtifactError for what names no run."""
    match = _RUN.fullmatch(name)
    if match is None:
        raise ArtifactError(f"{name!r} names no job", why="it is not what edgert job start answered")
    return Run(name, content_of(match[1]))


def make_folder(run: Run) -> None:
    """Makes a run's folder. Raises ArtifactError where it cannot be made."""
    try:
        run.folder.mkdir(parents=True)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {str(run.folder)!r}", why=cause(error), fix="free some space on the board"
        ) from error


def known_run(name: str) -> Run:
    """A run that was started, and whose files are still here. Raises ArtifactError."""
    run = run_of(name)
    if not run.folder.is_dir():
        raise ArtifactError(
            "the board has no such job",
            why=f"its files are not in {run.content.folder}: they were removed, or EDGERT_CACHE is another now",
            fix="build again: what was compiled is in the board's cache",
        )
    return run


def is_run(name: str) -> bool:
    """Whether a text is a run's name."""
    return _RUN.fullmatch(name) is not None


def sweep(content: Content) -> None:
    """Removes what nothing needs any more: other bundles, and runs of this one, none of which may be alive."""
    for folder in content.folder.parent.glob("*"):
        if folder != content.folder and _age_s(folder) > BUNDLE_LIFETIME_S:
            shutil.rmtree(folder, ignore_errors=True)
    for folder in content.folder.glob(f"{content.digest}.*"):
        if _age_s(folder) > RUN_LIFETIME_S:
            shutil.rmtree(folder, ignore_errors=True)


def _age_s(folder: Path) -> float:
    """Since something in a folder was last written."""
    return time.time() - max(path.stat().st_mtime for path in (folder, *folder.glob("*")))


def _root() -> Path:
    return cache_folder() / "remote"
