"""The clients of a listening socket, counted, bounded and timed from ``accept()`` on.

Nothing is done for a client before it is in a room: not TLS, not a token, not a request. Each step that a client may
leave unfinished has a room of its own, which holds so many; where it is full, the oldest client of the address that has
most of them ends. So those who connect and say nothing are in nobody's way who shakes hands, and those in nobody's who
is being answered. What clients ask for, and in which protocol, is not known here.
"""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Generic, Protocol, TypeVar

from edgert import limits

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
BACKLOG = 4096  # connections that wait for accept(); beyond net.core.somaxconn the kernel takes fewer
_AT_ONCE = 4
"""Clients that are accepted before those who are there get their turn."""
_PIECE_BYTES = 1 << 14  # read at once, as much as a record of TLS has
_SENT_BYTES = 1 << 16
_GOODBYE_S = 1.0
_GOODBYE_PIECES = 4
_PAUSE_S = 0.1
_NONE_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_USUAL_DESCRIPTORS = 1024
"""The limit of a process that nobody raised or lowered; rooms are as large as :mod:`edgert.limits` says from there."""
_LEAST = 4


class Guest(Protocol):
    """What is in a room.

    Attributes:
        network: what is counted as one client.
    """

    network: str

    def end(self) -> None:
        """End it, and take it out of its room."""
        ...


_G = TypeVar("_G", bound=Guest)


