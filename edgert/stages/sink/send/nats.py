"""NATS, by its own client; with JetStream every message is acknowledged, and a double is dropped there by its id."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

from edgert.stages.sink.send.server import PACKET_BYTES, TIMEOUT_S, Server, filled
from edgert.stages.sink.send.spool import Message

PORT = 4222
_CLOSE_S = 1.0
"""Most seconds for closing a connection."""


class NatsPublisher:
    """NATS publisher. Its client has its own event loop, so that it answers pings while nothing is sent."""

    def __init__(self, server: Server, subject: str, pipeline: str, jetstream: bool) -> None:
        self._server, self._subject, self._pipeline, self._jetstream = server, subject, pipeline, jetstream
        self.name, self.stable_s, self.stays = server.name(PORT), 0.0, False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None

    def connect(self) -> None:
        """See :class:`~edgert.stages.sink.send.sender.Publisher`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="edgert-nats", daemon=True).start()
        self._server.look_up(self._server.port(PORT))  # the loop's own look-up has no time-out
        self._wait(self._connect())

    def send(self, messages: Sequence[Message]) -> None:
        """See :class:`~edgert.stages.sink.send.sender.Publisher`."""
        self._wait(self._send(messages))

    def close(self) -> None:
        """See :class:`~edgert.stages.sink.send.sender.Publisher`."""
        loop, self._loop = self._loop, None
        if loop is not None:
            try:
                asyncio.run_coroutine_threadsafe(self._close(), loop).result(_CLOSE_S)
            finally:
                loop.call_soon_threadsafe(loop.stop)

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        from nats.errors import Error

        assert self._loop is not None, "connect() comes first"
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(2 * TIMEOUT_S)
        except (Error, asyncio.TimeoutError, TimeoutError) as error:
            future.cancel()
            raise OSError(_reason(error)) from error

    async def _connect(self) -> None:
        with_tls = {"tls": self._server.tls.context()} if self._server.scheme == "tls" else {}
        with_user = {"user": self._server.user, "password": self._server.password} if self._server.user else {}
        where = f"{'tls' if with_tls else 'nats'}://{self._server.host}:{self._server.port(PORT)}"
        self._client = _bounded()
        await self._client.connect(
            where, name=f"edgert {self._pipeline}", connect_timeout=TIMEOUT_S / 2, error_cb=_ignored,
            allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0.1, **with_tls, **with_user,
        )  # fmt: skip

    async def _send(self, messages: Sequence[Message]) -> None:
        stream = self._client.jetstream(timeout=TIMEOUT_S, publish_async_max_pending=len(messages) + 1)
        waiting = []
        for message in messages:
            subject = filled(self._subject, self._pipeline, message.stream, message.kind, message.rule)
            headers = {"Nats-Msg-Id": message.id}
            if self._jetstream:
                waiting.append(await stream.publish_async(subject, message.body, wait_stall=TIMEOUT_S, headers=headers))
            else:
                await self._client.publish(subject, message.body, headers=headers)
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)
        await self._client.flush(TIMEOUT_S)

    async def _close(self) -> None:
        if self._client is not None and not self._client.is_closed:
            await self._client.close()


def _bounded() -> Any:
    """Return a client of the package, which has no bound of its own, for servers that announce messages of any size."""
    from nats.aio.client import Client
    from nats.errors import ProtocolError
    from nats.protocol.parser import Parser

    class Bounded(Parser):
        async def parse(self, data: bytes = b"") -> None:
            """Raise ProtocolError, which ends the connection, for what is too long."""
            if len(self.buf) + len(data) > PACKET_BYTES:
                raise ProtocolError(f"the server sends more than {PACKET_BYTES} bytes at a time")
            await super().parse(data)

    client = Client()
    client._ps = Bounded(client)
    return client


async def _ignored(error: Exception) -> None:
    """Ignore an error between two sends: the next send shows it."""


def _reason(error: BaseException) -> str:
    kind = type(error).__name__
    if kind == "NoStreamResponseError":
        return "no JetStream stream takes this subject: nats stream add, or jetstream: false"
    return str(error).strip() or {"TimeoutError": "it does not answer"}.get(kind, kind)
