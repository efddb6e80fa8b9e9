"""The newest messages of a spool, in a file that takes them faster than a database does.

A record is one ``write`` into a file whose space was taken beforehand: the operating system has it then, so it survives
the process. A checksum tells a whole record from what a power cut left half written, and from older ones behind it.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("edgert.send")

Row = tuple[int, float, str, str, str, bytes]
"""Number, seconds of the epoch, kind, stream, rule and body of a message."""

SIZE_BYTES = 2**20
_FIRST = struct.Struct("<12sq")
"""Whose it is, and the last number that is not wanted any more."""
_RECORD = struct.Struct("<II")
"""How many bytes follow, and their CRC-32."""
_HEAD = struct.Struct("<qdHHH")
"""Number, time, and the lengths of kind, stream and rule, which stand before the body."""


class Journal:
    """Rows in the order of their numbers. Not locked: its spool is.

    Args:
        path: its file, None for none: then rows are in memory alone.
        owner: the spool's name, 12 ASCII characters.

    Attributes:
        rows: what is in it; after a crash, what was.
        is_own: whether the rows found in the file are this spool's.
    """

    def __init__(self, path: Path | None, owner: str) -> None:
        self._file, self._size, self._end, self._owner = -1, SIZE_BYTES, _FIRST.size, owner.encode()
        self.rows: deque[Row] = deque()
        self.is_own = True
        if path is not None:
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                os.posix_fallocate(self._file, 0, SIZE_BYTES)
                self._recover()
            except OSError as error:  # such as a full disk
                log.warning("%s: %s; the spool does without it", path, error)
                self._size = 0

    def append(self, row: Row) -> bool:
        """Keeps a row; False where there is no room for it."""
        number, time_s, kind, stream, rule, body = row
        texts = (kind.encode(), stream.encode(), rule.encode())
        data = b"".join((_HEAD.pack(number, time_s, *map(len, texts)), *texts, body))
        end = self._end + _RECORD.size + len(data)
        if end > self._size:
            return False
        if self._file >= 0:
            try:
                os.pwrite(self._file, _RECORD.pack(len(data), zlib.crc32(data)) + data, self._end)
            except OSError:  # of a disk that is dying; the database says so
                return False
        self._end = end
        self.rows.append(row)
        return True

    def forget(self, last: int) -> list[Row]:
        """Removes the rows up to a number, and returns them."""
        gone = []
        while self.rows and self.rows[0][0] <= last:
            gone.append(self.rows.popleft())
        if not self.rows:
            self._end = _FIRST.size
        if gone and self._file >= 0:
            with suppress(OSError):  # then they come once more after a crash, with the same ids
                if self.is_own:
                    os.pwrite(self._file, _FIRST.pack(self._owner, last), 0)
                else:  # the other's numbers mean nothing here
                    self._clear()
        return gone

    def close(self) -> None:
        """Lets go of the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _recover(self) -> None:
        data = os.pread(self._file, SIZE_BYTES, 0)
        owner, gone = _FIRST.unpack_from(data)
        self.is_own = owner == self._owner
        for end, row in _records(data):
            if row[0] > gone:
                self.rows.append(row)
            self._end = end
        if not self.rows:
            self._clear()

    def _clear(self) -> None:
        os.pwrite(self._file, _FIRST.pack(self._owner, 0).ljust(SIZE_BYTES, b"\0"), 0)
        self._end, self.is_own = _FIRST.size, True


def _records(data: bytes) -> Iterator[tuple[int, Row]]:
    """The whole records of a file, and where each ends."""
    at, last = _FIRST.size, -1
    while at + _RECORD.size + _HEAD.size <= len(data):
        size, checksum = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        part = data[at : at + size]
        if size < _HEAD.size or len(part) < size or zlib.crc32(part) != checksum:
            return
        number, time_s, *sizes = _HEAD.unpack_from(part)
        if number <= last:  # of an earlier time
            return
        texts, begin = [], _HEAD.size
        for one in sizes:
            texts.append(part[begin : begin + one].decode())
            begin += one
        kind, stream, rule = texts
        at, last = at + size, number
        yield at, (number, time_s, kind, stream, rule, part[begin:])
