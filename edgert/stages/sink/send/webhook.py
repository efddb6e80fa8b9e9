"""HTTP POST of every message, as a CloudEvent, signed.

The body is the message; its headers are those of a CloudEvent in binary mode
(https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/http-protocol-binding.md). With a secret it is
signed as https://www.standardwebhooks.com describes, so that their libraries check it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import select
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import h11

from edgert import limits
from edgert.errors import printable
from edgert.stages.sink.send.sender import RefusedError
from edgert.stages.sink.send.server import Server
from edgert.stages.sink.send.spool import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgert.stages.sink.send.server import Server


# One HTTP request and its answer, within a limited time and size, whatever the other side does. HTTP is h11's.

EXCHANGE_S = limits.EXCHANGE_S
"""Most seconds of a request with its answer."""
BODY_S = 2.0
"""Most seconds for an answer's body: its status is what matters."""
_ANSWER_BYTES = limits.ANSWER_BYTES
"""The most that is read of an answer, with its headers and interim answers."""
_READ_BYTES = 4096
_A = TypeVar("_A")
_R = TypeVar("_R")


class Exchange:
    """A connection to a server, for one request after another. Not thread-safe.

    Args:
        port: of the server.
        body_s: how long an answer's body is waited for.
    """

    def __init__(self, server: Server, port: int, body_s: float = BODY_S) -> None:
        self._body_s = body_s
        host = f"[{server.host}]" if ":" in server.host else server.host
        self._host = host if port == (443 if server.scheme == "https" else 80) else f"{host}:{port}"
        self._socket = _connected(server, port)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ANSWER_BYTES)
        self.oddity = ""
        """Anything odd about the last answer whose status is known; empty if nothing."""

    @property
    def is_over(self) -> bool:
        """Whether another request needs another connection."""
        return self._http.our_state is not h11.IDLE or bool(select.select([self._socket], [], [], 0)[0])

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """Send a request and wait for its answer.

        Returns:
            The status, and the status in words with the beginning of the answer.

        Raises:
            OSError: no such answer comes in time.
        """
        self._until_s, self._left_bytes, self.oddity = time.monotonic() + EXCHANGE_S, _ANSWER_BYTES, ""
        lines = {"Host": self._host, "Content-Length": str(len(body)), **headers}
        try:
            request = h11.Request(method="POST", target=path, headers=list(lines.items()))
            data = memoryview(b"".join(self._http.send(event) or b"" for event in (request, h11.Data(body))))
            while data:
                data = data[self._in_time(self._socket.send, data) :]
            self._http.send(h11.EndOfMessage())
            while not isinstance(answer := self._next_event(), h11.Response):
                continue  # an interim answer
        except (h11.ProtocolError, ValueError) as error:
            raise OSError(f"no answer in HTTP: {error}") from error
        said = self._body().decode(errors="replace")
        return answer.status_code, f"HTTP {answer.status_code} {answer.reason.decode('latin-1')}: {said[:120]}"

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _body(self) -> bytes:
        """Return the body of an answer. One that is too long, or too slow, ends the connection."""
        self._until_s, body = time.monotonic() + self._body_s, b""
        try:
            while isinstance(event := self._next_event(), h11.Data):
                body += event.data
        except (OSError, h11.ProtocolError) as error:
            self.oddity = str(error)
        if self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            self._http.start_next_cycle()
        else:
            self.close()
        return body

    def _next_event(self) -> object:
        """Return what comes next of an answer. Raises OSError when time, or what may be read, is over."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._left_bytes <= 0:
                raise OSError(f"its answer is longer than {_ANSWER_BYTES >> 10} KiB")
            data = self._in_time(self._socket.recv, min(self._left_bytes, _READ_BYTES))
            self._left_bytes -= len(data)
            self._http.receive_data(data)
        return event

    def _in_time(self, work: Callable[[_A], _R], argument: _A) -> _R:
        self._socket.settimeout(max(self._until_s - time.monotonic(), 0.001))
        try:
            return work(argument)
        except TimeoutError as error:
            raise TimeoutError("it takes too long to answer") from error


def _connected(server: Server, port: int) -> socket.socket:
    """Connect to one of a server's addresses, with TLS where its scheme says so. Raises OSError."""
    until, trouble = time.monotonic() + EXCHANGE_S, OSError("it has no address")
    for family, kind, protocol, _, address in server.look_up(port):
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(max(until - time.monotonic(), 0.01))
            plain.connect(address)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if server.scheme != "https":
                return plain
            plain.settimeout(max(until - time.monotonic(), 0.01))  # of the whole handshake
            return server.tls.context().wrap_socket(plain, server_hostname=server.host)
        except OSError as error:
            plain.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise
            trouble = error
    raise trouble


