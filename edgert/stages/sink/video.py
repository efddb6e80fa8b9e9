"""Sink that writes video files: for each stream one after another, each with its own encoder."""

import io
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from edgert.errors import DeviceError, StageError
from edgert.runtime.records import Result
from edgert.stages.sink import encoders
from edgert.stages.sink.encoder_choice import EncodeMode, EncoderChoice
from edgert.stages.sink.muxed_file import FORMATS, MuxedFile
from edgert.stages.sink.output_file import DISK, Files
from edgert.stages.sink.retention import REPLACED, Rules, has_field

_FEW_FRAMES, _MOST_CHANGES = 30, 10


class VideoSink:
    """Sink that writes video files. Folders are created; a file is created with its first frame.

    Frames are shown at their ``media_ns``, so video of a variable rate, or with dropped frames, plays at the right
    speed. Video has even sizes: an odd last row or column is left out. A file stays playable when the process is
    killed; after a power cut, its last second may be missing. Images on a GPU stay there if the encoder can read them;
    else they are copied to the host once.

    Args:
        path: path with the suffix ``.mp4``, ``.mov`` or ``.mkv``; with ``{stream}`` in it, one file per stream.
        fps: frames per second, at which frame n is shown at n / fps; None: by ``media_ns``.
        quality: H.264 CRF, 0 (lossless) to 51; of hardware the constant quantizer.
        encode: ``auto``: hardware where there is one; ``cpu``: never; ``gpu``: always.
        rules: whether existing files are replaced, and when the next file begins. The next one also begins when the
            size of the images changes.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        fps: float | None = None,
        quality: int = 23,
        codec: encoders.Codec = "h264",
        encode: EncodeMode = "auto",
        rules: Rules = REPLACED,
    ) -> None:
        self._quality, self._codec = quality, codec
        self._rate = Fraction(fps).limit_denominator(1001) if fps else None
        self._where = f"stages.{name}"
        self._all = Files(path, rules, self._where)
        self._files: dict[str, VideoFile] = {}
        self._changes = Counter[str]()
        self._encoders = EncoderChoice(self._where, codec, encode)
        if path.suffix.lower() not in FORMATS:
            raise StageError(f"cannot write {path.name}", where=self._where, fix=f"end it in {' or '.join(FORMATS)}")

    def open(self) -> None:
        """Check encoder and folder.

        Raises DeviceError where nothing can encode, StageError where the folder cannot be created or the file has
        another writer.
        """
        self._encoders.check()
        self._all.check()
        if self._all.pattern.is_fifo():
            why = "finishing a video needs seeking back, which a pipe cannot do"
            raise StageError(f"cannot write {self._all.pattern}", why=why, where=self._where, fix="write into a file")

    def process(self, result: Result) -> None:
        """Encode one frame.

        Raises StageError where the disk is full, the size changes again and again, or streams share one file. Raises
        DeviceError where the encoder fails; later streams use the next one.
        """
        stream = result.frame.stream
        if self._files and stream not in self._files and not has_field(self._all.pattern, "stream"):
            raise StageError(
                f"{self._all.pattern} would hold two streams",
                why=f"{next(iter(self._files))} and {stream} arrive at one sink",
                where=self._where,
                fix="put {stream} into path, or give each stream a sink of its own",
            )
        self._all.remove_old()
        file = self._files.get(stream)
        if file is not None and ((change := file.change_to(result)) or file.is_due()):
            if change:
                self._check_change(stream, file, change)
            del self._files[stream]
            if (failure := file.close()) is not None:
                raise failure
            file = None
        file = file or self._begin_file(stream, result)
        try:
            file.add(result)
            if file.output.is_dirty:
                DISK.sync_soon()
        except DeviceError as error:
            self._encoders.refuse(file.encoder.kind, f"{error.what}: {error.why}")
            raise

    def close(self) -> None:
        """Finish every file, also when one of them fails. Raises the first error."""
        failures = [failure for file in self._files.values() if (failure := file.close()) is not None]
        self._files.clear()
        self._all.close()
        if failures:
            raise failures[0]

    def _begin_file(self, stream: str, result: Result) -> "VideoFile":
        format = encoders.video_format(result, self._codec, self._quality, self._rate)
        encoder = self._encoders.open(result, format)
        self._files[stream] = VideoFile(self._all, stream, encoder, format, self._where)
        return self._files[stream]

    def _check_change(self, stream: str, file: "VideoFile", change: str) -> None:
        """Raise StageError where sizes change so often that short files would fill the folder."""
        self._changes[stream] = self._changes[stream] + 1 if file.count < _FEW_FRAMES else 0
        if self._changes[stream] >= _MOST_CHANGES:
            why = f"the last {_MOST_CHANGES} sizes had fewer than {_FEW_FRAMES} frames each; each needs its own file"
            fix = "put a draw stage with a fixed width in front, or write images"
            raise StageError(f"the image of {stream} changed {change}", why=why, where=self._where, fix=fix)
        encoders.log.warning("%s: the image of %s changed %s: its next file begins", self._where, stream, change)


class VideoFile(MuxedFile):
    """An open video file with its encoder. It writes nothing after an error.

    Args:
        stream: stream whose next file this is.
        encoder: encoder, which is closed with the file, or where the file cannot be created.

    Raises:
        StageError: the file cannot be written.
    """

    def __init__(
        self, files: Files, stream: str, encoder: encoders.Encoder, format: encoders.VideoFormat, where: str
    ) -> None:
        self.encoder, self.format = encoder, format
        self._first_ns, self._last_tick = 0, -1
        self._interval = int(encoders.TICKS_HZ / (format.rate or 30))
        self._stream: Any = None
        try:
            super().__init__(files, stream, where)
        except StageError:
            encoder.close()
            raise

    def change_to(self, result: Result) -> str:
        """Return how a result's image differs in size or colors from those of the file; empty where it does not."""
        width, height = encoders.video_size(result)
        if (width, height) != (self.format.width, self.format.height):
            return f"from {self.format.width}x{self.format.height} to {width}x{height}"
        color = encoders.video_color(result)
        return f"its colors from {self.format.color} to {color}" if color != self.format.color else ""

    def add(self, result: Result) -> None:
        """Encode a result. Raises StageError for a failed write, DeviceError for a failed encoder."""
        tick = self._next_tick(result.frame.media_ns)
        self._write(lambda: self.encoder.encode(result, tick))

    def _last_steps(self) -> list[Callable[[], None]]:
        rest = [lambda: self._write(self.encoder.finish)] if self.count and not self._failed else []
        return [*rest, *super()._last_steps(), self.encoder.close]

    def _next_tick(self, media_ns: int) -> int:
        if not self.count:
            self._first_ns = media_ns
        if self.format.rate is None:
            wanted = (media_ns - self._first_ns) * encoders.TICKS_HZ // 1_000_000_000
        else:
            wanted = int(self.count * encoders.TICKS_HZ / self.format.rate)
        self.count += 1
        tick = max(wanted, self._last_tick + 1)  # muxers refuse two frames of one time
        if self.count > 1:
            self._interval = tick - self._last_tick
        self._last_tick = tick
        return tick

    def _write(self, encode: Callable[[], list[encoders.Unit]]) -> None:
        """Write the units that a function of the encoder returns."""
        try:
            for unit in encode():
                packet = self._av.Packet(unit.data)
                packet.pts = packet.dts = unit.tick
                packet.time_base, packet.is_keyframe = Fraction(1, encoders.TICKS_HZ), unit.is_key
                packet.duration = self._interval  # matters for the last frame only
                packet.stream = self._stream = self._stream or self._begin_stream(unit.data)
                self._container.mux(packet)
        except DeviceError as error:
            self._failed = True
            error.where = error.where or self._where
            raise
        except (ValueError, self._av.FFmpegError) as error:
            self._failed = True
            raise self._failure(error) from error
        self._check()

    def _begin_stream(self, data: bytes) -> Any:
        """Add a stream to the container by the parameter sets in the first unit; return it."""
        with self._av.open(io.BytesIO(data), format=self.encoder.raw) as units:
            stream = self._add_stream(units.streams.video[0])
        codec = stream.codec_context
        if (codec.width, codec.height) != (self.format.width, self.format.height):
            raise ValueError(f"{self.encoder.title} writes {codec.width}x{codec.height}")
        encoders.set_color(codec, self.format.color)
        stream.time_base = Fraction(1, encoders.TICKS_HZ)
        return stream

    def _failure(self, error: Exception) -> StageError:
        size = f"{self.format.width}x{self.format.height}"
        return StageError(f"cannot encode {self._path} at {size}", why=str(error), where=self._where)
