"""What is to be sent and has not been acknowledged yet: an SQLite file, bounded, in order.

A message is kept from the moment that :meth:`Spool.put` returns. It survives the process: SQLite has handed it to the
operating system by then (write-ahead log, ``synchronous=NORMAL``, https://www.sqlite.org/wal.html). It survives a power
cut once :meth:`Spool.secure` has been called after it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import StageError

log = logging.getLogger("edgert.send")

_TABLES = """
CREATE TABLE IF NOT EXISTS spool (name TEXT, opened INTEGER);
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY, time REAL, kind TEXT, stream TEXT, rule TEXT, body BLOB
);
"""
_ROW_BYTES = 64
"""What a message takes beside its text, about."""


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
        self._database = self._opened()
        self.name, opened = self._begun()
        self._next = opened << 32
        self.count, self.bytes = self._sizes(2**62)
        self.dropped = 0
        """Messages that were too old, or had to make room."""

    def put(self, kind: str, stream: str, rule: str, body: bytes) -> None:
        """Keeps a message. Where the disk is full it is dropped, and counted."""
        with self._lock:
            row = self._next, time.time(), kind, stream, rule, body
            self._next += 1
            try:
                self._database.execute("INSERT INTO messages VALUES (?,?,?,?,?,?)", row)
            except sqlite3.OperationalError as error:
                self._lost(1, f"cannot write to {self.path}: {error}")
                return
            self.count, self.bytes = self.count + 1, self.bytes + len(body) + _ROW_BYTES

    def oldest(self, count: int) -> list[Message]:
        """The first messages; they stay until :meth:`remove`."""
        with self._lock:
            rows = self._database.execute(
                "SELECT number, kind, stream, rule, body FROM messages ORDER BY number LIMIT ?", (count,)
            ).fetchall()
        return [self._message(*row) for row in rows]

    def remove(self, messages: Sequence[Message]) -> None:
        """Forgets messages, from the first on, that were acknowledged."""
        if messages:
            self._forget(messages[-1].number)

    def trim(self) -> None:
        """Drops what is too old or too much."""
        with self._lock:
            since = (time.time() - self._age_s,)
            (last,) = self._database.execute("SELECT max(number) FROM messages WHERE time < ?", since).fetchone()
        if last is not None:
            self._lost(self._forget(last), f"nobody took them for {self._age_s:g} s")
        while self.bytes > self._limit_bytes:
            skipped = int((1 - self._limit_bytes / self.bytes) * (self.count - 1))
            with self._lock:
                (last,) = self._database.execute(
                    "SELECT number FROM messages ORDER BY number LIMIT 1 OFFSET ?", (skipped,)
                ).fetchone()
            self._lost(self._forget(last), f"the spool holds {self._limit_bytes} bytes at most")

    def secure(self) -> None:
        """Has everything put so far survive a power cut. Waits for the disk; whoever puts goes on meanwhile."""
        if self.path is not None:
            with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous=FULL")
                database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Closes the file; what is in it waits for the next time."""
        with self._lock:
            self._database.close()
            owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)

    def _message(self, number: int, kind: str, stream: str, rule: str, body: bytes) -> Message:
        own = f"{self.name}-{number}"
        return Message(number, own, kind, stream, rule, b'{"id":"' + own.encode() + b'",' + body[1:])

    def _forget(self, last: int) -> int:
        """Removes messages up to a number; returns how many."""
        with self._lock:
            count, size = self._sizes(last)
            self._database.execute("DELETE FROM messages WHERE number <= ?", (last,))
            self.count, self.bytes = self.count - count, self.bytes - size
        return count

    def _sizes(self, last: int) -> tuple[int, int]:
        """Number and bytes of the messages up to a number."""
        count, size = self._database.execute(
            "SELECT count(*), coalesce(sum(length(body)), 0) FROM messages WHERE number <= ?", (last,)
        ).fetchone()
        return count, size + count * _ROW_BYTES

    def _lost(self, count: int, why: str) -> None:
        if not self.dropped:
            log.warning("%s: messages are dropped: %s", self._where, why)
        self.dropped += count

    def _opened(self) -> sqlite3.Connection:
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

    def _begun(self) -> tuple[str, int]:
        """Its name, and how often it was opened: no number is used twice, whatever was removed."""
        if self._database.execute("SELECT name FROM spool").fetchone() is None:
            self._database.execute("INSERT INTO spool VALUES (?, 0)", (uuid.uuid4().hex[:12],))
        self._database.execute("UPDATE spool SET opened = opened + 1")
        name, opened = self._database.execute("SELECT name, opened FROM spool").fetchone()
        return str(name), int(opened)


def _database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA page_size=1024")  # of a new file: a commit writes whole pages, and flash wears out
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute("PRAGMA wal_autocheckpoint=0")  # whoever puts never waits for the disk; secure() does it
    database.executescript(_TABLES)
    return database
