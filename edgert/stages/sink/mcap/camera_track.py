"""The data of one source on its way into a recording: packets as they came, or pixels where there are none."""

import base64
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from edgert.recording.mcap_file import Topic
from edgert.recording.mcap_messages import image_head, topic, video_message
from edgert.runtime import Frame
from edgert.stages.source.packets import Format, Inbox, Sample, Tap

_REMEMBERED = 4096
_BACK_NS = 1_000_000_000
"""Maximum difference between the order of packets, that of decoding, and the order of display."""
_REORDERED = 64
"""More frames than any decoder holds back to bring them into the order of display."""
_NEAR_NS = 500_000
"""Maximum difference in position between a frame and its packet, because equal times in a stream are moved apart."""
_LENGTHS_FIRST = b"\x01"
"""First byte of the extradata of H.264 and H.265 whose units begin with their lengths (ISO/IEC 14496-15)."""


class Piece(NamedTuple):
    """One message of camera data.

    Attributes:
        number: number of the packet or image in its stream, from 0.
        read_ns: time of arrival, by the monotonic clock.
        parts: payload, in parts.
        restart: record for a decoder that begins here; None where the decoder goes on.
        topic: topic of a depth image, which comes before its image; None: the track's.
    """

    number: int
    read_ns: int
    parts: Sequence[bytes | memoryview]
    restart: dict[str, Any] | None
    topic: Topic | None = None


class PacketTrack:
    """Packets of a source, each as one access unit with start codes."""

    def __init__(self, stream: str, tap: Tap, memory_bytes: int, wake: threading.Event) -> None:
        self.topic, self._stream, self._tap = topic(f"/{stream}/video"), stream, tap
        self._memory_bytes = memory_bytes
        self._inbox: Inbox = tap.listen(memory_bytes, wake)
        self._format: Format | None = None
        self._filter: Any = None
        self._head = b""
        self._count = 0
        self._places = deque[tuple[int, int, int]](maxlen=_REMEMBERED)  # position, time of arrival, number
        self._used = deque[int](maxlen=_REORDERED)
        self._group, self._group_bytes = list[Piece](), 0

    @property
    def lost(self) -> int:
        return self._inbox.lost

    def take(self, offset_ns: int) -> Iterator[Piece]:
        """Yield the new packets. ``offset_ns`` is the time of day less the monotonic time."""
        for sample in self._inbox.take():
            restart = self._restart(sample) if sample.format is not self._format else None
            data = self._access_unit(sample)
            parts = video_message(self._stream, sample.read_ns + offset_ns, data, sample.format.codec)
            piece = Piece(self._count, sample.read_ns, parts, restart)
            self._places.append((sample.at_ns, sample.read_ns, self._count))
            self._count += 1
            self._remember(piece, sample)
            yield piece

    def begin(self) -> Iterator[Piece]:
        """Yield the packets with which a new file must begin: those since the last key frame."""
        yield from self._group

    def number_of(self, index: int, timestamp_ns: int, media_ns: int) -> int:
        """Return the number of a frame's packet; -1 where it is not known."""
        at_ns = self._tap.place(timestamp_ns, media_ns)
        best = _NEAR_NS, -1
        for one_ns, _, number in reversed(self._places):
            if one_ns < at_ns - _BACK_NS:
                break
            if number not in self._used:
                best = min(best, (abs(one_ns - at_ns), number))
        number = best[1]
        if number < 0:  # FFmpeg has no time for a connection's first packet; its frame comes right after it is read
            number = max((number for _, read_ns, number in self._places if read_ns <= timestamp_ns), default=-1)
        self._used.append(number)
        return number

    def close(self) -> None:
        """Take no more packets."""
        self._tap.leave(self._inbox)

    def _remember(self, piece: Piece, sample: Sample) -> None:
        """Store a packet for the next file, if there is room since the last key frame."""
        if sample.is_key:
            self._group, self._group_bytes = [piece._replace(restart=self._decoder_record())], 0
        elif self._group and self._group_bytes < self._memory_bytes:
            self._group.append(piece)
        self._group_bytes += sample.nbytes

    def _restart(self, sample: Sample) -> dict[str, Any]:
        """Follow a change of format; return the record for a decoder that begins there."""
        from av.bitstream import BitStreamFilterContext

        self._format = format = sample.format
        head = bytes(format.stream.codec_context.extradata or b"")
        converts = format.codec in ("h264", "hevc") and head.startswith(_LENGTHS_FIRST)
        self._filter = BitStreamFilterContext(f"{format.codec}_mp4toannexb", format.stream) if converts else None
        self._head = b"" if converts else head
        return self._decoder_record()

    def _decoder_record(self) -> dict[str, Any]:
        assert self._format is not None
        context = self._format.stream.codec_context
        found: dict[str, Any] = {"stream": self._stream, "codec": self._format.codec}
        if self._head and self._format.codec not in ("h264", "hevc"):
            found |= {"head": base64.b64encode(self._head).decode()}
        return {**found, "tags": [int(context.colorspace), int(context.color_range)]}

    def _access_unit(self, sample: Sample) -> bytes | memoryview:
        """Return a packet as an access unit. Key frames of H.264 and H.265 begin with the parameter sets."""
        if self._filter is not None:
            from av.packet import Packet

            own = Packet(bytes(sample.data))  # a copy, because the filter empties it, and a decoder uses the original
            own.pts, own.dts, own.is_keyframe = sample.pts, sample.dts, sample.is_key
            return b"".join(bytes(one) for one in self._filter.filter(own))
        data = memoryview(sample.data)
        is_bare = sample.is_key and self._head and sample.format.codec in ("h264", "hevc") and not sample.format.sets
        return self._head + bytes(data) if is_bare else data


