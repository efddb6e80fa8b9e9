"""The HTTP server of the live page and of ``sink: webrtc``, in one thread that never waits for a client.

Requests change nothing, except for WebRTC viewers that join and leave, and ``/control`` where there is a token.
:mod:`~edgert.stages.sink.tcp_server` limits connections; h11 does HTTP, in
:mod:`~edgert.stages.sink.web.http_exchange`.
"""

import base64
import binascii
import hmac
import logging
import socket
from collections.abc import Container
from dataclasses import dataclass, field
from http import HTTPStatus
from ssl import SSLContext
from typing import Protocol
from urllib.parse import urlsplit

from edgert import limits
from edgert.errors import EdgertError
from edgert.stages.sink.client_limits import is_loopback
from edgert.stages.sink.tcp_connection import Connection
from edgert.stages.sink.tcp_server import LoopThread, TcpServer
from edgert.stages.sink.web.http_exchange import Exchange, RefusedError, Request, Response, text

_LOG = logging.getLogger(__name__)
_WHEP = "/whep/"
_NO_TOKEN = text(
    HTTPStatus.UNAUTHORIZED,
    "this page needs its token, as the password or as Authorization: Bearer",
    {"WWW-Authenticate": 'Basic realm="edgert", charset="UTF-8", Bearer realm="edgert"'},
)


@dataclass(frozen=True, slots=True)
class Access:
    """Access rules of a server.

    Attributes:
        token: secret that clients send as ``Authorization: Bearer``, or as the password of ``Basic``, which browsers
            ask for; empty: anybody has access.
        tls: certificate of the server; None: HTTP without encryption.
    """

    token: str = field(default="", repr=False)
    tls: SSLContext | None = None

    def allows(self, authorization: str) -> bool:
        """Return whether an ``Authorization`` header has the token."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                return not self.token
        return not self.token or hmac.compare_digest(given.strip().encode(), self.token.encode())


class Whep(Protocol):
    """Handler of WebRTC viewers."""

    async def answer(self, exchange: Exchange, request: Request, address: str) -> Response:
        """Return the answer to a request below ``/whep/``.

        Args:
            exchange: exchange with the client, for the request's body.
            request: request of the client.
            address: IP address of this machine that video is sent from.
        """


class Site(Protocol):
    """Pages and handlers at a server's addresses."""

    @property
    def open_to_all(self) -> Container[str]:
        """Paths that are answered without the token."""

    @property
    def changed_at(self) -> Container[str]:
        """Paths that take ``POST``."""

    @property
    def whep(self) -> Whep | None:
        """Handler of requests below ``/whep/``; None without one."""

    async def answer(self, exchange: Exchange, request: Request) -> Response | None:
        """Return the answer to a request; None if it was sent already."""


class HttpServer:
    """HTTP server of a site, from its construction until :meth:`stop`.

    Args:
        listener: listening socket, from :func:`~edgert.stages.sink.tcp_server.listen`.
    """

    def __init__(self, host: str, listener: socket.socket, access: Access, site: Site, name: str) -> None:
        self._access, self._site = access, site
        self._address, self.port = listener.getsockname()[:2]
        # Names by which browsers may call a server that only this machine can reach; empty: any name.
        self._names = frozenset({"localhost", "127.0.0.1", "::1", host}) if is_loopback(host) else frozenset[str]()
        server = TcpServer(listener, access.tls, self, limits.PAGE_CONNECTIONS)
        self._thread = LoopThread(name, server.run())

    def stop(self) -> None:
        """Stop listening and end every connection, within half a second."""
        self._thread.stop()

    async def read(self, client: Connection) -> tuple[Exchange, Request | Response]:
        """Return the exchange with a client, and its request, or the answer to a malformed one."""
        exchange = Exchange(client)
        try:
            return exchange, await exchange.request()
        except RefusedError as error:
            return exchange, error.response

    async def answer(self, client: Connection, request: tuple[Exchange, Request | Response]) -> None:
        """Answer the request that :meth:`read` returned."""
        exchange, parsed = request
        response = parsed if isinstance(parsed, Response) else await self._response(exchange, parsed)
        if response is not None:
            await exchange.respond(response)

    async def _response(self, exchange: Exchange, request: Request) -> Response | None:
        try:
            if (refusal := self._refusal(request)) is not None:
                return refusal
            if self._site.whep is not None and request.path.startswith(_WHEP):
                with exchange.client.deadline(limits.PAGE_HEAD_S + limits.PAGE_SEND_S):
                    return await self._site.whep.answer(exchange, request, self._address)
            return await self._site.answer(exchange, request)
        except RefusedError as error:
            return error.response
        except EdgertError as error:
            _LOG.warning("%s: %s", request.path, error)
            return text(HTTPStatus.INTERNAL_SERVER_ERROR, error.what)
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - an error in one answer must not end the server
            _LOG.exception("%s: the request failed", request.path)
            return text(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in edgert; its log has the traceback")

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer that refuses a request for its host, token or method; None for a valid one."""
        if self._names and _host_name(request.headers.get("host", "")) not in self._names:
            # A hostile web page may point its own name at this machine (DNS rebinding). Ports are not compared, because
            # a tunnel changes them.
            return text(HTTPStatus.FORBIDDEN, "unknown Host header")
        is_known = self._access.allows(request.headers.get("authorization", ""))
        if request.path not in self._site.open_to_all and not is_known:
            return _NO_TOKEN
        if request.method == "POST" and request.path in self._site.changed_at:
            return None
        is_offer = self._site.whep is not None and request.path.startswith(_WHEP)
        if request.method not in ("GET", "HEAD") and not is_offer:
            return text(HTTPStatus.NOT_IMPLEMENTED, "read only")
        return None


def address_of(host: str, port: int, access: Access) -> str:
    """Return the URL of a server."""
    return f"http{'s' if access.tls else ''}://{f'[{host}]' if ':' in host else host}:{port}/"


def _host_name(header: str) -> str | None:
    """Return the name in a ``Host`` header, without the port; None where it has none."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None
