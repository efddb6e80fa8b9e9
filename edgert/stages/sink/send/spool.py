"""Bounded queue of messages that are not acknowledged yet, in the files of one folder.

When :meth:`Spool.put` returns, a message is in a file and survives the process. After :meth:`Spool.secure`, it also
survives a power cut. A file is removed when all its messages are acknowledged. Of a damaged one, the readable messages
are sent, and the file is put aside.
"""

import errno
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from edgert.errors import StageError, cause
from edgert.files import try_lock
from edgert.stages.sink import output_file, retention
from edgert.stages.sink.send.segment import Message, Segment, open_own

log = logging.getLogger("edgert.send")

_RETRY_S = 1.0
"""Seconds until a full disk is tried again."""
_JUMP_S = 1.0
"""Least change of the time of day that counts as the clock being set."""
_FILES = "[0-3]" + 15 * "[0-9a-f]" + ".spool"
"""Names of files: the number of the first message, which leaves room below the largest that a record can have."""
_OWN_ID = b'{"id":"'
"""Beginning of a message with an id of its own."""
_KEPT = 3
"""Damaged files that are kept."""
_ASIDE_BYTES = 16 << 20
"""Maximum size of the messages that cannot be sent and are kept for the user."""


class Spool:
    """Queue of messages in order of arrival, for one thread that puts and one that takes.

    Args:
        path: folder of the files, which is created; None: in memory. A folder that cannot be written is replaced by
            memory, and logged.
        limit_bytes: maximum size of all messages; the oldest are dropped beyond it.
        age_s: maximum age of a message; older ones are dropped.

    Attributes:
        name: name of this run, in the ids of its messages.
        dropped: number of messages that were dropped: too old, too many, or damaged.

    Raises:
        StageError: another process uses the folder.
    """

    def __init__(self, path: Path | None, limit_bytes: int, age_s: float, where: str) -> None:
        self._limit_bytes, self._age_s, self._where = limit_bytes, age_s, where
        self._lock, self._owner, self._is_closed = threading.Lock(), -1, False
        self.path, self.name, self.dropped = path, uuid.uuid4().hex[:12], 0
        self._segments = deque[Segment]()
        self._loaded: Segment | None = None  # full file whose messages are in memory
        self._next, self._full_until = 0, 0.0
        self._epoch_s = time.time() - time.monotonic()
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                log.warning("%s: unsent messages are kept in memory only: %s: %s", where, path, cause(error))
                self.path = None

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum([segment.count for segment in tuple(self._segments)])  # the other thread may add one

    @property
    def size_bytes(self) -> int:
        """Total size of the messages."""
        return sum([segment.size_bytes for segment in tuple(self._segments)])

    def put(self, kind: str, stream: str, rule: str, body: bytes) -> int | None:
        """Store a message; return its number. Return None where the disk is full, after counting it as dropped."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            if self._is_closed:
                return None
            if not body.startswith(_OWN_ID):
                body = b'%b%b-%d",%b' % (_OWN_ID, self.name.encode(), number, body[1:])
            try:
                self._append(Message(number, time.monotonic(), kind, stream, rule, body))
            except OSError as error:
                if time.monotonic() >= self._full_until:
                    self._full_until = time.monotonic() + _RETRY_S
                self._count_dropped(1, f"cannot write to {self.path}: {cause(error)}")
                return None
            return number

    def oldest(self, count: int, after: int = -1) -> list[Message]:
        """Return up to ``count`` messages, the oldest first.

        Args:
            count: maximum number of messages.
            after: number of the last message to skip.
        """
        found = list[Message]()
        with self._lock:
            for segment in () if self._is_closed else self._segments:
                if len(found) < count and segment.count and segment.last > after:
                    newer = [row for row in self._rows(segment) if row.number > after]
                    found += newer[: count - len(found)]
        return found

    def remove(self, messages: Sequence[Message]) -> None:
        """Remove these messages, which are the oldest."""
        if messages:
            with self._lock:
                self._forget(messages[-1].number)

    def keep_aside(self, message: Message) -> str:
        """Count a message as dropped; return the path of the file that keeps it, empty where none does."""
        self.dropped += 1
        if self.path is None:
            return ""
        path = self.path / "aside.jsonl"
        with suppress(OSError), open(path, "ab", opener=open_own) as file:
            if file.tell() + len(message.body) <= _ASIDE_BYTES:
                file.write(message.body + b"\n")
                return str(path)
        return ""

    def trim(self) -> None:
        """Drop messages that are too old or too many."""
        with self._lock:
            if self._is_closed:
                return
            self._follow_clock()
            since_s = time.time() - self._age_s
            if self._segments and self._segments[0].oldest_s < since_s:
                late = self._drop_while(lambda segment, row: segment.epoch_s + row.time_s < since_s)
                self._count_dropped(late, f"they could not be sent for {self._age_s:g} s")
            excess_bytes = self.size_bytes - self._limit_bytes

            def is_excess(_: Segment, row: Message) -> bool:
                nonlocal excess_bytes
                excess_bytes -= row.size_bytes
                return excess_bytes + row.size_bytes > 0

            if excess_bytes > 0:
                self._count_dropped(self._drop_while(is_excess), f"the spool holds {self._limit_bytes} bytes at most")

    def secure(self, acknowledged: int = -1) -> None:
        """Wait until the messages are on the disk, unless the server has acknowledged all of them.

        Args:
            acknowledged: number of the last message that the server has acknowledged.

        Raises:
            OSError: the disk is full, for instance. No message is lost then.
        """
        with self._lock:
            if self._is_closed or self._next - 1 <= acknowledged:
                return
            dirty = [segment for segment in self._segments if segment.is_dirty]
        for segment in dirty:
            segment.sync()

    def close(self) -> None:
        """Close the files; messages that wait stay for the next run."""
        with self._lock:
            self._is_closed = True
            for segment in self._segments:
                if segment.count:
                    self.path = segment.path and self.path
                    segment.seal()
                else:
                    self._remove(segment)
            owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)

    def _open(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is no folder; remove it, or set spool: to another path")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._owner = _lock(path, self._where)
        files = [(int(file.stem, 16), file) for file in sorted(path.glob(_FILES))]
        for (first, file), (following, _) in pairwise([*files, (1 << 62, path)]):
            self._next = max(self._next, first + 1)
            try:
                segment = Segment.read(file, following - 1)
            except OSError as error:
                log.warning("%s: cannot read %s: %s", self._where, file, cause(error))
                continue
            self._next = max(self._next, segment.last + 1)
            if segment.is_damaged:
                what = f"{file} is damaged; {segment.count} of its messages can be read and are sent"
                log.warning("%s: %s", self._where, what)
            if segment.count:
                segment.unload()
                self._segments.append(segment)
            else:
                self._remove(segment)

    def _append(self, row: Message) -> None:
        record, before = row.encode(), self._segments[-1] if self._segments else None
        try:
            if before is not None and before.append(row, record):
                return
            if time.monotonic() < self._full_until:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file = self.path and self.path / f"{row.number:016x}.spool"
            made = Segment.create(file, self._epoch_s, row, record)
        except OSError as error:
            if error.errno in output_file.FULL:
                raise
            if before is None or before.path is not None:  # a read-only disk, for instance, while the server is there
                log.warning("%s: messages are kept in memory for now: %s: %s", self._where, self.path, cause(error))
            made = Segment.create(None, self._epoch_s, row, record)
        if before is not None:
            before.seal()
        self._segments.append(made)

    def _rows(self, segment: Segment) -> deque[Message]:
        """Return the messages of a file, and keep those of the file before no longer in memory."""
        if segment is not self._loaded and segment is not self._segments[-1]:
            if self._loaded is not None:
                self._loaded.unload()
            self._loaded = segment
        before, rows = segment.count, segment.rows()
        self._count_dropped(before - segment.count, f"they are damaged in {self.path}")
        return rows

    def _forget(self, last: int) -> int:
        """Remove all messages up to a number; return how many."""
        gone = 0
        while not self._is_closed and self._segments and self._segments[0].last <= last and len(self._segments) > 1:
            gone += self._segments[0].count
            self._remove(self._segments.popleft())
        if not self._is_closed and self._segments and self._segments[0].count:
            self._rows(self._segments[0])
            gone += self._segments[0].forget(last)
        return gone

    def _drop_while(self, is_due: Callable[[Segment, Message], bool]) -> int:
        """Remove the oldest messages for which ``is_due`` is true; return how many."""
        last = -1
        for segment in self._segments:
            for row in self._rows(segment):
                if not is_due(segment, row):
                    return self._forget(last)
                last = row.number
        return self._forget(last)

    def _remove(self, segment: Segment) -> None:
        """Remove a file, or put it aside if it is damaged."""
        aside = None
        if segment.is_damaged and segment.path is not None:
            aside = segment.path.with_suffix(".damaged")
        segment.delete(aside)
        if aside is not None:
            for old in sorted(aside.parent.glob("*.damaged"))[:-_KEPT]:
                with suppress(OSError):
                    old.unlink()

    def _follow_clock(self) -> None:
        jump_s = time.time() - time.monotonic() - self._epoch_s
        if abs(jump_s) > _JUMP_S:
            self._epoch_s += jump_s
            for segment in self._segments:
                if not segment.is_earlier:
                    segment.set_epoch(self._epoch_s)
        for segment in self._segments:
            if segment.is_earlier and segment.oldest_s < retention.CLOCK_WAS_SET < time.time():
                segment.set_epoch(segment.epoch_s + time.time() - segment.oldest_s)  # its age is unknown

    def _count_dropped(self, count: int, why: str) -> None:
        if count and not self.dropped:
            log.warning("%s: messages are dropped: %s", self._where, why, extra={"code": "send.dropped"})
        self.dropped += count


def _lock(path: Path, where: str) -> int:
    """Return the locked file of a folder. Raises StageError if another process has it, OSError if it cannot be made."""
    lock = open_own(str(path / "lock"), os.O_RDWR | os.O_CREAT)
    if not try_lock(lock):
        os.close(lock)
        raise StageError(
            f"another process sends from {path}",
            why="two processes would send each message twice",
            where=where,
            fix="stop the other, or give this pipeline a spool: of its own",
        )
    return lock
