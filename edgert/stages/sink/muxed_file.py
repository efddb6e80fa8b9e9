"""Files that muxers write: a process that is killed leaves every one of them playable, and so does a power cut."""

import os
from collections.abc import Callable
from typing import Any

from edgert.errors import EdgertError, StageError
from edgert.stages.sink.output_file import OutputFile, cannot_write
from edgert.stages.sink.output_files import Files

_BOX_HEADER_BYTES = 8
_LARGE_HEADER_BYTES = 16


class DurableFile:
    """Python file that FFmpeg writes into, so that no write follows a failed one.

    A muxer that cannot write still goes back to finish its headers, and they would then point at what is not there.
    After the first error nothing reaches the disk any more; :attr:`error` holds what it was.

    Muxers write the head of a file half a second before the first images. It is held back until these come: a head
    alone plays nowhere, and stays for ever where the power goes in between, while an empty file is written next time.

    Args:
        make_room: where the disk is full; returns whether it did.
    """

    def __init__(self, output: OutputFile, make_room: Callable[[], bool] = lambda: False) -> None:
        self._output, self._make_room, self._file = output, make_room, output.descriptor
        self.error: OSError | None = None
        self._head: bytes | None = b"" if output.is_regular else None

    def write(self, data: bytes) -> int:
        """Write all of ``data`` at the current position, or store the error; never raises.

        A muxer seeks back at the end, to headers that describe the data behind. That data is flushed to the disk first,
        so that no power cut leaves headers without their data.
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
        """Remove the partial MP4 fragment that was being written when the disk was full; all, where it was the first.

        ISO/IEC 14496-12, 4.2: a box is its length, its type, its content.
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
            if kind != b"moof":  # a fragment's index is of no use without the data behind it
                end = at
        self._output.cut(end if has_images else 0)


FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}

# A plain mp4 that loses its end (power, SIGKILL) is lost whole. Written in fragments, everything up to the last one, at
# most half a second and the few frames inside the encoder, plays. `hybrid_fragmented` (FFmpeg 7.1, PyAV 14) turns the
# file into a plain, seekable mp4 when it is closed, which takes milliseconds as it only writes an index. For that it
# remembers 75 bytes of every frame; a file without an end is left in fragments, of which nothing is remembered
# (`skip_trailer`: no index of them). Matroska is safe as it is, with clusters as short.
_COMMON = {"frag_duration": "500000", "flush_packets": "1"}
_MP4 = {"movflags": "hybrid_fragmented", **_COMMON}
_ENDLESS_MP4 = {"movflags": "empty_moov+default_base_moof+skip_trailer", **_COMMON}
_MKV = {"cluster_time_limit": "500", "flush_packets": "1"}
_MOST_REMEMBERED = 1 << 20  # frames of a file that rotates: 75 MiB


class MuxedFile:
    """One open file and its muxer, the next of a stream. Once it has failed it takes nothing more.

    Attributes:
        count: of the images in it.

    Raises:
        StageError: it cannot be written.
    """

    def __init__(self, files: Files, stream: str, where: str) -> None:
        import av

        self._av: Any = av
        self._where, self.count, self._failed = where, 0, False
        self._container_format = FORMATS[files.pattern.suffix.lower()]
        self.output = files.begin(stream)
        self._files, self._path = files, self.output.path
        self._file = DurableFile(self.output, files.make_room)
        self._forgets = files.rules.endless and not files.rules.rotates
        options = _MKV if self._container_format == "matroska" else _ENDLESS_MP4 if self._forgets else _MP4
        self._container = self._av.open(self._file, "w", format=self._container_format, options=dict(options))

    def is_due(self, more_bytes: int = 0) -> bool:
        """Return whether the next file begins before ``more_bytes`` more: by the sink's rules, or to bound memory."""
        rotates = self._files.rules.rotates
        return self._files.is_due(self.output, more_bytes) or (rotates and self.count >= _MOST_REMEMBERED)

    def close(self) -> EdgertError | None:
        """Finish the file; return the error, except for a file that was reported as failed already."""
        reported = self._failed
        failures = [failure for step in self._last_steps() if (failure := self._attempt(step)) is not None]
        if self._file.error is not None and self._container_format != "matroska":
            self._file.cut_to_whole_fragments()
        self._files.finish(self.output, may_be_empty=False)
        return failures[0] if failures and not reported else None

    def _last_steps(self) -> list[Callable[[], None]]:
        """Return the final steps, each of which runs even where one before failed."""
        return [self._container.close, self._check]

    def _template(self, template: Any) -> Any:
        """Return the container's stream, described by another stream."""
        stream = self._container.add_stream_from_template(template, opaque=True)
        if stream.codec_context.name == "hevc" and self._container_format != "matroska":
            stream.codec_context.codec_tag = "hvc1"  # players of Apple's know no other
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
