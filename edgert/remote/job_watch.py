"""A job on the board, watched to its end over any number of connections, and what it added to the bundle."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgert.bundle.bundle import Bundle, open_bundle, save_bundle
from edgert.bundle.manifest import NAME, Manifest, parse_manifest
from edgert.errors import ArtifactError, BuildError, EdgertError, cause
from edgert.remote.link import Link, LinkError, link_error, read_line, remote_error
from edgert.remote.transfer import Retry
from edgert.steps import Event, Stopped
from edgert.zip_archive import Member, ZipContainer, check_content, member_of, pack

# What a board added to a bundle: its manifest and the members that are new, as an archive.
#
# Models are most of a bundle and stay as they are, so they do not travel back.


def pack_addition(before: Path, after: Path, path: Path) -> Member:
    """Writes what one bundle has and the one before has not; returns its size and digest.

    Raises:
        ArtifactError: a bundle is damaged, or the file cannot be written.
    """
    with open_bundle(before) as old, open_bundle(after) as new:
        content = {name: new.read(name) for name in _new_members(old.manifest, new.manifest)}
        content[NAME] = new.manifest.to_bytes()
    try:
        with path.open("w+b") as file:
            pack(content, file, NAME)
        return member_of(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"cannot write {str(path)!r}", why=cause(error), fix="free some space") from error


def add(before: Bundle, addition: Path, output: Path) -> tuple[Manifest, bool]:
    """Writes the bundle with what was added to it; returns what is in it then, and whether it had to be written.

    Raises:
        ArtifactError: the addition is damaged, or belongs to another bundle; or the bundle cannot be written.
    """
    with ZipContainer(addition) as archive:
        manifest = parse_manifest(archive.read(NAME), str(addition))
        members = {name: archive.read(name) for name in archive.sizes if name != NAME}
    for name, member in manifest.members.items():
        if name in members:
            check_content(name, members[name], member, str(addition))
        elif before.manifest.members.get(name) == member:
            members[name] = before.read(name)
        else:
            raise ArtifactError(
                "what the board sent belongs to another bundle",
                why=f"member {name!r} is not in {before.path}, or is another there",
                fix="build again",
            )
    return manifest, save_bundle(output, manifest, members)


def _new_members(old: Manifest, new: Manifest) -> list[str]:
    return [name for name, member in new.members.items() if old.members.get(name) != member]


# How a job ended: what is to be fetched, or the error it ended with.

_FULL_BYTES = 4 * 2**20
"""Space below which a build that failed is taken to have failed for it."""
_AGAIN = "build again: finished steps are cached"


def is_abandoned(end: Mapping[str, Any]) -> bool:
    """Whether it has no result: it was canceled, or its process was ended from outside."""
    return bool(end["canceled"]) or end["code"] is None


def result_of(end: Mapping[str, Any], error: Mapping[str, Any], address: str) -> Member:
    """What is to be fetched.

    Args:
        end: as ``edgert job follow`` reports it.
        error: as the compiler reported it; empty if none.

    Raises:
        EdgertError: the one that the compiler, or the packing of its result, ended with.
        Stopped: it was canceled.
        ArtifactError: the board's disk is full.
        BuildError: it crashed, or its process is gone.
    """
    if "result" in end:
        return Member(**end["result"])
    raise _error(end, error, address)


def _error(end: Mapping[str, Any], error: Mapping[str, Any], address: str) -> EdgertError:
    code, log = end["code"], end["log"]
    if end["canceled"]:
        return Stopped("the build was stopped", where=address, fix="run it again: finished steps are cached")
    if reported := end.get("error") or error:
        return remote_error(address, reported)
    if end["free_bytes"] < _FULL_BYTES:
        return ArtifactError(
            f"the disk of {address} is full",
            why=f"{end['free_bytes']} bytes are free; the build ended with: {log or 'nothing'}",
            where=address,
            fix="free some space there, or point EDGERT_CACHE at another disk",
        )
    if code is None:
        why = "its process is gone without an error: it was killed, or the board was restarted"
        return BuildError(f"the build on {address} broke off", why=_with(why, log), where=address, fix=_AGAIN)
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"failed with exit code {code}"
    return BuildError(f"edgert {how} on {address}", why=log or "it wrote nothing", where=address, fix=_AGAIN)


def _with(why: str, log: str) -> str:
    return f"{why}; its log ends with:\n{log}" if log else why


@dataclass
class Watch:
    """Passes on a run's events as if they happened here.

    Attributes:
        joined: another build started it, and only that one cancels it.
        at: how much of its events is known.
        error: that the compiler reported, if any.
        summary: its last line, once it came.
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
        """How it ended, as ``edgert job follow`` reports it. Blocks.

        Raises:
            LinkError: the connection does not come back; the job goes on.
            Stopped: it is another's job, and this build was stopped.
        """
        try:
            return self.retry.run(self._once, lambda: self.at)
        except LinkError as error:
            error.fix += "; the job goes on there: the same command, once more, takes it up"
            raise

    def _once(self) -> Mapping[str, Any]:
        with self.link.call("job", "follow", self.run, str(self.at)) as call:
            for content in call.lines(self._poll):
                self.at = content["at"]
                if "end" in content:
                    end: Mapping[str, Any] = content["end"]
                    return end
                if "text" in content:
                    self._pass_on(content["text"])
        raise link_error(self.link.address, "the board stopped sending events")

    def _pass_on(self, text: str) -> None:
        content = read_line(text.encode())
        if content is None:
            return
        if "error" in content:
            self.error = content["error"]
        elif "bundle" in content:
            self.summary = content
        event = Event.from_json(content)
        if event is not None:
            self.retry.on_event(event)

    def _poll(self) -> None:
        """Ends our job when we are to stop; another's is only left."""
        if not self.retry.stop.is_set() or self._canceled:
            return
        if self.joined:
            raise Stopped(
                "the build was stopped",
                why="another build of the same bundle goes on there, which this one had joined",
                where=self.link.address,
            )
        self.link.ask("job", "cancel", self.run)
        self._canceled = True
