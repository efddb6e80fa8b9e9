"""Video files: of each stream one after another, with an encoder of its own. Encoded images go in as they come, and a
process that is killed leaves every file playable."""

import io
import os
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from edgert.errors import DeviceError, EdgertError, StageError
from edgert.runtime.records import Result
from edgert.stages.sink.encoder_choice import Choice, Where
from edgert.stages.sink.encoders import TICKS_HZ, Codec, Encoder, Unit, VideoFormat, color_of, log, set_color, size_of
from edgert.stages.sink.output_file import DISK, OutputFile, cannot_write
from edgert.stages.sink.output_files import REPLACED, Files, Rules, has_field

_BOX_HEADER_BYTES = 8
_LARGE_HEADER_BYTES = 16


class DurableFile:
    """What FFmpeg writes into, through Python so that a failed write is not followed by others.

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
        """Writes all of ``data`` at the current place, or remembers why not; never raises.

        A muxer goes back when it finishes: to headers that say what lies behind. That is brought to the disk first, so
        that no power cut leaves the one without the other.
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
        self._output.cut(end)


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


_FEW_FRAMES, _MOST_CHANGES = 30, 10


class VideoSink:
    """Writes video; folders are made. The file appears with the first frame.

    Frames are shown at their ``media_ns``, so a variable rate or dropped frames play at the right speed. Video has
    even sizes: an odd last row or column is left out. A process that is killed leaves a playable file, and so does a
    power cut, all but its last second. Images on a GPU stay there where the encoder reads them there; for another they
    are brought down once.

    Args:
        path: ``.mp4``, ``.mov`` or ``.mkv``; with ``{stream}`` in it, one file per stream.
        fps: shows frame n at n / fps instead.
        quality: H.264 CRF, 0 (lossless) to 51; of hardware the constant quantizer.
        encode: whether the hardware's encoder is taken: where there is one, never, or always.
        rules: whether what stands there is replaced, and when the next file begins. One also begins where the size of
            the images changes.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        fps: float | None = None,
        quality: int = 23,
        codec: Codec = "h264",
        encode: Where = "auto",
        rules: Rules = REPLACED,
    ) -> None:
        self._quality, self._codec = quality, codec
        self._rate = Fraction(fps).limit_denominator(1001) if fps else None
        self._where = f"stages.{name}"
        self._all = Files(path, rules, self._where)
        self._files: dict[str, VideoFile] = {}
        self._changes = Counter[str]()
        self._encoders = Choice(self._where, codec, encode)
        if path.suffix.lower() not in FORMATS:
            raise StageError(f"cannot write {path.name}", where=self._where, fix=f"end it in {' or '.join(FORMATS)}")

    def open(self) -> None:
        """Raises DeviceError when nothing can encode, StageError when the folder cannot be made or another process
        writes the file."""
        self._encoders.check()
        self._all.check()
        if self._all.pattern.is_fifo():
            why = "a video is finished by going back in it, and a pipe has no way back"
            raise StageError(f"cannot write {self._all.pattern}", why=why, where=self._where, fix="write into a file")

    def process(self, result: Result) -> None:
        """Encodes one frame. Raises StageError: disk full, a size that changes again and again, or streams that share
        one file; DeviceError: the encoder failed, and a stream that begins later takes the next."""
        stream = result.frame.stream
        if self._files and stream not in self._files and not has_field(self._all.pattern, "stream"):
            raise StageError(
                f"{self._all.pattern} would hold two streams",
                why=f"{next(iter(self._files))} and {stream} arrive at one sink",
                where=self._where,
                fix="put {stream} into path, or give each stream a sink of its own",
            )
        self._all.tend()
        file = self._files.get(stream)
        if file is not None and ((change := file.changed(result)) or file.is_due):
            if change:
                self._check_change(stream, file, change)
            del self._files[stream]
            if (failure := file.close()) is not None:
                raise failure
            file = None
        file = file or self._begun(stream, result)
        try:
            file.add(result)
            if file.output.is_dirty:
                DISK.soon()
        except DeviceError as error:
            self._encoders.refuse(file.encoder.kind, f"{error.what}: {error.why}")
            raise

    def close(self) -> None:
        """Writes what the encoders still hold and finishes every file, also when one of them fails."""
        failures = [failure for file in self._files.values() if (failure := file.close()) is not None]
        self._files.clear()
        self._all.close()
        if failures:
            raise failures[0]

    def _begun(self, stream: str, result: Result) -> "VideoFile":
        format = VideoFormat(self._codec, self._quality, *size_of(result), self._rate, color_of(result))
        encoder = self._encoders.open(result, format)
        self._files[stream] = VideoFile(self._all, stream, encoder, format, self._where)
        return self._files[stream]

    def _check_change(self, stream: str, file: "VideoFile", change: str) -> None:
        """Raises StageError where files of a few frames would fill the folder."""
        self._changes[stream] = self._changes[stream] + 1 if file.count < _FEW_FRAMES else 0
        if self._changes[stream] >= _MOST_CHANGES:
            raise StageError(
                f"the image of {stream} changed {change}",
                why=f"for the {_MOST_CHANGES}th time after less than {_FEW_FRAMES} frames, and each needs its own file",
                where=self._where,
                fix="put a draw stage with a fixed width in front, or write images",
            )
        log.warning("%s: the image of %s changed %s: its next file begins", self._where, stream, change)


class VideoFile:
    """One open file: encoder and muxer. Once it has failed it takes nothing more.

    Args:
        files: of the sink, whose next file of ``stream`` this is.
        encoder: closed with the file, and when the file cannot be made.

    Raises:
        StageError: it cannot be written.
    """

    def __init__(self, files: Files, stream: str, encoder: Encoder, format: VideoFormat, where: str) -> None:
        import av

        self._av: Any = av
        self.encoder, self.format, self._where = encoder, format, where
        self._first_ns, self._last_tick, self.count = 0, -1, 0
        self._interval = int(TICKS_HZ / (format.rate or 30))
        self._failed = False
        self._stream: Any = None
        self._container_format = FORMATS[files.pattern.suffix.lower()]
        try:
            self.output = files.begin(stream)
        except StageError:
            encoder.close()
            raise
        self._files, self._path = files, self.output.path
        self._file = DurableFile(self.output, files.make_room)
        self._forgets = files.rules.endless and not files.rules.rotates
        options = _MKV if self._container_format == "matroska" else _ENDLESS_MP4 if self._forgets else _MP4
        self._container = self._av.open(self._file, "w", format=self._container_format, options=dict(options))

    def changed(self, result: Result) -> str:
        """How this result's image differs from those of the file, which has one size and one meaning of colors."""
        width, height = size_of(result)
        if (width, height) != (self.format.width, self.format.height):
            return f"from {self.format.width}x{self.format.height} to {width}x{height}"
        color = color_of(result)
        return f"its colors from {self.format.color} to {color}" if color != self.format.color else ""

    @property
    def is_due(self) -> bool:
        """Whether the next file is to begin, by the sink's rules or before too much would be remembered."""
        rotates = self._files.rules.rotates
        return self._files.is_due(self.output) or (rotates and self.count >= _MOST_REMEMBERED)

    def add(self, result: Result) -> None:
        """Raises StageError for what cannot be written, DeviceError for a failed encoder."""
        tick = self._tick(result.frame.media_ns)
        self._write(lambda: self.encoder.encode(result, tick))

    def close(self) -> EdgertError | None:
        """Finishes the file; returns what went wrong, except for a file that was reported as failed already."""
        reported = self._failed
        steps: list[Callable[[], None]] = [self._container.close, self._check, self.encoder.close]
        if self.count and not reported:
            steps.insert(0, lambda: self._write(self.encoder.finish))
        failures = [failure for step in steps if (failure := self._attempt(step)) is not None]
        if self._file.error is not None and self._container_format != "matroska":
            self._file.cut_to_whole_fragments()
        self._files.finish(self.output)
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
        if not self.count:
            self._first_ns = media_ns
        if self.format.rate is None:
            wanted = (media_ns - self._first_ns) * TICKS_HZ // 1_000_000_000
        else:
            wanted = int(self.count * TICKS_HZ / self.format.rate)
        self.count += 1
        tick = max(wanted, self._last_tick + 1)  # a muxer refuses two frames at one time
        if self.count > 1:
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
        if (codec.width, codec.height) != (self.format.width, self.format.height):
            raise ValueError(f"{self.encoder.title} writes {codec.width}x{codec.height}")
        set_color(codec, self.format.color)
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
        size = f"{self.format.width}x{self.format.height}"
        return StageError(f"cannot encode {self._path} at {size}", why=str(error), where=self._where)
