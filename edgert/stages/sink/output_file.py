"""One output file with a single writer. Its data is on the disk at most :data:`SYNC_S` after a write.

A file is locked (``flock``) while it is written. One thread for all sinks of the process flushes data to the disk, so
that a power cut loses little.
"""

import errno
import fcntl
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edgert.errors import StageError, cause

_LOG = logging.getLogger(__name__)
SYNC_S = 0.5
"""Longest time between two flushes to the disk."""
FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_NOT_SYNCED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS)


def cannot_write(path: Path, error: OSError, where: str, kept: str = "") -> StageError:
    """Return the error for a file that cannot be written. ``kept`` says what is safe all the same."""
    return StageError(
        f"cannot write {path}",
        why="; ".join(filter(None, (cause(error), kept))),
        where=where,
        fix="free some space or choose another path" if error.errno is not None else "",
    )


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


def written_elsewhere(path: Path, where: str) -> StageError:
    """Return the error for a file with another writer's lock. It names the process, from ``/proc/locks``."""
    writer, path = _lock_owner(path), path.parent if path.is_dir() else path
    if writer == os.getpid():
        why, fix = "another stage or stream of this process writes it", "give each a path of its own"
    else:
        who = f": {_process_name(writer)}, process {writer}" if writer else ""
        why, fix = f"another process writes it{who}", "stop that process, or choose another path"
    return StageError(f"cannot write {path}", why=why, where=where, fix=fix)


def _lock_owner(path: Path) -> int:
    """Return the process that holds the lock of a file; 0 where it cannot be seen, as from inside a container."""
    with suppress(OSError, ValueError):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 708 fd:01:131 0 EOF
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return max(int(words[4]), 0)
    return 0


def _process_name(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return "one that has ended"


class SyncedFile(Protocol):
    """File that the disk thread flushes to the disk.

    Attributes:
        is_dirty: whether something was written after the last flush.
    """

    is_dirty: bool

    def sync(self) -> None:
        """Flush to the disk. Called in the disk thread; must not raise."""


class _Disk:
    """Thread that flushes the files of all sinks to the disk. It runs while any file is open."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._open = list[SyncedFile]()
        self._closing = list[Callable[[], None]]()
        self._is_requested = False
        self._thread: threading.Thread | None = None

    def add(self, file: SyncedFile) -> None:
        """Flush a file regularly, until :meth:`remove`."""
        with self._change:
            self._open.append(file)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="edgert-disk", daemon=True)
                self._thread.start()

    def remove(self, file: SyncedFile, *closing: Callable[[], None]) -> None:
        """Flush a file no more. Functions that close it are called in this thread; they must not raise."""
        with self._change:
            self._open.remove(file)
            self._closing += closing
            self._change.notify_all()

    def sync_soon(self) -> None:
        """Flush all files now, without waiting for it."""
        with self._change:
            self._is_requested = True
            self._change.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` until all closed files are on the disk."""
        with self._change:
            self._change.wait_for(lambda: not self._closing, seconds)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closing or self._is_requested or not self._open, SYNC_S)
                self._is_requested = False
                closing = tuple(self._closing)
                dirty = [file for file in self._open if file.is_dirty]
                if not closing and not self._open:
                    self._thread = None
                    return
            for file in dirty:
                file.sync()
            for close in closing:
                close()
            with self._change:
                del self._closing[: len(closing)]
                self._change.notify_all()


DISK = _Disk()


def sync_file(path: Path) -> None:
    """Flush a closed file to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the names of new files in a folder to the disk, where the file system can do that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class OutputFile:
    """An open file with a single writer. Pipes and devices are neither locked nor flushed.

    Attributes:
        is_dirty: whether something was written after the last flush.
        error: error of a flush, which the next write raises.
        size_bytes: size of the file.
        modified_s: time of the last change when it was opened, seconds of the epoch.
        is_regular: whether it is a regular file, on a disk.
        begun_s: time of opening, seconds of the monotonic clock.
    """

    def __init__(self, path: Path, where: str) -> None:
        """Open and lock the file.

        Raises OSError where it cannot be opened, StageError where another process or stage writes it.
        """
        self.path, self.is_dirty, self._is_new = path, False, True
        self.error: OSError | None = None
        self.begun_s = time.monotonic()
        while True:
            there = path.stat() if path.exists() else None
            self.is_regular = there is None or stat.S_ISREG(there.st_mode)
            flags = os.O_RDWR | os.O_CREAT if self.is_regular else os.O_WRONLY
            self.descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
            found = os.fstat(self.descriptor)
            self.size_bytes = found.st_size if self.is_regular else 0
            self.modified_s = found.st_mtime
            if not self.is_regular:
                return
            if not try_lock(self.descriptor):
                os.close(self.descriptor)
                raise written_elsewhere(path, where)
            with suppress(FileNotFoundError):
                if os.path.samestat(found, path.stat()):
                    break
            os.close(self.descriptor)  # its last writer has renamed it in the meantime
        DISK.add(self)

    def cut(self, size_bytes: int) -> None:
        """Truncate the file, and write there next."""
        os.ftruncate(self.descriptor, size_bytes)
        os.lseek(self.descriptor, size_bytes, os.SEEK_SET)
        self.size_bytes, self.is_dirty = size_bytes, True

    def write(self, data: bytes, make_room: Callable[[], bool] = lambda: False) -> None:
        """Write all of ``data``.

        Raises OSError where the disk is full and ``make_room`` removes nothing, or where a flush failed before.
        """
        left = memoryview(data)
        while left:
            if self.error is not None:
                raise self.error
            try:
                done = os.write(self.descriptor, left)
            except OSError as error:
                if error.errno in FULL and make_room():
                    continue
                raise
            left, self.is_dirty = left[done:], True
            if self.is_regular:
                self.size_bytes = max(self.size_bytes, os.lseek(self.descriptor, 0, os.SEEK_CUR))

    def sync(self) -> None:
        """Flush the file to the disk; keep an error for the next write."""
        self.is_dirty = False
        try:
            os.fdatasync(self.descriptor)
        except OSError as error:
            if error.errno not in _NOT_SYNCED:
                self.error = error
        if self._is_new:
            self._is_new = False
            sync_folder(self.path.parent)

    def close(self) -> None:
        """Close the file and release its lock."""
        if not self.is_regular:
            os.close(self.descriptor)
            return
        with suppress(OSError):
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        DISK.remove(self, self._flush_and_close)

    def _flush_and_close(self) -> None:
        self.sync()
        try:
            os.close(self.descriptor)
        except OSError as error:  # a network file system may report a failed write only now
            self.error = error
        if self.error is not None:
            text = "%s: the last writes may be lost: %s"
            _LOG.warning(text, self.path, cause(self.error), extra={"code": "record.lost"})
