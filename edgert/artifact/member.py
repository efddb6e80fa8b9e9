"""The parts of a bundle: what they may be called, and how each is known to be whole."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from edgert.errors import ArtifactError

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_LONGEST = 240
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10))})
"""Names of devices on Windows, whatever stands behind their dot:
https://learn.microsoft.com/windows/win32/fileio/naming-a-file."""


@dataclass(frozen=True, slots=True)
class Member:
    """How large a member is, and the SHA-256 of its bytes in hex."""

    size_bytes: int
    sha256: str


def member_of(content: bytes) -> Member:
    """The record of some bytes."""
    return Member(len(content), hashlib.sha256(content).hexdigest())


def check_content(path: str, content: bytes, member: Member, where: str = "") -> None:
    """Raises ArtifactError when the bytes are not those that the record speaks of."""
    if member_of(content) != member:
        raise ArtifactError(
            f"member {path!r} of the bundle is damaged",
            why=f"{len(content)} bytes that are not the {member.size_bytes} bytes it was made with",
            where=where,
            fix="build the bundle again, or copy it again",
        )


def check_paths(paths: Iterable[str], where: str = "") -> None:
    """Holds members' paths to what every system can hold as files below one folder.

    Raises:
        ArtifactError: a path is absolute, climbs out, is empty, too long or of other characters than letters, digits,
            ``_ . -``; or it stands twice, differs from another only in case, or is a file here and a folder there.
    """
    seen: dict[str, str] = {}
    for path in paths:
        _check_path(path, where)
        other = seen.setdefault(path.lower(), path)
        if other is not path:
            raise _refused(path, f"another member is called {other!r}", where)
    for folded, path in seen.items():
        above = folded.rpartition("/")[0]
        while above:
            if above in seen:
                raise _refused(path, f"{seen[above]!r} is a file, not a folder", where)
            above = above.rpartition("/")[0]


def _check_path(path: str, where: str) -> None:
    parts = path.split("/")
    if len(path) > _LONGEST:
        raise _refused(f"{path[:40]}…", f"it has {len(path)} characters, {_LONGEST} at most", where)
    for part in parts:
        if not _PART.fullmatch(part) or part.endswith(".") or part.split(".")[0].lower() in _RESERVED:
            raise _refused(path, "it is no plain path below the bundle's own folder", where)


def _refused(path: str, why: str, where: str) -> ArtifactError:
    return ArtifactError(
        f"the bundle has a member {path!r}", why=why, where=where, fix="do not use this bundle: edgert makes none such"
    )
