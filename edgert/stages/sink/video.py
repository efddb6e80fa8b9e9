"""Video files: of each stream one after another, each with its own encoder.

Encoded images are written as they come, and a process that is killed leaves every file playable.
"""

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
from edgert.stages.sink.output_file import DISK
from edgert.stages.sink.output_files import REPLACED, Files, Rules, has_field

_FEW_FRAMES, _MOST_CHANGES = 30, 10


class VideoSink:
    """Writer of video files; folders are created. The file appears with the first frame.

    Frames are shown at their ``media_ns``, so a variable rate or dropped frames play at the right speed. Video has even
    sizes: an odd last row or column is left out. A process that is killed leaves a playable file. So does a power cut,
    all but its last second. Images on a GPU stay there where the encoder reads them; else they are copied to the host
    once.

    Args:
        path: ``.mp4``, ``.mov`` or ``.mkv``; with ``{stream}`` in it, one file per stream.
        fps: shows frame n at n / fps instead.
        quality: H.264 CRF, 0 (lossless) to 51; of hardware the constant quantizer.
        encode: whether the hardware's encoder is used: where there is one, never, or always.
        rules: whether existing files are replaced, and when the next file begins. One also begins where the size of the
            images changes.
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

        Raises DeviceError when nothing can encode, StageError for a folder that cannot be created or a file with
        another writer.
        """
        self._encoders.check()
        self._all.check()
        if self._all.pattern.is_fifo():
            why = "finishing a video needs seeking back, which a pipe cannot do"
            raise StageError(f"cannot write {self._all.pattern}", why=why, where=self._where, fix="write into a file")

    def process(self, result: Result) -> None:
        """Encode one frame.

        Raises StageError: disk full, a size that changes again and again, or streams that share one file. Raises
        DeviceError: the encoder failed; a stream that begins later uses the next one.
        """
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
        if file is not None and ((change := file.changed(result)) or file.is_due()):
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
        """Write what the encoders still hold and finish every file, also when one of them fails."""
        failures = [failure for file in self._files.values() if (failure := file.close()) is not None]
        self._files.clear()
        self._all.close()
        if failures:
            raise failures[0]

    def _begun(self, stream: str, result: Result) -> "VideoFile":
        format = encoders.video_format(result, self._codec, self._quality, self._rate)
        encoder = self._encoders.open(result, format)
        self._files[stream] = VideoFile(self._all, stream, encoder, format, self._where)
        return self._files[stream]

    def _check_change(self, stream: str, file: "VideoFile", change: str) -> None:
        """Raise StageError where files of a few frames would fill the folder."""
        self._changes[stream] = self._changes[stream] + 1 if file.count < _FEW_FRAMES else 0
        if self._changes[stream] >= _MOST_CHANGES:
            raise StageError(
                f"the image of {stream} changed {change}",
                why=f"for the {_MOST_CHANGES}th time after less than {_FEW_FRAMES} frames, and each needs its own file",
                where=self._where,
                fix="put a draw stage with a fixed width in front, or write images",
            )
        encoders.log.warning("%s: the image of %s changed %s: its next file begins", self._where, stream, change)


class VideoFile(MuxedFile):
    """One open file: encoder and muxer. Once it has failed it takes nothing more.

    Args:
        files: of the sink, whose next file of ``stream`` this is.
        encoder: closed with the file, and when the file cannot be made.

    Raises:
        StageError: it cannot be written.
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

    def changed(self, result: Result) -> str:
        """Return how this result's image differs from those of the file, which has one size and one set of colors."""
        width, height = encoders.video_size(result)
        if (width, height) != (self.format.width, self.format.height):
            return f"from {self.format.width}x{self.format.height} to {width}x{height}"
        color = encoders.video_color(result)
        return f"its colors from {self.format.color} to {color}" if color != self.format.color else ""

    def add(self, result: Result) -> None:
        """Encode a result. Raises StageError for a failed write, DeviceError for a failed encoder."""
        tick = self._tick(result.frame.media_ns)
        self._write(lambda: self.encoder.encode(result, tick))

    def _last_steps(self) -> list[Callable[[], None]]:
        rest = [lambda: self._write(self.encoder.finish)] if self.count and not self._failed else []
        return [*rest, *super()._last_steps(), self.encoder.close]

    def _tick(self, media_ns: int) -> int:
        if not self.count:
            self._first_ns = media_ns
        if self.format.rate is None:
            wanted = (media_ns - self._first_ns) * encoders.TICKS_HZ // 1_000_000_000
        else:
            wanted = int(self.count * encoders.TICKS_HZ / self.format.rate)
        self.count += 1
        tick = max(wanted, self._last_tick + 1)  # a muxer refuses two frames at one time
        if self.count > 1:
            self._interval = tick - self._last_tick
        self._last_tick = tick
        return tick

    def _write(self, encoded: Callable[[], list[encoders.Unit]]) -> None:
        try:
            for unit in encoded():
                packet = self._av.Packet(unit.data)
                packet.pts = packet.dts = unit.tick
                packet.time_base, packet.is_keyframe = Fraction(1, encoders.TICKS_HZ), unit.is_key
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
        """Return the container's stream, described by the parameter sets before the first image."""
        with self._av.open(io.BytesIO(data), format=self.encoder.raw) as units:
            stream = self._template(units.streams.video[0])
        codec = stream.codec_context
        if (codec.width, codec.height) != (self.format.width, self.format.height):
            raise ValueError(f"{self.encoder.title} writes {codec.width}x{codec.height}")
        encoders.set_color(codec, self.format.color)
        stream.time_base = Fraction(1, encoders.TICKS_HZ)
        return stream

    def _failure(self, error: Exception) -> StageError:
        size = f"{self.format.width}x{self.format.height}"
        return StageError(f"cannot encode {self._path} at {size}", why=str(error), where=self._where)
