"""The output files of a sink, each with a single writer. Data is on the disk at most :data:`SYNC_S` after a write.

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
from edgert.files import try_lock
from edgert.stages.sink import retention

log = logging.getLogger("edgert.sink")

_CLOSE_S = 0.5  # part of the 2 s in which a pipeline ends
_LONGEST_LINE_BYTES = 1 << 26
SYNC_S = 0.5
"""Longest time between two flushes to the disk."""
FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_SYNCED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS)


def cannot_write(path: Path, error: OSError, where: str, kept: str = "") -> StageError:
    """Return the error for a file that cannot be written. ``kept`` says what is safe all the same."""
    return StageError(
        f"cannot write {path}",
        why="; ".join(filter(None, (cause(error), kept))),
        where=where,
        fix="free some space or choose another path" if error.errno is not None else "",
    )


def written_elsewhere(path: Path, where: str) -> StageError:
    """Return the error for a file with another writer's lock. It names the process, from ``/proc/locks``."""
    writer, path = _lock_owner(path), path.parent if path.is_dir() else path
    if writer == os.getpid():
        why, fix = "another stage or stream of this process writes it", "give each a path of its own"
    else:
        who = f": {_process_name(writer)}, process {writer}" if writer else ""
        why, fix = f"another process writes it{who}", "stop that process, or choose another path"
    return StageError(f"cannot write {path}", why=why, where=where, fix=fix)


