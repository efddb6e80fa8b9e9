"""Corrections for times that a file states wrongly or not at all, as the ffmpeg program makes them.

A packet has up to two times: when it is shown (pts) and when it is decoded (dts). Containers such as AVI know only
the second, some muxers write the first wrongly, and the clock of recordings that were joined starts anew at each seam.
"""

from __future__ import annotations

import logging
import struct
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from edgert.clock import rfc3339
from edgert.stages.source.planes import media_ns

if TYPE_CHECKING:
    import av
    from av.container import InputContainer
    from av.video.stream import VideoStream


_BACK_S, _BACK_PERIODS = 1, 16
"""Backward step of decoding times that only a set clock explains: H.264 reorders 16 images."""
_LEAP_S = {True: 10, False: 30 * 3600}
"""Step forward that is no gap in a recording, by whether the format's clock may leap, as in MPEG-TS. See ffmpeg(1),
``-dts_delta_threshold`` and ``-dts_error_threshold``."""
_LEAP_PERIODS = 3
"""Frame periods in the shortest leap, so that one image per minute is no leap."""
NO_TIMESTAMPS = 0x80
"""AVFMT_NOTIMESTAMPS of libavformat/avformat.h."""


def usual_rate(container: InputContainer, stream: VideoStream) -> Fraction | None:
    """Return a video's frames per second by its headers; None where they do not say.

    For a container without timestamps, the rate in the video's own header is used instead of the average.
    """
    is_raw = container.format.flags & NO_TIMESTAMPS
    return (stream.guessed_rate if is_raw else None) or stream.average_rate


class TimestampJoiner:
    """Correction for files whose clock was set while recording: later times continue where the earlier ones end."""

    found = False

    def __init__(self, time_base: Fraction | None, period_ns: int, may_leap: bool) -> None:
        ticks = 1 / (time_base or Fraction(1, 90_000))
        self._period = max(round(Fraction(period_ns, 10**9) * ticks), 1)
        self._back = max(int(_BACK_S * ticks), _BACK_PERIODS * self._period)
        self._leap = max(int(_LEAP_S[may_leap] * ticks), _LEAP_PERIODS * self._period)
        self._shift, self._step = 0, self._period
        self._shown: int | None = None
        self._decoded: int | None = None

    def join(self, packet: av.Packet[Any]) -> None:
        """Shift the next packet's times by the offset that applies since the last seam."""
        if packet.pts is None and packet.dts is None:
            return
        if self._is_jump(packet):
            times = (self._shown, packet.pts), (self._decoded, packet.dts)
            self._shift = max(last + self._step - time for last, time in times if last is not None and time is not None)
            self._shown, self._decoded, self.found = None, None, True
        if packet.pts is not None:
            packet.pts += self._shift
            self._shown = packet.pts if self._shown is None else max(self._shown, packet.pts)
        if packet.dts is not None:
            packet.dts += self._shift
            self._decoded = packet.dts
        self._step = packet.duration or self._step

    def _is_jump(self, packet: av.Packet[Any]) -> bool:
        """Return whether the clock was set before this packet.

        A key frame is shown after every packet stored before it. Other packets are shown in any order, but are decoded
        in storage order.
        """
        if packet.pts is not None and self._shown is not None:
            ahead = packet.pts + self._shift - self._shown
            if ahead > self._leap or (packet.is_keyframe and ahead <= -self._period):
                return True
        if packet.dts is None or self._decoded is None:
            return False
        ahead = packet.dts + self._shift - self._decoded
        return ahead > self._leap or ahead < -self._back


class BestTimes:
    """Choice between PTS and DTS for each frame, by which had fewer errors (standstills, backward steps) so far.

    FFmpeg calls it ``best_effort_timestamp`` (``guess_correct_pts`` of libavcodec/decode.c); PyAV does not pass it on.
    """

    def __init__(self) -> None:
        self._last_pts = self._last_dts = -(2**63)
        self._wrong_pts = self._wrong_dts = 0

    def choose(self, pts: int | None, dts: int | None) -> int | None:
        """Return the next frame's time in ticks; None without one."""
        if dts is not None:
            self._wrong_dts += dts <= self._last_dts
            self._last_dts = dts
        elif pts is not None:
            self._last_dts = pts
        if pts is not None:
            self._wrong_pts += pts <= self._last_pts
            self._last_pts = pts
        elif dts is not None:
            self._last_pts = dts
        is_right = self._wrong_pts <= self._wrong_dts or dts is None
        return pts if pts is not None and is_right else dts


# Capture time by a network camera's own clock, from its RTCP sender reports (RFC 3550, 6.4.1).

log = logging.getLogger("edgert.source")

_WALL_CLOCK_US = struct.Struct("=q")
"""First field of an AVProducerReferenceTime (libavcodec/defs.h): the packet's time in µs since 1970."""
_EARLIEST_NS = 946_684_800 * 10**9
"""The year 2000. A clock before it was never set: it counts from 1900, 1970, or the camera's start."""


class SenderClock:
    """Clock of one connection's sender, from the times that FFmpeg attaches to packets after a sender report.

    Reports come every few seconds, and a camera may set its clock. Each one holds for the images that follow it.
    """

    def __init__(self, where: str) -> None:
        self._where, self._ahead_ns, self._was_odd = where, 0, False
        self._is_known = False

    def read(self, packet: av.Packet[Any]) -> None:
        """Read the sender's time from a packet, before it is decoded. Logs an impossible time once."""
        at_ns = media_ns(packet.pts, packet.time_base)
        if at_ns is None or not packet.has_sidedata("prft"):
            return
        (time_us,) = _WALL_CLOCK_US.unpack_from(bytes(packet.get_sidedata("prft")))
        self._is_known = 1000 * time_us >= _EARLIEST_NS
        self._ahead_ns = 1000 * time_us - at_ns
        if not self._is_known and not self._was_odd:
            self._was_odd = True
            shown = rfc3339(1000 * time_us) if time_us >= 0 else "a time before 1970"
            log.warning(
                "%s: the camera's clock is not set, it says %s; its frames have this machine's time only: "
                "set its clock, or give it an NTP server",
                self._where,
                shown,
            )

    def time_at(self, media_ns: int | None) -> int | None:
        """Return the sender's time in ns since 1970 at a time of the stream; None where it does not give one."""
        return media_ns + self._ahead_ns if self._is_known and media_ns is not None else None
