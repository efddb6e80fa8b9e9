"""One request over HTTP and its answer, within one time and so many bytes, whatever the other side does."""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

from edgert import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import ReadableBuffer, WriteableBuffer

    from edgert.stages.sink.send.server import Server

EXCHANGE_S = limits.EXCHANGE_S
"""How long a request and its answer may take together."""
BODY_S = 2.0
"""How long an answer's body is waited for: its status says all that matters."""
_ANSWER_BYTES = limits.ANSWER_BYTES
"""What is read of an answer at most, its headers and interim answers among it."""
_SAID_BYTES = 500


class Exchange:
    """A connection to a server, for one request after another. For one thread.

    Args:
        port: of the server.
        body_s: how long an answer's body is waited for.
    """

    def __init__(self, server: Server, port: int, body_s: float = BODY_S) -> None:
        self._body_s = body_s
        self._socket = _Timed(_connected(server, port))
        self._http = http.client.HTTPConnection(server.host, port)
        self._http.sock = self._socket
        self.oddity = ""
        """What was odd about the last answer, though its status is known; empty if nothing."""

    @property
    def is_over(self) -> bool:
        """Whether another request needs another connection."""
        return self._socket.is_over or self._socket.has_more()

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """Send a request and wait for its answer.

        Returns:
            The status, and what is said to it in words.

        Raises:
            OSError: no such answer comes in time.
        """
        self._socket.begin(EXCHANGE_S)
        self.oddity = ""
        try:
            self._http.request("POST", path, body, dict(headers))
            answer = self._http.getresponse()
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"no answer in HTTP: {type(error).__name__}") from error
        said = self._rest_of(answer)
        return answer.status, f"HTTP {answer.status} {answer.reason}: {said[:120]}"

    def close(self) -> None:
        """End the connection."""
        self._socket.end()

    def _rest_of(self, answer: http.client.HTTPResponse) -> str:
        """Read the body and return its beginning. One that is too long, or too slow, ends the connection."""
        self._socket.begin(self._body_s, self._socket.left_bytes)
        said = b""
        try:
            said = answer.read(_SAID_BYTES)
            while answer.read(4096):
                pass
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.oddity = str(error) or type(error).__name__
        if self.oddity or answer.will_close:
            answer.close()
            self.close()
        return said.decode(errors="replace")


class _Timed:
    """A socket whose reads and writes share a time, and whose reads share a number of bytes."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket, self.is_over = plain, False
        self.begin(EXCHANGE_S)

    def begin(self, seconds: float, most_bytes: int = _ANSWER_BYTES) -> None:
        """Limit the time, and the bytes read, of everything that follows."""
        self._until, self.left_bytes, self._most_bytes = time.monotonic() + seconds, most_bytes, _ANSWER_BYTES

    def makefile(self, mode: str, *_: Any) -> io.BufferedReader:
        """Return what reads from it."""
        return io.BufferedReader(_Reader(self))

    def sendall(self, data: ReadableBuffer) -> None:
        """Send everything. Raises OSError where that takes too long."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self._hurrying(self._socket.send, view) :]

    def read_into(self, buffer: WriteableBuffer) -> int:
        """Read some bytes. Raises OSError when time, or what may be read, is over."""
        if self.left_bytes <= 0:
            raise OSError(f"its answer is longer than {self._most_bytes >> 10} KiB")
        count = self._hurrying(self._socket.recv_into, memoryview(buffer)[: self.left_bytes])
        self.left_bytes -= count
        return count

    def close(self) -> None:
        """Note that nothing is asked any more; an answer is still read."""
        self.is_over = True

    def end(self) -> None:
        """End the connection."""
        self.is_over = True
        self._socket.close()

    def has_more(self) -> bool:
        """Return whether something unexpected came, such as the end of the connection."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def _hurrying(self, work: Callable[[memoryview], int], view: memoryview) -> int:
        """Return what ``work`` returns. Raises TimeoutError once the time is over."""
        self._socket.settimeout(max(self._until - time.monotonic(), 0.001))
        try:
            return work(view)
        except TimeoutError as error:
            raise TimeoutError("it takes too long to answer") from error


class _Reader(io.RawIOBase):
    def __init__(self, source: _Timed) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._source.read_into(buffer)


def _connected(server: Server, port: int) -> socket.socket:
    """Connect to one of a server's addresses, with TLS where its scheme says so. Raises OSError."""
    until, trouble = time.monotonic() + EXCHANGE_S, OSError("it has no address")
    for family, kind, protocol, _, address in server.look_up(port):
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(max(until - time.monotonic(), 0.01))
            plain.connect(address)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if server.scheme != "https":
                return plain
            plain.settimeout(max(until - time.monotonic(), 0.01))  # of the whole handshake
            return server.tls.context().wrap_socket(plain, server_hostname=server.host)
        except OSError as error:
            plain.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise
            trouble = error
    raise trouble