def lock_folder(folder: Path, where: str) -> int:
    """Lock a folder of unfinished files, remove what an earlier run left in it, and return its descriptor.

    Raises:
        OSError: it cannot be read.
        StageError: another process or stage writes there.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not try_lock(descriptor):
            raise written_elsewhere(folder, where)
        for leftover in folder.iterdir():
            leftover.unlink()
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


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
            log.warning(text, self.path, cause(self.error), extra={"code": "record.lost"})


class Files:
    """The files of one sink, one after another for each stream.

    Without ``{date}`` or ``{time}`` in the pattern, the newest file has that name. Earlier ones are renamed to
    ``NAME-DATE-TIME``, by their last change. With them, a name that is taken gets a number.

    Raises:
        StageError: the pattern has an unknown field.
    """

    FIELDS = ("stream", "date", "time")

    def __init__(self, pattern: Path, rules: retention.Rules, where: str) -> None:
        retention.check_pattern(pattern, self.FIELDS, where)
        if pattern.is_symlink() and not pattern.is_dir():
            pattern = pattern.resolve()
        self.pattern, self.rules, self._where = pattern, rules, where
        self._is_dated, self._removes = retention.has_field(pattern, "date", "time"), rules.removes
        self._open = list[OutputFile]()
        self._begun = set[str]()
        self._retention = retention.Retention(pattern, rules, where)

    def check(self) -> None:
        """Create the folder, if its name has no field.

        Raises StageError where that fails, or where another process or stage writes the file.
        """
        if not retention.FIELD.search(str(self.pattern.parent)):
            retention.make_parent(self.pattern, self._where)
        if not retention.FIELD.search(str(self.pattern)) and self.pattern.is_file():
            with suppress(OSError):
                OutputFile(self.pattern, self._where).close()

    def begin(self, stream: str, appends: bool = False) -> OutputFile:
        """Open the next file of a stream: an empty one, or with ``appends`` the existing one, cut after its last line.

        Raises:
            StageError: it cannot be written, another process or stage writes it, or it does not hold JSON lines.
        """
        is_first = stream not in self._begun
        self._retention.add_stream(stream)
        if is_first and self._is_dated and not appends:
            self._retention.remove_empty()
        wanted = path = retention.fill(self.pattern, stream)
        retention.make_parent(path, self._where)
        number = 1
        while (file := self._open_if_free(path, is_first, appends)) is None:
            if self._is_dated:
                number += 1
                path = retention.numbered_path(wanted, number)
        self._begun.add(stream)
        self._open.append(file)
        return file

    def finish(self, file: OutputFile, *, may_be_empty: bool = True) -> None:
        """Close a file. Remove it where it is empty and may not be."""
        self._open.remove(file)
        is_left = may_be_empty or bool(file.size_bytes) or not file.is_regular
        if not is_left:
            with suppress(OSError):
                file.path.unlink()  # before the lock is released, so that nobody else writes it
        file.close()
        if is_left and self._is_dated and file.is_regular:
            self._retention.add(file.path, file.size_bytes)

    def is_due(self, file: OutputFile, more_bytes: int = 0) -> bool:
        """Return whether the next file begins before ``more_bytes`` more are written."""
        rules = self.rules
        if not file.is_regular or not file.size_bytes:
            return False
        is_large = rules.rotate_bytes and file.size_bytes + more_bytes > rules.rotate_bytes
        return bool(is_large or (rules.rotate_s and time.monotonic() - file.begun_s >= rules.rotate_s))

    def remove_old(self) -> None:
        """Remove old files. Raises StageError where too little space stays free."""
        if self._removes:
            self._retention.remove_old(lambda: {str(file.path): file.size_bytes for file in self._open})

    def make_room(self) -> bool:
        """Remove one old file, because the disk is full; return whether there was one."""
        return self._retention.make_room()

    def close(self) -> None:
        """Wait up to 0.5 s until the files are on the disk."""
        DISK.wait(_CLOSE_S)

    def _open_if_free(self, path: Path, is_first: bool, appends: bool) -> OutputFile | None:
        """Return the file at a path, ready to be written; None where the existing file is to be kept.

        A kept file without a date in its name is renamed.
        """
        try:
            file, is_ready = OutputFile(path, self._where), False
            try:
                is_ready = self._is_ready(file, is_first, appends)
                if not is_ready and not self._is_dated:
                    self._move_aside(file)
            finally:
                if not is_ready:
                    file.close()
        except OSError as error:
            raise cannot_write(path, error, self._where) from error
        return file if is_ready else None

    def _is_ready(self, file: OutputFile, is_first: bool, appends: bool) -> bool:
        """Return whether a file can be written, after emptying it or cutting its torn line where the rules say so."""
        if not file.is_regular and (self.rules.rotates or self.rules.removes):
            why, fix = "it is no regular file", "leave rotate and keep out"
            raise StageError(f"cannot rotate {file.path}", why=why, where=self._where, fix=fix)
        if not file.size_bytes:
            return True
        if is_first and not self.rules.keeps:
            file.cut(0)
            return True
        if not (is_first and appends):
            return False
        self._cut_torn_line(file)
        is_old = self.rules.rotate_s and time.time() - file.modified_s >= self.rules.rotate_s
        return not (self.is_due(file) or is_old)

    def _cut_torn_line(self, file: OutputFile) -> None:
        """Remove the incomplete line, or the zero bytes, that a power cut may leave at the end."""
        at, chunk_bytes = file.size_bytes, 1 << 16
        is_ours = os.pread(file.descriptor, 1, 0) in (b"{", b"\0")
        while is_ours and at > 0 and file.size_bytes - at <= _LONGEST_LINE_BYTES:
            begin = max(0, at - chunk_bytes)
            newline = os.pread(file.descriptor, at - begin, begin).rfind(b"\n")
            if newline >= 0 or begin == 0:
                end = begin + newline + 1
                if end < file.size_bytes:
                    log.warning("%s: the last line of %s was cut off: it was incomplete", self._where, file.path)
                file.cut(end)
                return
            at = begin
        raise StageError(
            f"cannot append to {file.path}",
            why="it does not hold JSON lines",
            where=self._where,
            fix="choose another path, or write existing: replace",
        )

    def _move_aside(self, file: OutputFile) -> None:
        """Rename a file after its last change, to free its name for the newest. Raises OSError."""
        stamp = time.strftime(f"{retention.DATE}-{retention.TIME}", time.localtime(file.modified_s))
        path, number = file.path.with_name(f"{file.path.stem}-{stamp}{file.path.suffix}"), 1
        while os.path.lexists(retention.numbered_path(path, number)):
            number += 1
        file.path.rename(retention.numbered_path(path, number))
        self._retention.add(retention.numbered_path(path, number), file.size_bytes)
