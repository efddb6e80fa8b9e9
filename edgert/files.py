"""Atomic file writes, and a cache of files that are checked when read."""

import ctypes
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

from edgert.errors import ArtifactError, raised_as

log = logging.getLogger("edgert.files")

_CHUNK_BYTES = 1 << 20
_STALE_S = 3600.0
"""Age from which an incomplete entry counts as abandoned."""


def cache_folder() -> Path:
    """Return ``$EDGERT_CACHE``, ``$XDG_CACHE_HOME/edgert``, ``~/.cache/edgert``, or ``/.cache/edgert`` with no home."""
    if folder := os.environ.get("EDGERT_CACHE"):
        return Path(folder)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "edgert"
    with suppress(RuntimeError):  # a user without HOME and without an entry in the user database
        return Path.home() / ".cache" / "edgert"
    return Path("/.cache/edgert")


class FileStore:
    """A folder of files named ``key.SHA-256.bin``; the least recently used are removed when it grows too large.

    A file and its checksum appear in the same instant, because the checksum is part of the name. So several processes
    may read and write one folder.

    Args:
        folder: created by the first write.
        limit_bytes: largest sum of the sizes of all files.
        warn: function called with a line of text for an entry that is damaged or unreadable; default: a logged warning.
    """

    def __init__(self, folder: Path, limit_bytes: int = 2 * 2**30, warn: Callable[[str], object] | None = None) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._warn = warn or log.warning

    def get(self, key: str) -> bytes | None:
        """Return the content of ``key``; None if there is none. A damaged file is removed with a warning."""
        with self.open(key) or nullcontext() as file:
            return None if file is None else file.read()

    def open(self, key: str) -> BinaryIO | None:
        """Return the open file of ``key``; None if there is none. A damaged file is removed with a warning.

        It returns no path, because another process may replace or remove the file at any moment.
        """
        for path in self._entries(key):
            try:
                if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for a writer
                    raise OSError(errno.EINVAL, "it is no regular file", str(path))
                with path.open("rb") as file:
                    digest = digest_of(file)
                if path.name == f"{key}.{digest}.bin":
                    with suppress(OSError):  # a folder of others, or on a read-only disk, is good enough to read
                        os.utime(path)
                    return path.open("rb")
            except FileNotFoundError:  # replaced by another process in this moment
                continue
            except OSError as error:
                self._warn(f"cannot read the cache ({error}); it is made afresh")
                continue
            self._warn(f"cache entry {path} is damaged; it is made afresh")
            _remove(path)
        return None

    def put(self, key: str, content: bytes) -> None:
        """Store ``content`` atomically. Raises ArtifactError if it cannot be written."""
        fix = "free some space, or point EDGERT_CACHE at a folder that can be written"
        with raised_as(ArtifactError, f"cannot write to the cache {self.folder}", fix=fix):
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{key}.{hashlib.sha256(content).hexdigest()}.bin"
            before = self._entries(key)  # entries that another process writes from now on are not removed here
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".new-") as folder:
                body = Path(folder) / "body"
                body.write_bytes(content)
                body.replace(path)
            for old in before:
                if old != path:
                    _remove(old)
            self._prune(keep=path)

    def remove(self, key: str) -> None:
        """Remove the content of ``key``. A file that cannot be removed is logged."""
        for path in self._entries(key):
            _remove(path)

    def _entries(self, key: str) -> list[Path]:
        return sorted(self.folder.glob(f"{key}.*.bin"))

    def _prune(self, keep: Path) -> None:
        for left in self.folder.glob(".new-*"):  # left behind by a process that was killed
            found = _stat(left)
            if found is not None and time.time() - found.st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)
        there = {path: _stat(path) for path in self.folder.glob("*.bin")}
        sizes = {path: (one.st_mtime_ns, one.st_size) for path, one in there.items() if one is not None}
        total = sum(size for _, size in sizes.values())
        for path, (_, size) in sorted(sizes.items(), key=lambda item: item[1]):
            if total <= self.limit_bytes:
                return
            if path != keep:
                total -= size
                _remove(path)


