"""Video files: of each stream one, with an encoder of its own."""

from fractions import Fraction
from pathlib import Path

from edgert.errors import DeviceError, StageError
from edgert.runtime.records import Result
from edgert.stages.sink.encoder_choice import Choice, Where
from edgert.stages.sink.encoders import Codec, VideoFormat, color_of, size_of
from edgert.stages.sink.image_files import check_pattern, fill, has_field, make_parent
from edgert.stages.sink.video_file import FORMATS, VideoFile


class VideoSink:
    """Writes video, replacing what is there; folders are made. The file appears with the first frame.

    Frames are shown at their ``media_ns``, so a variable rate or dropped frames play at the right speed. Video has
    even sizes: an odd last row or column is left out. A process that is killed leaves a playable file. Images on a GPU
    stay there where the encoder reads them there; for another they are brought down once.

    Args:
        path: ``.mp4``, ``.mov`` or ``.mkv``; with ``{stream}`` in it, one file per stream.
        fps: shows frame n at n / fps instead.
        quality: H.264 CRF, 0 (lossless) to 51; of hardware the constant quantizer.
        encode: whether the hardware's encoder is taken: where there is one, never, or always.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        fps: float | None = None,
        quality: int = 23,
        codec: Codec = "h264",
        encode: Where = "auto",
    ) -> None:
        self.pattern, self._quality, self._codec = path, quality, codec
        self._rate = Fraction(fps).limit_denominator(1001) if fps else None
        self._where = f"stages.{name}"
        self._files: dict[str, VideoFile] = {}
        self._encoders = Choice(self._where, codec, encode)
        check_pattern(path, ("stream",), self._where)
        if path.suffix.lower() not in FORMATS:
            raise StageError(f"cannot write {path.name}", where=self._where, fix=f"end it in {' or '.join(FORMATS)}")

    def open(self) -> None:
        """Raises DeviceError when nothing can encode, StageError when the folder cannot be made."""
        self._encoders.check()
        if not has_field(self.pattern.parent, "stream"):
            make_parent(self.pattern, self._where)

    def process(self, result: Result) -> None:
        """Encodes one frame. Raises StageError: disk full, the size changed, or streams that share one file;
        DeviceError: the encoder failed, and a stream that begins later takes the next."""
        stream = result.frame.stream
        if self._files and stream not in self._files and not has_field(self.pattern, "stream"):
            raise StageError(
                f"{self.pattern} would hold two streams",
                why=f"{next(iter(self._files))} and {stream} arrive at one sink",
                where=self._where,
                fix="put {stream} into path, or give each stream a sink of its own",
            )
        file = self._files.get(stream) or self._begun(stream, result)
        try:
            file.add(result)
        except DeviceError as error:
            self._encoders.refuse(file.encoder.kind, f"{error.what}: {error.why}")
            raise

    def close(self) -> None:
        """Writes what the encoders still hold and finishes every file, also when one of them fails."""
        failures = [failure for file in self._files.values() if (failure := file.close()) is not None]
        self._files.clear()
        if failures:
            raise failures[0]

    def _begun(self, stream: str, result: Result) -> VideoFile:
        path = fill(self.pattern, stream)
        make_parent(path, self._where)
        format = VideoFormat(self._codec, self._quality, *size_of(result), self._rate, color_of(result))
        encoder = self._encoders.open(result, format)
        self._files[stream] = VideoFile(path, encoder, format, self._where)
        return self._files[stream]
