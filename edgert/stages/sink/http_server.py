"""The HTTP server of the live page and of ``sink: webrtc``: one thread that never waits for a client.

Read only, but for those who come to watch video and leave. A connection is one request; it costs no thread, has a
deadline, and gives way where its address has more than its share (:mod:`~edgert.stages.sink.connections`).
"""

import asyncio
import logging
import socket
from collections.abc import Container
from http import HTTPStatus
from typing import Protocol

from edgert import limits
from edgert.errors import EdgertError
from edgert.stages.sink import http_answers as answers
from edgert.stages.sink.connections import Connection, DoorThread
from edgert.stages.sink.http_request import Access, Request, is_loopback, name_of, parsed

_LOG = logging.getLogger(__name__)
_WHEP = "/whep/"


class Site(Protocol):
    """What is behind the addresses of a server."""

    @property
    def open_to_all(self) -> Container[str]:
        """Paths that are answered without the token."""
        ...

    @property
    def video(self) -> answers.Video | None:
        """What answers those who want video, by WHEP; None where nothing does."""
        ...

    async def answer(self, request: Request, client: Connection) -> answers.Answer | None:
        """Return what an address gives; None where it was sent already."""
        ...


class HttpServer:
    """Serves a site from now on, until :meth:`stop`.

    Args:
        host: the address as the file names it.
        own: the socket that listens there; see :func:`~.connections.listening`.
        access: who may ask, and by HTTP or HTTPS.
        name: of the thread.
    """

    def __init__(self, host: str, own: socket.socket, access: Access, site: Site, name: str) -> None:
        self._access, self._site = access, site
        self._address, self.port = own.getsockname()[:2]
        # The names a browser may use for a loopback address; none, for "any", when others than this machine may come.
        self._hosts = frozenset({"localhost", "127.0.0.1", "::1", host}) if is_loopback(host) else frozenset[str]()
        self._door = DoorThread(own, access.tls, self, limits.PAGE_CONNECTIONS, name, self.failed)

    def stop(self) -> None:
        """Stop listening and end every connection, within half a second."""
        self._door.stop()

    def failed(self, error: BaseException) -> None:
        """Write a request that failed to the log, not to the terminal."""
        _LOG.debug("a request failed", exc_info=error)

    async def asked(self, client: Connection) -> bytes:
        """Return the head of a request; what there is of it where the client sent no more, or too much."""
        try:
            return await client.until(b"\r\n\r\n", limits.PAGE_HEAD_BYTES)
        except asyncio.IncompleteReadError as error:
            return error.partial
        except ValueError:
            return b"too long"

    async def answered(self, client: Connection, head: bytes) -> None:
        """Answer a request."""
        if not head:
            return
        try:
            request = parsed(head)
        except ValueError:
            await client.send(answers.message(answers.text(HTTPStatus.BAD_REQUEST, "no such address")))
            return
        try:
            found = self._refused(request)
            if found is None and self._site.video is not None and request.path.startswith(_WHEP):
                with client.within(limits.PAGE_HEAD_S + limits.PAGE_SEND_S):
                    found = await self._site.video.answer(request, client, self._address)
            elif found is None:
                found = await self._site.answer(request, client)
        except EdgertError as error:
            _LOG.warning("%s: %s", request.path, error)
            found = answers.text(HTTPStatus.INTERNAL_SERVER_ERROR, error.what)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one, the others are served on
            self.failed(error)
            found = answers.text(HTTPStatus.INTERNAL_SERVER_ERROR, "it failed; the log has more")
        if found is not None:
            await client.send(answers.message(found, with_body=request.method != "HEAD"))

    def _refused(self, request: Request) -> answers.Answer | None:
        """Why a request is not answered: first who asks, then what for."""
        if self._hosts and name_of(request.headers.get("host", "")) not in self._hosts:
            # A page of a stranger's that points its own name at this machine (DNS rebinding) gets nothing. Only names
            # are compared: through a tunnel the port is another one.
            return answers.text(HTTPStatus.FORBIDDEN, "unknown Host header")
        is_known = self._access.allows(request.headers.get("authorization", ""))
        if request.path not in self._site.open_to_all and not is_known:
            return answers.UNKNOWN
        is_offer = self._site.video is not None and request.path.startswith(_WHEP)
        if request.method not in ("GET", "HEAD") and not is_offer:
            return answers.text(HTTPStatus.NOT_IMPLEMENTED, "read only")
        return None


def address_of(host: str, port: int, access: Access) -> str:
    """Return the URL of a server."""
    return f"http{'s' if access.tls else ''}://{f'[{host}]' if ':' in host else host}:{port}/"
