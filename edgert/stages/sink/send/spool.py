"""What is to be sent and has not been acknowledged yet: an SQLite file, bounded, in order.

A message is kept from the moment that :meth:`Spool.put` returns. It survives the process: the operating system has it
by then, in the journal. What is not acknowledged soon moves from there into the database, many at once (write-ahead
log, ``synchronous=NORMAL``, https://www.sqlite.org/wal.html). It survives a power cut once :meth:`Spool.secure` has
been called after it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from edgert.errors import StageError
from edgert.stages.sink.send.journal import Journal, Row

log = logging.getLogger("edgert.send")

_TABLES = """
CREATE TABLE IF NOT EXISTS spool (name TEXT, opened INTEGER);
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY, time REAL, kind TEXT, stream TEXT, rule TEXT, body BLOB
);
"""
_ROW_BYTES = 64
"""What a message takes beside its text, about."""
_RETRY_S = 1.0
"""How long a full disk is not asked again."""
_JUMP_S = 1.0
"""A clock that is set by less is being slewed, or this thread was held up."""


@dataclass(frozen=True, slots=True)
class Message:
    """One result or event.

    Attributes:
        number: counts up; never used twice in a spool.
        id: of this message and no other anywhere, however often it is sent.
        kind: ``result`` or ``event``.
        stream, rule: where it comes from; a result has no rule.
        body: UTF-8 JSON, an object with the id in it.
    """

    number: int
    id: str
    kind: str
    stream: str
    rule: str
    body: bytes


class Spool:
    """Messages in the order in which they came. For one thread that puts and one that takes.

    Args:
        path: the file; its folder is made. None, or where nothing can be written: in memory, which is logged.
        limit_bytes: what messages may take together; the oldest go to make room.
        age_s: how long a message is worth sending.
        where: of errors.

    Raises:
        StageError: another process has it open.
    """

    def __init__(self, path: Path | None, limit_bytes: int, age_s: float, where: str) -> None:
        self._limit_bytes, self._age_s, self._where = limit_bytes, age_s, where
        self._lock, self._owner = threading.Lock(), -1
        self.path = path
        self._database, self.name, opened = self._opened()
        self._next = self._first = opened << 32
        self._epoch_s = time.time() - time.monotonic()
        self._gone, self._is_dirty, self._full_until = -1, False, 0.0
        self._stored, self.bytes = self._sizes(2**62)
        self.count = self._stored
        self.dropped = 0
        """Messages that were too old, or had to make room."""
        self._journal = Journal(None if self.path is None else self.path.with_suffix(".journal"), self.name)
        self._take_over()

    def put(self, kind: str, stream: str, rule: str, body: bytes) -> None:
        """Keeps a message. Where the disk is full it is dropped, and counted."""
        with self._lock:
            row = self._next, self._now(), kind, stream, rule, body
            self._next += 1
            if not self._journal.append(row):
                try:
                    self._move(row)
                except sqlite3.OperationalError as error:
                    self._lost(1, f"cannot write to {self.path}: {error}")
                    return
            self.count, self.bytes = self.count + 1, self.bytes + len(body) + _ROW_BYTES

    def oldest(self, count: int, after: int = -1) -> list[Message]:
        """The first messages after a number; they stay until :meth:`remove`."""
        with self._lock:
            rows: list[tuple[int, str, str, str, bytes]] = []
            if self._stored:
                rows = self._database.execute(
                    "SELECT number, kind, stream, rule, body FROM messages WHERE number > ? ORDER BY number LIMIT ?",
                    (max(after, self._gone), count),
                ).fetchall()
            newer = (row for row in self._journal.rows if row[0] > after)
            for number, _, kind, stream, rule, body in islice(newer, count - len(rows)):
                rows.append((number, kind, stream, rule, body))
        return [self._message(*row) for row in rows]

    def remove(self, messages: Sequence[Message]) -> None:
        """Forgets all messages up to the last of these: they arrived."""
        if messages:
            self._forget(messages[-1].number)

    def trim(self) -> None:
        """Drops what is too old or too much. Raises sqlite3.Error where the disk is full."""
        with self._lock:
            self._follow_clock()
            since = self._now() - self._age_s
            if self._journal.rows and self._journal.rows[0][1] < since:
                self._move()
            last = self._last_before(since)
        if last is not None:
            self._lost(self._forget(last), f"nobody took them for {self._age_s:g} s")
        while self.bytes > self._limit_bytes:
            skipped = int((1 - self._limit_bytes / self.bytes) * (self.count - 1))
            with self._lock:
                self._move()
                (last,) = self._database.execute(
                    "SELECT number FROM messages WHERE number > ? ORDER BY number LIMIT 1 OFFSET ?",
                    (self._gone, skipped),
                ).fetchone()
            self._lost(self._forget(last), f"the spool holds {self._limit_bytes} bytes at most")

    def _now(self) -> float:
        """Seconds of the epoch, by the clock as it was set when it was last looked at."""
        return self._epoch_s + time.monotonic()

    def _follow_clock(self) -> None:
        """Where the clock was set meanwhile, as on a board without a battery once it has a network, what this process
        put is as old as it was: else hours of messages would be gone for their age. Raises sqlite3.OperationalError."""
        jump_s = time.time() - self._now()
        if abs(jump_s) > _JUMP_S:
            self._move()
            self._database.execute("UPDATE messages SET time = time + ? WHERE number >= ?", (jump_s, self._first))
            self._epoch_s += jump_s

    def _last_before(self, since: float) -> int | None:
        """The last of the stored messages that are older, from the oldest on. Looks at no more than these and one, as
        whoever puts waits meanwhile."""
        last = None
        rows = self._database.execute(
            "SELECT number, time FROM messages WHERE number > ? ORDER BY number", (self._gone,)
        )
        for number, time_s in rows:
            if time_s >= since:
                break
            last = number
        return last

    def secure(self, acknowledged: int = -1) -> None:
        """Has everything put so far survive a power cut. Waits for the disk; whoever puts goes on meanwhile.

        Args:
            acknowledged: the last number that a server has. Where nothing else waits, nothing is written, as flash
                wears out.

        Raises:
            sqlite3.Error: the disk is full, say; everything stays where it was.
        """
        with self._lock:
            if self._next - 1 > acknowledged:
                self._move()
            was_dirty, self._is_dirty = self._is_dirty, False
        if self.path is not None and was_dirty:
            try:
                with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
                    database.execute("PRAGMA synchronous=FULL")
                    database.execute("PRAGMA wal_checkpoint(PASSIVE)")
            except sqlite3.Error:
                self._is_dirty = True
                raise

    def close(self) -> None:
        """Closes the files; what is in them waits for the next time."""
        with self._lock:
            self._journal.close()
            self._database.close()
            owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)

    def _take_over(self) -> None:
        """What the journal has of a process that was killed."""
        if not self._journal.is_own:  # its database is gone, and with it the numbers
            for _, _, kind, stream, rule, body in self._journal.forget(2**62):
                self.put(kind, stream, rule, body)
            return
        (last,) = self._database.execute("SELECT max(number) FROM messages").fetchone()
        self._journal.forget(last or 0)  # killed when they were there, and here too
        self.count += len(self._journal.rows)
        self.bytes += _size(self._journal.rows)
        with suppress(sqlite3.OperationalError):  # of a full disk: they stay where they are
            self._move()

    def _move(self, *more: Row) -> None:
        """Everything from the journal into the database, and what has no room there."""
        rows = [*self._journal.rows, *more]
        if not rows:
            return
        if more and time.monotonic() < self._full_until:
            raise sqlite3.OperationalError("database or disk is full")
        try:
            with self._database:
                self._database.execute("BEGIN")
                self._database.executemany("INSERT INTO messages VALUES (?,?,?,?,?,?)", rows)
        except sqlite3.OperationalError:
            self._full_until = time.monotonic() + _RETRY_S
            raise
        self._is_dirty = True
        self._stored += len(rows)
        self._journal.forget(rows[-1][0])

    def _message(self, number: int, kind: str, stream: str, rule: str, body: bytes) -> Message:
        own = f"{self.name}-{number}"
        return Message(number, own, kind, stream, rule, b'{"id":"' + own.encode() + b'",' + body[1:])

    def _forget(self, last: int) -> int:
        """Removes messages up to a number; returns how many."""
        with self._lock:
            rows = self._journal.forget(last)
            count, size = len(rows), _size(rows)
            if self._stored:
                stored, size_there = self._sizes(last)
                self._stored, self._is_dirty, self._gone = self._stored - stored, True, max(self._gone, last)
                count, size = count + stored, size + size_there
                with suppress(sqlite3.OperationalError):  # of a full disk: the next time
                    self._database.execute("DELETE FROM messages WHERE number <= ?", (last,))
            self.count, self.bytes = self.count - count, self.bytes - size
        return count

    def _sizes(self, last: int) -> tuple[int, int]:
        """Number and bytes of the messages up to a number."""
        count, size = self._database.execute(
            "SELECT count(*), coalesce(sum(length(body)), 0) FROM messages WHERE number > ? AND number <= ?",
            (self._gone, last),
        ).fetchone()
        return count, size + count * _ROW_BYTES

    def _lost(self, count: int, why: str) -> None:
        if not self.dropped:
            log.warning("%s: messages are dropped: %s", self._where, why)
        self.dropped += count

    def _opened(self) -> tuple[sqlite3.Connection, str, int]:
        """The database, its name, and how often it was opened."""
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._owner = self._owned(self.path)
                return _database(str(self.path))
            except (OSError, sqlite3.OperationalError) as error:
                log.warning("%s: what cannot be sent waits in memory alone: %s: %s", self._where, self.path, error)
                self.path = None
            except sqlite3.DatabaseError as error:  # damaged, or no spool
                damaged = self.path.with_suffix(f".damaged-{int(time.time())}")
                self.path.replace(damaged)
                log.warning("%s: %s is damaged (%s); it is now %s", self._where, self.path, error, damaged.name)
                return _database(str(self.path))
        return _database(":memory:")

    def _owned(self, path: Path) -> int:
        """A lock on the spool, for as long as this process lives."""
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            with suppress(OSError):
                os.close(lock)
            raise StageError(
                f"another process sends from {path}",
                why="two would send each other's messages twice",
                where=self._where,
                fix="stop the other, or give this pipeline a spool: of its own",
            ) from error
        return lock


def _database(path: str) -> tuple[sqlite3.Connection, str, int]:
    """A spool's file, its name, and how often it was opened: no number is used twice, whatever was removed."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA page_size=1024")  # of a new file: a commit writes whole pages, and flash wears out
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")  # a number that was used is so after a power cut, too
    database.execute("PRAGMA wal_autocheckpoint=0")  # whoever puts never waits for the disk; secure() does it
    database.executescript(_TABLES)
    if database.execute("SELECT name FROM spool").fetchone() is None:
        database.execute("INSERT INTO spool VALUES (?, 0)", (uuid.uuid4().hex[:12],))
    database.execute("UPDATE spool SET opened = opened + 1")
    name, opened = database.execute("SELECT name, opened FROM spool").fetchone()
    database.execute("PRAGMA synchronous=NORMAL")
    return database, str(name), int(opened)


def _size(rows: Iterable[Row]) -> int:
    """Bytes that they take together."""
    return sum(len(body) + _ROW_BYTES for *_, body in rows)
