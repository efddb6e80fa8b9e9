"""NATS by its own client, for sinks and sources.

JetStream acknowledges every message, and drops duplicates by their ids.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from edgert.runtime.trace_ids import traceparent_of
from edgert.stages.context import Context
from edgert.stages.sink.send.segment import Message
from edgert.stages.sink.send.sender import RefusedError
from edgert.stages.sink.send.server import PACKET_BYTES, TIMEOUT_S, Server, fill_topic
from edgert.stages.sink.send.sink import Sends, Topic
from edgert.stages.sink.tcp_server import LoopThread, wait_for_ever

PORT = 4222
_CLOSE_S = 1.0
"""Maximum seconds for closing a connection."""
_TRACE = re.compile(rb'"trace":"([0-9a-f]{32})"')
_NO_JETSTREAM = "JetStream is off: start nats-server with -js, or for a user's account turn it on"
_NO_STREAM = f"no JetStream stream takes this subject: nats stream add, or jetstream: false; or {_NO_JETSTREAM}"
_HEADER_BYTES = 256
"""Approximate size of a message's headers, which count for the server's limit."""
T = TypeVar("T")


class NatsConnection:
    """A connection to a NATS server. Its event loop answers pings while nothing is sent.

    All methods but :meth:`soon` wait, and raise OSError where the server refuses or does not answer.

    Args:
        title: name of this client, in the server's list of connections.
        limit_bytes: maximum size of unparsed data from the server, which the client itself does not limit.
    """

    def __init__(self, server: Server, title: str, limit_bytes: int = PACKET_BYTES) -> None:
        self._server, self._title, self._limit_bytes = server, title, limit_bytes
        self.name = server.name(PORT)
        self._thread: LoopThread | None = None
        self.client: Any = None

    def open(self) -> None:
        """Connect."""
        self._thread = self._thread or LoopThread("edgert-nats", wait_for_ever())
        self._server.look_up(self._server.port(PORT))  # the loop's own look-up has no time-out
        self.wait(self._connect(), 2 * TIMEOUT_S)

    def close(self) -> None:
        """Disconnect, even where the connection is lost."""
        thread = self._thread
        if thread is not None:
            try:
                self.wait(self._close(), _CLOSE_S)
            finally:
                self._thread = None
                thread.stop()

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine in the connection's thread; return its result."""
        from nats.errors import Error

        assert self._thread is not None, "open() comes first"
        future = asyncio.run_coroutine_threadsafe(work, self._thread.loop)
        try:
            return future.result(timeout_s)
        except (Error, asyncio.TimeoutError, NotInTime) as error:
            future.cancel()
            raise OSError(reason(error)) from error

    def soon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start a coroutine in the connection's thread without waiting, unless it is closed."""
        thread = self._thread
        if thread is not None and not thread.loop.is_closed():
            thread.loop.call_soon_threadsafe(lambda: asyncio.ensure_future(work()))

    async def _connect(self) -> None:
        server = self._server
        with_tls = {"tls": server.tls.context()} if server.scheme == "tls" else {}
        with_user = {"user": server.user, "password": server.password} if server.user else {}
        where = f"{'tls' if with_tls else 'nats'}://{server.host}:{server.port(PORT)}"
        self.client = _bounded(self._limit_bytes)
        await self.client.connect(
            where, name=self._title, connect_timeout=TIMEOUT_S / 2, error_cb=_ignore_error,
            allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0.1, **with_tls, **with_user,
        )  # fmt: skip

    async def _close(self) -> None:
        if self.client is not None and not self.client.is_closed:
            await self.client.close()


class Nats(Sends):
    """A NATS server."""

    schemes: ClassVar[tuple[str, ...]] = ("nats", "tls")
    extra: ClassVar[tuple[str, str]] = ("nats", "nats")
    subject: Topic = Field(
        default="edgert.{pipeline}.{stream}.{rule}", description="subject, with the fields of an MQTT topic"
    )
    jetstream: bool = Field(default=True, description="a JetStream stream stores and acknowledges; false: plain NATS")

    def publisher(self, context: Context, spool: Path | None) -> NatsPublisher:
        return NatsPublisher(self, context.pipeline)


class NatsPublisher:
    """Publisher to NATS."""

    def __init__(self, config: Nats, pipeline: str) -> None:
        self._connection = NatsConnection(config.connection(), f"edgert {pipeline}")
        self._subject, self._pipeline, self._jetstream = config.subject, pipeline, config.jetstream
        self.name, self.stable_s, self.stays = self._connection.name, 0.0, False
        self.connect, self.close = self._connection.open, self._connection.close

    def send(self, messages: Sequence[Message]) -> None:
        client = self._connection.client
        for number, message in enumerate(messages):
            if len(message.body) + _HEADER_BYTES > client.max_payload:
                self._connection.wait(self._send(messages[:number]), 2 * TIMEOUT_S)
                limit = f"the server accepts {client.max_payload} (max_payload in its configuration)"
                raise RefusedError(f"it has {len(message.body)} bytes; {limit}", message)
        self._connection.wait(self._send(messages), 2 * TIMEOUT_S)

    async def _send(self, messages: Sequence[Message]) -> None:
        client = self._connection.client
        stream = client.jetstream(timeout=TIMEOUT_S, publish_async_max_pending=len(messages) + 1)
        waiting = []
        for message in messages:
            subject = fill_topic(self._subject, self._pipeline, message.stream, message.kind, message.rule)
            headers = headers_of(message)
            if self._jetstream:
                waiting.append(await stream.publish_async(subject, message.body, wait_stall=TIMEOUT_S, headers=headers))
            else:
                await client.publish(subject, message.body, headers=headers)
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)
        await client.flush(TIMEOUT_S)


def headers_of(message: Message) -> Mapping[str, str]:
    """Return the headers of a message: its id, by which duplicates are dropped, and its W3C trace."""
    headers = {"Nats-Msg-Id": message.id}
    if trace := _TRACE.search(message.body):
        headers["traceparent"] = traceparent_of(trace[1].decode())
    return headers


def _bounded(limit_bytes: int) -> Any:
    """Return a client with a limit on the size of messages, which servers may announce of any size."""
    from nats.aio.client import Client
    from nats.errors import ProtocolError
    from nats.protocol.parser import Parser

    class Bounded(Parser):
        async def parse(self, data: bytes = b"") -> None:
            """Parse data. Raise ProtocolError, which ends the connection, for too large messages."""
            if len(self.buf) + len(data) > limit_bytes:
                raise ProtocolError(f"the server sends more than {limit_bytes} bytes at a time")
            await super().parse(data)

    client = Client()
    client._ps = Bounded(client)
    return client


async def _ignore_error(error: Exception) -> None:
    """Ignore an error between two sends, because the next send raises it."""


def reason(error: BaseException) -> str:
    """Return the reason of the client's error, in words."""
    kind = type(error).__name__
    if kind in ("ServiceUnavailableError", "NoRespondersError"):  # whose own text is "code=None"
        return _NO_JETSTREAM
    if kind == "NoStreamResponseError":
        return _NO_STREAM
    return str(error).strip() or {"TimeoutError": "it does not answer"}.get(kind, kind)
