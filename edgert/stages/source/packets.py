"""Encoded packets of a source, shared with recorders, neither decoded nor copied.

A source puts each packet into the inbox of every recorder before it decodes it. The times of one connection mean
nothing in the next, so every packet also has a position, which continues across connections.
"""

from __future__ import annotations

import io
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from edgert.clock import Clock
from edgert.runtime.frame import Color
from edgert.stages.source.timeline import JUMP_NS, MediaClock

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

log = logging.getLogger("edgert.source")

_BACK_NS = 1_000_000_000
"""Largest difference between decoding order and display order."""
_UNTIMED = 64
"""Most packets without a time that wait for a packet with one."""
_START_CODE = re.compile(rb"\x00\x00\x01")
_HEAD_BYTES = 1 << 14
"""First bytes of an access unit, which contain its parameter sets."""
_SETS = {"h264": (0, 31, (7, 8), range(1, 6)), "hevc": (1, 63, (32, 33, 34), range(32))}
"""Codec → shift and mask of a unit's type, types of parameter sets, types of images (ITU-T H.264 and H.265, 7.4)."""


@dataclass(frozen=True, eq=False)
class Format:
    """Properties of one connection's stream that a muxer needs.

    Attributes:
        codec: FFmpeg's name of the codec.
        time_base: seconds per tick.
        sets: parameter sets, where packets carry them between start codes.
        stream: template for a muxer's stream. It stays valid after its container is closed.
        color: colors to write beside the packets; None where the packets declare them.
    """

    codec: str
    time_base: Fraction
    sets: tuple[bytes, ...]
    stream: Any
    color: Color | None = None

    @classmethod
    def of_stream(cls, stream: VideoStream, time_base: Fraction | None = None, color: Color | None = None) -> Format:
        """Return the format of an opened container's stream, which may be closed afterwards."""
        import av

        holder = av.open(os.devnull, "w", format="null")  # holds the parameters; nothing is ever written
        held = holder.add_stream_from_template(stream, opaque=True)
        codec, time_base = stream.codec_context.name, time_base or stream.time_base
        assert time_base is not None
        head = bytes(stream.codec_context.extradata or b"")
        return cls(codec, time_base, _parameter_sets(head, codec), held, color)

    @classmethod
    def of_unit(cls, data: bytes, raw: str, time_base: Fraction, color: Color | None = None) -> Format:
        """Return the format of an access unit that begins with its parameter sets. Raises FFmpegError otherwise."""
        import av

        with av.open(io.BytesIO(data), format=raw) as units:
            return cls.of_stream(units.streams.video[0], time_base, color)

    def followed_by(self, packet: Packet[Any]) -> Format:
        """Return the format from this keyframe on: the same object, unless the camera changed its parameters."""
        from av.error import FFmpegError

        sets = _parameter_sets(bytes(memoryview(packet)[:_HEAD_BYTES]), self.codec) if self.codec in _SETS else ()
        if not sets or sets == self.sets:
            return self
        try:
            return Format.of_unit(bytes(packet), self.codec, self.time_base)
        except FFmpegError as error:
            log.debug("FFmpeg cannot read parameter sets: %s", error)
            return self


def _parameter_sets(data: bytes, codec: str) -> tuple[bytes, ...]:
    """Return the parameter sets before the first image; none where units have lengths instead of start codes."""
    if codec not in _SETS or not data.startswith((b"\0\0\1", b"\0\0\0\1")):
        return ()
    shift, mask, wanted, images = _SETS[codec]
    begins = [match.end() for match in _START_CODE.finditer(data)]
    found = []
    for begin, end in zip(begins, [*(one - 3 for one in begins[1:]), len(data)], strict=True):
        kind = data[begin] >> shift & mask if begin < end else -1
        if kind in images:
            break
        if kind in wanted:
            found.append(data[begin:end].rstrip(b"\0"))
    return tuple(found)


class Sample(NamedTuple):
    """One packet.

    Attributes:
        data: packet, or bytes of an encoder.
        nbytes: size of the data.
        pts, dts, duration: ticks of ``format.time_base``.
        is_key: whether decoding can begin here.
        at_ns: position in the stream at which it is shown, across connections.
        read_ns: arrival by the monotonic clock.
        format: format of its stream.
    """

    data: Packet[Any] | bytes
    nbytes: int
    pts: int
    dts: int
    duration: int
    is_key: bool
    at_ns: int
    read_ns: int
    format: Format


class Inbox:
    """Queue of one stream's packets, from the source's thread to a recorder's.

    ``waits``: :meth:`put` waits for room; else packets are lost up to the next keyframe.
    """

    def __init__(self, limit_bytes: int, waits: bool, wake: threading.Event) -> None:
        self._limit_bytes, self._waits, self._wake = limit_bytes, waits, wake
        self._change = threading.Condition()
        self._samples = deque[Sample]()
        self._nbytes, self.lost = 0, 0
        self._wants_key, self._is_closed = False, False

    def put(self, sample: Sample) -> None:
        """Add a sample; without room, wait or count it as lost."""
        with self._change:
            if self._nbytes > self._limit_bytes // 2:
                self._wake.set()
            if self._waits:
                self._change.wait_for(lambda: self._nbytes <= self._limit_bytes or self._is_closed)
            self._wants_key = (self._wants_key and not sample.is_key) or self._nbytes > self._limit_bytes
            if self._is_closed or self._wants_key:
                self.lost += not self._is_closed
                return
            self._samples.append(sample)
            self._nbytes += sample.nbytes

    def take(self) -> deque[Sample]:
        """Remove and return all samples."""
        with self._change:
            samples, self._samples, self._nbytes = self._samples, deque(), 0
            self._change.notify_all()
        return samples

    def close(self) -> None:
        """Accept no more samples and unblock waiting producers."""
        with self._change:
            self._is_closed = True
            self._samples.clear()
            self._change.notify_all()


