"""Live video in browsers, by WebRTC: a page with every stream, and the addresses of WHEP for other players."""

import asyncio
import errno
import importlib.resources
import json
import logging
import socket
import threading
from contextlib import suppress
from http import HTTPStatus

from edgert import limits
from edgert.errors import DeviceError, cause
from edgert.runtime.records import Result
from edgert.stages.sink import http_answers as answers
from edgert.stages.sink import http_request as asked
from edgert.stages.sink.encoder_choice import Choice
from edgert.stages.sink.http_server import run_to_end
from edgert.stages.sink.stream import offers, webrtc
from edgert.stages.sink.stream.broadcast import Broadcast, Wanted

log = logging.getLogger("edgert.sink")

_GOODBYE_S = 1.0
_IO_S = 10.0
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; media-src blob:; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILES = {
    "/": ("player.html", "text/html; charset=utf-8"),
    "/player.js": ("player.js", "text/javascript; charset=utf-8"),
    "/receive.js": ("receive.js", "text/javascript; charset=utf-8"),
    "/player.css": ("player.css", "text/css; charset=utf-8"),
}


class WebrtcSink:
    """Shows every stream to browsers: ``/``, ``/streams.json``, and ``/whep/STREAM`` for players of WHEP.

    Args:
        address: host and port to listen on; port 0 picks a free one, see :attr:`url`.
        access: who may ask, and by HTTP or HTTPS.
    """

    def __init__(
        self, name: str, address: tuple[str, int], access: asked.Access, choice: Choice, wanted: Wanted
    ) -> None:
        self.name, self._where = name, f"stages.{name}"
        self._host, self._port = address
        self._access, self._choice, self._wanted = access, choice, wanted
        self._streams: dict[str, Broadcast] = {}
        # The names a browser may use for a loopback address; none, for "any", when others than this machine may come.
        is_local = asked.is_loopback(self._host)
        self._hosts = frozenset({"localhost", "127.0.0.1", "::1", self._host}) if is_local else frozenset[str]()
        self._thread: threading.Thread | None = None
        self._connections = 0

    @property
    def url(self) -> str:
        """Where the page is."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http{'s' if self._access.tls else ''}://{host}:{self._port}/"

    def open(self) -> None:
        """Starts listening. Raises DeviceError when nothing can encode, and when the address is taken or not this
        machine's."""
        self._choice.check()
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            self._socket = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            raise DeviceError(
                f"cannot listen on {self._host}:{self._port}",
                why="another program is listening there" if taken else cause(error),
                where=self._where,
                fix="choose another port, or port: 0 for any free one; host: 127.0.0.1 always works",
            ) from error
        bound, self._port = self._socket.getsockname()[:2]
        self._loop, self._over = asyncio.new_event_loop(), asyncio.Event()
        self._sessions = webrtc.Sessions(bound)
        self._thread = threading.Thread(target=self._run, name=f"edgert:{self.name}", daemon=True)
        self._thread.start()
        log.info("%s: live video at %s", self.name, self.url)

    def process(self, result: Result) -> None:
        """Shows the result to whoever watches; never waits."""
        stream = result.frame.stream
        if stream not in self._streams:
            self._streams[stream] = Broadcast(self.name, stream, self._choice, self._wanted)
        self._streams[stream].show(result)

    def close(self) -> None:
        """Ends every stream and connection, within two seconds."""
        for broadcast in self._streams.values():
            broadcast.close()
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(2 * _GOODBYE_S)
            self._thread = None
        self._streams.clear()

    def _run(self) -> None:
        self._loop.set_exception_handler(lambda _, about: log.debug("%s: %s", self.name, about))
        run_to_end(self._loop, self._serve())

    async def _serve(self) -> None:
        tls, timeout_s = self._access.tls, limits.PAGE_HEAD_S if self._access.tls else None
        server = await asyncio.start_server(
            self._connected, sock=self._socket, limit=limits.PAGE_HEAD_BYTES, ssl=tls, ssl_handshake_timeout=timeout_s
        )
        await self._over.wait()
        server.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._sessions.close(), _GOODBYE_S)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= limits.PAGE_CONNECTIONS:
                found = await asyncio.wait_for(self._found(reader), limits.PAGE_HEAD_S + _IO_S)
                writer.write(answers.message(found))
                await asyncio.wait_for(writer.drain(), _IO_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            log.debug("%s: a request ended: %s", self.name, error)
        finally:
            self._connections -= 1
            writer.close()

    async def _found(self, reader: asyncio.StreamReader) -> answers.Answer:
        head = await asyncio.wait_for(asked.read_head(reader), limits.PAGE_HEAD_S)
        try:
            request = asked.parsed(head)
        except ValueError:
            return answers.text(HTTPStatus.BAD_REQUEST, "no such request")
        if self._hosts and asked.name_of(request.headers.get("host", "")) not in self._hosts:
            return answers.text(HTTPStatus.FORBIDDEN, "unknown Host header")
        if not self._access.allows(request.headers.get("authorization", "")):
            return answers.UNKNOWN
        if request.path.startswith(offers.PATH):
            offer = await offers.body_of(request, reader)
            if not isinstance(offer, str):
                return offer
            return await offers.answered(self._streams, self._sessions, request, offer)
        if request.method not in ("GET", "HEAD"):
            return answers.text(HTTPStatus.NOT_IMPLEMENTED, "read only")
        if request.path == "/streams.json":
            return HTTPStatus.OK, "application/json", json.dumps(sorted(self._streams)).encode(), {}
        if request.path not in _FILES:
            return answers.text(HTTPStatus.NOT_FOUND, "not found")
        name, kind = _FILES[request.path]
        body = importlib.resources.files("edgert.stages.sink").joinpath("page").joinpath(name).read_bytes()
        return HTTPStatus.OK, kind, body, {"Content-Security-Policy": _POLICY}
