"""The sink of live video in browsers: a page with every stream, and the addresses of WHEP for other players."""

import importlib.resources
import json
import logging
from http import HTTPStatus

from edgert.runtime.records import Result
from edgert.stages.sink.encoder_choice import Choice
from edgert.stages.sink.stream.broadcast import Wanted
from edgert.stages.sink.stream.whep import WhepVideo
from edgert.stages.sink.tcp_server import listen
from edgert.stages.sink.web.http_exchange import Exchange, Request, Response, text
from edgert.stages.sink.web.http_server import Access, HttpServer, address_of

log = logging.getLogger("edgert.sink")

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
    """WebRTC server: ``/`` and ``/streams.json`` for browsers, ``/whep/STREAM`` for WHEP players.

    Args:
        address: host and port to listen on; port 0 picks a free one, see :attr:`url`.
        access: who may ask, and by HTTP or HTTPS.

    Attributes:
        whep: the video of every stream.
    """

    open_to_all = changed_at = ()

    def __init__(self, name: str, address: tuple[str, int], access: Access, choice: Choice, wanted: Wanted) -> None:
        self.name = name
        self._host, self._port = address
        self._access, self._choice = access, choice
        self.whep = WhepVideo(name, choice, wanted)
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """The URL of the page."""
        return address_of(self._host, self._port, self._access)

    def open(self) -> None:
        """Start listening.

        Raises:
            DeviceError: nothing can encode, or the address is in use or none of this machine's.
        """
        self._choice.check()
        own = listen(self._host, self._port, f"stages.{self.name}")
        self._server = HttpServer(self._host, own, self._access, self, f"edgert:{self.name}")
        self._port = self._server.port
        log.info("%s: live video at %s", self.name, self.url)

    def process(self, result: Result) -> None:
        """Show the result to everybody who watches; never wait."""
        self.whep.show(result)

    def close(self) -> None:
        """End every stream and connection, within two seconds."""
        self.whep.close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    async def answer(self, exchange: Exchange, request: Request) -> Response:
        """Return the answer to a request outside of ``/whep/``."""
        if request.path == "/streams.json":
            return Response(HTTPStatus.OK, "application/json", json.dumps(self.whep.streams).encode())
        if request.path not in _FILES:
            return text(HTTPStatus.NOT_FOUND, "not found")
        name, kind = _FILES[request.path]
        body = importlib.resources.files("edgert.stages.sink.web").joinpath("page").joinpath(name).read_bytes()
        return Response(HTTPStatus.OK, kind, body, {"Content-Security-Policy": _POLICY})
