"""A file of packets as they came: only their times count from the file's beginning."""

from typing import Any

from edgert.stages.sink.encoders import set_color
from edgert.stages.sink.muxed_file import MuxedFile
from edgert.stages.sink.output_files import Files
from edgert.stages.source.packets import Format, Sample

_INDEX_BYTES = 64  # of a packet, at most: in its fragment, and in the index at the end


class PacketFile(MuxedFile):
    """One open file, the next of a stream, which begins with a keyframe.

    Attributes:
        last: packet in it; None before there is one.

    Raises:
        StageError: it cannot be written, or its container does not hold this codec.
    """

    def __init__(self, files: Files, stream: str, format: Format, where: str) -> None:
        self.format = format
        self.last: Sample | None = None
        self._zero = self._last_dts = self._nbytes = 0
        self._shown = 0, 0  # from when to when
        super().__init__(files, stream, where)
        try:
            self._stream: Any = self._template(format.stream)
        except ValueError as error:
            self.close()
            raise self._failure(error) from error
        self._stream.time_base = format.time_base
        if format.color is not None:
            set_color(self._stream.codec_context, format.color)

    @property
    def length_ns(self) -> int:
        """Playing time in nanoseconds."""
        begin, end = self._shown
        return int((end - begin) * 10**9 * self.format.time_base)

    def is_full(self, more_bytes: int) -> bool:
        """Return whether the next file begins before ``more_bytes`` more. Counts what the muxer still holds."""
        most = self._files.rules.rotate_bytes
        return bool(most and self._nbytes + _INDEX_BYTES * self.count + more_bytes > most) or self.is_due()

    def add(self, sample: Sample) -> None:
        """Write a packet. Raises StageError for a failed write."""
        if self.last is None:
            self._zero, self._last_dts = sample.dts, -1
            self._shown = sample.pts, sample.pts
        self._shown = min(self._shown[0], sample.pts), max(self._shown[1], sample.pts + sample.duration)
        packet = self._av.Packet(sample.data)  # of the same bytes, and with times of its own
        packet.dts = max(sample.dts - self._zero, self._last_dts + 1)  # a muxer refuses two at one time
        packet.pts = max(sample.pts - self._zero, packet.dts)
        packet.duration, packet.is_keyframe = sample.duration, sample.is_key
        packet.time_base, packet.stream = self.format.time_base, self._stream
        self._last_dts, self.last = packet.dts, sample
        self.count += 1
        self._nbytes += sample.nbytes
        try:
            self._container.mux(packet)
        except (ValueError, self._av.FFmpegError) as error:
            self._failed = True
            raise self._failure(error) from error
        self._check()
