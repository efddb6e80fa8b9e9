"""The newest messages of a spool, in a file that is faster than a database.

A record is one ``write`` into a file of a fixed size. Then the operating system has it, so it survives the process. A
checksum tells complete records from those that a power cut or a medium has damaged; the search for the next complete
record continues behind these. Records of an earlier time have lower numbers.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import zlib
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("edgert.send")

Row = tuple[int, float, str, str, str, bytes]
"""Number, seconds of the epoch, kind, stream, rule and body of a message."""

SIZE_BYTES = 2**20
ROW_BYTES = 64
"""Approximate size of a message beside its body."""
_FIRST = struct.Struct("<12sq")
"""Head of the file: the spool's name, and the last number that is no longer needed."""
_LAST = struct.Struct("<12sqI")
"""Copy of the head at the end of the file, with a CRC-32; it is valid where the two differ."""
_ROOM_BYTES = SIZE_BYTES - _LAST.size
_RECORD = struct.Struct("<II")
"""Head of a record: length of the rest, and its CRC-32."""
_HEAD = struct.Struct("<qdHHH")
"""Number, time, and the lengths of kind, stream and rule. These and the body follow."""
KINDS = ("result", "event", "crops")
"""Kinds of messages."""
_KIND = re.compile("|".join(KINDS).encode())
_KIND_AT = _RECORD.size + _HEAD.size
"""Offset of a record's kind, which marks the next record behind a damaged one."""


class Journal:
    """Rows in the order of their numbers, in a file. The spool does the locking.

    Args:
        path: path of the file; None: rows are only in memory.
        owner: name of the spool, 12 ASCII characters.

    Attributes:
        rows: rows in the journal, at first those that the file had.
        is_own: whether the rows in the file belong to this spool.
        size_bytes: size of all rows.
    """

    def __init__(self, path: Path | None, owner: str) -> None:
        self._file, self._size, self._end, self._owner = -1, _ROOM_BYTES, _FIRST.size, owner.encode()
        self.rows: deque[Row] = deque()
        self.is_own, self.size_bytes = True, 0
        if path is not None:
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
                os.posix_fallocate(self._file, 0, SIZE_BYTES)
                self._recover()
            except OSError as error:  # such as a full disk
                log.warning("%s: %s; the spool works without it", path, error)
                self._size = 0

    def append(self, row: Row) -> bool:
        """Store a row; return whether there was room for it."""
        number, time_s, kind, stream, rule, body = row
        texts = (kind.encode(), stream.encode(), rule.encode())
        data = b"".join((_HEAD.pack(number, time_s, *map(len, texts)), *texts, body))
        end = self._end + _RECORD.size + len(data)
        if end > self._size:
            return False
        if self._file >= 0:
            try:
                os.pwrite(self._file, _RECORD.pack(len(data), zlib.crc32(data)) + data, self._end)
            except OSError:  # the disk fails, which the database reports
                return False
        self._end = end
        self._add(row)
        return True

    def forget(self, last: int) -> list[Row]:
        """Remove the rows up to a number, and return them."""
        gone = []
        while self.rows and self.rows[0][0] <= last:
            gone.append(self.rows.popleft())
            self.size_bytes -= row_size(gone[-1])
        if not self.rows:
            self._end = _FIRST.size
        if gone and self._file >= 0:
            with suppress(OSError):  # after a crash, they are then sent again, with the same ids
                if self.is_own:
                    self._mark(last)
                else:  # the numbers of another spool have no meaning
                    self._clear()
        return gone

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def drop(self, numbers: Collection[int]) -> None:
        """Remove the rows with these numbers, which the database has."""
        kept = [row for row in self.rows if row[0] not in numbers]
        self.forget(kept[0][0] - 1 if kept else self.rows[-1][0])
        self.rows, self.size_bytes = deque(kept), sum(map(row_size, kept))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self.size_bytes += row_size(row)

    def _mark(self, last: int) -> None:
        """Write the spool's name, and the last number that is no longer needed."""
        head = _FIRST.pack(self._owner, last)
        os.pwrite(self._file, head, 0)
        os.pwrite(self._file, _LAST.pack(self._owner, last, zlib.crc32(head)), _ROOM_BYTES)

    def _recover(self) -> None:
        data = os.pread(self._file, SIZE_BYTES, 0).ljust(SIZE_BYTES, b"\0")
        owner, gone = _FIRST.unpack_from(data)
        *last, checksum = _LAST.unpack_from(data, _ROOM_BYTES)
        if checksum and checksum == zlib.crc32(_FIRST.pack(*last)):
            owner, gone = last
        self.is_own = owner == self._owner
        for end, row in _records(data[:_ROOM_BYTES]):
            if row[0] > gone:
                self._add(row)
            self._end = end
        if not self.rows:
            self._clear()

    def _clear(self) -> None:
        os.pwrite(self._file, bytes(SIZE_BYTES), 0)
        self._mark(0)
        self._end, self.is_own = _FIRST.size, True


def _records(data: bytes) -> Iterator[tuple[int, Row]]:
    """Yield the end and the row of each complete record in a file, also behind damaged ones."""
    at, last = _FIRST.size, -1
    while at + _KIND_AT <= len(data):
        size, checksum = _RECORD.unpack_from(data, at)
        begin = at + _RECORD.size
        end = begin + size
        if size < _HEAD.size or end > len(data) or zlib.crc32(memoryview(data)[begin:end]) != checksum:
            found = _KIND.search(data, at + _KIND_AT + 1)
            if found is None:
                return
            at = found.start() - _KIND_AT
            continue
        row = _row(data[begin:end])
        at = end
        if row is not None and row[0] > last:  # lower numbers are from an earlier time
            last = row[0]
            yield end, row


def _row(part: bytes) -> Row | None:
    """Return the row of a record; None for data that is no row, although its checksum is right."""
    number, time_s, *sizes = _HEAD.unpack_from(part)
    texts, begin = [], _HEAD.size
    for one in sizes:
        texts.append(part[begin : begin + one].decode(errors="replace"))
        begin += one
    kind, stream, rule = texts
    return (number, time_s, kind, stream, rule, part[begin:]) if begin <= len(part) else None


def row_size(row: Row) -> int:
    """Return the approximate size of a row in bytes."""
    return len(row[5]) + ROW_BYTES
