"""A TCP server that counts, limits and times its clients from ``accept()`` on; RTSP and HTTP are served by it.

Every client is in a group before anything is done for it: before TLS, a token or a request. Each phase that a client
may leave unfinished has a group of its own; see :class:`~edgert.stages.sink.client_limits.FairGroup`. So connections
that send nothing hinder nobody's handshake, and unfinished handshakes hinder nobody's answer. The protocol is up to a
:class:`Handler`.
"""

import asyncio
import errno
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from edgert.errors import DeviceError, cause
from edgert.stages.sink.client_limits import FairGroup, affordable, descriptor_limit, reserved_descriptors
from edgert.stages.sink.tcp_connection import Connection

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_BACKLOG = 4096  # connections that wait for accept(); the kernel takes at most net.core.somaxconn
_ACCEPTED_AT_ONCE = 4
"""Clients that are accepted before those that are there are served."""
_STOP_S = 0.4
_PAUSE_S = 0.1
_NONE_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Handler(Protocol[_T]):
    """A protocol above TCP."""

    async def read(self, client: Connection) -> _T:
        """Return the request of a client. The time for it is limited by the server.

        Raises:
            OSError: the client left, or there is nothing to answer.
        """
        ...

    async def answer(self, client: Connection, request: _T) -> None:
        """Answer a request, within deadlines of its own."""
        ...


class TcpServer(Generic[_T]):
    """TCP server that handles each client in a separate task.

    Args:
        own: the socket; closed at the end. See :func:`listen`.
        tls: the server's certificate; None: connections are not encrypted.
        limit: how many clients there may be. A half of them may have sent nothing yet, and a sixth may be in each of
            the other phases. Where the process may open few descriptors, there are fewer.
    """

    def __init__(self, own: socket.socket, tls: ssl.SSLContext | None, handler: Handler[_T], limit: int) -> None:
        self._socket, self._tls, self._handler = own, tls, handler
        self._silent = FairGroup[Connection](affordable(limit // 2))
        self._shaking, self._asking, self._answered = (FairGroup[Connection](affordable(limit // 6)) for _ in range(3))
        self._tasks = set[asyncio.Task[None]]()
        self._has_warned = False
        own.setblocking(False)

    async def run(self) -> None:
        """Accept clients until the task is canceled; then end all of them."""
        loop, count = asyncio.get_running_loop(), 0
        try:
            while True:
                try:
                    own, address = await loop.sock_accept(self._socket)
                except OSError as error:
                    if error.errno not in _NONE_FREE or not await self._frees_one():
                        await asyncio.sleep(_PAUSE_S)
                    continue
                # The kernel gives the lowest free number. Above this one, the rest is for files of the pipeline.
                if own.fileno() >= descriptor_limit() - reserved_descriptors() and not await self._frees_one():
                    own.close()
                    continue
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                Connection(own, (str(address[0]), address[1]), self._silent).start(self._start)
                count += 1
                if count % _ACCEPTED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            self._socket.close()
            for client in self._silent:
                client.abort()
            for task in tuple(self._tasks):
                task.cancel()

    async def _frees_one(self) -> bool:
        """Abort the first client to go of the earliest phase; return whether there was one."""
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("descriptors run short; the oldest clients of the network are turned away")
        groups = self._silent, self._shaking, self._asking, self._answered
        if (occupied := next((group for group in groups if group), None)) is not None:
            occupied.first_to_go().abort()
        await asyncio.sleep(0 if occupied is not None else _PAUSE_S)  # until it is closed, or something else is
        return occupied is not None

    def _start(self, client: Connection) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, client: Connection) -> None:
        try:
            await client.wait_for_data()
            if self._tls is not None:
                await client.handshake(self._tls, self._shaking)
            client.move_to(self._asking)
            request = await self._handler.read(client)
            client.request_complete()
            client.move_to(self._answered)
            await self._handler.answer(client, request)
            await client.finish()
        except OSError as error:
            _LOG.debug("connection of %s ended: %s", client.address, error)
        finally:
            client.close()


class LoopThread:
    """A thread that runs an event loop until its work is done, or stopped.

    Args:
        work: canceled by :meth:`stop`; other tasks of the loop are canceled when it ends.
        on_error: called with exceptions that nothing else caught.
    """

    def __init__(self, name: str, work: Coroutine[Any, Any, None], on_error: Callable[[BaseException], None]) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _, about: on_error(about.get("exception") or RuntimeError(about)))
        self._work = self.loop.create_task(work)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel the work, and wait for its end for less than half a second."""
        with suppress(RuntimeError):  # it has ended, and the loop is closed
            self.loop.call_soon_threadsafe(self._work.cancel)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                self.loop.run_until_complete(self._work)
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks))
            self.loop.close()


def listen(host: str, port: int, where: str) -> socket.socket:
    """Return a listening socket; port 0 picks a free one.

    Args:
        host: an IPv4 or IPv6 address, or a name.
        port: a number, or 0.
        where: the stage, for the error.

    Raises:
        DeviceError: the address is in use, or is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        raise DeviceError(
            f"cannot listen on {host}:{port}",
            why="another program is listening there" if in_use else cause(error),
            where=where,
            fix="choose another port, or port: 0 for any free one" if in_use else "host: 127.0.0.1 always works",
            code="E806",
        ) from error
