"""One HTTP/1.1 request and its response. h11 parses the request and frames the response."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import h11

from edgert import limits
from edgert.stages.sink.tcp_connection import Connection

_SAFETY = {
    "Server": "edgert",
    "Connection": "close",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a client; ``headers`` are by name in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    @property
    def media_type(self) -> str:
        """The type of the body, in lower case and without parameters such as ``charset``."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer; ``headers`` are those beside the ones of every answer."""

    status: HTTPStatus
    content_type: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """A refusal of a request.

    Attributes:
        response: answer with the reason.
    """

    def __init__(self, status: HTTPStatus, line: str) -> None:
        super().__init__(line)
        self.response = text(status, line)


def text(status: HTTPStatus, line: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response that is one line of plain text."""
    body = f"{line}\n".encode("utf-8", "backslashreplace")
    return Response(status, "text/plain; charset=utf-8", body, headers or {})


class Exchange:
    """The only request of a connection, and its response. Every response says that the connection ends."""

    def __init__(self, client: Connection) -> None:
        self.client = client
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.PAGE_HEAD_BYTES)
        self._has_body, self._announced = True, 0

    async def request(self) -> Request:
        """Return the request, without its body.

        Raises:
            RefusedError: it is malformed.
            OSError: the client left.
        """
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            raise ConnectionAbortedError("the client sent no request")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        if event.http_version not in (b"1.0", b"1.1"):
            raise RefusedError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "expected HTTP/1.1")
        if {"content-length", "transfer-encoding"} <= headers.keys():  # a proxy may find another end of the request
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Content-Length and Transfer-Encoding in one request")
        try:
            address = urlsplit(event.target.decode("latin-1"))
            query = {key: values[-1] for key, values in parse_qs(address.query, max_num_fields=8).items()}
        except ValueError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "malformed address") from error
        self._has_body = event.method != b"HEAD"
        self._announced = int(headers.get("content-length", "0"))
        return Request(event.method.decode("latin-1"), address.path, query, headers)

    async def body(self, limit: int) -> bytes:
        """Return the body of the request.

        Raises:
            RefusedError: it is malformed, or larger than ``limit`` bytes.
            OSError: the client left.
        """
        if self._announced > limit:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {limit} bytes")
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
        body = b""
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > limit:
                raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {limit} bytes")
        return body

    async def begin(self, status: HTTPStatus, content_type: str, headers: Mapping[str, str] | None = None) -> None:
        """Send the head of a response, whose body follows by :meth:`write` and may last as long as the connection."""
        await self._send(_head(Response(status, content_type, b"", headers or {})))

    async def write(self, data: bytes) -> None:
        """Send a part of the body; send nothing where the request was ``HEAD``."""
        if self._has_body:
            await self._send(h11.Data(data))

    async def respond(self, response: Response) -> None:
        """Send a complete response."""
        head = _head(response, {"Content-Length": str(len(response.body))})
        body = [h11.Data(response.body)] if self._has_body and response.body else []
        await self._send(head, *body, h11.EndOfMessage())

    async def _next_event(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self.client.receive())
        except h11.RemoteProtocolError as error:
            raise RefusedError(HTTPStatus(error.error_status_hint), "malformed request") from error
        return event

    async def _send(self, *events: h11.Event) -> None:
        await self.client.send(b"".join(self._http.send(event) or b"" for event in events))


def _head(response: Response, framing: Mapping[str, str] | None = None) -> h11.Response:
    headers = {"Content-Type": response.content_type, **_SAFETY, **(framing or {}), **response.headers}
    return h11.Response(status_code=response.status.value, reason=response.status.phrase, headers=list(headers.items()))
