"""Files of a spool: messages one behind another, each with a checksum.

A message is one write into a file of a fixed size. Then the operating system has it, so it survives the process. The
checksum distinguishes complete messages from those that a power cut or a medium has damaged. Reading continues with the
next complete one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from edgert.stages.sink.output_file import FULL, sync_file, sync_folder

SEGMENT_BYTES = 1 << 20
"""Size of a file, unless one message is larger."""
_MOST_BYTES = 1 << 28
"""Bytes of a file that are read at most."""
ROW_BYTES = 64
"""Approximate size of a message beside its body."""
_HEADER_BYTES = 64
"""Size of a file's first line: CRC-32 of the rest, time of day minus monotonic clock, last number no longer needed."""
_RECORD = re.compile(rb"([0-9a-f]{8})( (\d{1,9}) [^\t\n]{,10000}\t)")
"""Head of a record: CRC-32 of the rest, length of the body, and number, time, kind, stream and rule as JSON.

The body and a line break follow. JSON has no tab, so no body contains a head.
"""
_ID_AT = len(b'{"id":"')


class Message(NamedTuple):
    """A message.

    Attributes:
        number: number in the spool; it rises, and is never used twice in a run.
        time_s: arrival by the monotonic clock of its run.
        kind: ``result``, ``event`` or ``crops``.
        rule: rule of an event; empty for other kinds.
        body: JSON object in UTF-8 that begins with the id.
        is_earlier: whether it comes from an earlier run.
    """

    number: int
    time_s: float
    kind: str
    stream: str
    rule: str
    body: bytes
    is_earlier: bool = False

    @property
    def id(self) -> str:
        """Globally unique id, the same each time that the message is sent."""
        return self.body[_ID_AT : self.body.index(b'"', _ID_AT)].decode()

    @property
    def size_bytes(self) -> int:
        """Approximate size on the disk and in memory."""
        return len(self.body) + ROW_BYTES

    def encode(self) -> bytes:
        """Return the record of the message."""
        return _with_checksum(b" %d %b\t%b\n" % (len(self.body), json.dumps(self[:5]).encode(), self.body))


def _with_checksum(line: bytes) -> bytes:
    """Return a line behind the checksum of all but its line break."""
    return b"%08x%b" % (zlib.crc32(line[:-1]), line)


