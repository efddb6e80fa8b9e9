"""The cameras of the live page as video, by WebRTC, where the extra for it is installed and something can encode."""

import asyncio
import importlib.util
import logging
import threading
from contextlib import suppress

from edgert import limits
from edgert.errors import DeviceError
from edgert.runtime.records import Result
from edgert.stages.sink.encoder_choice import Choice
from edgert.stages.sink.http_answers import Answer
from edgert.stages.sink.http_live import LARGE_PX
from edgert.stages.sink.http_request import Request
from edgert.stages.sink.http_server import run_to_end
from edgert.stages.sink.stream import offers, webrtc
from edgert.stages.sink.stream.broadcast import Broadcast, Wanted

_LOG = logging.getLogger(__name__)
_MOST_HZ, _BITRATE_BPS = 30.0, 4_000_000
_GOODBYE_S = 0.4


class PageVideo:
    """One broadcast for each camera, which encodes while somebody watches it, and the sessions of those who do.

    They are served in a thread of their own, which begins with the first offer: packets in the page's would hold up its
    other answers.

    Args:
        name: of the page's stage.
        rate_hz: how often results come.
    """

    def __init__(self, name: str, choice: Choice, rate_hz: float) -> None:
        self._name, self._choice = name, choice
        self._wanted = Wanted(LARGE_PX, _MOST_HZ if rate_hz > _MOST_HZ else None, _BITRATE_BPS, rate_hz)
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

    async def answer(self, request: Request, reader: asyncio.StreamReader, address: str) -> Answer:
        """For the thread of the page. See :class:`~.http_answers.Video`."""
        body = await offers.body_of(request, reader)
        if not isinstance(body, str):
            return body
        loop = self._loop or self._begin(address)
        work = offers.answered(self._streams, self._sessions, request, body)
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


def page_video(name: str, rate_hz: float) -> PageVideo | None:
    """The video of a page; None where aiortc is not installed, or nothing can encode: it then shows images only."""
    if importlib.util.find_spec("aiortc") is None:
        return None
    choice = Choice(f"stages.{name}", "h264", "auto", live=True)
    try:
        choice.check()
    except DeviceError as error:
        _LOG.info("%s: shown as images, not as video: %s", name, error.why)
        return None
    return PageVideo(name, choice, rate_hz)
