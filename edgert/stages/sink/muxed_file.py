"""Video files that FFmpeg's muxers write. They stay playable when the process is killed, or after a power cut."""

import os
from collections.abc import Callable
from typing import Any

from edgert.errors import EdgertError, StageError
from edgert.stages.sink.output_file import Files, OutputFile, cannot_write

_BOX_HEADER_BYTES = 8
_LARGE_HEADER_BYTES = 16


class DurableFile:
    """File object for FFmpeg that writes nothing after an error.

    After a failed write, a muxer still goes back and finishes its headers, which would then refer to missing data. So
    nothing is written after the first error, which is in :attr:`error`.

    A muxer writes the head of a file half a second before the first images. The head is held back until these come: a
    head alone does not play, and would stay after a power cut. The next run removes or reuses an empty file.

    Args:
        make_room: function that removes an old file when the disk is full, and returns whether it did.
    """

    def __init__(self, output: OutputFile, make_room: Callable[[], bool] = lambda: False) -> None:
        self._output, self._make_room, self._file = output, make_room, output.descriptor
        self.error: OSError | None = None
        self._head: bytes | None = b"" if output.is_regular else None

    def write(self, data: bytes) -> int:
        """Write all of ``data`` at the current position, or store the error; never raise.

        At the end, a muxer seeks back to headers that describe the data behind them. That data is flushed to the disk
        first, so that no power cut leaves headers without their data.
        """
        if self._head == b"":
            self._head = bytes(data)
            return len(data)
        self._write(self._take_head() + bytes(data))
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if head := self._take_head():
            self._write(head)
        return os.lseek(self._file, offset, whence)

    def tell(self) -> int:
        return os.lseek(self._file, 0, os.SEEK_CUR) + len(self._head or b"")

    def _take_head(self) -> bytes:
        head, self._head = self._head or b"", None
        return head

    def _write(self, data: bytes) -> None:
        try:
            if self.error is None and self._output.is_regular and self.tell() < self._output.size_bytes:
                os.fdatasync(self._file)
            if self.error is None:
                self._output.write(data, self._make_room)
        except OSError as error:
            self.error = error

    def cut_to_whole_fragments(self) -> None:
        """Remove the incomplete MP4 fragment that was being written when the disk was full; it may be all there is.

        By ISO/IEC 14496-12, 4.2, a box is its length, its type and its content.
        """
        size_bytes, at, end, has_images = os.fstat(self._file).st_size, 0, 0, False
        while at + _BOX_HEADER_BYTES <= size_bytes:
            header = os.pread(self._file, _LARGE_HEADER_BYTES, at)
            length, kind = int.from_bytes(header[:4], "big"), header[4:8]
            if length == 1:
                length = int.from_bytes(header[8:16], "big")
            if length < _BOX_HEADER_BYTES or at + length > size_bytes:
                break
            at += length
            has_images |= kind == b"mdat"
            if kind != b"moof":  # a fragment's index is useless without its data
                end = at
        self._output.cut(end if has_images else 0)


FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}

# A plain mp4 without its end (power cut, SIGKILL) does not play at all. In fragments, it plays but for the last half
# second and the few frames inside the encoder. `hybrid_fragmented` (FFmpeg 7.1, PyAV 14) turns the file into a plain,
# seekable mp4 when it is closed, by writing an index. For that, the muxer stores 75 bytes for every frame. So a file
# that may have no end stays in fragments without an index (`skip_trailer`). Matroska only needs short clusters.
_COMMON = {"frag_duration": "500000", "flush_packets": "1"}
_MP4 = {"movflags": "hybrid_fragmented", **_COMMON}
_ENDLESS_MP4 = {"movflags": "empty_moov+default_base_moof+skip_trailer", **_COMMON}
_MKV = {"cluster_time_limit": "500", "flush_packets": "1"}
_MAX_INDEXED = 1 << 20  # frames of a file that rotates, whose index takes 75 MiB


class MuxedFile:
    """The next file of a stream, open, with its muxer. It writes nothing after an error.

    Raises:
        StageError: the file cannot be written.
    """

    def __init__(self, files: Files, stream: str, where: str) -> None:
        import av

        self._av: Any = av
        self._where, self.count, self._failed = where, 0, False
        self._container_format = FORMATS[files.pattern.suffix.lower()]
        self.output = files.begin(stream)
        self._files, self._path = files, self.output.path
        self._file = DurableFile(self.output, files.make_room)
        is_endless = files.rules.endless and not files.rules.rotates
        options = _MKV if self._container_format == "matroska" else _ENDLESS_MP4 if is_endless else _MP4
        self._container = self._av.open(self._file, "w", format=self._container_format, options=dict(options))

    def is_due(self, more_bytes: int = 0) -> bool:
        """Return whether the next file begins before ``more_bytes`` more, by the rules or to bound memory."""
        rotates = self._files.rules.rotates
        return self._files.is_due(self.output, more_bytes) or (rotates and self.count >= _MAX_INDEXED)

    def close(self) -> EdgertError | None:
        """Finish the file; return its first error, unless the file has failed before."""
        had_failed = self._failed
        failures = [failure for step in self._last_steps() if (failure := self._attempt(step)) is not None]
        if self._file.error is not None and self._container_format != "matroska":
            self._file.cut_to_whole_fragments()
        self._files.finish(self.output, may_be_empty=False)
        return failures[0] if failures and not had_failed else None

    def _last_steps(self) -> list[Callable[[], None]]:
        """Return the final steps, all of which run, even after an error."""
        return [self._container.close, self._check]

    def _add_stream(self, template: Any) -> Any:
        """Add a stream to the container, with the parameters of another stream; return it."""
        stream = self._container.add_stream_from_template(template, opaque=True)
        if stream.codec_context.name == "hevc" and self._container_format != "matroska":
            stream.codec_context.codec_tag = "hvc1"  # Apple's players require it
        return stream

    def _attempt(self, step: Callable[[], None]) -> EdgertError | None:
        try:
            step()
        except EdgertError as error:
            return error
        except self._av.FFmpegError as error:
            return self._failure(error)
        return None

    def _check(self) -> None:
        """Raise the error of a failed write, once."""
        error = self._file.error
        if error is not None and not self._failed:
            self._failed = True
            raise cannot_write(self._path, error, self._where, kept="what was written so far plays") from error

    def _failure(self, error: Exception) -> StageError:
        return StageError(f"cannot write {self._path}", why=str(error), where=self._where)
