"""The workstation's side of a job on the board: send its bundle, watch it, and fetch the new members.

Each step resumes after a lost connection.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from edgert import files, units
from edgert.bundle.bundle import Bundle, open_bundle, save_bundle
from edgert.bundle.manifest import NAME, Manifest, parse_manifest
from edgert.errors import ArtifactError, BuildError, cause
from edgert.remote.link import CHUNK_BYTES, Link, LinkError, Poll, link_error, read_line, remote_error
from edgert.reporter import OnProgress, Progress
from edgert.steps import Stopped
from edgert.zip_archive import Member, ZipContainer, check_content, member_of, pack

# Retries after a lost connection, with growing pauses, for a limited time.

Result = TypeVar("Result")


@dataclass(frozen=True)
class Retry:
    """Retries of a lost connection, with pauses from ``first_s``, doubled up to ``most_s``, for ``limit_s``."""

    on_progress: OnProgress
    stop: threading.Event
    first_s: float = 0.5
    most_s: float = 30.0
    limit_s: float = 900.0

    def run(self, attempt: Callable[[], Result], state: Callable[[], object]) -> Result:
        """Call ``attempt`` until the connection is not lost, and return its result.

        After progress, shown by another ``state()``, pauses are short again. Raises LinkError for a failure that is
        permanent or lasts too long.
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
                self.on_progress(
                    Progress("link", "", "note", detail=f"{error.what} ({error.why}); again in {pause_s:g} s")
                )
            self.stop.wait(pause_s)
            waited_s += pause_s
            pause_s = min(2 * pause_s, self.most_s)


_REPORT_EVERY_S = 0.1


@dataclass
class Transfer:
    """Transfer of a file, with its progress; ``poll`` is called regularly, and an error it raises ends the transfer."""

    link: Link
    retry: Retry
    poll: Poll
    at: int = 0
    _reported_s: float = 0.0

    def send(self, bundle: Path) -> str:
        """Send a bundle unless the board has it, and return its SHA-256. Blocks until done."""
        digest, size_bytes = files.digest_of_file(bundle), bundle.stat().st_size
        began = time.perf_counter()
        self._event("send", "started")
        sent = self.retry.run(lambda: self._send(bundle, digest, size_bytes), lambda: self.at)
        detail = units.format_bytes(size_bytes) if sent else "the board has it already"
        self._event("send", "done" if sent else "cached", time.perf_counter() - began, detail)
        return digest

    def _send(self, bundle: Path, digest: str, size_bytes: int) -> bool:
        """Send the bundle in one attempt, and return whether anything was sent."""
        with self.link.call("job", "receive", digest, str(size_bytes)) as call, bundle.open("rb") as file:
            answer = call.line(self.poll)
            if answer is not None:
                first = self.at = file.seek(answer["at"])
                while (chunk := file.read(CHUNK_BYTES)) and call.write(chunk):
                    self.poll()
                    self._advance("send", len(chunk), size_bytes)
                if any(line.get("done") for line in call.lines(self.poll)):
                    return first < size_bytes
            call.check()
            raise link_error(self.link.address, "the board did not confirm the bundle")

    def fetch(self, run: str, wanted: Member, path: Path) -> None:
        """Fetch the result of a run into a new file. Blocks until done. Raises ArtifactError: it was damaged."""
        began = time.perf_counter()
        self._event("fetch", "started")
        path.touch()
        self.retry.run(lambda: self._fetch(run, wanted, path), lambda: self.at)
        if files.digest_of_file(path) != wanted.sha256:
            raise ArtifactError(
                "the board's result was damaged during the transfer",
                why=f"its SHA-256 is not {wanted.sha256[:16]}…",
                where=self.link.address,
                fix="build again: the board has it in its cache",
            )
        self._event("fetch", "done", time.perf_counter() - began, units.format_bytes(wanted.size_bytes))

    def _fetch(self, run: str, wanted: Member, path: Path) -> None:
        self.at = path.stat().st_size
        with path.open("ab") as file, self.link.call("job", "send", run, str(self.at)) as call:
            call.line(self.poll)
            for piece in call.raw(self.poll):
                file.write(piece)
                self._advance("fetch", len(piece), wanted.size_bytes)
                if self.at > wanted.size_bytes:  # its digest is wrong, and it may never end
                    return
        if self.at != wanted.size_bytes:
            raise link_error(self.link.address, f"{self.at} of {wanted.size_bytes} bytes came")

    def _advance(self, step: str, count: int, total: int) -> None:
        self.at += count
        if time.monotonic() - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            self.retry.on_progress(Progress(step, "", "progress", done=self.at, total=total))

    def _event(self, step: str, state: str, seconds: float = 0.0, detail: str = "") -> None:
        self.retry.on_progress(Progress(step, "", state, seconds, detail))  # type: ignore[arg-type]  # one of State's words


# The additions of a board to a bundle: the manifest and the new members, as an archive.
#
# Models are the largest part of a bundle and do not change, so they are not sent back.


def pack_addition(before: Path, after: Path, path: Path) -> Member:
    """Write the members that a bundle has, but its predecessor lacks, to an archive; return its size and digest."""
    with open_bundle(before) as old, open_bundle(after) as new:
        known = old.manifest.members
        content = {name: new.read(name) for name, member in new.manifest.members.items() if known.get(name) != member}
        content[NAME] = new.manifest.to_bytes()
    try:
        with path.open("w+b") as file:
            pack(content, file, NAME)
        return member_of(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"cannot write {str(path)!r}", why=cause(error), fix="free some space") from error


