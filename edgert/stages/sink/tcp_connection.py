"""One TCP connection of a client, with or without TLS. Every wait has a time limit."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator

from edgert import limits
from edgert.stages.sink.client_limits import FairGroup, client_network

_READ_BYTES = 1 << 14  # as much as a TLS record holds
_SENT_BYTES = 1 << 16
_HANDSHAKE_RECORD = 22
_GOODBYE_S = 1.0
_GOODBYE_BYTES = 4 << 20
"""Maximum of a refused request that is read. Browsers and curl send all of it before they read the answer."""


class Connection:
    """The connection of one client. Use it in the thread of its event loop.

    Attributes:
        address: the client's IP address.
        port: the client's port.
        network: the client's network, from :func:`~edgert.stages.sink.client_limits.client_network`.
    """

    def __init__(self, sock: socket.socket, address: tuple[str, int], group: "FairGroup[Connection]") -> None:
        (self.address, self.port), self.network = address, client_network(address[0])
        self._socket, self._loop, self._group = sock, asyncio.get_running_loop(), group
        self._first_bytes = b""
        self._tls: ssl.SSLObject | None = None
        self._task: asyncio.Task[None] | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        group.add(self)

    def start(self, serve: "Callable[[Connection], asyncio.Task[None]]") -> None:
        """Start a task when the client first sends something; until then a connection takes hardly any memory.

        The connection is aborted when :meth:`request_complete` is not called in time.
        """

        def readable() -> None:
            self._loop.remove_reader(self._socket)
            self._task = serve(self)

        self._request_timer = self._loop.call_later(limits.PAGE_HEAD_S, self.abort)
        self._loop.add_reader(self._socket, readable)

    def request_complete(self) -> None:
        """Stop the timer that aborts the connection while its request is incomplete."""
        if self._request_timer is not None:
            self._request_timer.cancel()

    def move_to(self, group: "FairGroup[Connection]") -> None:
        """Move the client to the group of its next phase."""
        self._group.remove(self)
        self._group = group
        group.add(self)

    def abort(self) -> None:
        """End the connection, even in the middle of a wait."""
        self._group.remove(self)
        if self._task is not None:
            self._task.cancel()
        elif self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self.close()

    @contextlib.contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Abort the connection if the ``with`` block takes longer."""
        timer = self._loop.call_later(seconds, self.abort)
        try:
            yield
        finally:
            timer.cancel()

    async def wait_for_data(self) -> None:
        """Wait for the client's first bytes. Raises ConnectionAbortedError if it leaves without sending any."""
        self._first_bytes = await self._read_socket()
        if not self._first_bytes:
            raise ConnectionAbortedError("the client sent nothing")

    async def handshake(self, context: ssl.SSLContext, group: "FairGroup[Connection]") -> None:
        """Do the TLS handshake; the client enters ``group`` once it has sent a complete message.

        A TLS record begins with its length (RFC 8446, section 5.1). OpenSSL gets a record only once it is complete, so
        it allocates nothing for a client that sends only a part.

        Raises:
            OSError: the client left, or does not speak TLS (ssl.SSLError).
        """
        hello = await self.receive()
        while hello[0] == _HANDSHAKE_RECORD and len(hello) < 5 + min(int.from_bytes(hello[3:5], "big"), _READ_BYTES):
            if not (more := await self._read_socket()):
                raise ConnectionAbortedError("the client left during the TLS handshake")
            hello += more
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._in.write(hello)
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                if self._out.pending and self._group is not group:
                    self.move_to(group)
                await self._flush_tls()
                await self._feed_tls()
            except ssl.SSLError:
                await self._flush_tls()  # sends the reason as an alert
                raise
            else:
                return await self._flush_tls()

    async def receive(self) -> bytes:
        """Return the client's next bytes, at most 16 KiB; none at the end of its data."""
        if self._first_bytes:
            first, self._first_bytes = self._first_bytes, b""
            return first
        return await (self._read_socket() if self._tls is None else self._read_tls(self._tls))

    async def send(self, data: bytes) -> None:
        """Send all bytes. Abort the connection if the client takes longer than the limit for any 64 KiB.

        Raises:
            OSError: the client left.
        """
        rest = memoryview(data)
        for at in range(0, len(rest), _SENT_BYTES):
            part = rest[at : at + _SENT_BYTES]
            with self.deadline(limits.PAGE_SEND_S):
                if self._tls is None:
                    await self._loop.sock_sendall(self._socket, part)
                else:
                    self._tls.write(part)
                    await self._flush_tls()

    def set_send_buffer(self, size_bytes: int) -> None:
        """Set the size of the kernel's send buffer, ``SO_SNDBUF``."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)

    async def finish(self) -> None:
        """End our side, then discard what the client still sends: a reset would destroy the unread answer."""
        if self._socket.fileno() < 0:
            return
        with self.deadline(_GOODBYE_S):
            if self._tls is not None:
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
                await self._flush_tls()
            self._socket.shutdown(socket.SHUT_WR)
        with self.deadline(limits.PAGE_HEAD_S):
            left = _GOODBYE_BYTES
            while left > 0 and (size := await self._discard_some()):
                left -= size
                await asyncio.sleep(0)  # serves other clients between the reads of a fast sender

    async def _discard_some(self) -> int:
        with self.deadline(_GOODBYE_S):
            return len(await self._read_socket())

    def detach(self) -> int:
        """Remove and return the descriptor, which the caller must close. Only without TLS."""
        self._group.remove(self)
        return self._socket.detach()

    def close(self) -> None:
        """Close the socket and free the TLS state, because a canceled task may keep this object alive."""
        self._group.remove(self)
        self.request_complete()
        self._socket.close()
        self._task = self._tls = None

    async def _read_socket(self) -> bytes:
        return await self._loop.sock_recv(self._socket, _READ_BYTES)

    async def _read_tls(self, tls: ssl.SSLObject) -> bytes:
        while True:
            try:
                return tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush_tls()
                await self._feed_tls()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def _feed_tls(self) -> None:
        if data := await self._read_socket():
            self._in.write(data)
        else:
            self._in.write_eof()

    async def _flush_tls(self) -> None:
        while data := self._out.read():
            await self._loop.sock_sendall(self._socket, data)
