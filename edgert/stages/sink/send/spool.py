"""Bounded, ordered SQLite queue of messages that have not been acknowledged yet.

A message is kept from the moment that :meth:`Spool.put` returns. It survives the process: the operating system has it
by then, in the journal. What is not acknowledged soon moves from there into the database, many at once (write-ahead
log, ``synchronous=NORMAL``, https://www.sqlite.org/wal.html). It survives a power cut once :meth:`Spool.secure` has
been called after it.

A file that turns out to be damaged, when it is opened or while it is used, is put aside. What can be read of it goes
into a new one, in order, and everything goes on.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from edgert.errors import cause
from edgert.stages.sink.send import spool_file
from edgert.stages.sink.send.journal import ROW_BYTES, Journal, Row, size_of
from edgert.stages.sink.send.salvage import Left, is_whole

log = logging.getLogger("edgert.send")

_RETRY_S = 1.0
"""Seconds until a full disk is tried again."""
_JUMP_S = 1.0
"""A clock that is set by less is being slewed, or this thread was delayed."""
_RENEWALS = 5
"""A disk that damages its files this often within a run is no longer used."""
_AT_ONCE = 1000
"""Saved messages that are stored in one step."""
_OWN_ID = b'{"id":"'
"""Beginning of a message that has an id already, which is the same on every machine that makes it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Message:
    """One result or event.

    Attributes:
        number: counts up; never used twice in a spool.
        id: of this message and no other anywhere, however often it is sent.
        kind: ``result`` or ``event``.
        stream, rule: where it comes from; a result has no rule.
        body: UTF-8 JSON, an object with the id in it.
        is_earlier: whether an earlier run put it.
    """

    number: int
    id: str
    kind: str
    stream: str
    rule: str
    body: bytes
    is_earlier: bool = False


