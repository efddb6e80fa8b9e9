"""Recovery of the readable rows of a damaged spool, page by page.

SQLite reads nothing below a damaged page of its tree. So pages with rows are read without the tree, as the shell's
``.recover`` does (https://www.sqlite.org/fileformat2.html, https://www.sqlite.org/recovery.html).
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from edgert.stages.sink.send.journal import KINDS, Row

PAGE_BYTES = 1024
"""Page size of a spool. It is small, because a commit writes complete pages, and flash wears out."""
MOST_OPENED = 2**30
"""Maximum openings of a spool, so that a message's number has 63 bits."""
_LEAF = 0x0D
_HEADER_BYTES, _SCHEMA_PAGE = 100, 1
_MOST_PAGES = 2**24
_WAL_BYTES, _FRAME = 32, struct.Struct(">II8s8s")
NAME = re.compile(b"[0-9a-f]{12}")
_INT_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class Recovered(NamedTuple):
    """Rows recovered from a spool, its name, and how often it was opened; empty and 0 where they cannot be read."""

    name: str
    opened: int
    rows: Iterator[Row]


def recover_rows(path: Path) -> Recovered:
    """Return what is readable of a spool's file and its write-ahead log, in the order of the numbers.

    Raises:
        OSError: nothing can be read.
    """
    pages = _Pages(path)
    found, name, opened = list[tuple[int, int, int]](), "", 0
    free = pages.free()
    for number in range(1, pages.count + 1):
        if number in free:
            continue
        for at in pages.cells(number):
            with suppress(ValueError, IndexError, struct.error):
                rowid, columns = pages.columns(number, at)
                if len(columns) == 2:
                    name, opened = _identity(pages.values(number, at)) or (name, opened)
                elif len(columns) == 6 and rowid > 0:
                    found.append((rowid, number, at))
    found.sort()
    return Recovered(name, opened, _rows(pages, found))


def is_whole(body: object) -> bool:
    """Return whether a message's body is a JSON object."""
    try:
        return isinstance(body, bytes) and isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def _rows(pages: _Pages, found: list[tuple[int, int, int]]) -> Iterator[Row]:
    last, bodies = 0, set[bytes]()
    for rowid, number, at in found:
        with suppress(ValueError, IndexError, struct.error, OverflowError):
            _, time_s, *texts, body = pages.values(number, at)
            kind, stream, rule = (one.decode(errors="replace") for one in texts if isinstance(one, bytes))
            if kind in KINDS and isinstance(time_s, float | int) and isinstance(body, bytes) and is_whole(body):
                bodies, last = bodies if rowid == last else set(), rowid
                if body in bodies:  # from an older copy of the page
                    continue
                bodies.add(body)
                yield rowid, float(time_s), kind, stream, rule, body


def _identity(values: list[object]) -> tuple[str, int] | None:
    """Return a spool's name and how often it was opened, from their row; None for any other row."""
    name, opened = values
    if isinstance(name, bytes) and NAME.fullmatch(name) and isinstance(opened, int) and 0 < opened < MOST_OPENED:
        return name.decode(), opened
    return None


class _Part:
    """A file of which any part can be read. Unreadable parts are zero, and a missing file is empty."""

    def __init__(self, path: Path) -> None:
        self.size, self._file = 0, -1
        with suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self.size = os.fstat(self._file).st_size

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def read(self, at: int, count: int) -> bytes:
        """Return ``count`` bytes; fewer at the end."""
        try:
            return os.pread(self._file, count, at)
        except OSError:
            return bytes(count)


