"""Viewers by WebRTC: connections of aiortc, which send images as they were encoded.

By WHEP (https://www.ietf.org/archive/id/draft-ietf-wish-whep-03.html) the viewer makes an offer. The answer has all our
addresses, so nothing is trickled. No STUN server is asked for addresses.

An offer may name any address, and ICE (RFC 8445) sends checks to each of them. So only addresses of the client that
made the offer are used, as its HTTP connection shows it. Other viewers reach us by their own checks, which show where
they are: those behind an address translation, with a name of multicast DNS, or with several addresses.
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

_MOST_BEHIND = 30
"""The most images that wait for a connection; beyond, it goes on with the next key frame."""
_CONNECTED_S = 15.0
_MOST_MEDIA = 4  # video, sound and data of one viewer; each may bring sockets of its own


class RefusedError(Exception):
    """An offer that cannot be answered, with the reason."""


class FullError(Exception):
    """There are as many viewers as may be."""


class Sessions:
    """The connections of one sink. Use it in the thread of its event loop.

    Args:
        address: of this machine's, from which video goes out; all of them where it is none in particular.
    """

    def __init__(self, address: str) -> None:
        self._address = "" if ip_address(address).is_unspecified else address
        self._all: dict[str, tuple[Any, Broadcast, _Viewer]] = {}

    async def begin(self, broadcast: Broadcast, offer: str, peer: str) -> tuple[str, str]:
        """Return the session's id and the answer to an offer from the address ``peer``.

        Raises:
            RefusedError: the offer cannot be answered.
            FullError: there are as many viewers as may be.
        """
        import aiortc

        if len(self._all) >= limits.WEBRTC_VIEWERS:
            raise FullError(f"{limits.WEBRTC_VIEWERS} are watching")
        number, connection = secrets.token_urlsafe(16), aiortc.RTCPeerConnection(aiortc.RTCConfiguration([]))
        viewer = _Viewer(broadcast.refresh, lambda: self._end_soon(number))
        self._all[number] = connection, broadcast, viewer
        try:
            answer = await self._answered(connection, viewer, harmless(offer, peer))
        except Exception as error:  # aiortc reads what strangers sent, and raises whatever comes of it
            await self.end(number)
            raise RefusedError(str(error) or type(error).__name__) from error

        def changed() -> None:
            if connection.connectionState == "connected":
                broadcast.join(viewer)
            elif connection.connectionState in ("failed", "closed"):
                self._end_soon(number)

        connection.on("connectionstatechange", changed)
        asyncio.get_running_loop().call_later(_CONNECTED_S, self._give_up, number)
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

    async def _answered(self, connection: Any, viewer: "_Viewer", offer: str) -> str:
        import aiortc

        sender = connection.addTrack(_track()(viewer))
        sender._send_keyframe = viewer.refresh  # what aiortc does where a viewer lost images; it encodes nothing here
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

    def _give_up(self, number: str) -> None:
        """End a session that has not connected by now."""
        if number in self._all and self._all[number][0].connectionState != "connected":
            self._end_soon(number)

    def _end_soon(self, number: str) -> None:
        task = asyncio.ensure_future(self.end(number))
        self._ending = task  # asyncio may collect a task that nothing refers to


def harmless(offer: str, peer: str) -> str:
    """Return an offer whose candidates are at most :data:`~edgert.limits.WHEP_CANDIDATES` of the client at ``peer``.

    The end of the candidates is left out too: with none of them, ICE would give up before the viewer's checks arrive.

    Raises:
        RefusedError: it has more media than a viewer needs.
    """
    lines, media, count = list[str](), 0, 0
    for line in offer.splitlines():  # as aiortc does, which takes further signs than CR and LF for ends of lines
        name, _, candidate = line.removeprefix("a=").partition(":")
        media += line.startswith("m=")
        if line.startswith("a=") and name in ("candidate", "end-of-candidates"):
            if count >= limits.WHEP_CANDIDATES or not _is_own(candidate, peer):
                continue
            count += 1
        lines.append(line)
    if media > _MOST_MEDIA:
        raise RefusedError(f"{media} media in one offer, and at most {_MOST_MEDIA} are answered")
    return "".join(f"{line}\r\n" for line in lines)


def _is_own(candidate: str, peer: str) -> bool:
    """Return whether a candidate (RFC 8839, section 5.1) is a UDP port of the client itself."""
    parts = candidate.split()
    try:
        address, own = (ip_address(one.partition("%")[0]) for one in (parts[4], peer))
    except (IndexError, ValueError):  # a name, or nothing that is known
        return False
    if address.is_link_local or address.is_multicast or address.is_unspecified or parts[2].lower() != "udp":
        return False
    return address in (own, getattr(own, "ipv4_mapped", None))


def _from(address: str, gather: Callable[..., Any]) -> Callable[..., Any]:
    """Limit aioice to candidates at one address; by default it takes all interfaces except loopback."""

    def own(*arguments: Any, **options: Any) -> Any:
        return gather(*arguments, **{**options, "addresses": [address]})

    return own


class _Viewer:
    """The images of one connection, passed from the thread of the stream to that of the event loop."""

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
        if len(self._units) >= _MOST_BEHIND:
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
    """Return the class of tracks, whose base is imported here, when it is first needed."""
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