def add_engines(before: Bundle, addition: Path, output: Path) -> tuple[Manifest, bool]:
    """Write the bundle with the additions; return its manifest, and whether it was written.

    Raises ArtifactError for an addition that is damaged or has more than the engines of one board.
    """
    with ZipContainer(addition) as archive:
        manifest = parse_manifest(archive.read(NAME), str(addition))
        members = {name: archive.read(name) for name in archive.sizes if name != NAME}
    _check_engines_only(before.manifest, manifest)
    for name, member in manifest.members.items():
        if name in members:
            check_content(name, members[name], member, str(addition))
        elif before.manifest.members.get(name) == member:
            members[name] = before.read(name)
        else:
            raise ArtifactError(
                "the board's answer is not complete",
                why=f"member {name!r} is neither in it nor in {before.path}",
                fix="build again",
            )
    signature = before.signature if manifest == before.manifest else b""
    return manifest, save_bundle(output, manifest, members, signature=signature)


def _check_engines_only(sent: Manifest, back: Manifest) -> None:
    """Check an answer, which will be signed. Raises ArtifactError: it changed more than one board's engines."""
    targets = [one for one in {**sent.compiled, **back.compiled} if sent.compiled.get(one) != back.compiled.get(one)]
    engines = {path for one in targets if one in sent.compiled for path in sent.compiled[one].members}
    changed = sorted(name for name in sent.members.keys() - engines if sent.members[name] != back.members.get(name))
    others = back.model_copy(update={"compiled": sent.compiled, "members": sent.members})
    if len(targets) > 1 or changed or others != sent:
        what = f"member {changed[0]!r}" if changed else "the manifest" if others != sent else "engines of other boards"
        why = f"it changed {what}; a board may add only its own engines"
        raise ArtifactError("the board's answer is refused", why=why, fix="find out who answers there, and build again")


# The end of a job: the file to fetch, or an error.

_DISK_FULL_BYTES = 4 * 2**20
"""Free space below which a failed build counts as failed for lack of space."""
_BUILD_AGAIN = "build again: finished steps are cached"


def is_abandoned(end: Mapping[str, Any]) -> bool:
    """Return whether a job has no result because it was canceled or its process was killed."""
    return bool(end["canceled"]) or end["code"] is None


def result_member(end: Mapping[str, Any], error: Mapping[str, Any], address: str) -> Member:
    """Return the file to fetch, given the end that ``edgert job follow`` reports, and the compiler's error if any.

    Raises the reported error, or one that says how the job ended.
    """
    code, log = end["code"], end["log"]
    if "result" in end:
        return Member(**end["result"])
    if end["canceled"]:
        raise Stopped("the build was stopped", where=address, fix="run it again: finished steps are cached")
    if reported := end.get("error") or error:
        raise remote_error(address, reported)
    if end["free_bytes"] < _DISK_FULL_BYTES:
        raise ArtifactError(
            f"the disk of {address} is full",
            why=f"{end['free_bytes']} bytes are free; the build ended with: {log or 'nothing'}",
            where=address,
            fix="free some space there, or point EDGERT_CACHE at another disk",
        )
    if code is None:
        why = "its process ended without an exit code: it was killed, or the board restarted"
        why += f"; its log ends with:\n{log}" if log else ""
        raise BuildError(f"the build on {address} was interrupted", why=why, where=address, fix=_BUILD_AGAIN)
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"failed with exit code {code}"
    raise BuildError(f"edgert {how} on {address}", why=log or "it wrote nothing", where=address, fix=_BUILD_AGAIN)


@dataclass
class Watch:
    """A watched run, whose events are reported like those of this machine.

    Of a ``joined`` run, another build is the only one to cancel it. Events are read up to the offset ``at``. ``error``
    is the compiler's; ``summary`` is its last line.
    """

    link: Link
    run: str
    joined: bool
    retry: Retry
    at: int = 0
    error: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    _canceled: bool = False

    def to_end(self) -> Mapping[str, Any]:
        """Watch the run until it ends, and return the end that ``edgert job follow`` reports. Blocks until then.

        Raises Stopped where this build was stopped, and had joined another build's job.
        """
        try:
            return self.retry.run(self._follow_once, lambda: self.at)
        except LinkError as error:
            error.fix += "; the job goes on there: repeat the same command to join it"
            raise

    def _follow_once(self) -> Mapping[str, Any]:
        with self.link.call("job", "follow", self.run, str(self.at)) as call:
            for content in call.lines(self._poll):
                self.at = content["at"]
                if "end" in content:
                    end: Mapping[str, Any] = content["end"]
                    return end
                line = read_line(content.get("text", "").encode()) or {}  # lines that are not JSON are ignored
                self.error = line.get("error", self.error)
                self.summary = line if "bundle" in line else self.summary
                event = Progress.from_json(line)
                if event is not None:
                    self.retry.on_progress(event)
        raise link_error(self.link.address, "the board stopped sending events")

    def _poll(self) -> None:
        """Cancel a job of this build if a stop is requested; raise Stopped if it is a job of another build."""
        if not self.retry.stop.is_set() or self._canceled:
            return
        if self.joined:
            raise Stopped(
                "the build was stopped",
                why="another build of the same bundle continues there; this one had joined it",
                where=self.link.address,
            )
        self.link.ask("job", "cancel", self.run)
        self._canceled = True