log = logging.getLogger("edgert.send")

_JSON = {"Content-Type": "application/json"}
_HURRY_S = 0.1
"""Seconds for the body of an answer that is known to have no end."""
_NEVER = (400, 406, 411, 413, 414, 415, 422, 431)
"""Answers that refuse the message itself, not the address or the moment (RFC 9110)."""


class WebhookPublisher:
    """An address that takes POST. ``headers`` are sent along; ``secret`` signs.

    Args:
        sends_images: whether the image of a message is sent, and not the message.
    """

    def __init__(
        self, server: Server, pipeline: str, headers: Mapping[str, str], secret: str, sends_images: bool = False
    ) -> None:
        self._server, self._pipeline, self._headers, self._secret = server, pipeline, headers, _key(secret)
        self._sends_images = sends_images
        self._port = server.port(443 if server.scheme == "https" else 80)
        self.name, self.stable_s, self.stays = server.name(self._port), 0.0, False
        parts = urlsplit(server.url)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._connection: Exchange | None = None
        self._is_odd = False

    def connect(self) -> None:
        """See :class:`~edgert.stages.sink.send.sender.Publisher`."""
        self._connection = Exchange(self._server, self._port, _HURRY_S if self._is_odd else BODY_S)

    def send(self, messages: Sequence[Message]) -> None:
        """See :class:`~edgert.stages.sink.send.sender.Publisher`."""
        assert self._connection is not None, "connect() comes first"
        for message in messages:
            body, about = _image(message.body) if self._sends_images else (message.body, _JSON)
            if not body:
                continue
            if self._connection.is_over:  # one message for each connection, or a long time without any
                self._connection.close()
                self.connect()
            status, said = self._connection.post(self._path, body, self._all_headers(message, body, about))
            if status in _NEVER:
                raise RefusedError(said, message)
            if not 200 <= status < 300:
                raise OSError(said)
            if self._connection.oddity and not self._is_odd:
                self._is_odd = True
                odd = self._connection.oddity
                log.warning("%s takes messages, and of its answers no more is read: %s", self.name, printable(odd))

    def close(self) -> None:
        """See :class:`~edgert.stages.sink.send.sender.Publisher`."""
        if self._connection is not None:
            self._connection.close()

    def _all_headers(self, message: Message, body: bytes, about: Mapping[str, str]) -> dict[str, str]:
        found = {
            **about,
            "User-Agent": "edgert",
            "ce-specversion": "1.0",
            "ce-id": message.id,
            "ce-source": f"/edgert/{self._pipeline}/{message.stream}",
            "ce-type": f"edgert.{message.kind}" + (f".{message.rule}" if message.rule else ""),
            **self._headers,
        }
        if self._server.user:
            pair = base64.b64encode(f"{self._server.user}:{self._server.password}".encode()).decode()
            found["Authorization"] = f"Basic {pair}"
        return {
            **found,
            **(signature(self._secret, message.id, int(time.time()), body) if self._secret else {}),
        }


def signature(key: bytes, number: str, time_s: int, body: bytes) -> dict[str, str]:
    """Return the headers that sign a message: HMAC-SHA256 of ``id.seconds.body``."""
    signed = hmac.new(key, b".".join((number.encode(), str(time_s).encode(), body)), hashlib.sha256).digest()
    return {
        "webhook-id": number,
        "webhook-timestamp": str(time_s),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def _image(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a message's image, empty without one, and headers with its type and time."""
    message = json.loads(body)
    if "image" not in message:
        return b"", {}
    image = message["image"]
    return base64.b64decode(image["data"]), {"Content-Type": image["type"], "ce-time": message["time"]}


def _key(secret: str) -> bytes:
    """Return the key of a secret: ``whsec_`` and base64, or any text."""
    return base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
