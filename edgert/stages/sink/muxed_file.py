"""Video files that FFmpeg's muxers write. They stay playable when the process is killed, or after a power cut."""

import os
from collections.abc import Callable
from typing import Any

from edgert.errors import EdgertError, StageError
from edgert.stages.sink.encoders import set_color
from edgert.stages.sink.output_file import Files, OutputFile, cannot_write
from edgert.stages.source.packets import Format, Sample

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


_INDEX_BYTES = 64  # maximum for a packet: in its fragment, and in the index at the end


class MuxedFile:
    """The next file of a stream's packets, open, with its muxer. It writes nothing after an error.

    Times count from the file's first packet, which is a key frame.

    Attributes:
        count: number of packets in it.
        format: format of its packets; None before the first.
        last: last packet in it; None before the first.
        has_failed: whether it could not be written.

    Raises:
        StageError: the file cannot be written.
    """

    def __init__(self, files: Files, stream: str, where: str) -> None:
        import av

        self._av: Any = av
        self._where, self.count, self.has_failed = where, 0, False
        self.format: Format | None = None
        self.last: Sample | None = None
        self._stream: Any = None
        self._zero = self._nbytes = 0
        self._last_dts, self._shown = -1, (0, 0)  # first and last presentation time
        self._container_format = FORMATS[files.pattern.suffix.lower()]
        self.output = files.begin(stream)
        self._files, self._path = files, self.output.path
        self._file = DurableFile(self.output, files.make_room)
        is_endless = files.rules.endless and not files.rules.rotates
        options = _MKV if self._container_format == "matroska" else _ENDLESS_MP4 if is_endless else _MP4
        self._container = self._av.open(self._file, "w", format=self._container_format, options=dict(options))

    @property
    def length_ns(self) -> int:
        """Playing time in nanoseconds."""
        begin, end = self._shown
        return 0 if self.format is None else int((end - begin) * 10**9 * self.format.time_base)

    def is_full(self, more_bytes: int = 0) -> bool:
        """Return whether the next file begins before ``more_bytes`` more, by the rules or to bound memory.

        What is inside the muxer counts, too.
        """
        rules = self._files.rules
        is_large = rules.rotate_bytes and self._nbytes + _INDEX_BYTES * self.count + more_bytes > rules.rotate_bytes
        return bool(is_large or (rules.rotates and self.count >= _MAX_INDEXED) or self._files.is_due(self.output))

    def add(self, sample: Sample) -> None:
        """Write a packet. Raises StageError for a failed write, or where the container does not support the codec."""
        try:
            if self.last is None:
                self._begin(sample)
            self._shown = min(self._shown[0], sample.pts), max(self._shown[1], sample.pts + sample.duration)
            packet = self._av.Packet(sample.data)  # the same bytes, with times of its own
            packet.dts = max(sample.dts - self._zero, self._last_dts + 1)  # muxers refuse two packets of one time
            packet.pts = max(sample.pts - self._zero, packet.dts)
            packet.duration, packet.is_keyframe = sample.duration, sample.is_key
            packet.time_base, packet.stream = sample.format.time_base, self._stream
            self._last_dts, self.last = packet.dts, sample
            self.count += 1
            self._nbytes += sample.nbytes
            self._container.mux(packet)
        except (ValueError, self._av.FFmpegError) as error:
            self.has_failed = True
            raise self._failure(error) from error
        self._check()

    def close(self) -> EdgertError | None:
        """Finish the file; return its first error, unless the file has failed before."""
        had_failed = self.has_failed
        failure: EdgertError | None = None
        try:
            self._container.close()
        except self._av.FFmpegError as error:
            failure = self._failure(error)
        try:
            self._check()
        except EdgertError as error:
            failure = failure or error
        if self._file.error is not None and self._container_format != "matroska":
            self._file.cut_to_whole_fragments()
        self._files.finish(self.output, may_be_empty=False)
        return None if had_failed else failure

    def _begin(self, sample: Sample) -> None:
        """Add a stream with the parameters of a packet to the container."""
        self.format, self._zero, self._shown = sample.format, sample.dts, (sample.pts, sample.pts)
        stream = self._stream = self._container.add_stream_from_template(sample.format.stream, opaque=True)
        if stream.codec_context.name == "hevc" and self._container_format != "matroska":
            stream.codec_context.codec_tag = "hvc1"  # Apple's players require it
        stream.time_base = sample.format.time_base
        if sample.format.color is not None:
            set_color(stream.codec_context, sample.format.color)

    def _check(self) -> None:
        """Raise the error of a failed write, once."""
        error = self._file.error
        if error is not None and not self.has_failed:
            self.has_failed = True
            raise cannot_write(self._path, error, self._where, kept="what was written so far plays") from error

    def _failure(self, error: Exception) -> StageError:
        return StageError(f"cannot write {self._path}", why=str(error), where=self._where)
