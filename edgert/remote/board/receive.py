"""A bundle on its way in: from where an earlier transfer broke off, and visible only when it is whole."""

from __future__ import annotations

import errno
import hashlib
import os
import select
from pathlib import Path
from typing import BinaryIO

from edgert.errors import ArtifactError
from edgert.remote.board.folder import Content
from edgert.remote.board.lock import held
from edgert.remote.line import write_line

SILENCE_S = 30.0
"""How long the sender may send nothing before it is taken for gone."""
_CHUNK_BYTES = 1 << 18
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def receive(content: Content, size_bytes: int, source: BinaryIO, out: BinaryIO) -> None:
    """Says how many bytes are here (``at``), takes the rest, checks all of it, and says ``done``. Blocks.

    Raises:
        ArtifactError: the disk is full; or what came is not what was announced, and is thrown away.
    """
    with held(content.lock, 2 * SILENCE_S):
        try:
            if _is_here(content):
                write_line(out, {"at": size_bytes})
                write_line(out, {"done": True})
                return
            at = _whole_part(content.part, size_bytes)
            write_line(out, {"at": at})
            _append(content.part, size_bytes - at, source)
            _accept(content, size_bytes)
        except OSError as error:
            raise _cannot_keep(content, error) from error
        write_line(out, {"done": True})


def _is_here(content: Content) -> bool:
    """Whether the bundle came in before, and is still what it was."""
    if not content.bundle.is_file() or _sha256(content.bundle) != content.digest:
        return False
    os.utime(content.bundle)
    return True


def _whole_part(part: Path, size_bytes: int) -> int:
    """How much of the part can be gone on from: all of it, unless it is longer than it may be."""
    have = part.stat().st_size if part.exists() else 0
    if have > size_bytes:
        part.unlink()
        return 0
    return have


def _append(part: Path, left: int, source: BinaryIO) -> None:
    """Appends what comes, up to so many bytes; ends early when the sender is gone."""
    with part.open("ab", buffering=0) as file:
        while left > 0:
            ready, _, _ = select.select([source], [], [], SILENCE_S)
            chunk = os.read(source.fileno(), min(left, _CHUNK_BYTES)) if ready else b""
            if not chunk:
                return
            left -= _write(file.fileno(), chunk)


def _write(descriptor: int, chunk: bytes) -> int:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    return len(chunk)


def _accept(content: Content, size_bytes: int) -> None:
    """Lets the part become the bundle. Raises ArtifactError when it is cut short, or is not what was announced."""
    have = content.part.stat().st_size
    if have < size_bytes:
        raise ArtifactError(
            "the bundle did not come in whole", why=f"{have} of {size_bytes} bytes came", fix="build again: it goes on"
        )
    found = _sha256(content.part)
    if found != content.digest:
        content.part.unlink()
        raise ArtifactError(
            "the bundle was damaged on its way to the board",
            why=f"SHA-256 {found[:16]}…, {content.digest[:16]}… was sent",
            fix="build again: it is sent anew",
        )
    content.part.replace(content.bundle)


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def _cannot_keep(content: Content, error: OSError) -> ArtifactError:
    if error.errno in _FULL:
        return ArtifactError(
            "the disk of the board is full",
            why=f"{error.strerror}, while the bundle came in",
            where=str(content.folder),
            fix="free some space there, or point EDGERT_CACHE at another disk; what came is kept and gone on from",
        )
    return ArtifactError(f"cannot write {str(content.part)!r} on the board", why=str(error))
