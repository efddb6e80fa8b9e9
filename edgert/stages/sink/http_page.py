"""The site of the live page: what its addresses give, with a thread that paints and one that makes the answers."""

import asyncio
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from edgert import limits
from edgert.stages.sink import http_answers as answers
from edgert.stages.sink.connections import Connection
from edgert.stages.sink.http_clips import RANGE, Clips
from edgert.stages.sink.http_live import LARGE_PX, SMALL_PX, TILE_PX
from edgert.stages.sink.http_request import Access, Request
from edgert.stages.sink.rooms import Room, affordable

_T = TypeVar("_T")
_FRESH_S = 0.2  # so long an answer that takes work is given to all who ask
_NEXT_IMAGE_S = 2.0  # then the old one is sent again, to notice viewers who left
_TICK_S = 1 / 60
_IMAGE_HZ, _TILES_HZ = 30.0, 80.0
"""The most that a viewer is sent: images of one camera, and tiles of all together."""
_FEW = 6  # cameras whose tiles are larger
_SEND_BUFFER_BYTES = 1 << 18  # a few images: what a slow viewer may lag behind
_BOUNDARY = b"edgert-image"


class Worker(threading.Thread):
    """Does what takes long, one after the other. A daemon: one that hangs in a driver holds up no end."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs = queue.SimpleQueue[Callable[[], object] | None]()

    def run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def do(self, work: Callable[[], _T]) -> "Future[_T]":
        """What it returns or raises, later."""
        future = Future[_T]()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:  # noqa: BLE001 - its future raises it
                    future.set_exception(error)

        self._jobs.put(job)
        return future

    def stop(self) -> None:
        """Ends it after what it does now."""
        self._jobs.put(None)


class LivePage:
    """What the addresses of the live page give. For the thread of its server's event loop.

    Args:
        worker: paints and encodes; running.
    """

    open_to_all = answers.JUDGED

    def __init__(self, source: answers.Source, access: Access, worker: Worker) -> None:
        self._source, self._access, self._images, self._state = source, access, worker, Worker("edgert:http-state")
        self._viewers = Room[Connection](affordable(limits.PAGE_VIEWERS))
        self._made = dict[str, tuple[float, "asyncio.Task[answers.Answer]"]]()
        self._state.start()

    @property
    def video(self) -> answers.Video | None:
        """What answers those who want video."""
        return self._source.video

    def stop(self) -> None:
        """End the thread that makes answers."""
        self._state.stop()

    async def answer(self, request: Request, client: Connection) -> answers.Answer | None:
        """Return what an address gives; None where it was sent already."""
        if request.path in ("/stream.mjpg", "/wall"):
            return await self._watched(client, request)
        if self._source.clips is not None and request.path.startswith("/clips/"):
            return await self._played(client, request, self._source.clips)
        return await self._found(request)

    async def _found(self, request: Request) -> answers.Answer:
        """What an address gives; those of streams have no end and are no part of it."""
        source, path = self._source, request.path
        if path == "/":
            return answers.page()
        if path in answers.MADE:
            stream = request.query.get("stream", "")
            stream = stream if stream in source.live.numbers() else ""
            return await self._fresh(f"{path} {stream}", _FRESH_S, partial(answers.MADE[path], source, stream))
        if path in answers.JUDGED:
            return await self._fresh(
                path,
                0.0,
                partial(answers.judged, source, path, self._access.allows(request.headers.get("authorization", ""))),
            )
        if path == "/snapshot.jpg":
            return await self._snapshot(request.query.get("stream", ""))
        return answers.event(source, path) or answers.text(HTTPStatus.NOT_FOUND, "not found")

    async def _fresh(self, key: str, fresh_s: float, make: Callable[[], answers.Answer]) -> answers.Answer:
        """An answer made anew if there is no fresh one: many who ask cost no more than one."""
        ended_s, task = self._made.get(key, (0.0, None))
        if task is None or (task.done() and time.monotonic() - ended_s >= fresh_s):
            task = asyncio.ensure_future(self._done(self._state, make))
            task.add_done_callback(lambda one: self._made.update({key: (time.monotonic(), one)}))
            self._made[key] = 0.0, task
        return await asyncio.shield(task)

    async def _done(self, worker: Worker, work: Callable[[], _T]) -> _T:
        return await asyncio.wrap_future(worker.do(work))

    async def _snapshot(self, stream: str) -> answers.Answer:
        live, until_s = self._source.live, time.monotonic() + _NEXT_IMAGE_S
        while True:
            found = await self._done(self._images, lambda: live.jpegs([stream or live.newest]))
            if found:
                return HTTPStatus.OK, "image/jpeg", found[0][2], {}
            if time.monotonic() >= until_s:
                return *answers.text(HTTPStatus.SERVICE_UNAVAILABLE, "no image yet")[:3], {"Retry-After": "1"}
            await asyncio.sleep(_TICK_S)

    async def _played(self, client: Connection, request: Request, clips: Clips) -> answers.Answer | None:
        """A part of a recording; sends the whole where no part is asked for."""
        wanted, at = request.headers.get("range", ""), 0
        found = await self._done(self._state, partial(clips.piece, request.path, wanted))
        if found is None:
            return answers.text(HTTPStatus.NOT_FOUND, "there is no such recording")
        _, kind, content, about = found
        if RANGE.fullmatch(wanted):
            return found
        size = about["Content-Range"].rpartition("/")[2]
        await client.send(answers.head(HTTPStatus.OK, kind, {"Content-Length": size, "Accept-Ranges": "bytes"}))
        while content and request.method == "GET":
            await client.send(content)
            at += len(content)
            more = await self._done(self._state, partial(clips.piece, request.path, f"bytes={at}-"))
            content = more[2] if more is not None else b""
        return None

    async def _watched(self, client: Connection, request: Request) -> answers.Answer | None:
        """Sends images until the viewer leaves; an answer where there is no room."""
        if not self._viewers.takes(client.network):
            status, kind, body, _ = answers.text(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{self._viewers.most} viewers are watching"
            )
            return status, kind, body, {"Retry-After": "10"}
        client.enter(self._viewers)
        client.lag(_SEND_BUFFER_BYTES)
        if request.path == "/wall":
            kind, first, sent = "application/x-edgert-wall", b"", self._tiles(client)
        else:
            kind = f"multipart/x-mixed-replace; boundary={_BOUNDARY.decode()}"
            first, sent = b"--" + _BOUNDARY + b"\r\n", self._pictures(client, request.query.get("stream", ""))
        await client.send(answers.head(HTTPStatus.OK, kind) + first)
        if request.method == "GET":
            await sent
        else:
            sent.close()
        return None

    async def _pictures(self, client: Connection, stream: str) -> None:
        """The images of one camera; of the first that has any where none is named."""
        live, chosen = self._source.live, [stream]

        def wanted() -> list[str]:
            chosen[0] = chosen[0] or live.newest
            return chosen

        # The boundary follows at once: browsers show an image when they have seen its end.
        async for _, _, image in self._changed(wanted, lambda _: (LARGE_PX, _IMAGE_HZ)):
            head = b"Content-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(image)
            await client.send(b"".join((head, image, b"\r\n--", _BOUNDARY, b"\r\n")))

    async def _tiles(self, client: Connection) -> None:
        """Small images of all cameras, each behind a line of JSON with its name and length."""
        live = self._source.live

        def how(count: int) -> tuple[int, float]:
            return SMALL_PX if count > _FEW else TILE_PX, min(_TILES_HZ / max(count, 1), _IMAGE_HZ)

        async for name, number, image in self._changed(live.numbers, how):
            about = {"stream": name, "number": number, "bytes": len(image)}
            await client.send(json.dumps(about).encode() + b"\n" + image)

    async def _changed(
        self, wanted: Callable[[], Any], how: Callable[[int], tuple[int, float]]
    ) -> AsyncIterator[tuple[str, int, bytes]]:
        """Camera, number and JPEG of what is new; all of it again where nothing is for long. ``how`` says how wide
        images of so many cameras are, and how many of each there are in a second at most."""
        seen, live, sent_s = dict[str, tuple[int, float]](), self._source.live, 0.0
        while True:
            now, numbers = time.monotonic(), live.numbers()
            names = [name for name in wanted() if name in numbers]
            width, rate_hz = how(len(names))
            period = 1 / rate_hz - _TICK_S / 2
            again = now - sent_s > _NEXT_IMAGE_S
            last = {name: seen.get(name, (0, 0.0)) for name in names}
            due = [name for name, (number, at_s) in last.items() if number != numbers[name] and now - at_s > period]
            due = names if again else due
            if due:
                for found in await self._done(self._images, partial(live.jpegs, due, width)):
                    seen[found[0]] = found[1], now
                    yield found
                sent_s = now
            await asyncio.sleep(_TICK_S)
