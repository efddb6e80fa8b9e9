"""Live video for browsers by WHEP, for the live page and ``sink: webrtc``.

A viewer posts an offer to the address of a stream, and deletes the address in the answer when it leaves.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from importlib.util import find_spec
from urllib.parse import quote, unquote

from edgert import limits
from edgert.errors import DeviceError
from edgert.runtime.records import Result
from edgert.stages.sink.encoder_choice import EncoderChoice
from edgert.stages.sink.stream import webrtc_sessions
from edgert.stages.sink.stream.broadcast import Broadcast, Wanted
from edgert.stages.sink.tcp_server import LoopThread, wait_for_ever
from edgert.stages.sink.web.http_exchange import Exchange, Request, Response, text
from edgert.stages.sink.web.live_images import LARGE_PX

log = logging.getLogger("edgert.sink")

_MAX_HZ, _BITRATE_BPS = 30.0, 4_000_000
_CLOSE_S = 0.3
_PATH = "/whep/"
_SDP = "application/sdp"


class WhepVideo:
    """The broadcast of each camera, encoded only while it has viewers, and the viewers' sessions.

    Sessions have a thread of their own, which begins with the first offer. In the server's thread, their packets would
    delay other answers.
    """

    def __init__(self, name: str, choice: EncoderChoice, wanted: Wanted) -> None:
        self._name, self._choice, self._wanted = name, choice, wanted
        self._streams = dict[str, Broadcast]()
        self._thread: LoopThread | None = None

    def show(self, result: Result) -> None:
        """Show the result to the viewers of its camera, without waiting for any."""
        stream = result.frame.stream
        if stream not in self._streams:
            if len(self._streams) >= limits.PAGE_STREAMS:
                return
            self._streams[stream] = Broadcast(self._name, stream, self._choice, self._wanted)
        self._streams[stream].show(result)

    @property
    def streams(self) -> list[str]:
        """The names of the cameras, sorted."""
        return sorted(self._streams)

    async def answer(self, exchange: Exchange, request: Request, address: str) -> Response:
        """Answer an offer; see :class:`~edgert.stages.sink.web.http_server.Whep`."""
        try:
            body = await asyncio.wait_for(exchange.body(limits.WHEP_BYTES), limits.PAGE_HEAD_S)
        except asyncio.TimeoutError:
            return text(HTTPStatus.REQUEST_TIMEOUT, "the offer is incomplete")
        thread, peer = self._thread or self._begin(address), exchange.client.address
        work = _answer(self._streams, self._sessions, request, body.decode("utf-8", "replace"), peer)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, thread.loop))

    def close(self) -> None:
        """End every broadcast and session, within half a second after the image that is being encoded."""
        for broadcast in self._streams.values():
            broadcast.close()
        self._streams.clear()
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def _begin(self, address: str) -> LoopThread:
        self._sessions = webrtc_sessions.Sessions(address)
        self._thread = LoopThread("edgert:http-video", self._serve())
        return self._thread

    async def _serve(self) -> None:
        try:
            await wait_for_ever()
        finally:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._sessions.close(), _CLOSE_S)


def page_video(name: str, rate_hz: float) -> WhepVideo | None:
    """Return the video of a live page whose results come at ``rate_hz``.

    Returns:
        The video; None where aiortc is not installed or nothing can encode, so that the page shows images only.
    """
    if find_spec("aiortc") is None:
        return None
    choice = EncoderChoice(f"stages.{name}", "h264", "auto", live=True)
    try:
        choice.check()
    except DeviceError as error:
        log.info("%s: shown as images, not as video: %s", name, error.why)
        return None
    return WhepVideo(name, choice, Wanted(LARGE_PX, _MAX_HZ if rate_hz > _MAX_HZ else None, _BITRATE_BPS, rate_hz))


async def _answer(
    streams: Mapping[str, Broadcast], sessions: webrtc_sessions.Sessions, request: Request, body: str, peer: str
) -> Response:
    """Return the answer to the client at ``peer``. For the event loop of the sessions."""
    stream, _, number = (unquote(part) for part in request.path.removeprefix(_PATH).partition("/"))
    if request.method == "DELETE" and number:
        ended = await sessions.end(number)
        return text(HTTPStatus.OK if ended else HTTPStatus.NOT_FOUND, "ended" if ended else "no session")
    if request.method != "POST" or number:
        return text(HTTPStatus.METHOD_NOT_ALLOWED, "POST an offer", {"Allow": "POST, DELETE"})
    if stream not in streams:
        known = ", ".join(sorted(streams)) or "none yet"
        return text(HTTPStatus.NOT_FOUND, f"no such stream; known: {known}")
    if request.media_type != _SDP:
        return text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected {_SDP}")
    try:
        number, answer = await sessions.begin(streams[stream], body, peer)
    except webrtc_sessions.FullError as error:
        return text(HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"Retry-After": "10"})
    except webrtc_sessions.RefusedError as error:
        return text(HTTPStatus.NOT_ACCEPTABLE, f"no H.264 video for this offer: {error}")
    return Response(
        HTTPStatus.CREATED, _SDP, answer.encode(), {"Location": f"{_PATH}{quote(stream, safe='')}/{number}"}
    )