class Segment:
    """Messages of one file in the order of their numbers. The spool does the locking.

    Args:
        path: path of the file; None: in memory alone.
        epoch_s: time of day minus monotonic clock in the run that wrote the file.

    Attributes:
        last: largest number that the file had.
        is_earlier: whether an earlier run wrote the file.
        is_damaged: whether something in the file cannot be read.
        is_dirty: whether the disk may lack some of the messages.
    """

    def __init__(self, path: Path | None, epoch_s: float) -> None:
        self.path, self.epoch_s = path, epoch_s
        self.count, self.size_bytes, self.last = 0, 0, -1
        self.is_earlier = self.is_damaged = self.is_dirty = False
        self._rows: deque[Message] | None = deque()
        self._first_s, self._gone = 0.0, -1
        self._file, self._end, self._capacity_bytes = -1, _HEADER_BYTES, SEGMENT_BYTES

    @classmethod
    def create(cls, path: Path | None, epoch_s: float, row: Message, record: bytes) -> Segment:
        """Create a file with a message. Raises OSError."""
        made = cls(None, epoch_s)
        made._capacity_bytes = max(SEGMENT_BYTES, _HEADER_BYTES + len(record))
        if path is None:
            made._write(record)
        else:
            made._create_file(path, record)
        made._add(row)
        return made

    @classmethod
    def read(cls, path: Path, last: int) -> Segment:
        """Return the messages of an earlier run's file up to the number ``last``. Raises OSError.

        Later ones are from a block of another file, which a medium has written to the wrong place.
        """
        found = cls(path, 0.0)
        found.is_earlier, found.last = True, last
        found.epoch_s = found._load()
        return found

    @property
    def oldest_s(self) -> float:
        """Time of day at which the oldest message arrived."""
        return self.epoch_s + self._first_s

    def rows(self) -> deque[Message]:
        """Return the messages, which are read from the file where they are not in memory.

        Raises OSError where the process has too few descriptors or too little memory now. The messages stay then.
        """
        if self._rows is None:
            try:
                self._load()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    raise
                self.is_damaged = True
                self._clear()
        assert self._rows is not None
        return self._rows

    def append(self, row: Message, record: bytes) -> bool:
        """Append a message; return False where it has no room. Raises OSError."""
        if self.is_earlier or self._end + len(record) > self._capacity_bytes:
            return False
        self._write(record)
        self._add(row)
        return True

    def forget(self, last: int) -> int:
        """Remove the messages up to a number, so that they do not come back; return how many."""
        rows, before = self.rows(), self.count
        while rows and rows[0].number <= last:
            self.size_bytes -= rows.popleft().size_bytes
        self.count = len(rows)
        if self.count < before:
            self._gone, self._first_s = last, rows[0].time_s if rows else 0.0
            self._write_header()
        return before - self.count

    def set_epoch(self, epoch_s: float) -> None:
        """Note that the time of day was set."""
        self.epoch_s = epoch_s
        self._write_header()

    def seal(self) -> None:
        """Close the file, which is full, and keep none of its messages in memory."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.unload()

    def unload(self) -> None:
        """Keep no messages in memory, if they can be read again."""
        if self.path is not None and self._file < 0:
            self._rows = None

    def sync(self) -> None:
        """Wait until the messages are on the disk. Raises OSError."""
        self.is_dirty = False
        try:
            if self.path is not None:
                sync_file(self.path)
                sync_folder(self.path.parent)
        except FileNotFoundError:
            return
        except OSError:
            self.is_dirty = True
            raise

    def delete(self, aside: Path | None = None) -> None:
        """Remove the file, or move it to ``aside``."""
        self.seal()
        with suppress(OSError):
            if self.path is not None and aside is not None:
                self.path.replace(aside)
            elif self.path is not None:
                self.path.unlink()

    def _create_file(self, path: Path, records: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._end = _HEADER_BYTES
        try:
            try:
                os.posix_fallocate(self._file, 0, self._capacity_bytes)
            except OSError as error:
                if error.errno in FULL:
                    raise
            self._write(records)
        except OSError:
            os.close(self._file)
            self._file = -1
            path.unlink()
            raise
        self.path = path
        self._write_header()

    def _write(self, records: bytes) -> None:
        if self._file >= 0 and os.pwrite(self._file, records, self._end) < len(records):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._end, self.is_dirty = self._end + len(records), self._file >= 0

    def _write_header(self) -> None:
        text = json.dumps((self.epoch_s, self._gone)).encode().ljust(_HEADER_BYTES - 9)
        with suppress(OSError):  # messages may come twice, then
            if self._file >= 0:
                os.pwrite(self._file, _with_checksum(text + b"\n"), 0)
            elif self.path is not None:
                with open(self.path, "r+b", opener=open_own) as file:
                    file.write(_with_checksum(text + b"\n"))

    def _load(self) -> float:
        """Read the messages into memory, in the order of their numbers; return the epoch of the run that wrote them."""
        assert self.path is not None, "messages in memory are never unloaded"
        with open(self.path, "rb", opener=open_own) as file:
            data, written_s = file.read(_MOST_BYTES), os.fstat(file.fileno()).st_mtime
        text, epoch_s = data[8 : _HEADER_BYTES - 1], 0.0
        is_known = data[:8] == b"%08x" % zlib.crc32(text)
        if is_known:
            epoch_s, gone = json.loads(text)
            self._gone = max(self._gone, gone)  # a full disk may have refused the last header
        rows = sorted(set(self._read_records(data)))
        if not is_known:
            self.is_damaged = True
            epoch_s = written_s - (rows[-1].time_s if rows else 0.0)
        self._clear()
        self.last = self._gone
        for row in rows:
            self._add(row)
        return float(epoch_s)

    def _read_records(self, data: bytes) -> Iterator[Message]:
        """Yield the complete rows that are still needed, in any order: a medium may have moved some of them."""
        view, at, end = memoryview(data), _HEADER_BYTES, _HEADER_BYTES
        while (found := _RECORD.search(data, at)) is not None:
            at, body_end = found.start() + 1, found.end() + int(found[3])
            if int(found[1], 16) == zlib.crc32(view[found.start(2) : body_end]):
                self.is_damaged |= found.start() > end
                at = end = body_end + 1
                number, time_s, kind, stream, rule = json.loads(found[2].split(maxsplit=1)[1])
                row = Message(number, time_s, kind, stream, rule, data[found.end() : body_end], self.is_earlier)
                if self._gone < row.number <= self.last:
                    yield row
        self.is_damaged |= bool(data[end:].strip(b"\0"))

    def _add(self, row: Message) -> None:
        rows = self.rows()
        if not rows:
            self._first_s = row.time_s
        rows.append(row)
        self.count, self.size_bytes, self.last = self.count + 1, self.size_bytes + row.size_bytes, row.number

    def _clear(self) -> None:
        self._rows, self.count, self.size_bytes = deque(), 0, 0


def open_own(name: str, flags: int) -> int:
    """Open a file that only its owner may read; follow no link, and wait for no pipe's writer. Raises OSError."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
