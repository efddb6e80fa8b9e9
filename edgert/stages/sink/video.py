"""Sink that writes video files: for each stream one after another, each with its own encoder."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from edgert.errors import EdgertError, StageError
from edgert.runtime.records import Result
from edgert.stages.sink import encoders
from edgert.stages.sink.encoded_video import EncodedVideos
from edgert.stages.sink.encoder_choice import EncodeMode, EncoderChoice
from edgert.stages.sink.muxed_file import FORMATS, MuxedFile
from edgert.stages.sink.output_file import DISK, Files
from edgert.stages.sink.retention import REPLACED, Rules, has_field
from edgert.stages.source.packets import Format, Sample


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
        self._where = f"stages.{name}"
        self._all = Files(path, rules, self._where)
        self._files: dict[str, MuxedFile] = {}
        self._encoders = EncoderChoice(self._where, codec, encode)
        rate = Fraction(fps).limit_denominator(1001) if fps else None
        self._videos = EncodedVideos(self._encoders, quality, rate)
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
        stream, begun = result.frame.stream, self._videos.streams
        if begun and stream not in begun and not has_field(self._all.pattern, "stream"):
            raise StageError(
                f"{self._all.pattern} would hold two streams",
                why=f"{next(iter(begun))} and {stream} arrive at one sink",
                where=self._where,
                fix="put {stream} into path, or give each stream a sink of its own",
            )
        self._all.remove_old()
        file = self._files.get(stream)
        if file is not None and file.is_full() and (failure := self._end(stream)) is not None:
            raise failure
        self._write(stream, self._videos.encode(result))
        self._file_for(stream, None)  # after the encoder was opened: if that fails, an earlier file stays

    def close(self) -> None:
        """Finish every file, also when one of them fails. Raises the first error."""
        streams = {**self._files, **self._videos.streams}
        failures = [failure for stream in streams if (failure := self._end(stream)) is not None]
        self._all.close()
        if failures:
            raise failures[0]

    def _write(self, stream: str, samples: Iterable[Sample]) -> None:
        """Write packets; begin another file where another video begins."""
        for sample in samples:
            file = self._file_for(stream, sample.format)
            try:
                file.add(sample)
            except StageError:
                self._videos.drop(stream)
                raise
            if file.output.is_dirty:
                DISK.sync_soon()

    def _file_for(self, stream: str, format: Format | None) -> MuxedFile:
        """Return the open file of a stream; begin another where there is none, or its packets have another format."""
        file = self._files.get(stream)
        if file is not None and format is not None and file.format not in (None, format):
            del self._files[stream]
            if (failure := file.close()) is not None:
                raise failure
        if stream not in self._files:
            try:
                self._files[stream] = MuxedFile(self._all, stream, self._where)
            except StageError:
                self._videos.drop(stream)  # the next file begins with a key frame
                raise
        return self._files[stream]

    def _end(self, stream: str) -> EdgertError | None:
        """Write what is inside the encoder, and finish the file; return the first error."""
        failure = closing = None
        try:
            self._write(stream, self._videos.end(stream))
        except EdgertError as error:
            failure = error
        if (file := self._files.pop(stream, None)) is not None:
            closing = file.close()
        return failure or closing
