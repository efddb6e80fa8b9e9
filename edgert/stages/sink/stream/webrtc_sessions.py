"""WebRTC sessions by aiortc, which send encoded images unchanged.

By WHEP (https://www.ietf.org/archive/id/draft-ietf-wish-whep-03.html) the viewer makes an offer. The answer has all our
addresses, so no candidates follow later. No STUN server is used.

An offer may name any address, and ICE (RFC 8445) sends checks to each of them. So only the address of the client's HTTP
connection is used. Viewers at other addresses still connect by their own checks: those behind NAT, with a name of
multicast DNS, or with several addresses.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from edgert import limits
from edgert.stages.sink.encoders import TICKS_HZ, Unit
from edgert.stages.sink.stream.broadcast import Broadcast

log = logging.getLogger("edgert.sink")

_MAX_QUEUED = 30
"""Maximum number of images that wait for a connection; beyond it, video continues with the next key frame."""
_CONNECT_S = 15.0
"""Seconds from an offer until its viewer must be connected."""
_MAX_MEDIA = 4  # video, sound and data of one viewer; each may open sockets of its own


class RefusedError(Exception):
    """An offer that cannot be answered, with the reason."""


class FullError(Exception):
    """An offer beyond the maximum number of viewers."""


class Sessions:
    """The sessions of one sink. For use in the thread of its event loop.

    Args:
        address: local IP address that video is sent from; an unspecified one stands for all.
    """

    def __init__(self, address: str) -> None:
        self._address = "" if ip_address(address).is_unspecified else address
        self._all: dict[str, tuple[Any, Broadcast, _Viewer]] = {}

    async def begin(self, broadcast: Broadcast, offer: str, peer: str) -> tuple[str, str]:
        """Return the session's id and the answer to an offer from the address ``peer``.

        Raises:
            RefusedError: the offer cannot be answered.
            FullError: there are too many viewers.
        """
        import aiortc

        if len(self._all) >= limits.WEBRTC_VIEWERS:
            raise FullError(f"{limits.WEBRTC_VIEWERS} are watching")
        number, connection = secrets.token_urlsafe(16), aiortc.RTCPeerConnection(aiortc.RTCConfiguration([]))
        viewer = _Viewer(broadcast.refresh, lambda: self._end_soon(number))
        self._all[number] = connection, broadcast, viewer

        def changed() -> None:
            if connection.connectionState == "connected":
                broadcast.join(viewer)
            elif connection.connectionState in ("failed", "closed"):
                self._end_soon(number)

        # Before the first wait: this task is canceled with the client's request, and the session must still end.
        connection.on("connectionstatechange", changed)
        asyncio.get_running_loop().call_later(_CONNECT_S, self._end_unconnected, number)
        try:
            answer = await self._answer(connection, viewer, harmless(offer, peer))
        except Exception as error:  # aiortc raises many kinds of errors for hostile offers
            await self.end(number)
            raise RefusedError(str(error) or type(error).__name__) from error
        return number, answer

    async def end(self, number: str) -> bool:
        """End a session; return whether there was one."""
        connection, broadcast, viewer = self._all.pop(number, (None, None, None))
        if connection is None or broadcast is None or viewer is None:
            return False
        broadcast.leave(viewer)
        viewer.stop()
        await connection.close()
        return True

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(self.end(number) for number in list(self._all)))

    async def _answer(self, connection: Any, viewer: "_Viewer", offer: str) -> str:
        """Return the answer to an offer, after adding the viewer's track to the connection."""
        import aiortc

        sender = connection.addTrack(_track()(viewer))
        sender._send_keyframe = viewer.refresh  # aiortc calls this where a viewer lost images
        (transceiver,) = connection.getTransceivers()
        codecs = aiortc.RTCRtpSender.getCapabilities("video").codecs
        transceiver.setCodecPreferences([one for one in codecs if one.mimeType in ("video/H264", "video/rtx")])
        await connection.setRemoteDescription(aiortc.RTCSessionDescription(offer, "offer"))
        if transceiver.mid is None:
            raise RefusedError("the offer asks for no video")
        if self._address:
            media = [one.sender for one in connection.getTransceivers()] + [connection.sctp] * bool(connection.sctp)
            for ice in {one.transport.transport.iceGatherer._connection for one in media}:
                ice.get_component_candidates = _from(self._address, ice.get_component_candidates)
        await connection.setLocalDescription(await connection.createAnswer())
        return str(connection.localDescription.sdp)

    def _end_unconnected(self, number: str) -> None:
        if number in self._all and self._all[number][0].connectionState != "connected":
            self._end_soon(number)

    def _end_soon(self, number: str) -> None:
        task = asyncio.ensure_future(self.end(number))
        self._ending = task  # without a reference, asyncio may lose the task