def _stat(path: Path) -> os.stat_result | None:
    """Return a file's status; None when another process has removed it, or it is a broken link."""
    try:
        return path.stat()
    except OSError:
        return None


def total_bytes(paths: Iterable[Path]) -> int:
    """Return the sum of the sizes of files. Others, such as a broken link, count as 0."""
    return sum(found.st_size for path in paths if (found := _stat(path)) is not None and stat.S_ISREG(found.st_mode))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot remove %s from the cache (%s)", path, error)


def digest_of(file: BinaryIO, size_bytes: int | None = None) -> str:
    """Return the SHA-256 of the rest of a file, or of its next bytes, in hex."""
    found, left = hashlib.sha256(), sys.maxsize if size_bytes is None else size_bytes
    while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
        found.update(chunk)
        left -= len(chunk)
    return found.hexdigest()


# Files in memory.

_MFD_CLOEXEC = 1  # of linux/memfd.h


def memory_file(content: bytes) -> BinaryIO:
    """Return an open file in memory, which libraries that need a path read as ``/proc/self/fd/NUMBER``.

    It needs no disk. The C library makes it, because Pythons of conda and uv may lack ``os.memfd_create``.

    Raises:
        OSError: too many files are open, or there is too little memory.
    """
    number = ctypes.CDLL(None, use_errno=True).memfd_create(b"edgert", _MFD_CLOEXEC)
    if number < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    file = os.fdopen(number, "w+b")
    file.write(content)
    file.seek(0)
    return file


# Atomic writes.


def replace_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8; see :func:`replace_bytes`."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader finds the old content or the new one, even if this process is killed.

    Missing folders are made. The file keeps its permissions.

    Raises:
        ArtifactError: it cannot be written.
    """
    with replacing(path) as file:
        file.write(content)


def exists(path: Path) -> bool:
    """Return whether a path exists; False in an unreadable folder and for too long names, where Path.exists raises."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """Return whether a path is a file; False in an unreadable folder and for too long names, as :func:`exists`."""
    return os.path.isfile(path)  # noqa: PTH113


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return digest_of(file)
    except OSError:
        return ""


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open an empty file to write and read; it replaces the one at ``path`` when the block ends without error.

    Folders, permissions and errors are as for :func:`replace_bytes`. A link stays, and its target is replaced. A FIFO
    or a device, such as ``/dev/null``, gets the content instead.
    """
    with naming_write_errors(path):
        shown = _standard_stream(path)
        is_stream = shown is not None or (path.exists() and not path.is_file() and not path.is_dir())
        target = path if is_stream else Path(os.path.realpath(path))  # /dev/stdout may be a pipe without a name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
        with tempfile.TemporaryFile("w+b") if is_stream else part.open("x+b") as file:  # others may read it
            try:
                yield file
                if is_stream:
                    file.seek(0)
                    with target.open("wb") if shown is None else os.fdopen(os.dup(shown), "wb") as device:
                        shutil.copyfileobj(file, device)
                else:
                    file.flush()
                    if target.exists():
                        part.chmod(target.stat().st_mode & 0o777)
                    part.replace(target)
            finally:
                part.unlink(missing_ok=True)


def _standard_stream(path: Path) -> int | None:
    """Return the descriptor of standard output or error if a path, such as /dev/stdout, is that stream; else None.

    Opening the path instead would write a file from its beginning again.
    """
    for number in (1, 2):
        with suppress(OSError):  # the path does not exist, or the stream is closed
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
    return None


def naming_write_errors(path: Path) -> AbstractContextManager[None]:
    """Convert an OSError of the block to an ArtifactError: ``path`` cannot be written."""
    fix = "free some space, or choose a folder that can be written"
    return raised_as(ArtifactError, f"cannot write {str(path)!r}", fix=fix)


_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def try_lock(descriptor: int) -> bool:
    """Lock a file or folder for this writer; return whether it has the lock. File systems without locks return True."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True
