"""Bounded queue of messages that are not acknowledged yet, in an SQLite database and a journal.

When :meth:`Spool.put` returns, a message is in the journal and survives the process. Messages that are not acknowledged
soon move into the database, many at a time (write-ahead log, ``synchronous=NORMAL``, https://www.sqlite.org/wal.html).
After :meth:`Spool.secure`, a message also survives a power cut.

A file that turns out to be damaged, when it is opened or later, is renamed. Its readable messages go into a new one, in
order, and the spool continues.
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
from edgert.stages.sink.send.journal import ROW_BYTES, Journal, Row, row_size
from edgert.stages.sink.send.salvage import Recovered, is_whole

log = logging.getLogger("edgert.send")

_RETRY_S = 1.0
"""Seconds until a full disk is tried again."""
_JUMP_S = 1.0
"""Least change of the time of day that counts as the clock being set."""
_RENEWALS = 5
"""Number of damaged files in a run after which the disk is no longer used."""
_AT_ONCE = 1000
"""Recovered messages that are stored in one step."""
_OWN_ID = b'{"id":"'
"""Beginning of a message with an id of its own."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        number: number in the spool; it rises, and is never used twice.
        id: globally unique id, the same each time that the message is sent.
        kind: one of :data:`~edgert.stages.sink.send.journal.KINDS`.
        stream: stream of the frame.
        rule: rule of an event; empty for other kinds.
        body: JSON object in UTF-8, with the id.
        is_earlier: whether it comes from an earlier run.
    """

    number: int
    id: str
    kind: str
    stream: str
    rule: str
    body: bytes
    is_earlier: bool = False


class Spool:
    """Queue of messages in order of arrival, for one thread that puts and one that takes.

    Args:
        path: path of the file, whose folder is created; None: in memory. A file that cannot be written is replaced by
            memory, and logged.
        limit_bytes: maximum size of all messages; the oldest are dropped beyond it.
        age_s: maximum age of a message; older ones are dropped.
        where: the sink's stage, for messages.

    Attributes:
        name: name of the spool, in the ids of its messages.
        dropped: number of messages that were dropped: too old, too many, or damaged.

    Raises:
        StageError: another process uses the file.
    """

    def __init__(self, path: Path | None, limit_bytes: int, age_s: float, where: str) -> None:
        self._limit_bytes, self._age_s, self._where = limit_bytes, age_s, where
        self._lock, self._owner, self._is_closed = threading.Lock(), -1, False
        self.path = path
        self._gone, self._is_dirty, self._full_until = -1, False, 0.0
        self.dropped = 0
        self._left, self._renewals = Recovered("", 0, iter(())), 0
        self.name, self._first = "", 1 << 32
        self._database, self.name, opened = self._open()
        self._next = self._first = opened << 32
        self._epoch_s = time.time() - time.monotonic()
        self._stored = self._stored_bytes = 0
        self._journal = Journal(None if self.path is None else self.path.with_suffix(".journal"), self.name)
        with self._lock:
            self._store_recovered(self._first - 1)
            self._repairing(self._take_over)

    @property
    def count(self) -> int:
        """Number of messages."""
        return self._stored + len(self._journal.rows)

    @property
    def size_bytes(self) -> int:
        """Total size of the messages."""
        return self._stored_bytes + self._journal.size_bytes

    def put(self, kind: str, stream: str, rule: str, body: bytes) -> int | None:
        """Store a message; return its number. Return None where the disk is full, after counting it as dropped."""
        with self._lock:
            row = self._next, self._now(), kind, stream, rule, body
            self._next += 1
            if self._is_closed:
                return None
            if not self._journal.append(row):
                try:
                    self._repairing(partial(self._move, row))
                except sqlite3.Error as error:
                    self._count_dropped(1, f"cannot write to {self.path}: {error}")
                    return None
            return row[0]

    def oldest(self, count: int, after: int = -1) -> list[Message]:
        """Return the first messages after a number; they stay until :meth:`remove`."""
        found = list[Message]()
        with self._lock:
            if self._is_closed:
                return []
            while self._stored and not found and (rows := self._repairing(partial(self._rows, count, after))):
                found = [self._message(row) for row in rows if self._is_sound(row)]
                after = rows[-1][0]
            newer = (row for row in self._journal.rows if row[0] > after)
            found += [self._message(row) for row in islice(newer, count - len(found))]
        return found

    def remove(self, messages: Sequence[Message]) -> None:
        """Remove all messages up to the last of these, which have arrived."""
        if messages:
            self._forget(messages[-1].number)

    def keep_aside(self, message: Message) -> str:
        """Write a message that cannot be sent into a file beside the spool; return its name, empty on failure.

        Nothing is sent from that file. The message stays in the spool until :meth:`remove`.
        """
        self.dropped += 1
        return spool_file.keep_aside(self.path, message.body)

    def trim(self) -> None:
        """Drop messages that are too old or too many. Raises sqlite3.Error where the disk is full."""
        with self._lock:
            if self._is_closed:
                return
            self._repairing(self._follow_clock)
            since = self._now() - self._age_s
            if self._journal.rows and self._journal.rows[0][1] < since:
                self._repairing(self._move)
            last = self._repairing(partial(self._last_before, since))
        if last is not None:
            self._count_dropped(self._forget(last), f"they could not be sent for {self._age_s:g} s")
        while (held := self.size_bytes) > self._limit_bytes:
            skipped = int((1 - self._limit_bytes / held) * (self.count - 1))
            with self._lock:
                last = self._repairing(partial(self._number_at, skipped))
            self._count_dropped(self._forget(last), f"the spool holds {self._limit_bytes} bytes at most")

    def _now(self) -> float:
        """Return seconds of the epoch, by the time of day at the last :meth:`_follow_clock`."""
        return self._epoch_s + time.monotonic()

    def _follow_clock(self) -> None:
        """Shift the times of this process's messages, if the clock was set in the meantime.

        A board without a battery sets its clock once it has a network. Hours of messages would then be too old.

        Raises:
            sqlite3.OperationalError: the disk is full.
        """
        jump_s = time.time() - self._now()
        if abs(jump_s) > _JUMP_S:
            self._move()
            self._database.execute("UPDATE messages SET time = time + ? WHERE number >= ?", (jump_s, self._first))
            self._epoch_s += jump_s

    def _last_before(self, since: float) -> int | None:
        """Return the number of the last stored message that is older, searching from the oldest.

        The search stops at the first that is not, because :meth:`put` waits meanwhile.
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
        """Return the number of the stored message at an index."""
        self._move()
        found = self._database.execute(
            "SELECT number FROM messages WHERE number > ? ORDER BY number LIMIT 1 OFFSET ?", (self._gone, skipped)
        ).fetchone()
        if found is None:
            raise sqlite3.DatabaseError("messages are missing")
        return int(found[0])

    def _rows(self, count: int, after: int) -> list[Row]:
        """Return the first stored rows after a number, unchecked."""
        found: list[Row] = self._database.execute(
            "SELECT number, time, kind, stream, rule, body FROM messages WHERE number > ? ORDER BY number LIMIT ?",
            (max(after, self._gone), count),
        ).fetchall()
        return found

    def secure(self, acknowledged: int = -1) -> None:
        """Make all messages survive a power cut. This waits for the disk; :meth:`put` does not.

        Args:
            acknowledged: number of the last acknowledged message. If no later one waits, nothing is written, because
                flash wears out.

        Raises:
            sqlite3.Error: the disk is full, for instance. No message is lost then.
        """
        with self._lock:
            if self._is_closed:
                return
            if self._next - 1 > acknowledged:
                self._repairing(self._move)
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
        """Close the files, whose messages wait for the next run. May be called twice, and from any thread.

        Afterwards the spool returns no messages, and removes none.
        """
        with self._lock:
            self._is_closed = True
            self._journal.close()
            with suppress(sqlite3.Error):  # a damaged file is found when it is opened again
                self._database.close()
            owner, self._owner = self._owner, -1
        if owner >= 0:
            os.close(owner)

    def _take_over(self) -> None:
        """Take over the journal of a process that was killed."""
        self._count_all()
        if not self._journal.is_own:  # its database is gone, so its numbers have no meaning
            self._renumber_journal()
        elif self._journal.rows:
            first = self._journal.rows[0][0]
            there = self._database.execute("SELECT number FROM messages WHERE number >= ?", (first,)).fetchall()
            self._journal.drop({number for (number,) in there})  # killed between two steps of a move
        with suppress(sqlite3.OperationalError):  # on a full disk, they stay in the journal
            self._move()

    def _renumber_journal(self) -> None:
        """Give the rows of the journal the next numbers."""
        for row in self._journal.forget(2**62):
            row = (self._next, *row[1:])
            self._next += 1
            if not self._journal.append(row):
                self._move(row)

    def _move(self, *more: Row) -> None:
        """Move all rows of the journal, and ``more`` for which it has no room, into the database."""
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
        """Write rows into the database: all of them, or none."""
        with self._database:
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO messages VALUES (?,?,?,?,?,?)", rows)
        self._is_dirty = True
        self._stored, self._stored_bytes = self._stored + len(rows), self._stored_bytes + sum(map(row_size, rows))

    def _is_sound(self, row: Row) -> bool:
        """Return whether a stored row is a valid message; set any other row aside, and remove it."""
        _, _, *texts, body = row
        if all(isinstance(text, bytes) for text in texts) and is_whole(body):
            return True
        spool_file.keep_aside(self.path, repr(row).encode())
        self._count_dropped(1, f"they are damaged in {self.path}")
        with suppress(sqlite3.Error):  # on a full disk, it is found again later
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
            return gone + self._repairing(partial(self._delete, last))

    def _delete(self, last: int) -> int:
        """Remove stored messages up to a number; return how many."""
        count, size = self._sizes(last) if self._stored else (0, 0)
        if count:
            self._is_dirty = True
            try:
                self._database.execute("DELETE FROM messages WHERE number <= ?", (last,))
            except sqlite3.OperationalError as error:  # on a full disk, the next call removes them
                if self._is_damage(error):
                    raise
        self._stored, self._stored_bytes = self._stored - count, self._stored_bytes - size
        self._gone = max(self._gone, last)
        return count

    def _sizes(self, last: int) -> tuple[int, int]:
        """Return count and size of the unsent stored messages up to a number."""
        count, size = self._database.execute(
            "SELECT count(*), coalesce(sum(length(body)), 0) FROM messages WHERE number > ? AND number <= ?",
            (self._gone, last),
        ).fetchone()
        return int(count), int(size) + count * ROW_BYTES

    def _count_all(self) -> None:
        self._stored, self._stored_bytes = self._sizes(2**62)

    def _repairing(self, work: Callable[[], T]) -> T:
        """Call a function and return its result. If the file turns out to be damaged, recover it and call again."""
        try:
            return work()
        except spool_file.DAMAGE as error:
            if not self._is_damage(error):
                raise
            self._start_over(error)
            return work()

    def _is_damage(self, error: Exception) -> bool:
        """Return whether an error shows that the file is damaged or gone, not that the disk has trouble."""
        if self.path is None:
            return False
        return not spool_file.is_of_disk(error) or not self.path.exists()

    def _start_over(self, error: Exception) -> None:
        """Replace the damaged file by a new one with its readable messages, which keep their numbers."""
        held = list[Row]()
        with suppress(sqlite3.Error):
            if self.path is not None and not self.path.exists():  # it was removed, but is open and readable
                held = self._rows(-1, self._gone)
            self._database.close()
        self._database, *_ = self._replace_damaged(error)
        self._left = self._left._replace(rows=chain(held, self._left.rows))
        self._stored = self._stored_bytes = 0
        self._store_recovered(self._next - 1)

    def _store_recovered(self, last: int) -> None:
        """Store the messages that were recovered from a damaged file.

        Args:
            last: highest number that one of its rows can have.
        """
        left, self._left = self._left, Recovered("", 0, iter(()))
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
                self._count_dropped(len(part) + sum(1 for _ in rows), f"cannot write to {self.path}: {error}")
                break
            saved += len(part)
        if newer and before > last:  # a row had a damaged number, so rows in the journal get new ones
            self._renumber_journal()
        if saved:
            log.warning("%s: recovered %d messages from the damaged file", self._where, saved)

    def _count_dropped(self, count: int, why: str) -> None:
        if not self.dropped:
            log.warning("%s: messages are dropped: %s", self._where, why, extra={"code": "send.dropped"})
        self.dropped += count

    def _open(self) -> spool_file.Opened:
        """Open the database, or a new one, or one in memory."""
        if self.path is None:
            return spool_file.open_database(None)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._owner = spool_file.lock_spool(self.path, self._where)
            if self.path.exists() and not self.path.is_file():
                raise OSError("it is no file")
            return spool_file.open_database(self.path)
        except OSError as error:
            return self._in_memory(error)
        except spool_file.DAMAGE as error:
            return self._in_memory(error) if "locked" in str(error) else self._replace_damaged(error)

    def _in_memory(self, error: Exception) -> spool_file.Opened:
        log.warning("%s: unsent messages are kept in memory only: %s: %s", self._where, self.path, cause(error))
        self.path = None
        return spool_file.open_database(None, self.name, (self._first >> 32) - 1)

    def _replace_damaged(self, error: Exception) -> spool_file.Opened:
        """Rename the damaged file and open a new one; one in memory where that fails, because the disk is at fault."""
        assert self.path is not None, "a database in memory is never damaged"
        self._renewals += 1
        if self._renewals > _RENEWALS:
            return self._in_memory(error)
        try:
            made, self._left, aside = spool_file.replace_damaged(self.path, self.name, (self._first >> 32) - 1)
        except (OSError, *spool_file.DAMAGE) as other:
            return self._in_memory(other)
        now = f"it is now {aside.name}" if aside.exists() else "it was removed"
        log.warning("%s: %s is damaged (%s); %s", self._where, self.path, cause(error), now)
        return made


def _text(value: object) -> str:
    """Return a text of a row; texts from the database are bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
