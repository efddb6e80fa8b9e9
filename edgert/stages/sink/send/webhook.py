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
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from edgert.errors import printable
from edgert.stages.sink.send.exchange import BODY_S, Exchange
from edgert.stages.sink.send.sender import RefusedError
from edgert.stages.sink.send.server import Server
from edgert.stages.sink.send.spool import Message

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
