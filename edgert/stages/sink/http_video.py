"""Cameras as video, by WebRTC, for the live page and ``sink: webrtc``.

A client that wants to watch makes an offer to a stream's address of WHEP, and deletes the one that it was answered.
"""

import asyncio
import importlib.util
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import quote, unquote

from edgert import limits
from edgert.errors import DeviceError
from edgert.runtime.records import Result
from edgert.stages.sink import http_answers as answers
from edgert.stages.sink.connections import Connection, run_to_end
from edgert.stages.sink.encoder_choice import Choice
from edgert.stages.sink.http_live import LARGE_PX
from edgert.stages.sink.http_request import Request
from edgert.stages.sink.stream import webrtc
from edgert.stages.sink.stream.broadcast import Broadcast, Wanted

_LOG = logging.getLogger(__name__)
_MOST_HZ, _BITRATE_BPS = 30.0, 4_000_000
_GOODBYE_S = 0.4
_PATH = "/whep/"
_SDP = "application/sdp"


class CameraVideo:
    """One broadcast for each camera, which encodes while somebody watches it, and the sessions of those who do.

    They are served in a thread of their own, which begins with the first offer: packets in the server's would hold up
    its other answers.

    Args:
        name: of the stage.
        wanted: what the video is to be.
    """

    def __init__(self, name: str, choice: Choice, wanted: Wanted) -> None:
        self._name, self._choice, self._wanted = name, choice, wanted
        self._streams = dict[str, Broadcast]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def show(self, result: Result) -> None:
        """Shows the result to whoever watches its camera; never waits."""
        stream = result.frame.stream
        if stream not in self._streams:
            if len(self._streams) >= limits.PAGE_STREAMS:
                return
            self._streams[stream] = Broadcast(self._name, stream, self._choice, self._wanted)
        self._streams[stream].show(result)

    @property
    def streams(self) -> list[str]:
        """The cameras that there are, by name."""
        return sorted(self._streams)

    async def answer(self, request: Request, client: Connection, address: str) -> answers.Answer:
        """Answer an offer; for the thread of the server. See :class:`~.http_answers.Video`."""
        body = await _body_of(request, client)
        if not isinstance(body, str):
            return body
        loop = self._loop or self._begin(address)
        work = _answered(self._streams, self._sessions, request, body, client.address)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def close(self) -> None:
        """Ends every broadcast and session, within half a second and the image that is being encoded."""
        for broadcast in self._streams.values():
            broadcast.close()
        self._streams.clear()
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(2 * _GOODBYE_S)
        self._loop = self._thread = None

    def _begin(self, address: str) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        self._over, self._sessions = asyncio.Event(), webrtc.Sessions(address)
        loop.set_exception_handler(lambda _, about: _LOG.debug("%s: %s", self._name, about))
        arguments = loop, self._serve()
        self._thread = threading.Thread(target=run_to_end, args=arguments, name="edgert:http-video", daemon=True)
        self._thread.start()
        return loop

    async def _serve(self) -> None:
        await self._over.wait()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._sessions.close(), _GOODBYE_S)


def page_video(name: str, rate_hz: float) -> CameraVideo | None:
    """Return the video of a page whose results come so often; None where aiortc is not installed or nothing can encode:
    it then shows images only."""
    if importlib.util.find_spec("aiortc") is None:
        return None
    choice = Choice(f"stages.{name}", "h264", "auto", live=True)
    try:
        choice.check()
    except DeviceError as error:
        _LOG.info("%s: shown as images, not as video: %s", name, error.why)
        return None
    return CameraVideo(name, choice, Wanted(LARGE_PX, _MOST_HZ if rate_hz > _MOST_HZ else None, _BITRATE_BPS, rate_hz))


async def _body_of(request: Request, client: Connection) -> str | answers.Answer:
    """Return what follows the head of a request, or why it is not read."""
    try:
        length = int(request.headers.get("content-length", "0"))
    except ValueError:
        return answers.text(HTTPStatus.BAD_REQUEST, "no such request")
    if not 0 <= length <= limits.WHEP_BYTES:
        return answers.text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {limits.WHEP_BYTES} bytes")
    try:
        body = await asyncio.wait_for(client.exactly(length), limits.PAGE_HEAD_S)
    except (asyncio.TimeoutError, asyncio.IncompleteReadError):
        return answers.text(HTTPStatus.REQUEST_TIMEOUT, "the offer did not come whole")
    return body.decode("utf-8", "replace")


async def _answered(
    streams: Mapping[str, Broadcast], sessions: webrtc.Sessions, request: Request, body: str, peer: str
) -> answers.Answer:
    """Return what an address under :data:`_PATH` gives to the client at ``peer``. For the thread of the sessions' event
    loop."""
    stream, _, number = (unquote(part) for part in request.path.removeprefix(_PATH).partition("/"))
    if request.method == "DELETE" and number:
        ended = await sessions.end(number)
        return answers.text(HTTPStatus.OK if ended else HTTPStatus.NOT_FOUND, "ended" if ended else "no session")
    if request.method != "POST" or number:
        return *answers.text(HTTPStatus.METHOD_NOT_ALLOWED, "POST an offer")[:3], {"Allow": "POST, DELETE"}
    if stream not in streams:
        known = ", ".join(sorted(streams)) or "none yet"
        return answers.text(HTTPStatus.NOT_FOUND, f"no such stream; known: {known}")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _SDP:
        return answers.text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected {_SDP}")
    try:
        number, answer = await sessions.begin(streams[stream], body, peer)
    except webrtc.FullError as error:
        return *answers.text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))[:3], {"Retry-After": "10"}
    except webrtc.RefusedError as error:
        return answers.text(HTTPStatus.NOT_ACCEPTABLE, f"H.264 cannot be agreed upon: {error}")
    return HTTPStatus.CREATED, _SDP, answer.encode(), {"Location": f"{_PATH}{quote(stream, safe='')}/{number}"}