def harmless(offer: str, peer: str) -> str:
    """Return an offer with only the candidates at ``peer``, at most :data:`~edgert.limits.WHEP_CANDIDATES`.

    The line that ends the candidates is removed too. With it and no candidate, ICE would fail before the viewer's
    checks arrive.

    Raises:
        RefusedError: the offer has more media than a viewer needs.
    """
    lines, media, count = list[str](), 0, 0
    for line in offer.splitlines():  # like aiortc, which also splits at other signs than CR and LF
        name, _, candidate = line.removeprefix("a=").partition(":")
        media += line.startswith("m=")
        if line.startswith("a=") and name in ("candidate", "end-of-candidates"):
            if count >= limits.WHEP_CANDIDATES or not _is_own(candidate, peer):
                continue
            count += 1
        lines.append(line)
    if media > _MAX_MEDIA:
        raise RefusedError(f"the offer has {media} media; at most {_MAX_MEDIA} are answered")
    return "".join(f"{line}\r\n" for line in lines)


def _is_own(candidate: str, peer: str) -> bool:
    """Return whether a candidate (RFC 8839, section 5.1) is a UDP port at the client's address."""
    parts = candidate.split()
    try:
        address, own = (ip_address(one.partition("%")[0]) for one in (parts[4], peer))
    except (IndexError, ValueError):  # a name, or malformed
        return False
    if address.is_link_local or address.is_multicast or address.is_unspecified or parts[2].lower() != "udp":
        return False
    return address in (own, getattr(own, "ipv4_mapped", None))


def _from(address: str, gather: Callable[..., Any]) -> Callable[..., Any]:
    """Return aioice's function that gathers candidates, limited to one address; by default loopback is left out."""

    def own(*arguments: Any, **options: Any) -> Any:
        return gather(*arguments, **{**options, "addresses": [address]})

    return own


class _Viewer:
    """The encoded images for one connection, passed from the stream's thread to the event loop."""

    def __init__(self, refresh: Callable[[], None], ended: Callable[[], None]) -> None:
        self.refresh, self._ended = refresh, ended
        self._loop = asyncio.get_running_loop()
        self._units, self._some, self._lost = deque[Unit](), asyncio.Event(), False
        self.stopped = False

    def give(self, unit: Unit) -> None:
        """Pass an image to the event loop."""
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._put, unit)

    def end(self) -> None:
        """End the session."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended)

    def stop(self) -> None:
        """End the track."""
        self.stopped = True
        self._some.set()

    async def next(self) -> Unit | None:
        """Return the next image, once there is one; None at the end."""
        while not self._units and not self.stopped:
            self._some.clear()
            await self._some.wait()
        return None if self.stopped else self._units.popleft()

    def _put(self, unit: Unit) -> None:
        if len(self._units) >= _MAX_QUEUED:
            self._units.clear()
            self._lost = True
            self.refresh()
        if self._lost and not unit.is_key:
            return
        self._lost = False
        self._units.append(unit)
        self._some.set()


@lru_cache(maxsize=1)
def _track() -> Any:
    """Return the class of tracks. Its base class is only imported when it is needed."""
    from fractions import Fraction

    import aiortc
    import av
    from aiortc.mediastreams import MediaStreamError

    base: Any = aiortc.MediaStreamTrack

    class Track(base):  # type: ignore[misc]
        """The video of one viewer."""

        kind = "video"

        def __init__(self, viewer: _Viewer) -> None:
            super().__init__()
            self._viewer = viewer

        async def recv(self) -> Any:
            """Return the next encoded image."""
            unit = await self._viewer.next()
            if unit is None:
                raise MediaStreamError
            packet = av.Packet(unit.data)
            packet.pts, packet.time_base = unit.tick, Fraction(1, TICKS_HZ)
            return packet

    return Track
