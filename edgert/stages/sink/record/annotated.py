"""Encoding of drawn images into packets, which are recorded beside a camera's own."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from edgert.errors import DeviceError
from edgert.runtime.records import Result
from edgert.stages.sink import encoders
from edgert.stages.sink.encoder_choice import EncodeMode, EncoderChoice
from edgert.stages.source.packets import Format, Sample

_TICK = Fraction(1, encoders.TICKS_HZ)


@dataclass
class _Video:
    """The video of one stream; ``times`` has the capture times of images inside the encoder, by tick."""

    encoder: encoders.Encoder
    wanted: encoders.VideoFormat
    format: Format | None = None
    tick: int = -1
    interval: int = encoders.TICKS_HZ // 30
    times: dict[int, int] = field(default_factory=dict)


class AnnotatedVideo:
    """Encoders of drawn images, one per stream; a new one begins when size or colors change.

    Args:
        quality: H.264 CRF, or constant quantizer of hardware.
    """

    def __init__(self, where: str, quality: int, codec: encoders.Codec, encode: EncodeMode) -> None:
        self._where, self._quality, self._codec = where, quality, codec
        self._encoders = EncoderChoice(where, codec, encode)
        self._videos: dict[str, _Video] = {}

    def open(self) -> None:
        """Raise DeviceError when nothing can encode."""
        self._encoders.check()

    def encode(self, result: Result) -> Iterator[Sample]:
        """Encode one image; yield the finished packets, at positions of ``media_ns``. Raises DeviceError."""
        frame = result.frame
        wanted = encoders.video_format(result, self._codec, self._quality, None)
        video = self._videos.get(frame.stream)
        if video is not None and video.wanted != wanted:
            yield from self._end_video(frame.stream)
            video = None
        if video is None:
            video = self._videos[frame.stream] = _Video(self._encoders.open(result, wanted), wanted)
        tick = max(frame.media_ns * encoders.TICKS_HZ // 1_000_000_000, video.tick + 1)
        video.interval = tick - video.tick if video.tick >= 0 else video.interval
        video.tick, video.times[tick] = tick, frame.timestamp_ns
        try:
            units = video.encoder.encode(result, tick)
        except DeviceError as error:
            self._encoders.refuse(video.encoder.kind, f"{error.what}: {error.why}")
            raise
        yield from self._samples(video, units)

    def finish(self) -> Iterator[tuple[str, Sample]]:
        """Yield the remaining packets, each with its stream. Raises DeviceError."""
        for stream in list(self._videos):
            for sample in self._end_video(stream):
                yield stream, sample

    def close(self) -> None:
        """Free the encoders."""
        for video in self._videos.values():
            video.encoder.close()
        self._videos.clear()

    def _end_video(self, stream: str) -> Iterator[Sample]:
        video = self._videos.pop(stream)
        try:
            yield from self._samples(video, video.encoder.finish())
        finally:
            video.encoder.close()

    def _samples(self, video: _Video, units: list[encoders.Unit]) -> Iterator[Sample]:
        for unit in units:
            if video.format is None:
                video.format = Format.of_unit(unit.data, video.encoder.raw, _TICK, video.wanted.color)
            at_ns = unit.tick * 1_000_000_000 // encoders.TICKS_HZ
            times = unit.tick, unit.tick, video.interval, unit.is_key, at_ns, video.times.pop(unit.tick, 0)
            yield Sample(unit.data, len(unit.data), *times, video.format)
