"""The server of the live page: one thread that never waits for a client, and two that make what is asked for.

Read only, but for those who come to watch video and leave. A connection is one request; it costs no thread, has a
deadline, and gives way where its address has more than its share.
"""

import asyncio
import contextlib
import json
import logging
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from edgert import limits
from edgert.errors import EdgertError
from edgert.stages.sink import http_answers as answers
from edgert.stages.sink.http_clips import RANGE, Clips
from edgert.stages.sink.http_live import LARGE_PX, SMALL_PX, TILE_PX
from edgert.stages.sink.http_request import Access, Request, is_loopback, name_of, parsed, read_head

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_MAX_CONNECTIONS = limits.PAGE_CONNECTIONS
_MAX_VIEWERS = limits.PAGE_VIEWERS
_HEAD_S = limits.PAGE_HEAD_S
"""In which a request must be there as a whole, however it comes in."""
_HEAD_BYTES = limits.PAGE_HEAD_BYTES
_IO_TIMEOUT_S = 10.0  # of a client that does not read what it asked for
_BACKLOG = 1024  # whoever comes at once and finds it full waits for a second or three: TCP sends again so late
_GOODBYE_S = 0.4
_FRESH_S = 0.2  # so long an answer that takes work is given to whoever asks
_NEXT_IMAGE_S = 2.0  # then the old one is sent again, to notice viewers who left
_TICK_S = 1 / 60
_IMAGE_HZ, _TILES_HZ = 30.0, 80.0
"""The most that a viewer is sent: images of one camera, and tiles of all together."""
_FEW = 6  # cameras whose tiles are larger
_SEND_BUFFER_BYTES = 1 << 18  # a few images: what a slow viewer may lag behind
_BOUNDARY = b"edgert-image"
_WHEP = "/whep/"


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
                except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
                    future.set_exception(error)

        self._jobs.put(job)
        return future

    def stop(self) -> None:
        """Ends it after what it does now."""
        self._jobs.put(None)


@dataclass(eq=False, slots=True)
class _Client:
    """One connection."""

    address: str
    writer: asyncio.StreamWriter

    def end(self) -> None:
        self.writer.transport.abort()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Ends it when what stands inside takes longer."""
        timer = asyncio.get_running_loop().call_later(seconds, self.end)
        try:
            yield
        finally:
            timer.cancel()


def _gives_way(clients: Mapping[_Client, None]) -> _Client:
    """The oldest of the address that has most of them."""
    most = Counter(one.address for one in clients).most_common(1)[0][0]
    return next(one for one in clients if one.address == most)


def run_to_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Runs a loop of this thread's own until the work is done; ends what else runs in it, and closes it."""
    try:
        loop.run_until_complete(work)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()


