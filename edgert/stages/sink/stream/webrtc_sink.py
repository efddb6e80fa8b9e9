"""Sink that serves live video to browsers and WHEP players, on a page of its own."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from importlib.util import find_spec

from pydantic import Field, model_validator

from edgert import installation
from edgert.errors import ConfigError
from edgert.runtime.records import Result
from edgert.stages.context import Context
from edgert.stages.kinds import PageTls, check_token
from edgert.stages.sink.client_limits import is_loopback
from edgert.stages.sink.stream.broadcast import Streams
from edgert.stages.sink.stream.whep import WhepVideo
from edgert.stages.sink.tcp_server import listen
from edgert.stages.sink.web.http_exchange import Exchange, Request, Response, text
from edgert.stages.sink.web.http_server import Access, HttpServer, address_of
from edgert.stages.sink.web.inlined_page import inlined_page

log = logging.getLogger("edgert.sink")


class Webrtc(Streams):
    """A WebRTC page with every stream, and WHEP for players: see [streaming](streaming.md)."""

    port: int = Field(default=8889, ge=0, le=65535, description="0 picks a free one, which is logged")
    token: str = Field(default="", repr=False, description="as of `sink: http`")
    tls: PageTls | None = Field(default=None, description="as of `sink: http`")

    @model_validator(mode="after")
    def _check_keys(self) -> Webrtc:
        if "token" in self.model_fields_set:
            check_token(self.token)
        if not self.token and not is_loopback(self.host):
            raise ValueError(f"host: {self.host} can be reached from the network; add token:, or host: 127.0.0.1")
        return self

    def make(self, name: str, context: Context) -> WebrtcSink:
        """Return the sink. Raises ConfigError where aiortc is not installed."""
        if find_spec("aiortc") is None:
            what = "sink 'webrtc' needs the package aiortc"
            raise ConfigError(what, where=f"stages.{name}", fix=installation.command("webrtc"), code="E107")
        return WebrtcSink(name, self, context)


class WebrtcSink:
    """Sink that serves live video: ``/`` and ``/streams.json`` for browsers, ``/whep/STREAM`` for WHEP players.

    Attributes:
        whep: video of every stream.
    """

    open_to_all = changed_at = ()

    def __init__(self, name: str, config: Webrtc, context: Context) -> None:
        self.name, self._host, self._port = name, config.host, config.port
        self._access = Access(config.token, config.tls.context() if config.tls is not None else None)
        self._choice = config.choice(name)
        self.whep = WhepVideo(name, self._choice, config.wanted(context))
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """The URL of the page."""
        return address_of(self._host, self._port, self._access)

    def open(self) -> None:
        """Start listening.

        Raises:
            DeviceError: nothing can encode, or the address is in use or does not belong to this machine.
        """
        self._choice.check()
        listener = listen(self._host, self._port, f"stages.{self.name}")
        self._server = HttpServer(self._host, listener, self._access, self, f"edgert:{self.name}")
        self._port = self._server.port
        log.info("%s: live video at %s", self.name, self.url)

    def process(self, result: Result) -> None:
        """Show the result to all viewers, without waiting for any."""
        self.whep.show(result)

    def close(self) -> None:
        """End every stream and connection, within two seconds."""
        self.whep.close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    async def answer(self, exchange: Exchange, request: Request) -> Response:
        """Return the answer to a request that is not below ``/whep/``."""
        if request.path == "/streams.json":
            return Response(HTTPStatus.OK, "application/json", json.dumps(self.whep.streams).encode())
        return inlined_page("player.html") if request.path == "/" else text(HTTPStatus.NOT_FOUND, "not found")
