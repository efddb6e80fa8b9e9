"""Webhooks: an HTTP POST of every message, as a signed CloudEvent.

The body is the message, with the headers of a CloudEvent in binary mode
(https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/http-protocol-binding.md). With a secret, it is
signed by https://www.standardwebhooks.com, whose libraries check signatures.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeVar
from urllib.parse import quote, urlsplit

import h11
from pydantic import Field, model_validator

from edgert import limits
from edgert.errors import printable
from edgert.stages.context import Context
from edgert.stages.sink.send.segment import Message
from edgert.stages.sink.send.sender import Publisher, RefusedError
from edgert.stages.sink.send.server import Server
from edgert.stages.sink.send.sink import Sends

EXCHANGE_S = limits.EXCHANGE_S
"""Maximum seconds for a request and its answer."""
BODY_S = 2.0
"""Maximum seconds for an answer's body, which matters less than its status."""
_ANSWER_BYTES = limits.ANSWER_BYTES
"""Maximum size of an answer, with its headers and interim answers."""
_READ_BYTES = 4096
_A = TypeVar("_A")
_R = TypeVar("_R")


class Exchange:
    """A connection to an HTTP server, for one request after another, with limits on time and size. Not thread-safe.

    Args:
        body_s: seconds to wait for an answer's body.

    Attributes:
        oddity: what was wrong with the last answer after its status; empty for nothing.
    """

    def __init__(self, server: Server, port: int, body_s: float = BODY_S) -> None:
        self._body_s = body_s
        host = f"[{server.host}]" if ":" in server.host else server.host
        self._host = host if port == (443 if server.scheme == "https" else 80) else f"{host}:{port}"
        self._socket = _connect(server, port)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ANSWER_BYTES)
        self.oddity = ""

    @property
    def is_over(self) -> bool:
        """Whether the next request needs another connection."""
        return self._http.our_state is not h11.IDLE or bool(select.select([self._socket], [], [], 0)[0])

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """Send a request and wait for its answer.

        Returns:
            The status code, and a line with the status and the beginning of the answer.

        Raises:
            OSError: no valid answer comes in time.
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
            raise OSError(f"HTTP failed: {error}") from error
        said = " ".join(self._body().decode(errors="replace").split())  # of a page, say: one line of the log
        return answer.status_code, f"HTTP {answer.status_code} {answer.reason.decode('latin-1')}: {said[:120]}"

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _body(self) -> bytes:
        """Return the body of an answer. Where it is too long or too slow, close the connection."""
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
        """Return the next part of an answer. Raises OSError beyond the limits of time or size."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._left_bytes <= 0:
                raise OSError(f"its answer is longer than {_ANSWER_BYTES >> 10} KiB")
            data = self._in_time(self._socket.recv, min(self._left_bytes, _READ_BYTES))
            self._left_bytes -= len(data)
            self._http.receive_data(data)
        return event

    def _in_time(self, work: Callable[[_A], _R], argument: _A) -> _R:
        """Call a method of the socket, within the time that is left. Raises OSError."""
        self._socket.settimeout(max(self._until_s - time.monotonic(), 0.001))
        try:
            return work(argument)
        except TimeoutError as error:
            raise TimeoutError("the answer takes too long") from error


def _connect(server: Server, port: int) -> socket.socket:
    """Return a connection to one of a server's addresses, with TLS for ``https``. Raises OSError."""
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
_ODD_BODY_S = 0.1
"""Maximum seconds for an answer's body from a server whose answers do not end."""
_REFUSALS = (400, 406, 411, 413, 414, 415, 422, 431)
"""Status codes that refuse the message itself, for ever (RFC 9110)."""
_KEY = re.compile(r"whsec_(?=.)([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


class Webhook(Sends):
    """An HTTP POST of every message, as a CloudEvent."""

    schemes: ClassVar[tuple[str, ...]] = ("http", "https")
    headers: dict[str, str] = Field(default_factory=dict, repr=False, description="additional HTTP headers")
    secret: str = Field(default="", repr=False, description="key that signs messages (standardwebhooks.com)")
    body: Literal["json", "image"] = Field(
        default="json",
        description="json: the message; image: the JPEG alone, with details in headers",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Webhook:
        if self.body == "image" and self.attach is None:
            raise ValueError("body: image sends what attach: makes; add attach: frame, or attach: crop of events")
        if not self.secret and "secret" in self.model_fields_set:  # such as ${SECRET} of an empty variable
            raise ValueError("secret: it is empty; leave it out to send messages unsigned")
        if self.secret.startswith("whsec_") and not _KEY.fullmatch(self.secret):
            raise ValueError("secret: expected base64 behind whsec_")
        return self

    def publisher(self, context: Context, spool: Path | None) -> WebhookPublisher:
        return WebhookPublisher(self, context.pipeline)


class WebhookPublisher(Publisher):
    """Publisher to an HTTP address."""

    def __init__(self, config: Webhook, pipeline: str) -> None:
        self._config, self._pipeline, self._key = config, pipeline, _signing_key(config.secret)
        server = self._server = config.connection()
        self._port = server.port(443 if server.scheme == "https" else 80)
        self.name = server.name(self._port)
        parts = urlsplit(server.url)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._connection: Exchange | None = None
        self._is_odd = False

    def connect(self) -> None:
        self._connection = Exchange(self._server, self._port, _ODD_BODY_S if self._is_odd else BODY_S)

    def send(self, messages: Sequence[Message]) -> None:
        assert self._connection is not None, "connect() comes first"
        for message in messages:
            body, about = _image(message.body) if self._config.body == "image" else (message.body, _JSON)
            if not body:
                continue
            if self._connection.is_over:  # the server closed it after one message, or after a long time
                self._connection.close()
                self.connect()
            status, said = self._connection.post(self._path, body, self._all_headers(message, body, about))
            if status in _REFUSALS:
                raise RefusedError(said, message)
            if not 200 <= status < 300:
                raise OSError(said)
            if self._connection.oddity and not self._is_odd:
                self._is_odd = True
                odd = self._connection.oddity
                log.warning("%s takes messages, but its answers are cut off: %s", self.name, printable(odd))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _all_headers(self, message: Message, body: bytes, about: Mapping[str, str]) -> dict[str, str]:
        found = {
            **about,
            "User-Agent": "edgert",
            "ce-specversion": "1.0",
            "ce-id": message.id,
            "ce-source": quote(f"/edgert/{self._pipeline}/{message.stream}"),
            "ce-type": quote(f"edgert.{message.kind}" + (f".{message.rule}" if message.rule else "")),
            **self._config.headers,
        }
        if self._server.user:
            pair = base64.b64encode(f"{self._server.user}:{self._server.password}".encode()).decode()
            found["Authorization"] = f"Basic {pair}"
        return found | (signature(self._key, message.id, int(time.time()), body) if self._key else {})


def signature(key: bytes, number: str, time_s: int, body: bytes) -> dict[str, str]:
    """Return the headers that sign a message: HMAC-SHA256 of ``id.seconds.body``."""
    signed = hmac.new(key, b".".join((number.encode(), str(time_s).encode(), body)), hashlib.sha256).digest()
    return {
        "webhook-id": number,
        "webhook-timestamp": str(time_s),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


def _image(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a message's image, and headers with its type and time; no bytes without an image."""
    message = json.loads(body)
    if "image" not in message:
        return b"", {}
    image = message["image"]
    return base64.b64decode(image["data"]), {"Content-Type": image["type"], "ce-time": message["time"]}


def _signing_key(secret: str) -> bytes:
    """Return the key of a secret, which is ``whsec_`` and base64, or any text."""
    return base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