class Spool:
    """Messages in order of arrival, for one thread that puts and one that takes.

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
        self._lock, self._owner, self._is_closed = threading.Lock(), -1, False
        self.path = path
        self._gone, self._is_dirty, self._full_until = -1, False, 0.0
        self.dropped = 0
        """Messages that were too old, made room, or were damaged."""
        self._left, self._renewals = Left("", 0, iter(())), 0
        self.name, self._first = "", 1 << 32
        self._database, self.name, opened = self._opened()
        self._next = self._first = opened << 32
        self._epoch_s = time.time() - time.monotonic()
        self._stored = self._stored_bytes = 0
        self._journal = Journal(None if self.path is None else self.path.with_suffix(".journal"), self.name)
        with self._lock:
            self._put_back(self._first - 1)
            self._sound(self._take_over)

    @property
    def count(self) -> int:
        """Number of messages."""
        return self._stored + len(self._journal.rows)

    @property
    def size_bytes(self) -> int:
        """Total size of the messages."""
        return self._stored_bytes + self._journal.size_bytes

    def put(self, kind: str, stream: str, rule: str, body: bytes) -> int | None:
        """Store a message and return its number. Where the disk is full it is dropped and counted: None."""
        with self._lock:
            row = self._next, self._now(), kind, stream, rule, body
            self._next += 1
            if self._is_closed:
                return None
            if not self._journal.append(row):
                try:
                    self._sound(partial(self._move, row))
                except sqlite3.Error as error:
                    self._lost(1, f"cannot write to {self.path}: {error}")
                    return None
            return row[0]

    def oldest(self, count: int, after: int = -1) -> list[Message]:
        """Return the first messages after a number; they stay until :meth:`remove`."""
        found = list[Message]()
        with self._lock:
            if self._is_closed:
                return []
            while self._stored and not found and (rows := self._sound(partial(self._rows, count, after))):
                found = [self._message(row) for row in rows if self._is_sound(row)]
                after = rows[-1][0]
            newer = (row for row in self._journal.rows if row[0] > after)
            found += [self._message(row) for row in islice(newer, count - len(found))]
        return found

    def remove(self, messages: Sequence[Message]) -> None:
        """Remove all messages up to the last of these: they arrived."""
        if messages:
            self._forget(messages[-1].number)

    def keep_aside(self, message: Message) -> str:
        """Write a message that cannot be sent to a file beside the spool; return its name, empty on failure.

        Nothing is sent from that file. The message stays in the spool until :meth:`remove`.
        """
        self.dropped += 1
        return spool_file.keep_aside(self.path, message.body)

    def trim(self) -> None:
        """Drop what is too old or too much. Raises sqlite3.Error where the disk is full."""
        with self._lock:
            if self._is_closed:
                return
            self._sound(self._follow_clock)
            since = self._now() - self._age_s
            if self._journal.rows and self._journal.rows[0][1] < since:
                self._sound(self._move)
            last = self._sound(partial(self._last_before, since))
        if last is not None:
            self._lost(self._forget(last), f"nobody took them for {self._age_s:g} s")
        while (held := self.size_bytes) > self._limit_bytes:
            skipped = int((1 - self._limit_bytes / held) * (self.count - 1))
            with self._lock:
                last = self._sound(partial(self._number_at, skipped))
            self._lost(self._forget(last), f"the spool holds {self._limit_bytes} bytes at most")

    def _now(self) -> float:
        """Return seconds of the epoch, by the clock as it was set when it was last read."""
        return self._epoch_s + time.monotonic()

    def _follow_clock(self) -> None:
        """Shift the times of this process's messages where the clock was set meanwhile.

        Raises sqlite3.OperationalError.

        A board without a battery sets its clock once it has a network. Otherwise hours of messages would be too old.
        """
        jump_s = time.time() - self._now()
        if abs(jump_s) > _JUMP_S:
            self._move()
            self._database.execute("UPDATE messages SET time = time + ? WHERE number >= ?", (jump_s, self._first))
            self._epoch_s += jump_s

    def _last_before(self, since: float) -> int | None:
        """Return the last stored message that is older, searching from the oldest.

        Reads one message more than these, because :meth:`put` waits meanwhile.
        """
        last = None
        rows = self._database.execute(
            "SELECT number, time FROM messages WHERE number > ? ORDER BY number", (self._gone,)
        )
        for number, time_s in rows:
            if not isinstance(time_s, float) or time_s >= since:
                break
            last = number
        return last

    def _number_at(self, skipped: int) -> int:
        """Return the number of the stored message behind the first ``skipped``."""
        self._move()
        found = self._database.execute(
            "SELECT number FROM messages WHERE number > ? ORDER BY number LIMIT 1 OFFSET ?", (self._gone, skipped)
        ).fetchone()
        if found is None:
            raise sqlite3.DatabaseError("it has fewer messages than it had")
        return int(found[0])

    def _rows(self, count: int, after: int) -> list[Row]:
        """Return the first stored rows after a number, as they are in the file."""
        found: list[Row] = self._database.execute(
            "SELECT number, time, kind, stream, rule, body FROM messages WHERE number > ? ORDER BY number LIMIT ?",
            (max(after, self._gone), count),
        ).fetchall()
        return found

    def secure(self, acknowledged: int = -1) -> None:
        """Make everything stored so far survive a power cut. Waits for the disk; :meth:`put` does not.

        Args:
            acknowledged: the last number that a server has. Where nothing else waits, nothing is written, as flash
                wears out.

        Raises:
            sqlite3.Error: such as a full disk; everything stays where it was.
        """
        with self._lock:
            if self._is_closed:
                return
            if self._next - 1 > acknowledged:
                self._sound(self._move)
            was_dirty, self._is_dirty = self._is_dirty, False
        if self.path is not None and was_dirty:
            try:
                name = f"file:{quote(str(self.path.absolute()))}?mode=rw"
                with closing(sqlite3.connect(name, isolation_level=None, uri=True)) as database:
                    database.execute("PRAGMA synchronous=FULL")
                    database.execute("PRAGMA wal_checkpoint(PASSIVE)")
            except sqlite3.Error as error:
                self._is_dirty = True
                if not self._is_damage(error):
                    raise
                with self._lock:
                    if not self._is_closed:
                        self._start_over(error)

    def close(self) -> None:
        """Close the files; their messages wait for the next run. Callable more than once and from any thread.

        The spool is empty afterwards, and removes nothing.
        """
        with self._lock:
            self._is_closed = True
            self._journal.close()
            with suppress(sqlite3.Error):  # of a damaged file, which is found when it is opened again
                self._database.close()
            owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)

    def _take_over(self) -> None:
        """Take over the journal of a process that was killed."""
        self._count_all()
        if not self._journal.is_own:  # its database is gone, and with it the numbers
            self._renumber_journal()
        elif self._journal.rows:
            first = self._journal.rows[0][0]
            there = self._database.execute("SELECT number FROM messages WHERE number >= ?", (first,)).fetchall()
            self._journal.drop({number for (number,) in there})  # killed when they were there, and here too
        with suppress(sqlite3.OperationalError):  # of a full disk: they stay where they are
            self._move()

    def _renumber_journal(self) -> None:
        """Give the rows of the journal the next numbers."""
        for row in self._journal.forget(2**62):
            row = (self._next, *row[1:])
            self._next += 1
            if not self._journal.append(row):
                self._move(row)

    def _move(self, *more: Row) -> None:
        """Move everything from the journal, and rows without room there, into the database."""
        rows = [*self._journal.rows, *more]
        if not rows:
            return
        if more and time.monotonic() < self._full_until:
            raise sqlite3.OperationalError("database or disk is full")
        try:
            self._insert(rows)
        except sqlite3.OperationalError:
            self._full_until = time.monotonic() + _RETRY_S
            raise
        self._journal.forget(rows[-1][0])

    def _insert(self, rows: Sequence[Row]) -> None:
        """Write rows into the database, all or none."""
        with self._database:
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO messages VALUES (?,?,?,?,?,?)", rows)
        self._is_dirty = True
        self._stored, self._stored_bytes = self._stored + len(rows), self._stored_bytes + sum(map(size_of, rows))

    def _is_sound(self, row: Row) -> bool:
        """Return whether a stored row is a message; set any other row aside, count and remove it."""
        _, _, *texts, body = row
        if all(isinstance(text, bytes) for text in texts) and is_whole(body):
            return True
        spool_file.keep_aside(self.path, repr(row).encode())
        self._lost(1, f"they are damaged in {self.path}")
        with suppress(sqlite3.Error):  # of a full disk; or it is found by who asks next
            self._database.execute("DELETE FROM messages WHERE number = ?", (row[0],))
            self._count_all()
        return False

    def _message(self, row: Row) -> Message:
        number, _, kind, stream, rule, body = row
        if body.startswith(_OWN_ID):
            own, whole = body[len(_OWN_ID) : body.index(b'"', len(_OWN_ID))].decode(), body
        else:
            own = f"{self.name}-{number}"
            whole = _OWN_ID + own.encode() + b'",' + body[1:]
        return Message(number, own, _text(kind), _text(stream), _text(rule), whole)

    def _forget(self, last: int) -> int:
        """Remove messages up to a number; return how many."""
        with self._lock:
            if self._is_closed:
                return 0
            gone = len(self._journal.forget(last))
            return gone + self._sound(partial(self._delete, last))

    def _delete(self, last: int) -> int:
        """Remove stored messages up to a number; return how many."""
        count, size = self._sizes(last) if self._stored else (0, 0)
        if count:
            self._is_dirty = True
            try:
                self._database.execute("DELETE FROM messages WHERE number <= ?", (last,))
            except sqlite3.OperationalError as error:  # of a full disk: the next time
                if self._is_damage(error):
                    raise
        self._stored, self._stored_bytes = self._stored - count, self._stored_bytes - size
        self._gone = max(self._gone, last)
        return count

    def _sizes(self, last: int) -> tuple[int, int]:
        """Return number and bytes of the stored messages up to a number that are still to be sent."""
        count, size = self._database.execute(
            "SELECT count(*), coalesce(sum(length(body)), 0) FROM messages WHERE number > ? AND number <= ?",
            (self._gone, last),
        ).fetchone()
        return int(count), int(size) + count * ROW_BYTES

    def _count_all(self) -> None:
        self._stored, self._stored_bytes = self._sizes(2**62)

    def _sound(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns; where the file turns out to be damaged, with what could be saved of it."""
        try:
            return work()
        except spool_file.DAMAGE as error:
            if not self._is_damage(error):
                raise
            self._start_over(error)
            return work()

    def _is_damage(self, error: Exception) -> bool:
        """Return whether an error is of the file, and not of the disk that it is on."""
        if self.path is None:
            return False
        return not spool_file.is_of_disk(error) or not self.path.exists()

    def _start_over(self, error: Exception) -> None:
        """Put the damaged file aside, and go on with what can be read of it in another. The numbers stay."""
        held = list[Row]()
        with suppress(sqlite3.Error):
            if self.path is not None and not self.path.exists():  # somebody removed it: it is whole, and has no name
                held = self._rows(-1, self._gone)
            self._database.close()
        self._database, *_ = self._renewed(error)
        self._left = self._left._replace(rows=chain(held, self._left.rows))
        self._stored = self._stored_bytes = 0
        self._put_back(self._next - 1)

    def _put_back(self, last: int) -> None:
        """Store what was read of a damaged file.

        Args:
            last: the highest number that a row of it can have.
        """
        left, self._left = self._left, Left("", 0, iter(()))
        newer = list(self._journal.rows) if self._journal.is_own else []
        last = min(last, newer[0][0] - 1) if newer else last
        known = {row[0] for row in newer}
        rows = (row for row in left.rows if row[0] > self._gone and row[0] not in known)
        before = saved = 0
        while part := list(islice(rows, _AT_ONCE)):
            numbered = list[Row]()
            for number, *rest in part:
                before = number if before < number <= last else before + 1
                numbered.append((before, *rest))  # type: ignore[arg-type]
            try:
                self._insert(numbered)
            except sqlite3.Error as error:
                self._lost(len(part) + sum(1 for _ in rows), f"cannot write to {self.path}: {error}")
                break
            saved += len(part)
        if newer and before > last:  # of a row whose number is damaged; those in the journal get others
            self._renumber_journal()
        if saved:
            log.warning("%s: %d messages that waited in the damaged file were saved", self._where, saved)

    def _lost(self, count: int, why: str) -> None:
        if not self.dropped:
            log.warning("%s: messages are dropped: %s", self._where, why)
        self.dropped += count

    def _opened(self) -> spool_file.Opened:
        """Open the database; return it, its name, and how often it was opened."""
        if self.path is None:
            return spool_file.opened(None)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._owner = spool_file.owned(self.path, self._where)
            if self.path.exists() and not self.path.is_file():
                raise OSError("it is no file")
            return spool_file.opened(self.path)
        except OSError as error:
            return self._in_memory(error)
        except spool_file.DAMAGE as error:
            return self._in_memory(error) if "locked" in str(error) else self._renewed(error)

    def _in_memory(self, error: Exception) -> spool_file.Opened:
        log.warning("%s: what cannot be sent waits in memory alone: %s: %s", self._where, self.path, cause(error))
        self.path = None
        return spool_file.opened(None, self.name, (self._first >> 32) - 1)

    def _renewed(self, error: Exception) -> spool_file.Opened:
        """Put the file aside and open a new one. Where that cannot be, neither is: the fault is the disk's."""
        assert self.path is not None, "what is in memory is never damaged"
        self._renewals += 1
        if self._renewals > _RENEWALS:
            return self._in_memory(error)
        try:
            made, self._left, aside = spool_file.renewed(self.path, self.name, (self._first >> 32) - 1)
        except (OSError, *spool_file.DAMAGE) as other:
            return self._in_memory(other)
        now = f"it is now {aside.name}" if aside.exists() else "it was removed"
        log.warning("%s: %s is damaged (%s); %s", self._where, self.path, cause(error), now)
        return made


def _text(value: object) -> str:
    """Return a text of a row, which comes as bytes from the database."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
