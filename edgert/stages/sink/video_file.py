"""One video file: encoded images go into it as they come, and a process that is killed leaves it playable."""

import io
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from edgert.errors import DeviceError, EdgertError, StageError
from edgert.runtime.records import Result
from edgert.stages.sink.encoders import TICKS_HZ, Encoder, Unit, VideoFormat, set_color, size_of
from edgert.stages.sink.image_files import cannot_write

_BOX_HEADER_BYTES = 8
_LARGE_HEADER_BYTES = 16


class DurableFile:
    """What FFmpeg writes into, through Python so that a failed write is not followed by others.

    A muxer that cannot write still goes back to finish its headers, and they would then point at what is not there.
    After the first error nothing reaches the disk any more; :attr:`error` holds what it was.
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
        return os.lseek(self._file, offset, whence)

    def tell(self) -> int:
        return os.lseek(self._file, 0, os.SEEK_CUR)

    def cut_to_whole_fragments(self) -> None:
        """Takes away the piece of an MP4 fragment that was being written when the disk was full.

        ISO/IEC 14496-12, 4.2: a box is its length, its type, its content.
        """
        size_bytes, at, end = os.fstat(self._file).st_size, 0, 0
        while at + _BOX_HEADER_BYTES <= size_bytes:
            header = os.pread(self._file, _LARGE_HEADER_BYTES, at)
            length, kind = int.from_bytes(header[:4], "big"), header[4:8]
            if length == 1:
                length = int.from_bytes(header[8:16], "big")
            if length < _BOX_HEADER_BYTES or at + length > size_bytes:
                break
            at += length
            if kind != b"moof":  # a fragment's index is of no use without the data behind it
                end = at
        os.ftruncate(self._file, end)

    def close(self) -> None:
        os.close(self._file)


FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}

# A plain mp4 that loses its end (power, SIGKILL) is lost whole. Written in fragments, everything up to the last one,
# at most a second and the few frames inside the encoder, plays. `hybrid_fragmented` (FFmpeg 7.1, PyAV 14) turns the
# file into a plain, seekable mp4 when it is closed, which takes milliseconds as it only writes an index.
# Matroska is safe as it is, with clusters as short.
_KILL_SAFE_MP4 = {"movflags": "hybrid_fragmented", "frag_duration": "1000000", "flush_packets": "1"}
_KILL_SAFE_MKV = {"cluster_time_limit": "1000", "flush_packets": "1"}


class VideoFile:
    """One open file: encoder and muxer. Once it has failed it takes nothing more.

    Args:
        encoder: closed with the file, and when the file cannot be made.

    Raises:
        StageError: it cannot be written.
    """

    def __init__(self, path: Path, encoder: Encoder, format: VideoFormat, where: str) -> None:
        import av

        self._av: Any = av
        self.encoder = encoder
        self._path, self._format, self._where = path, format, where
        self._first_ns, self._last_tick, self._count = 0, -1, 0
        self._interval = int(TICKS_HZ / (format.rate or 30))
        self._failed = False
        self._stream: Any = None
        self._container_format = FORMATS[path.suffix.lower()]
        try:
            self._file = DurableFile(path)
        except OSError as error:
            encoder.close()
            raise cannot_write(path, error, where) from error
        options = dict(_KILL_SAFE_MKV if self._container_format == "matroska" else _KILL_SAFE_MP4)
        self._container = self._av.open(self._file, "w", format=self._container_format, options=options)

    def add(self, result: Result) -> None:
        """Raises StageError for another size and for what cannot be written, DeviceError for a failed encoder."""
        size = self._format.width, self._format.height
        if (new := size_of(result)) != size:
            raise StageError(
                f"the image changed from {size[0]}x{size[1]} to {new[0]}x{new[1]}",
                why=f"{self._path} has one size from its first frame on",
                where=self._where,
                fix="put a draw stage with a fixed width in front, or write images",
            )
        tick = self._tick(result.frame.media_ns)
        self._write(lambda: self.encoder.encode(result, tick))

    def close(self) -> EdgertError | None:
        """Finishes the file; returns what went wrong, except for a file that was reported as failed already."""
        reported = self._failed
        steps: list[Callable[[], None]] = [self._container.close, self._check, self.encoder.close]
        if self._count and not reported:
            steps.insert(0, lambda: self._write(self.encoder.finish))
        failures = [failure for step in steps if (failure := self._attempt(step)) is not None]
        if self._file.error is not None and self._container_format != "matroska":
            self._file.cut_to_whole_fragments()
        self._file.close()
        return failures[0] if failures and not reported else None

    def _attempt(self, step: Callable[[], None]) -> EdgertError | None:
        try:
            step()
        except EdgertError as error:
            return error
        except self._av.FFmpegError as error:
            return self._failure(error)
        return None

    def _tick(self, media_ns: int) -> int:
        if not self._count:
            self._first_ns = media_ns
        if self._format.rate is None:
            wanted = (media_ns - self._first_ns) * TICKS_HZ // 1_000_000_000
        else:
            wanted = int(self._count * TICKS_HZ / self._format.rate)
        self._count += 1
        tick = max(wanted, self._last_tick + 1)  # a muxer refuses two frames at one time
        if self._count > 1:
            self._interval = tick - self._last_tick
        self._last_tick = tick
        return tick

    def _write(self, encoded: Callable[[], list[Unit]]) -> None:
        try:
            for unit in encoded():
                packet = self._av.Packet(unit.data)
                packet.pts = packet.dts = unit.tick
                packet.time_base, packet.is_keyframe = Fraction(1, TICKS_HZ), unit.is_key
                packet.duration = self._interval  # the muxer needs it for the last frame only
                packet.stream = self._stream = self._stream or self._begun(unit.data)
                self._container.mux(packet)
        except DeviceError as error:
            self._failed = True
            error.where = error.where or self._where
            raise
        except (ValueError, self._av.FFmpegError) as error:
            self._failed = True
            raise self._failure(error) from error
        self._check()

    def _begun(self, data: bytes) -> Any:
        """The container's stream, described by the parameter sets in front of the first image."""
        with self._av.open(io.BytesIO(data), format=self.encoder.raw) as units:
            stream = self._container.add_stream_from_template(units.streams.video[0], opaque=True)
        codec = stream.codec_context
        if (codec.width, codec.height) != (self._format.width, self._format.height):
            raise ValueError(f"{self.encoder.title} writes {codec.width}x{codec.height}")
        set_color(codec, self._format.color)
        if self.encoder.raw == "hevc" and self._container_format != "matroska":
            codec.codec_tag = "hvc1"  # players of Apple's know no other
        stream.time_base = Fraction(1, TICKS_HZ)
        return stream

    def _check(self) -> None:
        """Raises for a write that failed, once."""
        error = self._file.error
        if error is not None and not self._failed:
            self._failed = True
            raise cannot_write(self._path, error, self._where, kept="what was written so far plays") from error

    def _failure(self, error: Exception) -> StageError:
        size = f"{self._format.width}x{self._format.height}"
        return StageError(f"cannot encode {self._path} at {size}", why=str(error), where=self._where)
