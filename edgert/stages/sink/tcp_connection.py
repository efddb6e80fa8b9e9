"""One TCP connection of a client, with or without TLS, in which every wait has an end."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator

from edgert import limits
from edgert.stages.sink.client_limits import FairGroup, network_of

_READ_BYTES = 1 << 14  # at once: as much as a TLS record holds
_SENT_BYTES = 1 << 16
_HANDSHAKE_RECORD = 22
_GOODBYE_S = 1.0
_GOODBYE_BYTES = 4 << 20
"""Bytes of a refused request that are discarded. Browsers and curl send all of it before they read the answer."""


class Connection:
    """The connection of one client. Use it in the thread of its event loop.

    Attributes:
        address: the client's IP address.
        port: the client's port.
        network: what is counted as one client; see :func:`~edgert.stages.sink.client_limits.network_of`.
    """

    def __init__(self, own: socket.socket, address: tuple[str, int], group: "FairGroup[Connection]") -> None:
        (self.address, self.port), self.network = address, network_of(address[0])
        self._socket, self._loop, self._group = own, asyncio.get_running_loop(), group
        self._first, self._tls = b"", None  # type: tuple[bytes, ssl.SSLObject | None]
        self._task: asyncio.Task[None] | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        group.add(self)

    def start(self, serve: "Callable[[Connection], asyncio.Task[None]]") -> None:
        """Start a task as soon as the client sends something; until then a connection costs next to nothing.

        The connection is aborted when :meth:`request_complete` is not called in time.
        """

        def readable() -> None:
            self._loop.remove_reader(self._socket)
            self._task = serve(self)

        self._request_timer = self._loop.call_later(limits.PAGE_HEAD_S, self.abort)
        self._loop.add_reader(self._socket, readable)

    def request_complete(self) -> None:
        """Stop the timer that aborts a client whose request takes too long to arrive."""
        if self._request_timer is not None:
            self._request_timer.cancel()

    def move_to(self, group: "FairGroup[Connection]") -> None:
        """Enter the next phase."""
        self._group.remove(self)
        self._group = group
        group.add(self)

    def abort(self) -> None:
        """End the connection, whatever it waits for."""
        self._group.remove(self)
        if self._task is not None:
            self._task.cancel()
        elif self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self.close()

    @contextlib.contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Abort the connection when the body of the ``with`` statement takes longer."""
        timer = self._loop.call_later(seconds, self.abort)
        try:
            yield
        finally:
            timer.cancel()

    async def wait_for_data(self) -> None:
        """Wait for the client's first bytes. Raises ConnectionAbortedError where it leaves without sending any."""
        self._first = await self._received()
        if not self._first:
            raise ConnectionAbortedError("the client sent nothing")

    async def handshake(self, context: ssl.SSLContext, group: "FairGroup[Connection]") -> None:
        """Do the TLS handshake, in a group that the client enters once it has sent a complete message.

        A record announces its length (RFC 8446, section 5.1). OpenSSL gets none of it before it is complete, and so
        allocates nothing for a client that sends only a part.

        Raises:
            OSError: the client left, or speaks something else (ssl.SSLError).
        """
        hello = await self.receive()
        while hello[0] == _HANDSHAKE_RECORD and len(hello) < 5 + min(int.from_bytes(hello[3:5], "big"), _READ_BYTES):
            if not (more := await self._received()):
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
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                await self._flush()  # the reason, as an alert
                raise
            else:
                return await self._flush()

    async def receive(self) -> bytes:
        """Return the next bytes of the client, at most 16 KiB; none where it has ended its side."""
        if self._first:
            first, self._first = self._first, b""
            return first
        return await (self._received() if self._tls is None else self._decrypted(self._tls))

    async def send(self, data: bytes) -> None:
        """Send everything. Abort the connection where the client takes 64 KiB too slowly.

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
                    await self._flush()

    def set_send_buffer(self, size_bytes: int) -> None:
        """Set how many bytes the kernel holds of what the client has not taken yet."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)

    async def finish(self) -> None:
        """End our side, then read what the client still sends: a reset would destroy what it has not read yet."""
        if self._socket.fileno() < 0:
            return
        with self.deadline(_GOODBYE_S):
            if self._tls is not None:
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
                await self._flush()
            self._socket.shutdown(socket.SHUT_WR)
        with self.deadline(limits.PAGE_HEAD_S):
            left = _GOODBYE_BYTES
            while left > 0 and (size := await self._discarded()):
                left -= size
                await asyncio.sleep(0)  # other clients get their turn beside a quick sender

    async def _discarded(self) -> int:
        with self.deadline(_GOODBYE_S):
            return len(await self._received())

    def detach(self) -> int:
        """Return the descriptor, which the caller must close. Only for connections without TLS."""
        self._group.remove(self)
        return self._socket.detach()

    def close(self) -> None:
        """Close the descriptor and free the memory of TLS: a canceled task may keep this object alive."""
        self._group.remove(self)
        self.request_complete()
        self._socket.close()
        self._task = self._tls = None

    async def _received(self) -> bytes:
        return await self._loop.sock_recv(self._socket, _READ_BYTES)

    async def _decrypted(self, tls: ssl.SSLObject) -> bytes:
        while True:
            try:
                return tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def _fill(self) -> None:
        if data := await self._received():
            self._in.write(data)
        else:
            self._in.write_eof()

    async def _flush(self) -> None:
        while data := self._out.read():
            await self._loop.sock_sendall(self._socket, data)
