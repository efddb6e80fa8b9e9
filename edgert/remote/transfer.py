"""A bundle to the board, and what was made of it back; both go on from where a lost connection broke them off."""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from edgert.errors import ArtifactError
from edgert.remote.link import Link, LinkError, Poll, link_error
from edgert.steps import Event, OnEvent
from edgert.units import format_bytes
from edgert.zip_archive import Member

# Trying again after a lost connection, with growing pauses, for a limited time.

Result = TypeVar("Result")


@dataclass(frozen=True)
class Retry:
    """How often a lost connection is tried again.

    Attributes:
        on_event: called for every loss.
        stop: ends the waiting when set.
        first_s, most_s: the pause before the first new try, and the longest; each is twice the one before.
        limit_s: pauses in a row, together, after which it is given up.
    """

    on_event: OnEvent
    stop: threading.Event
    first_s: float = 0.5
    most_s: float = 30.0
    limit_s: float = 900.0

    def run(self, attempt: Callable[[], Result], state: Callable[[], object]) -> Result:
        """What an attempt returns, however often the connection is lost; a new ``state`` begins the pauses anew.

        Raises:
            LinkError: the connection will not come back by itself, did not come back in time, or was lost when
                ``stop`` was set.
        """
        seen, pause_s, waited_s = state(), self.first_s, 0.0
        while True:
            try:
                return attempt()
            except LinkError as error:
                if not error.passing or self.stop.is_set() or waited_s >= self.limit_s:
                    raise
                if state() != seen:
                    seen, pause_s, waited_s = state(), self.first_s, 0.0
                self.on_event(Event("link", "", "note", detail=f"{error.what} ({error.why}); again in {pause_s:g} s"))
            self.stop.wait(pause_s)
            waited_s += pause_s
            pause_s = min(2 * pause_s, self.most_s)


_CHUNK_BYTES = 1 << 18
_EVERY_S = 0.1


@dataclass
class Transfer:
    """One file on its way, and how far it is. ``look`` is called every now and then, and ends it by raising."""

    link: Link
    retry: Retry
    poll: Poll
    at: int = 0
    _reported_s: float = 0.0

    def send(self, bundle: Path) -> str:
        """Sends a bundle unless it is there; returns its SHA-256. Blocks.

        Raises:
            LinkError: the connection cannot be had, or does not come back.
            ArtifactError: the board cannot store it.
        """
        digest, size_bytes = _sha256(bundle), bundle.stat().st_size
        began = time.perf_counter()
        self._event("send", "started")
        sent = self.retry.run(lambda: self._send(bundle, digest, size_bytes), lambda: self.at)
        detail = format_bytes(size_bytes) if sent else "is there already"
        self._event("send", "done" if sent else "cached", time.perf_counter() - began, detail)
        return digest

    def _send(self, bundle: Path, digest: str, size_bytes: int) -> bool:
        """One try; whether anything had to be sent."""
        with self.link.call("job", "receive", digest, str(size_bytes)) as call, bundle.open("rb") as file:
            answer = call.line(self.poll)
            if answer is not None:
                first = self.at = file.seek(answer["at"])
                while (chunk := file.read(_CHUNK_BYTES)) and call.write(chunk):
                    self.poll()
                    self._advance("send", len(chunk), size_bytes)
                if any(line.get("done") for line in call.lines(self.poll)):
                    return first < size_bytes
            call.check()
            raise link_error(self.link.address, "the board did not confirm the bundle")

    def fetch(self, run: str, wanted: Member, path: Path) -> None:
        """Fetches what a run made into a new file. Blocks.

        Raises:
            LinkError: the connection does not come back.
            ArtifactError: what came is not what the board made.
        """
        began = time.perf_counter()
        self._event("fetch", "started")
        path.touch()
        self.retry.run(lambda: self._fetch(run, wanted, path), lambda: self.at)
        if _sha256(path) != wanted.sha256:
            raise ArtifactError(
                "what the board made was damaged on its way",
                why=f"its SHA-256 is not {wanted.sha256[:16]}…",
                where=self.link.address,
                fix="build again: the board has it in its cache",
            )
        self._event("fetch", "done", time.perf_counter() - began, format_bytes(wanted.size_bytes))

    def _fetch(self, run: str, wanted: Member, path: Path) -> None:
        self.at = path.stat().st_size
        with path.open("ab") as file, self.link.call("job", "send", run, str(self.at)) as call:
            call.line(self.poll)
            for piece in call.raw(self.poll):
                file.write(piece)
                self._advance("fetch", len(piece), wanted.size_bytes)
        if self.at != wanted.size_bytes:
            raise link_error(self.link.address, f"{self.at} of {wanted.size_bytes} bytes came")

    def _advance(self, step: str, count: int, total: int) -> None:
        self.at += count
        if time.monotonic() - self._reported_s >= _EVERY_S:
            self._reported_s = time.monotonic()
            self.retry.on_event(Event(step, "", "progress", done=self.at, total=total))

    def _event(self, step: str, state: str, seconds: float = 0.0, detail: str = "") -> None:
        self.retry.on_event(Event(step, "", state, seconds, detail))  # type: ignore[arg-type]  # one of State's words


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()
