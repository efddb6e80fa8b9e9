"""A file for a muxer, which keeps what fitted when the disk is full."""

from __future__ import annotations

import os
from pathlib import Path

_BOX_HEADER_BYTES = 8
_LARGE_HEADER_BYTES = 16


class DurableFile:
    """What FFmpeg writes into, through Python so that a failed write is not followed by others.

    A muxer that cannot write still goes back to finish its headers, and they would then point at what is not there.
    After the first error nothing reaches the disk any more; :attr:`error` says what it was.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Writes all of ``data`` at the current place, or remembers why not; never raises."""
        left = memoryview(data)
        try:
            while left and self.error is None:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            self.error = error
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As for any file."""
        return os.lseek(self._file, offset, whence)

    def tell(self) -> int:
        """As for any file."""
        return os.lseek(self._file, 0, os.SEEK_CUR)

    def cut_to_whole_fragments(self) -> None:
        """Takes away the piece of an MP4 fragment that was being written when the disk was full."""
        os.ftruncate(self._file, _whole_end(self._file))

    def close(self) -> None:
        """Closes the file; once."""
        os.close(self._file)


def _whole_end(file: int) -> int:
    """Where the last whole fragment ends (ISO/IEC 14496-12, 4.2: a box is its length, its type, its content)."""
    size_bytes, at, end = os.fstat(file).st_size, 0, 0
    while at + _BOX_HEADER_BYTES <= size_bytes:
        header = os.pread(file, _LARGE_HEADER_BYTES, at)
        length, kind = int.from_bytes(header[:4], "big"), header[4:8]
        if length == 1:
            length = int.from_bytes(header[8:16], "big")
        if length < _BOX_HEADER_BYTES or at + length > size_bytes:
            break
        at += length
        if kind != b"moof":  # a fragment's index is of no use without the data behind it
            end = at
    return end