class PixelTrack:
    """Images of a source without packets. They are copied in its thread, because the camera needs its buffers back."""

    def __init__(self, stream: str, memory_bytes: int, waits: bool, wake: threading.Event) -> None:
        self.topic, self._stream, self.lost = topic(f"/{stream}/image"), stream, 0
        self._memory_bytes, self._waits, self._wake = memory_bytes, waits, wake
        self._pieces = deque[tuple[Piece, int, Callable[..., bytes]]]()
        self._change, self._nbytes, self._is_closed = threading.Condition(), 0, False

    def put(self, frame: Frame) -> None:
        """Copy a frame's pixels; lose them where there is no room. Called in the source's thread."""
        depth = frame.extra.depth
        nbytes = sum(plane.nbytes for plane in frame.planes) + (0 if depth is None else depth.values.nbytes)
        with self._change:
            if self._nbytes > self._memory_bytes // 2:
                self._wake.set()
            if self._waits:
                self._change.wait_for(lambda: self._nbytes <= self._memory_bytes or self._is_closed)
            if self._is_closed or self._nbytes > self._memory_bytes:
                self.lost += not self._is_closed
                return
            self._nbytes += nbytes
        color = [frame.color.matrix, frame.color.full_range]
        about: dict[str, Any] = {"stream": self._stream, "file": frame.extra.file, "color": color}
        pieces = [self._piece(frame, frame.to_host().planes, frame.format, about)]
        if depth is not None:
            about["camera"], form = depth.camera, "16UC1" if depth.values.dtype == np.uint16 else "32FC1"
            pieces.insert(0, self._piece(frame, [depth.values], form, None, topic(f"/{self._stream}/depth")))
        with self._change:
            self._pieces.extend(pieces)

    def _piece(
        self, frame: Frame, planes: Sequence[Any], form: str, about: dict[str, Any] | None, topic: Topic | None = None
    ) -> tuple[Piece, int, Callable[..., bytes]]:
        """Return an image without its head, the bytes of its pixels, and the function that makes the head."""
        parts, size = tuple(plane.tobytes() for plane in planes), planes[0].shape[1::-1]
        nbytes = sum(map(len, parts))
        head = partial(image_head, self._stream, size=size, format=form, nbytes=nbytes)
        return Piece(frame.index, frame.timestamp_ns, parts, about, topic), nbytes, head

    def take(self, offset_ns: int) -> Iterator[Piece]:
        with self._change:
            pieces, self._pieces = self._pieces, deque()
            self._nbytes -= sum(nbytes for _, nbytes, _ in pieces)
            self._change.notify_all()
        for piece, _, head in pieces:
            yield piece._replace(parts=(head(time_ns=piece.read_ns + offset_ns), *piece.parts))

    def begin(self) -> Iterator[Piece]:
        yield from ()  # every image is complete

    def number_of(self, index: int, timestamp_ns: int, media_ns: int) -> int:
        return index

    def close(self) -> None:
        """Take no more images; unblock the source."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()


CameraTrack = PacketTrack | PixelTrack
"""The data of one stream. For use in the thread that writes."""