class _Pages:
    """The pages of a database, from its write-ahead log or its file. Numbers begin at 1."""

    def __init__(self, path: Path) -> None:
        self._file, self._log = _Part(path), _Part(path.with_name(f"{path.name}-wal"))
        head = self._file.read(0, 18)
        size = int.from_bytes(head[16:], "big")
        is_size = size >= 512 and size & (size - 1) == 0 and head.startswith(b"SQLite format 3")
        self._size = size if is_size else PAGE_BYTES
        self._newer = dict(self._logged_pages())
        self.count = max((self._file.size // self._size, *self._newer))

    def page(self, number: int) -> bytes:
        """Return a page. Raises IndexError where there is none."""
        if number < 1 or number > self.count:
            raise IndexError(number)
        if number in self._newer:
            return self._log.read(self._newer[number], self._size)
        return self._file.read((number - 1) * self._size, self._size)

    def free(self) -> frozenset[int]:
        """Return the numbers of unused pages, as far as their list can be read."""
        found, seen = set[int](), set[int]()
        with suppress(IndexError, struct.error):
            (trunk,) = struct.unpack_from(">I", self.page(1), 32)
            while trunk and trunk not in seen:
                seen.add(trunk)
                page = self.page(trunk)
                trunk, count = struct.unpack_from(">II", page)
                if count > self._size // 4 - 2:
                    break
                found.update(struct.unpack_from(f">{count}I", page, 8))
        return frozenset(found | seen)

    def cells(self, number: int) -> tuple[int, ...]:
        """Return the offset of each row of a page; nothing for a page without rows."""
        page, begin = self.page(number), _HEADER_BYTES if number == _SCHEMA_PAGE else 0
        if len(page) < self._size or page[begin] != _LEAF:
            return ()
        count = int.from_bytes(page[begin + 3 : begin + 5], "big")
        if begin + 8 + 2 * count > self._size:
            return ()
        return struct.unpack_from(f">{count}H", page, begin + 8)

    def columns(self, number: int, at: int) -> tuple[int, list[int]]:
        """Return number and column types of a row. Raises ValueError or IndexError for anything else."""
        page = self.page(number)
        size, at = _varint(page, at)
        rowid, at = _varint(page, at)
        head, begin = _varint(page, at)
        end, types = at + head, []
        if head > min(64, size) or end > len(page):
            raise ValueError("no row")
        while begin < end:
            kind, begin = _varint(page, begin)
            types.append(kind)
        return rowid, types

    def values(self, number: int, at: int) -> list[object]:
        """Return the columns of a row, texts as bytes. Raises ValueError or IndexError for an incomplete row."""
        page = self.page(number)
        size, begin = _varint(page, at)
        _, begin = _varint(page, begin)
        data, found = self._payload(page, begin, size), list[object]()
        _, types = self.columns(number, at)
        (place, _) = _varint(data, 0)
        for kind in types:
            if kind in (0, 8, 9):
                found.append(None if kind == 0 else kind - 8)
            elif kind == 7:
                found.append(struct.unpack_from(">d", data, place)[0])
            elif kind in _INT_BYTES:
                found.append(int.from_bytes(data[place : place + _INT_BYTES[kind]], "big", signed=True))
            elif kind >= 12:
                found.append(data[place : place + (kind - 12) // 2])
            else:
                raise ValueError("no type")
            place += 8 if kind == 7 else _INT_BYTES.get(kind, (kind - 12) // 2 if kind >= 12 else 0)
        if place != size:
            raise ValueError("no whole row")
        return found

    def _payload(self, page: bytes, begin: int, size: int) -> bytes:
        """Return the bytes of a row, which may continue in further pages."""
        most = self._size - 35
        if size <= most:
            return page[begin : begin + size]
        if size > self.count * self._size:
            raise ValueError("no row is so large")
        least = (self._size - 12) * 32 // 255 - 23
        here = least + (size - least) % (self._size - 4)
        here = here if here <= most else least
        parts, left = [page[begin : begin + here]], size - here
        (after,) = struct.unpack_from(">I", page, begin + here)
        while left > 0:
            more = self.page(after)
            parts.append(more[4 : 4 + left])
            left -= self._size - 4
            (after,) = struct.unpack_from(">I", more)
        return b"".join(parts)

    def _logged_pages(self) -> Iterator[tuple[int, int]]:
        """Yield number and offset of each committed page in the log, the newest last."""
        step, written = _FRAME.size + self._size, list[tuple[int, int]]()
        starts = range(_WAL_BYTES, self._log.size - step + 1, step)
        frames = [_FRAME.unpack(self._log.read(at, _FRAME.size)) for at in starts]
        own = self._log.read(16, 8)
        if own not in [salts for _, _, salts, _ in frames] and frames:
            own = frames[0][2]  # the log's head is damaged; other frames are from an earlier time
        for at, (number, commit, salts, _) in zip(starts, frames, strict=True):
            if salts != own or not 0 < number <= _MOST_PAGES:
                continue
            written.append((number, at + _FRAME.size))
            if commit:
                yield from written
                written.clear()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in SQLite's form of 1 to 9 bytes, and the offset behind it."""
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    value = value << 8 | data[at]
    return value - (1 << 64) if value >= 1 << 63 else value, at + 1
