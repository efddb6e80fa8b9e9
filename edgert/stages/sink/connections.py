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
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, TypeVar

from edgert import limits
from edgert.errors import DeviceError, cause
from edgert.stages.sink.rooms import Room, affordable, most_descriptors, network_of, reserved

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_BACKLOG = 4096  # connections that wait for accept(); beyond net.core.somaxconn the kernel takes fewer
_AT_ONCE = 4
"""Clients that are accepted before those who are there get their turn."""
_PIECE_BYTES = 1 << 14  # read at once, as much as a record of TLS has
_SENT_BYTES = 1 << 16
_HANDSHAKE = 22  # the type of a record of TLS
_GOODBYE_S = 1.0
_STOPPED_S = 0.4
_GOODBYE_PIECES = 4
_PAUSE_S = 0.1
_NONE_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection:
    """One client. For the thread of its event loop.

    Attributes:
        address: the client's.
        port: the client's.
        network: what is counted as one client: an IPv4 address, or the 64 bits that a host of IPv6 is given.
    """

    def __init__(self, own: socket.socket, address: tuple[str, int], room: "Room[Connection]") -> None:
        (self.address, self.port), self.network = address, network_of(address[0])
        self._socket, self._loop, self._room = own, asyncio.get_running_loop(), room
        self._held, self._tls = bytearray(), None  # type: tuple[bytearray, ssl.SSLObject | None]
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        room.add(self)

    def begin(self, attend: "Callable[[Connection], asyncio.Task[None]]") -> None:
        """Have a task attend to the client as soon as it says something; until then it costs next to nothing. It ends
        when it has not :meth:`arrived` in time."""
        self._timer = self._loop.call_later(limits.PAGE_HEAD_S, self.end)
        self._loop.add_reader(self._socket, self._spoke, attend)

    def _spoke(self, attend: "Callable[[Connection], asyncio.Task[None]]") -> None:
        self._loop.remove_reader(self._socket)
        self._task = attend(self)

    def arrived(self) -> None:
        """End the time for the arrival: what the client wants is known."""
        if self._timer is not None:
            self._timer.cancel()

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
        elif self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self.close()

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

    async def shake_hands(self, context: ssl.SSLContext, room: "Room[Connection]") -> None:
        """Do the handshake of TLS, in a room that the client enters once it has sent its part of it.

        A record says how long it is (RFC 8446, section 5.1): OpenSSL takes no memory before the first one is whole.

        Raises:
            ssl.SSLError: the client speaks something else; an OSError.
            asyncio.IncompleteReadError: it left before.
        """
        while self._held[0] == _HANDSHAKE and len(self._held) < 5 + min(
            int.from_bytes(self._held[3:5], "big"), _PIECE_BYTES
        ):
            await self._more(None)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._in.write(bytes(self._held))
        self._held.clear()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                if self._out.pending and self._room is not room:
                    self.enter(room)
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
        if self._socket.fileno() < 0:
            return
        with self.within(_GOODBYE_S):
            if self._tls is not None:
                with contextlib.suppress(ssl.SSLError):
                    self._tls.unwrap()
                await self._flush()
            self._socket.shutdown(socket.SHUT_WR)
            for _ in range(_GOODBYE_PIECES):
                if not await self._loop.sock_recv(self._socket, _PIECE_BYTES):
                    break

    @property
    def held(self) -> bytes:
        """What was received and not read yet."""
        return bytes(self._held)

    def hand_over(self) -> int:
        """Return the descriptor, which is the caller's from now on. Not for a client that is encrypted."""
        self._room.remove(self)
        return self._socket.detach()

    def close(self) -> None:
        """Give the descriptor and the memory back: a task that was canceled holds on to its frames, and so to this."""
        self._room.remove(self)
        self.arrived()
        self._socket.close()
        self._task = self._tls = None

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
        most: how many clients there may be, a half of them that said nothing yet, and a sixth at each further step.
            Where the process may open few descriptors, there are fewer.
    """

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext | None, host: Host[_T], most: int) -> None:
        self._socket, self._tls, self._host = listening, tls, host
        self.silent = Room[Connection](affordable(most // 2))
        self.shaking, self.asking, self.answering = (Room[Connection](affordable(most // 6)) for _ in range(3))
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
                if own.fileno() >= most_descriptors() - reserved() and not await self._gave_one_back():
                    own.close()
                    continue
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                Connection(own, (str(address[0]), address[1]), self.silent).begin(self._attend)
                count += 1
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            self._socket.close()
            for client in self.silent:
                client.end()
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
        await asyncio.sleep(0 if full is not None else _PAUSE_S)  # until it is closed, or something else is
        return full is not None

    def _attend(self, client: Connection) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._attended(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _attended(self, client: Connection) -> None:
        try:
            await client.speak()
            if self._tls is not None:
                await client.shake_hands(self._tls, self.shaking)
            client.enter(self.asking)
            wanted = await self._host.asked(client)
            client.arrived()
            client.enter(self.answering)
            await self._host.answered(client, wanted)
            await client.finish()
        except (OSError, asyncio.IncompleteReadError) as error:
            _LOG.debug("connection of %s ended: %s", client.address, error)
        finally:
            client.close()


class DoorThread:
    """A door with a thread and an event loop of its own, open from now on, until :meth:`stop`.

    Args:
        failed: called with what nobody else caught.
    """

    def __init__(
        self,
        own: socket.socket,
        tls: ssl.SSLContext | None,
        host: Host[_T],
        most: int,
        name: str,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._loop, self._over = asyncio.new_event_loop(), asyncio.Event()
        self._failed = failed
        self._thread = threading.Thread(target=self._run, args=(own, tls, host, most), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and end every connection, within half a second."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_STOPPED_S)

    def _run(self, own: socket.socket, tls: ssl.SSLContext | None, host: Host[_T], most: int) -> None:
        self._loop.set_exception_handler(self._caught)
        run_to_end(self._loop, self._serve(own, tls, host, most))

    async def _serve(self, own: socket.socket, tls: ssl.SSLContext | None, host: Host[_T], most: int) -> None:
        task = asyncio.ensure_future(Door(own, tls, host, most).run())
        await self._over.wait()
        task.cancel()

    def _caught(self, _: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        error = about.get("exception") or RuntimeError(about)
        if self._failed is not None:
            self._failed(error)
        else:
            _LOG.debug("a connection failed", exc_info=error)


def listening(host: str, port: int, where: str) -> socket.socket:
    """Return a socket that listens; port 0 picks a free one. Raises DeviceError when the address is taken or not this
    machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise DeviceError(
            f"cannot listen on {host}:{port}",
            why="another program is listening there" if taken else cause(error),
            where=where,
            fix="choose another port, or port: 0 for any free one" if taken else "host: 127.0.0.1 always works",
        ) from error


def run_to_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run a loop of this thread's own until the work is done; end what else runs in it, and close it."""
    try:
        loop.run_until_complete(work)
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()