class Tap:
    """Distributor of one source's packets to recorders.

    Args:
        media: clock of the positions of the source's frames.
        live: whether a new connection's position continues by the wall clock, or right behind the last packet; as for
            ``media``.
        waits: whether the source waits for slow recorders; else packets that find no room are lost.
    """

    def __init__(self, clock: Clock, media: MediaClock, *, live: bool, waits: bool) -> None:
        self.waits = waits
        self._clock, self._media, self._live = clock, media, live
        self._connection = 0
        self._inboxes: tuple[Inbox, ...] = ()
        self._format: Format | None = None
        self._last: Sample | None = None
        self._untimed = deque[tuple["Packet[Any]", int]]()
        self._shift_ns: int | None = None
        self._stretches = deque[tuple[int, int]](maxlen=64)  # (start ns, offset added to the stream's own time)

    def listen(self, limit_bytes: int, wake: threading.Event) -> Inbox:
        """Add and return an inbox that gets packets from now on; see :class:`Inbox`."""
        inbox = Inbox(limit_bytes, self.waits, wake)
        self._inboxes = (*self._inboxes, inbox)
        return inbox

    def leave(self, inbox: Inbox) -> None:
        """Remove an inbox and close it."""
        self._inboxes = tuple(one for one in self._inboxes if one is not inbox)
        inbox.close()

    def passing(self, packets: Iterable[Packet[Any]], stream: VideoStream) -> Iterator[Packet[Any]]:
        """Yield the packets of one connection after the recorders got them.

        Recorders get no packet of a connection that was replaced by a newer one.
        """
        self._connection += 1
        own, self._format, self._shift_ns = self._connection, None, None
        self._untimed.clear()
        for packet in packets:
            if self._inboxes and packet.size and own == self._connection:
                if self._format is None:
                    self._format = Format.of_stream(stream)
                self._put(packet, self._clock.now_ns())
            yield packet
        if own == self._connection:
            self._put_untimed(None)

    def place(self, timestamp_ns: int, media_ns: int) -> int:
        """Return the packets' position for a frame's capture time and media time. From any thread."""
        raw_ns = self._media.stream_ns(media_ns)
        stretches = list(self._stretches)
        shifts = [shift_ns for since_ns, shift_ns in stretches if since_ns <= timestamp_ns]
        return raw_ns + (shifts[-1] if shifts else stretches[0][1] if stretches else 0)

    def _put(self, packet: Packet[Any], now_ns: int) -> None:
        assert self._format is not None
        pts, dts = packet.pts, packet.dts
        pts, dts = (dts if pts is None else pts), (pts if dts is None else dts)
        if pts is None or dts is None:
            if self._last is None or self._shift_ns is None:
                self._untimed.append((packet, now_ns))  # FFmpeg may not know the time of a connection's first packets
                if len(self._untimed) > _UNTIMED:  # the stream has no times at all
                    self._put_untimed(None)
                return
            pts = dts = self._last.dts + max(self._last.duration, 1)
        self._put_untimed(dts)
        self._add(packet, pts, dts, now_ns)

    def _put_untimed(self, dts: int | None) -> None:
        """Add the packets without a time one after another, so that the last one ends at ``dts``; None: from zero."""
        lengths = [max(packet.duration or 0, 1) for packet, _ in self._untimed]
        at = 0 if dts is None else dts - sum(lengths)
        at = max(at, 0) if dts is None or dts > 0 else at  # a network stream's times begin with its first packet
        for (packet, now_ns), length in zip(self._untimed, lengths, strict=True):
            self._add(packet, at, at, now_ns)
            at += length
        self._untimed.clear()

    def _add(self, packet: Packet[Any], pts: int, dts: int, now_ns: int) -> None:
        format, last, duration, is_key = self._format, self._last, packet.duration or 0, packet.is_keyframe
        assert format is not None
        if is_key:
            format = self._format = format.followed_by(packet)
        base = format.time_base
        raw_ns = pts * base.numerator * 1_000_000_000 // base.denominator
        jumped = False
        if self._shift_ns is not None and last is not None and self._live:
            jumped = not -_BACK_NS <= raw_ns + self._shift_ns - last.at_ns < JUMP_NS
        if self._shift_ns is None or jumped:
            self._shift_ns = 0 if last is None else self._next_ns(last, now_ns) - raw_ns
            self._stretches.append((now_ns, self._shift_ns))
            if jumped:
                format = self._format = replace(format)  # a recorder compares by identity, and begins anew
        sample = Sample(packet, packet.size, pts, dts, duration, is_key, raw_ns + self._shift_ns, now_ns, format)
        self._last = sample
        for inbox in self._inboxes:
            inbox.put(sample)

    def _next_ns(self, last: Sample, now_ns: int) -> int:
        """Return the position of a new stretch: by the time that passed if live, else right behind the last packet."""
        base = last.format.time_base
        passed_ns = now_ns - last.read_ns if self._live else last.duration * 1e9 * base.numerator / base.denominator
        return last.at_ns + int(passed_ns)
