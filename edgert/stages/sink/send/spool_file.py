"""The SQLite file of a spool: opening and checking it, and replacing a damaged one."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edgert.errors import StageError
from edgert.stages.sink.send.salvage import MOST_OPENED, NAME, PAGE_BYTES, Recovered, recover_rows

Opened = tuple[sqlite3.Connection, str, int]
"""A database, the name of its spool, and how often it was opened, by which no number is used twice."""
DAMAGE = (sqlite3.Error, UnicodeError, OverflowError)
"""Errors that a damaged file may cause, among other reasons."""

_TABLES = """
CREATE TABLE IF NOT EXISTS spool (name TEXT, opened INTEGER);
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY, time REAL, kind TEXT, stream TEXT, rule TEXT, body BLOB
);
"""
_COLUMNS = [b"number INTEGER", b"time REAL", b"kind TEXT", b"stream TEXT", b"rule TEXT", b"body BLOB"]
_OF_DISK = ("full", "locked", "readonly", "unable to open", "interrupted")
_PARTS = ("", "-wal", "-shm")
_CHECK_S = 5.0
"""Maximum seconds for checking a file when it is opened."""
_KEPT = 3
"""Number of damaged files that are kept; older ones are removed."""
_ASIDE_BYTES = 16 * 2**20
"""Maximum size of the file of messages that cannot be sent."""


def is_of_disk(error: Exception) -> bool:
    """Return whether an error of SQLite is about the disk, or another user of the file, and not about its content."""
    return isinstance(error, sqlite3.OperationalError) and any(one in str(error) for one in _OF_DISK)


def lock_spool(path: Path, where: str) -> int:
    """Lock a spool until the returned descriptor is closed.

    Raises OSError, or StageError for the stage ``where`` if another process has the lock.
    """
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        with suppress(OSError):
            os.close(lock)
        raise StageError(
            f"another process sends from {path}",
            why="two processes would send each message twice",
            where=where,
            fix="stop the other, or give this pipeline a spool: of its own",
        ) from error
    return lock


def open_database(path: Path | None, name: str = "", times: int = 0) -> Opened:
    """Open a spool's file, which only this user may read, because it may contain images.

    Args:
        path: path of the file; None for memory.
        name: name of a new spool.
        times: number of openings of a new spool so far.

    Raises:
        OSError: it cannot be opened.
        sqlite3.Error, UnicodeError, OverflowError: it is damaged, or cannot be written; see :func:`is_of_disk`.
    """
    if path is not None:
        os.close(_private(str(path), os.O_RDWR | os.O_CREAT))
        for part in _PARTS[1:]:  # SQLite gives new ones the mode of the first
            with suppress(PermissionError, FileNotFoundError):
                path.with_name(f"{path.name}{part}").chmod(0o600)
    database = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        database.text_factory = bytes
        database.execute(f"PRAGMA page_size={PAGE_BYTES}")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")  # the number of openings must survive a power cut
        database.execute("PRAGMA wal_autocheckpoint=0")  # only secure() waits for the disk, not put()
        _check_content(database)
        return database, *_identity(database, name, times)
    except BaseException:
        database.close()
        raise


def replace_damaged(path: Path, name: str, times: int) -> tuple[Opened, Recovered, Path]:
    """Rename a damaged file, and open a new one in its place.

    Args:
        path: path of the damaged file.
        name: name of the spool; empty: name and openings of the damaged file.
        times: number of openings of the spool.

    Returns:
        The new database, the readable rows of the damaged one, and its new path.

    Raises:
        OSError, sqlite3.Error, UnicodeError, OverflowError: no file can be created. Nothing has changed then.
    """
    aside = path.with_suffix(f".damaged-{int(time.time())}")
    while aside.exists():
        aside = aside.with_name(f"{aside.name}x")
    if path.exists():
        _rename(path, aside)
    try:
        left = recover_rows(aside)
        made = open_database(path, name or left.name, times if name else left.opened)
    except (OSError, *DAMAGE):
        _each_part(path, lambda part: part.unlink(missing_ok=True))
        if aside.exists():
            _rename(aside, path)
        raise
    stem = aside.name.rpartition(".damaged-")[0]
    found = [one for one in path.parent.glob("*.damaged-*") if one.name.startswith(f"{stem}.damaged-")]
    for old in sorted(one for one in found if not one.name.endswith(_PARTS[1:]))[:-_KEPT]:
        _each_part(old, lambda part: part.unlink(missing_ok=True))
    return made, left, aside


def keep_aside(spool: Path | None, line: bytes) -> str:
    """Append a line to the file beside a spool, of messages that cannot be sent.

    Returns:
        The file's name; empty for a spool in memory, or where the file cannot be written or is too large.
    """
    if spool is None:
        return ""
    path = spool.with_suffix(".aside.jsonl")
    try:
        with open(path, "ab", opener=_private) as file:
            if file.tell() + len(line) > _ASIDE_BYTES:
                return ""
            file.write(line + b"\n")
    except OSError:
        return ""
    return path.name


def _identity(database: sqlite3.Connection, name: str, times: int) -> tuple[str, int]:
    """Create missing tables, and count the opening; return the spool's name and the number of openings.

    Raises sqlite3.DatabaseError for the tables of something else.
    """
    database.executescript(_TABLES)
    if database.execute("SELECT name FROM spool").fetchone() is None:
        database.execute("INSERT INTO spool VALUES (?, ?)", (name or uuid.uuid4().hex[:12], times))
    database.execute("UPDATE spool SET opened = opened + 1")
    found, times = database.execute("SELECT name, opened FROM spool").fetchone()
    columns = [b"%b %b" % row[1:3] for row in database.execute("PRAGMA table_info(messages)")]
    (last,) = database.execute("SELECT max(number) FROM messages").fetchone()
    if columns != _COLUMNS or not isinstance(found, bytes) or not NAME.fullmatch(found):
        raise sqlite3.DatabaseError("its tables are not those of a spool")
    if not isinstance(times, int) or not 0 < times < MOST_OPENED or (last or 0) >= times << 32:
        raise sqlite3.DatabaseError("its numbers are not those of a spool")
    database.execute("PRAGMA synchronous=NORMAL")
    return found.decode(), times


def _check_content(database: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError for a damaged file. A large one is only checked for 5 s."""
    timer = threading.Timer(_CHECK_S, database.interrupt)
    timer.start()
    try:
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        return
    finally:
        timer.cancel()
        timer.join()
    if found != b"ok":
        raise sqlite3.DatabaseError(str(found, "utf-8", "replace").splitlines()[-1])


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may read, and return its descriptor."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    with suppress(PermissionError):  # another user's file
        os.fchmod(file, 0o600)
    return file


def _rename(path: Path, to: Path) -> None:
    """Rename a database and the files that SQLite keeps beside it. Raises OSError."""
    for part in _PARTS[1:]:
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{part}").rename(to.with_name(f"{to.name}{part}"))
    path.rename(to)


def _each_part(path: Path, work: Callable[[Path], None]) -> None:
    for part in _PARTS:
        with suppress(OSError):
            work(path.with_name(f"{path.name}{part}"))
