"""Encoding of results into packets with times, for files of video and beside a camera's own packets."""

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction

from edgert.errors import DeviceError, EdgertError, StageError
from edgert.runtime.records import Result
from edgert.stages.sink import encoders
from edgert.stages.sink.encoder_choice import EncoderChoice
from edgert.stages.source.packets import Format, Sample

_TICK = Fraction(1, encoders.TICKS_HZ)
_FEW_FRAMES, _MOST_CHANGES = 30, 10


class EncodedVideos:
    """The videos of a sink's images, one per stream; another one begins when size or colors change.

    Frames are shown at their ``media_ns``, or at a fixed rate.

    Args:
        choice: chooser of encoders.
        quality: H.264 CRF, or constant quantizer of hardware.
        rate: frames per second; None: by ``media_ns``.

    Attributes:
        streams: streams whose videos have begun.
    """

    def __init__(self, choice: EncoderChoice, quality: int, rate: Fraction | None = None) -> None:
        self._choice, self._quality, self._rate = choice, quality, rate
        self.streams: dict[str, _Video] = {}
        self._changes = Counter[str]()

    def encode(self, result: Result) -> Iterator[Sample]:
        """Encode one image; yield the finished packets. The packets of a video have the same ``format``.

        Raises DeviceError where the encoder fails, StageError where FFmpeg does, or sizes change again and again.
        """
        stream = result.frame.stream
        wanted = encoders.video_format(result, self._choice.codec, self._quality, self._rate)
        if stream in self.streams and self.streams[stream].wanted != wanted:
            self._check_change(stream, wanted)
            yield from self.end(stream)
        if stream not in self.streams:
            self.streams[stream] = _Video(self._choice, result, wanted)
        try:
            yield from self.streams[stream].encode(result)
        except EdgertError:
            self.drop(stream)
            raise

    def end(self, stream: str) -> list[Sample]:
        """End the video of a stream, if it has one; return its last packets. Raises like :meth:`encode`."""
        try:
            return self.streams[stream].finish() if stream in self.streams else []
        finally:
            self.drop(stream)

    def drop(self, stream: str) -> None:
        """Discard the video of a stream, with the images inside the encoder."""
        if (video := self.streams.pop(stream, None)) is not None:
            video.close()

    def close(self) -> None:
        """Discard all videos."""
        for stream in tuple(self.streams):
            self.drop(stream)

    def _check_change(self, stream: str, wanted: encoders.VideoFormat) -> None:
        """Raise StageError where sizes change so often that short videos would fill the disk."""
        video, where = self.streams[stream], self._choice.where
        before = video.wanted
        change = f"from {before.width}x{before.height} to {wanted.width}x{wanted.height}"
        if before.color != wanted.color:
            change = f"its colors from {before.color} to {wanted.color}"
        self._changes[stream] = self._changes[stream] + 1 if video.count < _FEW_FRAMES else 0
        if self._changes[stream] >= _MOST_CHANGES:
            why = f"the last {_MOST_CHANGES} sizes had fewer than {_FEW_FRAMES} frames each; each needs its own file"
            fix = "put a draw stage with a fixed width in front, or write images"
            raise StageError(f"the image of {stream} changed {change}", why=why, where=where, fix=fix)
        encoders.log.warning("%s: the image of %s changed %s: its next file begins", where, stream, change)


class _Video:
    """A video with its encoder. Raises DeviceError where nothing can encode."""

    def __init__(self, choice: EncoderChoice, first: Result, wanted: encoders.VideoFormat) -> None:
        self.wanted, self.count, self._choice = wanted, 0, choice
        self._encoder = choice.open(first, wanted)
        self._format: Format | None = None
        self._tick, self._interval = -1, int(encoders.TICKS_HZ / (wanted.rate or 30))
        self._read_ns = dict[int, int]()  # capture times of the images inside the encoder, by tick
        self.close = self._encoder.close

    def encode(self, result: Result) -> list[Sample]:
        frame, rate = result.frame, self.wanted.rate
        tick = frame.media_ns * encoders.TICKS_HZ // 1_000_000_000
        if rate is not None:
            tick = int(self.count * encoders.TICKS_HZ / rate)
        tick = max(tick, self._tick + 1)  # muxers refuse two frames of one time
        if self.count:
            self._interval = tick - self._tick
        self.count, self._tick, self._read_ns[tick] = self.count + 1, tick, frame.timestamp_ns
        return self._samples(lambda: self._encoder.encode(result, tick))

    def finish(self) -> list[Sample]:
        return self._samples(self._encoder.finish)

    def _samples(self, encode: Callable[[], list[encoders.Unit]]) -> list[Sample]:
        """Return the packets of the units that a function of the encoder returns."""
        try:
            return [self._sample(unit) for unit in encode()]
        except DeviceError as error:
            error.where = error.where or self._choice.where
            self._choice.refuse(self._encoder.kind, f"{error.what}: {error.why}")
            raise
        except encoders.encoder_errors() as error:
            size = f"{self.wanted.width}x{self.wanted.height}"
            raise StageError(f"cannot encode video of {size}", why=str(error), where=self._choice.where) from error

    def _sample(self, unit: encoders.Unit) -> Sample:
        if self._format is None:  # the first unit has the parameter sets
            format = Format.of_unit(unit.data, self._encoder.raw, _TICK, self.wanted.color)
            codec = format.stream.codec_context
            if (codec.width, codec.height) != (self.wanted.width, self.wanted.height):
                raise ValueError(f"{self._encoder.title} writes {codec.width}x{codec.height}")
            self._format = format
        at_ns = unit.tick * 1_000_000_000 // encoders.TICKS_HZ
        times = unit.tick, unit.tick, self._interval, unit.is_key, at_ns, self._read_ns.pop(unit.tick, 0)
        return Sample(unit.data, len(unit.data), *times, self._format)
