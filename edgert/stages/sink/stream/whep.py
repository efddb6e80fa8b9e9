"""Live video in browsers, by WebRTC: a page with every stream, and the addresses of WHEP for other players."""

import importlib.resources
import json
import logging
from http import HTTPStatus

from edgert.runtime.records import Result
from edgert.stages.sink import http_answers as answers
from edgert.stages.sink import http_request as asked
from edgert.stages.sink.connections import Connection, listening
from edgert.stages.sink.encoder_choice import Choice
from edgert.stages.sink.http_server import HttpServer, address_of
from edgert.stages.sink.http_video import CameraVideo
from edgert.stages.sink.stream.broadcast import Wanted

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
    """Shows every stream to browsers: ``/``, ``/streams.json``, and ``/whep/STREAM`` for players of WHEP.

    Args:
        address: host and port to listen on; port 0 picks a free one, see :attr:`url`.
        access: who may ask, and by HTTP or HTTPS.

    Attributes:
        video: of every stream.
    """

    open_to_all = ()

    def __init__(
        self, name: str, address: tuple[str, int], access: asked.Access, choice: Choice, wanted: Wanted
    ) -> None:
        self.name = name
        self._host, self._port = address
        self._access, self._choice = access, choice
        self.video = CameraVideo(name, choice, wanted)
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return address_of(self._host, self._port, self._access)

    def open(self) -> None:
        """Starts listening. Raises DeviceError when nothing can encode, and when the address is taken or not this
        machine's."""
        self._choice.check()
        own = listening(self._host, self._port, f"stages.{self.name}")
        self._server = HttpServer(self._host, own, self._access, self, f"edgert:{self.name}")
        self._port = self._server.port
        log.info("%s: live video at %s", self.name, self.url)

    def process(self, result: Result) -> None:
        """Shows the result to whoever watches; never waits."""
        self.video.show(result)

    def close(self) -> None:
        """Ends every stream and connection, within two seconds."""
        self.video.close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    async def answer(self, request: asked.Request, _: Connection) -> answers.Answer:
        """Return what an address other than those of WHEP gives."""
        if request.path == "/streams.json":
            return HTTPStatus.OK, "application/json", json.dumps(self.video.streams).encode(), {}
        if request.path not in _FILES:
            return answers.text(HTTPStatus.NOT_FOUND, "not found")
        name, kind = _FILES[request.path]
        body = importlib.resources.files("edgert.stages.sink").joinpath("page").joinpath(name).read_bytes()
        return HTTPStatus.OK, kind, body, {"Content-Security-Policy": _POLICY}
