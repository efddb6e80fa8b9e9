"""NATS, by its own client: one connection for what is sent and for what is received.

With JetStream every message is acknowledged, and a double is dropped there by its id.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import TimeoutError as NotInTime
from typing import Any, TypeVar

from edgert.runtime.trace_ids import traceparent_of
from edgert.stages.sink.send.sender import RefusedError
from edgert.stages.sink.send.server import PACKET_BYTES, TIMEOUT_S, Server, filled
from edgert.stages.sink.send.spool import Message

PORT = 4222
_CLOSE_S = 1.0
"""Most seconds for closing a connection."""
_TRACE = re.compile(rb'"trace":"([0-9a-f]{32})"')
_NO_JETSTREAM = "JetStream is off: start nats-server with -js, or for a user's account turn it on"
_NO_STREAM = f"no JetStream stream takes this subject: nats stream add, or jetstream: false; or {_NO_JETSTREAM}"
_HEADER_BYTES = 256
"""Of a message's headers, which count for the server's limit."""
T = TypeVar("T")


class NatsConnection:
    """A connection to a NATS server. It has its own event loop, so that pings are answered while nothing is sent.

    All methods but :meth:`soon` wait, and raise OSError where the server does not answer or refuses.

    Args:
        title: of this client, in the server's list of connections.
        limit_bytes: the most that is held of what the server sends at a time; the client has no bound of its own.
    """

    def __init__(self, server: Server, title: str, limit_bytes: int = PACKET_BYTES) -> None:
        self._server, self._title, self._limit_bytes = server, title, limit_bytes
        self.name = server.name(PORT)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.client: Any = None

    def open(self) -> None:
        """Connect."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(self._loop,), name="edgert-nats", daemon=True).start()
        self._server.look_up(self._server.port(PORT))  # the loop's own look-up has no time-out
        self.wait(self._connect(), 2 * TIMEOUT_S)

    def close(self) -> None:
        """Disconnect, even where the connection is lost."""
        loop = self._loop
        if loop is not None:
            try:
                self.wait(self._close(), _CLOSE_S)
            finally:
                self._loop = None
                loop.call_soon_threadsafe(loop.stop)

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return what a coroutine of this connection returns."""
        from nats.errors import Error

        assert self._loop is not None, "open() comes first"
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except (Error, asyncio.TimeoutError, NotInTime) as error:
            future.cancel()
            raise OSError(reason(error)) from error

    def soon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Schedule a call in the connection's thread; do nothing where it is closed."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(lambda: asyncio.ensure_future(work()))

    async def _connect(self) -> None:
        server = self._server
        with_tls = {"tls": server.tls.context()} if server.scheme == "tls" else {}
        with_user = {"user": server.user, "password": server.password} if server.user else {}
        where = f"{'tls' if with_tls else 'nats'}://{server.host}:{server.port(PORT)}"
        self.client = _bounded(self._limit_bytes)
        await self.client.connect(
            where, name=self._title, connect_timeout=TIMEOUT_S / 2, error_cb=_ignored,
            allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0.1, **with_tls, **with_user,
        )  # fmt: skip

    async def _close(self) -> None:
        if self.client is not None and not self.client.is_closed:
            await self.client.close()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and give its descriptors back."""
    try:
        loop.run_forever()
    finally:
        loop.close()


class NatsPublisher:
    """NATS publisher."""

    def __init__(self, server: Server, subject: str, pipeline: str, jetstream: bool) -> None:
        self._connection = NatsConnection(server, f"edgert {pipeline}")
        self._subject, self._pipeline, self._jetstream = subject, pipeline, jetstream
        self.name, self.stable_s, self.stays = self._connection.name, 0.0, False
        self.connect, self.close = self._connection.open, self._connection.close

    def send(self, messages: Sequence[Message]) -> None:
        """See :class:`~edgert.stages.sink.send.sender.Publisher`."""
        client = self._connection.client
        for number, message in enumerate(messages):
            if len(message.body) + _HEADER_BYTES > client.max_payload:
                self._connection.wait(self._send(messages[:number]), 2 * TIMEOUT_S)
                limit = f"the server takes {client.max_payload} (max_payload in its configuration)"
                raise RefusedError(f"it has {len(message.body)} bytes, and {limit}", message)
        self._connection.wait(self._send(messages), 2 * TIMEOUT_S)

    async def _send(self, messages: Sequence[Message]) -> None:
        client = self._connection.client
        stream = client.jetstream(timeout=TIMEOUT_S, publish_async_max_pending=len(messages) + 1)
        waiting = []
        for message in messages:
            subject = filled(self._subject, self._pipeline, message.stream, message.kind, message.rule)
            headers = headers_of(message)
            if self._jetstream:
                waiting.append(await stream.publish_async(subject, message.body, wait_stall=TIMEOUT_S, headers=headers))
            else:
                await client.publish(subject, message.body, headers=headers)
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)
        await client.flush(TIMEOUT_S)


def headers_of(message: Message) -> Mapping[str, str]:
    """Return the headers of a message: the id by which doubles are dropped, and its place in a trace (W3C)."""
    headers = {"Nats-Msg-Id": message.id}
    if trace := _TRACE.search(message.body):
        headers["traceparent"] = traceparent_of(trace[1].decode())
    return headers


def _bounded(limit_bytes: int) -> Any:
    """Return a client of the package, which has no bound of its own, for servers that announce messages of any size."""
    from nats.aio.client import Client
    from nats.errors import ProtocolError
    from nats.protocol.parser import Parser

    class Bounded(Parser):
        async def parse(self, data: bytes = b"") -> None:
            """Raise ProtocolError, which ends the connection, for what is too long."""
            if len(self.buf) + len(data) > limit_bytes:
                raise ProtocolError(f"the server sends more than {limit_bytes} bytes at a time")
            await super().parse(data)

    client = Client()
    client._ps = Bounded(client)
    return client


async def _ignored(error: Exception) -> None:
    """Ignore an error between two sends: the next send shows it."""


def reason(error: BaseException) -> str:
    """Return an error of the client in words."""
    kind = type(error).__name__
    if kind in ("ServiceUnavailableError", "NoRespondersError"):  # whose own text is "code=None"
        return _NO_JETSTREAM
    if kind == "NoStreamResponseError":
        return _NO_STREAM
    return str(error).strip() or {"TimeoutError": "it does not answer"}.get(kind, kind)