class Room(Generic[_G]):
    """Clients that are at the same step, the oldest first. For one thread at a time.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._inside = dict[_G, None]()

    def __len__(self) -> int:
        return len(self._inside)

    def __iter__(self) -> Iterator[_G]:
        return iter(tuple(self._inside))

    def add(self, one: _G) -> None:
        """Let a client in; end the oldest of the address that has most where there is no place left."""
        if len(self._inside) >= self.most:
            self.gives_way().end()
        self._inside[one] = None

    def takes(self, network: str) -> bool:
        """Whether another of an address may stay for long. The oldest gives way, of an address with two more."""
        if len(self._inside) < self.most:
            return True
        oldest = self.gives_way()
        counts = Counter(one.network for one in self._inside)
        if counts[oldest.network] < counts[network] + 2:
            return False
        oldest.end()
        return True

    def remove(self, one: _G) -> None:
        """Forget a client."""
        self._inside.pop(one, None)

    def gives_way(self) -> _G:
        """Return the oldest of the address that has most of them. The room must not be empty."""
        most = Counter(one.network for one in self._inside).most_common(1)[0][0]
        return next(one for one in self._inside if one.network == most)


class Connection:
    """One client. For the thread of its event loop.

    Attributes:
        address: the client's.
        network: what is counted as one client: an IPv4 address, or the 64 bits that a host of IPv6 is given.
    """

    def __init__(self, own: socket.socket, address: str, room: "Room[Connection]") -> None:
        self.address, self.network = address, network_of(address)
        self._socket, self._loop, self._room = own, asyncio.get_running_loop(), room
        self._held, self._tls = bytearray(), None  # type: tuple[bytearray, ssl.SSLObject | None]
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._task: asyncio.Task[None] | None = None
        room.add(self)

    def begin(self, task: "asyncio.Task[None]") -> None:
        """Name the task that attends to this client."""
        self._task = task

    def enter(self, room: "Room[Connection]") -> None:
        """Go on to the next step."""
        self._room.remove(self)
        self._room = room
        room.add(self)

    def end(self) -> None:
        """End the connection, whatever it waits for."""
        self._room.remove(self)
        if self._task is not None:
            self._task.cancel()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """End the connection when what stands inside takes longer."""
        timer = self._loop.call_later(seconds, self.end)
        try:
            yield
        finally:
            timer.cancel()

    async def speak(self) -> None:
        """Wait for the client's first bytes. Raises ConnectionAbortedError where it leaves without any."""
        first = await self._loop.sock_recv(self._socket, _PIECE_BYTES)
        if not first:
            raise ConnectionAbortedError("the client left without a word")
        self._held += first

    async def shake_hands(self, context: ssl.SSLContext) -> None:
        """Do the handshake of TLS. Raises ssl.SSLError, which is an OSError, where the client speaks something else."""
        self._in.write(bytes(self._held))
        self._held.clear()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                await self._flush()  # the reason, as an alert
                raise
            else:
                return await self._flush()

    async def until(self, mark: bytes, most: int) -> bytes:
        """Return what comes up to and with a mark.

        Raises:
            ValueError: there is more than ``most`` bytes before it.
            asyncio.IncompleteReadError: the client left before.
        """
        at = -1
        while (at := self._held.find(mark)) < 0 and len(self._held) <= most:
            await self._more(None)
        if at < 0 or at > most:
            raise ValueError(f"more than {most} bytes")
        return self._taken(at + len(mark))

    async def exactly(self, count: int) -> bytes:
        """Return so many bytes. Raises asyncio.IncompleteReadError where the client leaves before."""
        while len(self._held) < count:
            await self._more(count)
        return self._taken(count)

    async def send(self, data: bytes) -> None:
        """Send everything; end the connection where the client takes a piece too slowly. Raises OSError when it
        left."""
        pieces = memoryview(data)
        for at in range(0, len(pieces), _SENT_BYTES):
            piece = pieces[at : at + _SENT_BYTES]
            with self.within(limits.PAGE_SEND_S):
                if self._tls is None:
                    await self._loop.sock_sendall(self._socket, piece)
                else:
                    self._tls.write(piece)
                    await self._flush()

    def lag(self, size_bytes: int) -> None:
        """Set how much the client may lag behind what it is sent."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)

    async def finish(self) -> None:
        """Say goodbye: end our side, and read what the client still sends, or it may lose what it was sent."""
        with self.within(_GOODBYE_S):
            if self._tls is not None:
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
                await self._flush()
            self._socket.shutdown(socket.SHUT_WR)
            for _ in range(_GOODBYE_PIECES):
                if not await self._loop.sock_recv(self._socket, _PIECE_BYTES):
                    break

    def close(self) -> None:
        """Give the descriptor back."""
        self._room.remove(self)
        self._socket.close()

    def _taken(self, count: int) -> bytes:
        found = bytes(self._held[:count])
        del self._held[:count]
        return found

    async def _more(self, expected: int | None) -> None:
        data = await (self._loop.sock_recv(self._socket, _PIECE_BYTES) if self._tls is None else self._decrypted())
        if not data:
            raise asyncio.IncompleteReadError(bytes(self._held), expected)
        self._held += data

    async def _decrypted(self) -> bytes:
        while True:
            try:
                return self._tls.read(_PIECE_BYTES)  # type: ignore[union-attr]
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def _fill(self) -> None:
        data = await self._loop.sock_recv(self._socket, _PIECE_BYTES)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    async def _flush(self) -> None:
        while data := self._out.read():
            await self._loop.sock_sendall(self._socket, data)


class Host(Protocol[_T]):
    """What is done for clients: :meth:`asked` is timed as part of the arrival, :meth:`answered` times itself."""

    async def asked(self, client: Connection) -> _T:
        """Return what the client wants. Raises OSError or asyncio.IncompleteReadError when it left."""
        ...

    async def answered(self, client: Connection, wanted: _T) -> None:
        """Give it to the client."""
        ...


class Door(Generic[_T]):
    """Accepts the clients of a socket and has each attended to. For the thread of its event loop.

    Args:
        listening: a socket that listens; closed at the end.
        tls: the server's certificate; None: nothing is encrypted.
        most: how many clients there may be, a quarter of them at each step. Where the process may open few descriptors,
            there are fewer.
    """

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext | None, host: Host[_T], most: int) -> None:
        self._socket, self._tls, self._host = listening, tls, host
        each = affordable(most // 4)
        self.silent, self.shaking, self.asking, self.answering = (Room[Connection](each) for _ in range(4))
        self._tasks = set[asyncio.Task[None]]()
        self._has_warned = False
        listening.setblocking(False)

    async def run(self) -> None:
        """Accept clients until it is cancelled; end all of them then."""
        loop, count = asyncio.get_running_loop(), 0
        try:
            while True:
                try:
                    own, address = await loop.sock_accept(self._socket)
                except OSError as error:
                    if error.errno not in _NONE_FREE or not await self._gave_one_back():
                        await asyncio.sleep(_PAUSE_S)
                    continue
                # The lowest free number is given: so near the limit, the rest is for files that must be written.
                if own.fileno() >= _most_descriptors() - _reserved() and not await self._gave_one_back():
                    own.close()
                    continue
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client = Connection(own, str(address[0]), self.silent)
                task = loop.create_task(self._attended(client))
                client.begin(task)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                count += 1
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            self._socket.close()
            for task in tuple(self._tasks):
                task.cancel()

    async def _gave_one_back(self) -> bool:
        """Whether a client could be ended, the oldest of those that have said least, so that a descriptor is free."""
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("descriptors run short; the oldest clients of the network are turned away")
        full = next((room for room in (self.silent, self.shaking, self.asking, self.answering) if room), None)
        if full is not None:
            full.gives_way().end()
        await asyncio.sleep(0 if full is not None else _PAUSE_S)  # until it is closed, or another part closes one
        return full is not None

    async def _attended(self, client: Connection) -> None:
        try:
            with client.within(limits.PAGE_HEAD_S):
                await client.speak()
                if self._tls is not None:
                    client.enter(self.shaking)
                    await client.shake_hands(self._tls)
                client.enter(self.asking)
                wanted = await self._host.asked(client)
            client.enter(self.answering)
            await self._host.answered(client, wanted)
            await client.finish()
        except (OSError, asyncio.IncompleteReadError) as error:
            _LOG.debug("connection of %s ended: %s", client.address, error)
        finally:
            client.close()


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 picks a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def network_of(address: str) -> str:
    """Return what is counted as one client: the address itself; of IPv6, its first 64 bits, as one host has all of
    the others."""
    try:
        known = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(known) if known.version == 4 else known.exploded[:19]


def affordable(most: int) -> int:
    """Return how many clients there may be of ``most``, where the process may open fewer descriptors than usual."""
    return max(min(most, most * _most_descriptors() // _USUAL_DESCRIPTORS), _LEAST)


def _most_descriptors() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def _reserved() -> int:
    """Return how many descriptors clients leave to the rest of the process."""
    return min(_most_descriptors() // 4, _USUAL_DESCRIPTORS // 4)
