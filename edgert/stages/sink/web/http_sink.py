"""Sink that serves the live page: every camera with its boxes, events, and the state of the pipeline.

One thread encodes images, and one makes the other answers.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TypeVar

from edgert import limits
from edgert.errors import StageError, raised_as
from edgert.runtime import health
from edgert.runtime.json_form import plain
from edgert.runtime.records import Result
from edgert.runtime.worker import OneJobWorker, Worker
from edgert.stages.context import Context
from edgert.stages.kinds import Http
from edgert.stages.sink.client_limits import FairGroup, affordable_limit, is_loopback
from edgert.stages.sink.stream.whep import page_video
from edgert.stages.sink.tcp_connection import Connection
from edgert.stages.sink.tcp_server import listen
from edgert.stages.sink.web.clip_index import RANGE, ClipIndex
from edgert.stages.sink.web.event_log import EventLog
from edgert.stages.sink.web.http_exchange import Exchange, Request, Response, text
from edgert.stages.sink.web.http_server import Access, HttpServer, address_of
from edgert.stages.sink.web.inlined_page import inlined_page
from edgert.stages.sink.web.live_images import LARGE_PX, TILES_PX, LiveImages

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_SHARED_S = 0.2  # time for which one answer serves all clients
_THREADS = "edgert:http-images", "edgert:http-state", "edgert:http-changes"
_JOIN_S = 0.1
_REPEAT_S = 2.0  # without a new image, the last one is sent again, which shows whether the viewer has left
_TICK_S = 1 / 60
_IMAGE_HZ, _TILES_HZ = 30.0, 80.0
"""Maximum rate of images for a viewer: of one camera, and of all cameras together."""
_TILE_PX = 380  # width on the screen, where the viewer does not name one
_PHONE_PX = 660
_SEND_BUFFER_BYTES = 1 << 18  # a few images
_BOUNDARY, _JSON = b"edgert-image", "application/json"
_OPEN_METRICS, _PROMETHEUS_TEXT = "application/openmetrics-text", "text/plain"
_CONTROL = "/control"
_TRACE = re.compile(rb'"verb"\s*:\s*"trace"')
_HEALTH = {"/healthz": health.stuck_stages, "/readyz": health.unready_reasons}


class HttpSink:
    """Sink that serves the live page; docs/live.md lists its addresses.

    Only the newest images are encoded, in a thread of their own, and only while somebody looks. Where no draw stage
    did, boxes, labels, masks, keypoints and zones are drawn here. The newest frame of each camera stays in use.

    With a loopback address, only this machine has access, by a loopback name. Of the disk, only the recordings that
    ``clips`` lists are served. ``stats`` of the context is as :meth:`edgert.runtime.summary.Summary.to_json`, with the
    budgets ``promised`` and the necessary sources ``required``; ``/metrics`` also reads ``totals`` and ``folders``.
    """

    open_to_all, changed_at = _HEALTH, (_CONTROL,)

    def __init__(self, name: str, config: Http, context: Context) -> None:
        self.name, self._host, self._port = name, config.host, config.port
        self.stats, self.swap_page, self.control = context.stats, context.swap_page, context.control
        self.access = Access(config.token, config.tls.context() if config.tls is not None else None)
        self.whep = page_video(name, context.rate_hz)
        self.images, self.clips = LiveImages(), ClipIndex(config.clips) if config.clips is not None else None
        self._viewers = FairGroup[Connection](affordable_limit(limits.PAGE_VIEWERS))
        self._server: HttpServer | None = None
        self._reset()

    @property
    def url(self) -> str:
        """The URL of the page; empty before :meth:`open` and after :meth:`close`."""
        return "" if self._server is None else address_of(self._host, self._server.port, self.access)

    def open(self) -> None:
        """Start listening. Raises DeviceError where the address is in use, or does not belong to this machine."""
        listener = listen(self._host, self._port, f"stages.{self.name}")
        self.images.open()
        self._reset()
        self._encoder.start()
        self._answerer.start()
        self._server = HttpServer(self._host, listener, self.access, self, "edgert:http")
        _LOG.info("%s: live page at %s", self.name, self.url)
        if not is_loopback(self._host):
            self._warn()

    def process(self, result: Result) -> None:
        """Show the result to all viewers, without waiting for any."""
        self.images.show(result)
        if self.whep is not None:
            self.whep.show(result)
        self.events.add(result)

    def forget(self, name: str) -> None:
        """Stop showing a camera that was removed, or the records of a stage that was replaced."""
        self.images.forget(name)

    def close(self) -> None:
        """End all connections and threads, within a second."""
        self.images.close()
        if self._server is not None:
            self._server.stop()
        for worker in (self._answerer, self._changer, self._encoder):
            worker.stop()
        if self._encoder.is_alive():
            self._encoder.join(_JOIN_S)
        if self.whep is not None:
            self.whep.close()
        self._server = None

    def _warn(self) -> None:
        about = self.name, self.url
        if not self.access.token:
            _LOG.warning("%s: anybody who can reach %s sees its cameras and state. fix: token:", *about)
        elif self.access.tls is None:
            _LOG.warning("%s: token and images are sent unencrypted at %s. fix: tls: {cert: …, key: …}", *about)

    def _reset(self) -> None:
        """Make threads, which are not started, and forget the events and answers of an earlier opening."""
        self._encoder, self._answerer, self._changer = map(Worker, _THREADS)
        self.events = EventLog(self.images, self._encoder.submit)
        self._shared, self._changes = dict[str, tuple[float, "asyncio.Task[Response]"]](), 0

    async def answer(self, exchange: Exchange, request: Request) -> Response | None:
        """Return the answer to a request; None if it was sent already."""
        path = request.path
        if path in ("/stream.mjpg", "/wall"):
            return await self._stream(exchange, request)
        if self.clips is not None and path.startswith("/clips/"):
            return await self._clip(exchange, request, self.clips)
        if path == "/":
            return inlined_page("page.html")
        if path == _CONTROL:
            return await self._control(exchange, request)
        if path == "/stats.json":
            stream = request.query.get("stream", "")
            stream = stream if stream in self.images.numbers() else ""
            return await self._share(f"{path} {stream}", partial(_state, self, stream, bool(self.access.token)))
        if path == "/swap":
            return await self._share(path, partial(_swap, self))
        if path == "/events.json":
            return await self._share(path, partial(_events, self))
        if path == "/metrics":
            is_open = _OPEN_METRICS in request.headers.get("accept", "")
            media_type = _OPEN_METRICS if is_open else _PROMETHEUS_TEXT
            return await self._share(f"{path} {media_type}", partial(_metrics, self, media_type))
        if path in _HEALTH:
            is_known = self.access.allows(request.headers.get("authorization", ""))
            return await self._run(self._answerer, partial(_health_of, self, path, is_known))
        if path == "/snapshot.jpg":
            return await self._snapshot(request.query.get("stream", ""))
        return _event_image(self, path) or text(HTTPStatus.NOT_FOUND, "not found")

    async def _share(self, key: str, make: Callable[[], Response]) -> Response:
        """Return an answer that is at most 0.2 s old, so that many clients cost no more than one."""
        ended_s, task = self._shared.get(key, (0.0, None))
        if task is None or (task.done() and time.monotonic() - ended_s >= _SHARED_S):
            task = asyncio.ensure_future(self._run(self._answerer, make))
            task.add_done_callback(lambda one: self._shared.update({key: (time.monotonic(), one)}))
            self._shared[key] = 0.0, task
        return await asyncio.shield(task)

    async def _run(self, worker: Worker, work: Callable[[], _T]) -> _T:
        # The server would take an OSError for one of the client's connection.
        with raised_as(StageError, "the answer cannot be made"):
            return await asyncio.wrap_future(worker.submit(work))

    async def _control(self, exchange: Exchange, request: Request) -> Response:
        """Return the answer to a request to change the pipeline.

        It must have the token as ``Bearer``, and JSON, which a browser does not send for another site's page.
        """
        is_bearer = request.headers.get("authorization", "").lower().startswith("bearer ")
        if not self.access.token or not is_bearer:
            return text(HTTPStatus.FORBIDDEN, "changes need the sink's token:, as Authorization: Bearer")
        if request.method != "POST" or request.media_type != _JSON:
            return text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected POST of {_JSON}")
        if self._changes >= limits.CONTROL_CLIENTS:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, "other changes are waiting", {"Retry-After": "1"})
        with exchange.client.deadline(limits.PAGE_HEAD_S):
            line_of_json = await exchange.body(limits.CONTROL_LINE_BYTES)
        if not self._changer.is_alive():
            self._changer.start()
        self._changes += 1
        try:
            work = partial(self.control, line_of_json, f"address {exchange.client.address}")
            # a trace takes seconds, which changes should not wait for
            worker = OneJobWorker("edgert:trace") if _TRACE.search(line_of_json) else self._changer
            answer = await self._run(worker, work)
        finally:
            self._changes -= 1
        status = HTTPStatus.OK if answer.startswith(b'{"ok":true') else HTTPStatus.BAD_REQUEST
        return Response(status, _JSON, answer)

    async def _snapshot(self, stream: str) -> Response:
        images, until_s = self.images, time.monotonic() + _REPEAT_S
        while True:
            found = await self._run(self._encoder, lambda: images.jpegs({stream or images.newest: 0}))
            if found:
                return Response(HTTPStatus.OK, "image/jpeg", found[0][2])
            if time.monotonic() >= until_s:
                return text(HTTPStatus.SERVICE_UNAVAILABLE, "no image yet", {"Retry-After": "1"})
            await asyncio.sleep(_TICK_S)

    async def _clip(self, exchange: Exchange, request: Request, clips: ClipIndex) -> Response | None:
        """Return a part of a recording; without a valid ``Range`` header, send all of it."""
        wanted, sent = request.headers.get("range", ""), 0
        part = await self._run(self._answerer, partial(clips.part, request.path, wanted))
        if part is None:
            return text(HTTPStatus.NOT_FOUND, "there is no such recording")
        if RANGE.fullmatch(wanted):
            return part
        size = part.headers["Content-Range"].rpartition("/")[2]
        await exchange.begin(HTTPStatus.OK, part.content_type, {"Content-Length": size, "Accept-Ranges": "bytes"})
        while part is not None and part.body and request.method == "GET":
            await exchange.write(part.body)
            sent += len(part.body)
            part = await self._run(self._answerer, partial(clips.part, request.path, f"bytes={sent}-"))
        return None

    async def _stream(self, exchange: Exchange, request: Request) -> Response | None:
        """Send images until the viewer leaves; return an answer if there are too many viewers."""
        if not self._viewers.make_room(exchange.client.network):
            line = f"{self._viewers.limit} viewers are watching"
            return text(HTTPStatus.SERVICE_UNAVAILABLE, line, {"Retry-After": "10"})
        exchange.client.move_to(self._viewers)
        exchange.client.set_send_buffer(_SEND_BUFFER_BYTES)
        is_wall = request.path == "/wall"
        mixed = f"multipart/x-mixed-replace; boundary={_BOUNDARY.decode()}"
        await exchange.begin(HTTPStatus.OK, "application/x-edgert-wall" if is_wall else mixed)
        if request.method == "GET":
            await (self._send_wall if is_wall else self._send_images)(exchange, request.query)
        return None

    async def _send_images(self, exchange: Exchange, query: Mapping[str, str]) -> None:
        """Send the images of one camera; without a name, of the first that has any.

        A phone, which shows them ``tile`` pixels wide, gets those of a tile, with larger letters.
        """
        images, stream = self.images, query.get("stream")
        shown_px = _pixels(query, LARGE_PX)
        tile_px = _tile(shown_px) if shown_px <= _PHONE_PX else 0

        def wanted(numbers: Mapping[str, int]) -> list[str]:
            nonlocal stream
            stream = stream or images.newest
            return [stream] if stream in numbers else []

        await exchange.write(b"--" + _BOUNDARY + b"\r\n")
        # The next boundary follows each image at once, because browsers show an image when they get it.
        async for _, _, image in self._new_images(wanted, lambda _: _IMAGE_HZ, lambda _: tile_px):
            head = b"Content-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(image)
            await exchange.write(b"".join((head, image, b"\r\n--", _BOUNDARY, b"\r\n")))

    async def _send_wall(self, exchange: Exchange, query: Mapping[str, str]) -> None:
        """Send small images of all cameras, each after a line of JSON with its name and length.

        Their labels are readable at a width of ``tile`` pixels; those of the camera ``large`` at twice the width.
        """
        shown_px = _pixels(query, _TILE_PX)

        def tile_px(name: str) -> int:
            return _tile(shown_px * (2 if name == query.get("large") else 1))

        def rate_hz(count: int) -> float:
            return min(_TILES_HZ / max(count, 1), _IMAGE_HZ)

        async for name, number, image in self._new_images(list, rate_hz, tile_px):
            about = {"stream": name, "number": number, "bytes": len(image)}
            await exchange.write(json.dumps(about).encode() + b"\n" + image)

    async def _new_images(
        self,
        wanted: Callable[[Mapping[str, int]], list[str]],
        rate_hz: Callable[[int], float],
        tile_px: Callable[[str], int] = lambda name: 0,
    ) -> AsyncIterator[tuple[str, int, bytes]]:
        """Yield camera, number and JPEG of every new image; all images again after 2 s without a new one.

        Args:
            wanted: function that chooses among the cameras with images.
            rate_hz: function that returns the maximum rate of each camera, given their number.
            tile_px: function that returns the width of a camera's tile; 0: the image of a single camera.
        """
        seen, images, sent_s = dict[str, tuple[int, float]](), self.images, 0.0
        while True:
            now, numbers = time.monotonic(), images.numbers()
            names = wanted(numbers)
            period = 1 / rate_hz(len(names)) - _TICK_S / 2
            last = {name: seen.get(name, (0, 0.0)) for name in names}
            due = [name for name, (number, at_s) in last.items() if number != numbers[name] and now - at_s > period]
            due = names if now - sent_s > _REPEAT_S else due
            if due:
                work = partial(images.jpegs, {name: tile_px(name) for name in due})
                for found in await self._run(self._encoder, work):
                    seen[found[0]] = found[1], now
                    yield found
                sent_s = now
            await asyncio.sleep(_TICK_S)


def _pixels(query: Mapping[str, str], default_px: int) -> int:
    """Return the width on the screen that a viewer requests."""
    text = query.get("tile", "")
    return int(text) if re.fullmatch(r"\d{1,5}", text, re.ASCII) else default_px


def _tile(shown_px: int) -> int:
    """Return the width of :data:`TILES_PX` that is nearest."""
    return min(TILES_PX, key=lambda one: abs(one - shown_px))


def _state(page: HttpSink, stream: str, has_control: bool) -> Response:
    """Return the state of the run, with the newest result of a camera; the newest of all where ``stream`` is empty."""
    shown = {key: value for key, value in page.stats().items() if key not in ("totals", "folders")}
    changes = page.events.count
    if page.clips is not None:
        page.clips.refresh()
        changes += page.clips.count
    return _json(
        {
            "stats": shown,
            "latest": page.images.table(stream),
            "streams": page.images.streams(),
            "events": changes,
            "video": page.whep is not None,
            "control": has_control,
        }
    )


def _events(page: HttpSink) -> Response:
    """Return the newest events, each with the address of its recording."""
    clips = page.clips
    shown = [{**one, "clip": clips.address(one["id"]) if clips else ""} for one in page.events.newest_first()]
    return _json({"events": shown})


def _swap(page: HttpSink) -> Response:
    html = page.swap_page()
    if not html:
        return text(HTTPStatus.NOT_FOUND, "no model was swapped in this run")
    return Response(HTTPStatus.OK, "text/html; charset=utf-8", html.encode())


def _metrics(page: HttpSink, media_type: str) -> Response:
    """Return the state of the run as :data:`_OPEN_METRICS` or :data:`_PROMETHEUS_TEXT`."""
    from edgert.stages.sink.web.prometheus import exposition  # 60 ms of imports that only a scrape needs

    content_type, content = exposition(plain(page.stats()), media_type)
    return Response(HTTPStatus.OK, content_type, content)


def _health_of(page: HttpSink, path: str, is_known: bool) -> Response:
    """Return whether the pipeline is healthy, with what is wrong for clients with the token."""
    found = _HEALTH[path](page.stats())
    lines = (found if is_known else ["not well"]) if found else ["ok"]
    return text(HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK, "\n".join(lines))


def _event_image(page: HttpSink, path: str) -> Response | None:
    """Return the image of an event; None for any other address."""
    found = re.fullmatch(r"/events/([0-9a-f]{1,64})\.jpg", path)
    image = page.events.image(found[1]) if found else None
    caching = {"Cache-Control": "private, max-age=86400, immutable"}
    return None if image is None else Response(HTTPStatus.OK, "image/jpeg", image, caching)


def _json(data: object) -> Response:
    content = json.dumps(plain(data), allow_nan=False, separators=(",", ":")).encode()
    return Response(HTTPStatus.OK, _JSON, content)