class LiveServer:
    """Serves one :class:`Live` from now on, until :meth:`stop`.

    Args:
        worker: paints and encodes; running.

    Raises:
        OSError: the address cannot be listened to.
    """

    def __init__(self, host: str, port: int, source: answers.Source, access: Access, worker: Worker) -> None:
        self._source, self._access, self._images, self._state = source, access, worker, Worker("edgert:http-state")
        # The names a browser may use for a loopback address; none, for "any", when others than this machine may come.
        self._hosts = frozenset({"localhost", "127.0.0.1", "::1", host}) if is_loopback(host) else frozenset[str]()
        self._clients, self._viewers = dict[_Client, None](), dict[_Client, None]()  # the oldest first
        self._made = dict[str, tuple[float, "asyncio.Task[answers.Answer]"]]()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._address, self.port = self._socket.getsockname()[:2]
        self._loop, self._over = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="edgert:http", daemon=True)
        self._thread.start()
        self._state.start()

    def stop(self) -> None:
        """Stops listening and ends every connection, within half a second."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_GOODBYE_S)
        self._state.stop()

    def failed(self, error: BaseException) -> None:
        """A request that fails is the log's, not the terminal's."""
        _LOG.debug("a request failed", exc_info=error)

    def _run(self) -> None:
        self._loop.set_exception_handler(lambda _, about: self.failed(about.get("exception") or RuntimeError(about)))
        run_to_end(self._loop, self._serve())

    async def _serve(self) -> None:
        timeout_s = _HEAD_S if self._access.tls else None
        server = await asyncio.start_server(
            self._connected, sock=self._socket, backlog=_BACKLOG, limit=_HEAD_BYTES, ssl=self._access.tls,
            ssl_handshake_timeout=timeout_s,
        )  # fmt: skip
        await self._over.wait()
        server.close()
        for client in (*self._clients, *self._viewers):
            client.end()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(str((writer.get_extra_info("peername") or ("",))[0]), writer)
        if len(self._clients) >= _MAX_CONNECTIONS:
            # Who asks and reads is served in milliseconds, so it is one that does neither.
            oldest = _gives_way(self._clients)
            del self._clients[oldest]
            oldest.end()
        self._clients[client] = None
        try:
            with client.within(_HEAD_S):
                head = await read_head(reader)
            if head:
                await self._answered(client, head, reader)
            with client.within(_IO_TIMEOUT_S):
                writer.close()
                await writer.wait_closed()
        except OSError as error:  # it left, or did not read for too long
            _LOG.debug("connection of %s ended: %s", client.address, error)
        finally:
            self._clients.pop(client, None)
            self._viewers.pop(client, None)
            client.end()

    async def _answered(self, client: _Client, head: bytes, reader: asyncio.StreamReader) -> None:
        try:
            request = parsed(head)
        except ValueError:
            client.writer.write(answers.message(answers.text(HTTPStatus.BAD_REQUEST, "no such address")))
            return
        try:
            found = self._refused(request)
            if found is None and request.path in ("/stream.mjpg", "/wall"):
                found = await self._watched(client, request)
            elif found is None and self._source.video is not None and request.path.startswith(_WHEP):
                with client.within(_HEAD_S + _IO_TIMEOUT_S):
                    found = await self._source.video.answer(request, reader, self._address)
            elif found is None and self._source.clips is not None and request.path.startswith("/clips/"):
                found = await self._played(client, request, self._source.clips)
            elif found is None:
                found = await self._found(request)
        except EdgertError as error:
            _LOG.warning("%s: %s", request.path, error)
            found = answers.text(HTTPStatus.INTERNAL_SERVER_ERROR, error.what)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one, the others are served on
            self.failed(error)
            found = answers.text(HTTPStatus.INTERNAL_SERVER_ERROR, "it failed; the log has more")
        if found is not None:
            client.writer.write(answers.message(found, with_body=request.method != "HEAD"))

    def _refused(self, request: Request) -> answers.Answer | None:
        """Why a request is not answered: first who asks, then what for."""
        if self._hosts and name_of(request.headers.get("host", "")) not in self._hosts:
            # A page of a stranger's that points its own name at this machine (DNS rebinding) gets nothing. Only names
            # are compared: through a tunnel the port is another one.
            return answers.text(HTTPStatus.FORBIDDEN, "unknown Host header")
        if request.path not in answers.JUDGED and not self._is_known(request):
            return answers.UNKNOWN
        is_offer = self._source.video is not None and request.path.startswith(_WHEP)
        if request.method not in ("GET", "HEAD") and not is_offer:
            return answers.text(HTTPStatus.NOT_IMPLEMENTED, "read only")
        return None

    def _is_known(self, request: Request) -> bool:
        return self._access.allows(request.headers.get("authorization", ""))

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
            return await self._fresh(path, 0.0, partial(answers.judged, source, path, self._is_known(request)))
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

    async def _played(self, client: _Client, request: Request, clips: Clips) -> answers.Answer | None:
        """A part of a recording; sends the whole where no part is asked for."""
        wanted, at = request.headers.get("range", ""), 0
        found = await self._done(self._state, partial(clips.piece, request.path, wanted))
        if found is None:
            return answers.text(HTTPStatus.NOT_FOUND, "there is no such recording")
        _, kind, content, about = found
        if RANGE.fullmatch(wanted):
            return found
        size = about["Content-Range"].rpartition("/")[2]
        client.writer.write(answers.head(HTTPStatus.OK, kind, {"Content-Length": size, "Accept-Ranges": "bytes"}))
        while content and request.method == "GET":
            client.writer.write(content)
            at += len(content)
            with client.within(_IO_TIMEOUT_S):
                await client.writer.drain()
            more = await self._done(self._state, partial(clips.piece, request.path, f"bytes={at}-"))
            content = more[2] if more is not None else b""
        return None

    async def _watched(self, client: _Client, request: Request) -> answers.Answer | None:
        """Sends images until the viewer leaves; an answer where there is no room for him."""
        if not self._has_room(client):
            status, kind, body, _ = answers.text(HTTPStatus.SERVICE_UNAVAILABLE, f"{_MAX_VIEWERS} viewers are watching")
            return status, kind, body, {"Retry-After": "10"}
        if self._clients.pop(client, 0) is None:  # else it was ended
            self._viewers[client] = None
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        if request.path == "/wall":
            kind, first, sent = "application/x-edgert-wall", b"", self._tiles(client)
        else:
            kind = f"multipart/x-mixed-replace; boundary={_BOUNDARY.decode()}"
            first, sent = b"--" + _BOUNDARY + b"\r\n", self._pictures(client, request.query.get("stream", ""))
        client.writer.write(answers.head(HTTPStatus.OK, kind) + first)
        if request.method == "GET":
            await sent
        else:
            sent.close()
        return None

    def _has_room(self, client: _Client) -> bool:
        """Whether it may watch; the oldest viewer of an address with two more than its own gives way."""
        if len(self._viewers) < _MAX_VIEWERS:
            return True
        oldest = _gives_way(self._viewers)
        most, own = (
            sum(one.address == address for one in self._viewers) for address in (oldest.address, client.address)
        )
        if most < own + 2:
            return False
        del self._viewers[oldest]
        oldest.end()
        return True

    async def _pictures(self, client: _Client, stream: str) -> None:
        """The images of one camera; of the first that has any where none is named."""
        live, chosen = self._source.live, [stream]

        def wanted() -> list[str]:
            chosen[0] = chosen[0] or live.newest
            return chosen

        # The boundary follows at once: browsers show an image when they have seen its end.
        async for _, _, image in self._changed(client, wanted, lambda _: (LARGE_PX, _IMAGE_HZ)):
            head = b"Content-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(image)
            client.writer.write(b"".join((head, image, b"\r\n--", _BOUNDARY, b"\r\n")))

    async def _tiles(self, client: _Client) -> None:
        """Small images of all cameras, each behind a line of JSON with its name and length."""
        live = self._source.live

        def how(count: int) -> tuple[int, float]:
            return SMALL_PX if count > _FEW else TILE_PX, min(_TILES_HZ / max(count, 1), _IMAGE_HZ)

        async for name, number, image in self._changed(client, live.numbers, how):
            about = {"stream": name, "number": number, "bytes": len(image)}
            client.writer.write(json.dumps(about).encode() + b"\n" + image)

    async def _changed(
        self,
        client: _Client,
        wanted: Callable[[], Any],
        how: Callable[[int], tuple[int, float]],
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
                    if client.writer.transport.is_closing():
                        raise ConnectionAbortedError("the viewer left")
                    yield found
                sent_s = now
                with client.within(_IO_TIMEOUT_S):
                    await client.writer.drain()
            await asyncio.sleep(_TICK_S)
