"""One file that a sink writes: nobody else does, and what was written is on the disk :data:`SYNC_S` later.

A file is locked (``flock``) while it is written; one thread for all sinks of the process brings what was written to the
disk, whatever happens to the power.
"""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edgert.errors import StageError, cause

SYNC_S = 0.5
"""How often what was written is brought to the disk."""
FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_NOT_SYNCED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS)


def cannot_write(path: Path, error: OSError, where: str, kept: str = "") -> StageError:
    """The error for a file that does not take what is written to it."""
    return StageError(
        f"cannot write {path}",
        why="; ".join(filter(None, (cause(error), kept))),
        where=where,
        fix="free some space or choose another path" if error.errno is not None else "",
    )


# One writer.


def lock(descriptor: int) -> bool:
    """Whether the file, or folder, is this writer's alone from now on, or its file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def written_elsewhere(path: Path, where: str) -> StageError:
    """The error for a file that somebody else has locked; names the process, as far as ``/proc/locks`` shows it."""
    writer, path = _writer(path), path.parent if path.is_dir() else path
    if writer == os.getpid():
        why, fix = "another stage or stream of this process writes it", "give each a path of its own"
    else:
        who = f": {_command(writer)}, process {writer}" if writer else ""
        why, fix = f"another process writes it{who}", "stop that process, or choose another path"
    return StageError(f"cannot write {path}", why=why, where=where, fix=fix)


def _writer(path: Path) -> int:
    """Process that holds a lock on a file; 0 where that cannot be seen, as from inside a container."""
    with suppress(OSError, ValueError):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 708 fd:01:131 0 EOF
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return max(int(words[4]), 0)
    return 0


def _command(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return "one that has ended"


# What was written reaches the disk.


class Written(Protocol):
    """What is brought to the disk from time to time.

    Attributes:
        is_dirty: whether something was written since.
    """

    is_dirty: bool

    def sync(self) -> None:
        """Brings it there, in a thread of its own; raises nothing."""
        ...


class _Disk:
    """The thread that does so, for all sinks of this process, as long as one is open."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._open = list[Written]()
        self._closing = list[int]()
        self._has_hurry = False
        self._thread: threading.Thread | None = None

    def add(self, file: Written) -> None:
        with self._change:
            self._open.append(file)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="edgert-disk", daemon=True)
                self._thread.start()

    def remove(self, file: Written, descriptor: int | None = None) -> None:
        """Looks after it no longer; what is left in ``descriptor`` is brought to the disk once more."""
        with self._change:
            self._open.remove(file)
            self._closing += [] if descriptor is None else [descriptor]
            self._change.notify_all()

    def soon(self) -> None:
        """Now, as a piece of something has become whole."""
        with self._change:
            self._has_hurry = True
            self._change.notify_all()

    def wait(self, seconds: float) -> None:
        """Until all that was closed is on the disk, or it takes too long."""
        with self._change:
            self._change.wait_for(lambda: not self._closing, seconds)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closing or self._has_hurry or not self._open, SYNC_S)
                self._has_hurry = False
                closing = tuple(self._closing)
                dirty = [file for file in self._open if file.is_dirty]
                if not closing and not self._open:
                    self._thread = None
                    return
            for file in dirty:
                file.sync()
            for descriptor in closing:
                with suppress(OSError):
                    os.fdatasync(descriptor)
                os.close(descriptor)
            with self._change:
                del self._closing[: len(closing)]
                self._change.notify_all()


DISK = _Disk()


def sync_file(path: Path) -> None:
    """Brings a closed file to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Brings the names of new files to the disk, where the file system does not do so by itself."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class OutputFile:
    """One open file that nobody else writes; what is no regular file, as a pipe, is neither locked nor synced.

    Attributes:
        path: where it is.
        size_bytes: up to its end.
        is_regular: whether it is on a disk.
        begun_s: by the monotonic clock, which no change of the time of day turns back.
    """

    def __init__(self, path: Path, where: str) -> None:
        """Raises OSError: it cannot be opened; StageError: somebody else writes it."""
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
            if not lock(self.descriptor):
                os.close(self.descriptor)
                raise written_elsewhere(path, where)
            with suppress(FileNotFoundError):
                if os.path.samestat(found, path.stat()):
                    break
            os.close(self.descriptor)  # renamed meanwhile by who wrote it
        DISK.add(self)

    def cut(self, size_bytes: int) -> None:
        """Takes away what is behind, and goes on there."""
        os.ftruncate(self.descriptor, size_bytes)
        os.lseek(self.descriptor, size_bytes, os.SEEK_SET)
        self.size_bytes, self.is_dirty = size_bytes, True

    def write(self, data: bytes, make_room: Callable[[], bool] = lambda: False) -> None:
        """Writes all of it. Raises OSError: the disk is full, and ``make_room`` returned that it removed nothing, or
        what was written before did not reach the disk."""
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
        """Lets others write it."""
        if not self.is_regular:
            os.close(self.descriptor)
            return
        with suppress(OSError):
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        DISK.remove(self, self.descriptor)
