"""A TCP server that counts, limits and times its clients from ``accept()`` on. RTSP and HTTP use it.

Each phase of a connection has a :class:`~edgert.stages.sink.client_limits.FairGroup` with a limit of its own: silent,
TLS handshake, request, answer. So silent connections take no place from handshakes, nor unfinished handshakes from
answers. The protocol above TCP is a :class:`Handler`.
"""

import asyncio
import errno
import logging
import socket
import ssl
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from edgert.errors import DeviceError, cause
from edgert.stages.sink.client_limits import FairGroup, affordable_limit, descriptor_limit, reserved_descriptors
from edgert.stages.sink.tcp_connection import Connection

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_BACKLOG = 4096  # connections that wait for accept(); the kernel takes at most net.core.somaxconn
_ACCEPT_BURST = 4
"""Clients that are accepted in a row before connected ones are served."""
_STOP_S = 0.4
_PAUSE_S = 0.1
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Handler(Protocol[_T]):
    """A protocol above TCP."""

    async def read(self, client: Connection) -> _T:
        """Return the request of a client. The server limits the time for it.

        Raises:
            OSError: the client left, or sent no request.
        """

    async def answer(self, client: Connection, request: _T) -> None:
        """Answer a request. The handler limits the time for it."""


class TcpServer(Generic[_T]):
    """TCP server that handles each client in a separate task.

    Args:
        listener: listening socket, from :func:`listen`; closed at the end.
        tls: certificate of the server; None: no encryption.
        limit: maximum number of clients: half of it for silent ones, a sixth for each other phase. It is lowered where
            the process may open few descriptors.
    """

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None, handler: Handler[_T], limit: int) -> None:
        self._socket, self._tls, self._handler = listener, tls, handler
        self._silent = FairGroup[Connection](affordable_limit(limit // 2))
        self._handshaking, self._asking, self._answering = (
            FairGroup[Connection](affordable_limit(limit // 6)) for _ in range(3)
        )
        self._tasks = set[asyncio.Task[None]]()
        self._has_warned = False
        listener.setblocking(False)

    async def run(self) -> None:
        """Accept clients until the task is canceled; then end all of them."""
        loop, count = asyncio.get_running_loop(), 0
        try:
            while True:
                try:
                    sock, address = await loop.sock_accept(self._socket)
                except OSError as error:
                    if error.errno not in _OUT_OF_DESCRIPTORS or not await self._free_descriptor():
                        await asyncio.sleep(_PAUSE_S)
                    continue
                # The kernel gives the lowest free number, so the numbers above stay free for the pipeline's files.
                if sock.fileno() >= descriptor_limit() - reserved_descriptors() and not await self._free_descriptor():
                    sock.close()
                    continue
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                Connection(sock, (str(address[0]), address[1]), self._silent).start(self._start)
                count += 1
                if count % _ACCEPT_BURST == 0:
                    await asyncio.sleep(0)
        finally:
            self._socket.close()
            for client in self._silent:
                client.abort()
            while self._tasks:  # none is kept: the traceback of a canceled one leads here
                self._tasks.pop().cancel()

    async def _free_descriptor(self) -> bool:
        """Abort a client of the earliest phase that has any; return whether there was one."""
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("descriptors run short; connections of the busiest network are closed. fix: raise ulimit -n")
        groups = self._silent, self._handshaking, self._asking, self._answering
        if (occupied := next((group for group in groups if group), None)) is not None:
            occupied.oldest_of_busiest().abort()
        await asyncio.sleep(0 if occupied is not None else _PAUSE_S)  # until a descriptor is closed
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
                await client.handshake(self._tls, self._handshaking)
            client.move_to(self._asking)
            request = await self._handler.read(client)
            client.request_complete()
            client.move_to(self._answering)
            await self._handler.answer(client, request)
            await client.finish()
        except OSError as error:
            _LOG.debug("connection of %s ended: %s", client.address, error)
        finally:
            client.close()


class LoopThread:
    """A thread with an event loop that runs until its work ends.

    Args:
        work: main task, which :meth:`stop` cancels; the loop's other tasks are canceled when it ends.
    """

    def __init__(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(
            lambda _, about: _LOG.debug("%s: %s", name, about["message"], exc_info=about.get("exception"))
        )
        self._work: asyncio.Task[None] | None = self.loop.create_task(work)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel the work, and wait for its end at most 0.4 s."""
        work = self._work
        with suppress(RuntimeError):  # it has ended, and the loop is closed
            if work is not None:
                self.loop.call_soon_threadsafe(work.cancel)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        work = self._work
        assert work is not None, "only its end removes it"
        try:
            with suppress(asyncio.CancelledError):
                self.loop.run_until_complete(work)
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks))
            self.loop.close()
            tasks.clear()  # a canceled task's traceback leads here: a cycle, which would keep the server
            self._work = None  # so does its own, up to Python 3.10


async def wait_for_ever() -> None:
    """Wait until the task is canceled."""
    await asyncio.Event().wait()


def listen(host: str, port: int, where: str) -> socket.socket:
    """Return a listening socket; port 0 picks a free one.

    Args:
        host: IPv4 address, IPv6 address, or name.
        port: port number, or 0.
        where: the stage, for the error.

    Raises:
        DeviceError: the address is in use, or does not belong to this machine.
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
