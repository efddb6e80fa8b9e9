"""The time of day that a network camera gives its images itself, by its RTCP sender reports (RFC 3550, 6.4.1)."""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Any

from edgert.clock import rfc3339
from edgert.stages.source.planes import media_ns

if TYPE_CHECKING:
    import av

log = logging.getLogger("edgert.source")

_WALL_CLOCK_US = struct.Struct("=q")
"""Beginning of an AVProducerReferenceTime (libavcodec/defs.h): the packet's time, since 1970."""
_EARLIEST_NS = 946_684_800 * 10**9
"""The year 2000: a clock before that was never set; it counts from 1900, 1970, or the camera's start."""


class SenderClock:
    """Clock of one connection's sender, from the times that FFmpeg attaches to packets after a sender report.

    Reports come every few seconds, and a camera may set its clock: each packet's time counts for the images from it on.

    Args:
        where: the source, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where, self._ahead_ns, self._was_odd = where, 0, False
        self._is_known = False

    def see(self, packet: av.Packet[Any]) -> None:
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
                "%s: the camera has no time of day, its clock says %s; its frames have this machine's alone: "
                "set its clock, or give it an NTP server",
                *(self._where, shown),
            )

    def at(self, media_ns: int | None) -> int | None:
        """Return nanoseconds of the epoch at a time of the stream; None where the sender does not give it."""
        return media_ns + self._ahead_ns if self._is_known and media_ns is not None else None
