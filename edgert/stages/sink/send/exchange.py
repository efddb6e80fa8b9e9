"""One HTTP request and its answer, within a limited time and size, whatever the other side does. HTTP is h11's."""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, TypeVar

import h11

from edgert import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgert.stages.sink.send.server import Server

EXCHANGE_S = limits.EXCHANGE_S
"""Most seconds of a request with its answer."""
BODY_S = 2.0
"""Most seconds for an answer's body: its status is what matters."""
_ANSWER_BYTES = limits.ANSWER_BYTES
"""The most that is read of an answer, with its headers and interim answers."""
_READ_BYTES = 4096
_A = TypeVar("_A")
_R = TypeVar("_R")


class Exchange:
    """A connection to a server, for one request after another. Not thread-safe.

    Args:
        port: of the server.
        body_s: how long an answer's body is waited for.
    """

    def __init__(self, server: Server, port: int, body_s: float = BODY_S) -> None:
        self._body_s = body_s
        host = f"[{server.host}]" if ":" in server.host else server.host
        self._host = host if port == (443 if server.scheme == "https" else 80) else f"{host}:{port}"
        self._socket = _connected(server, port)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ANSWER_BYTES)
        self.oddity = ""
        """Anything odd about the last answer whose status is known; empty if nothing."""

    @property
    def is_over(self) -> bool:
        """Whether another request needs another connection."""
        return self._http.our_state is not h11.IDLE or bool(select.select([self._socket], [], [], 0)[0])

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """Send a request and wait for its answer.

        Returns:
            The status, and the status in words with the beginning of the answer.

        Raises:
            OSError: no such answer comes in time.
        """
        self._until_s, self._left_bytes, self.oddity = time.monotonic() + EXCHANGE_S, _ANSWER_BYTES, ""
        lines = {"Host": self._host, "Content-Length": str(len(body)), **headers}
        try:
            request = h11.Request(method="POST", target=path, headers=list(lines.items()))
            data = memoryview(b"".join(self._http.send(event) or b"" for event in (request, h11.Data(body))))
            while data:
                data = data[self._in_time(self._socket.send, data) :]
            self._http.send(h11.EndOfMessage())
            while not isinstance(answer := self._next_event(), h11.Response):
                continue  # an interim answer
        except (h11.ProtocolError, ValueError) as error:
            raise OSError(f"no answer in HTTP: {error}") from error
        said = self._body().decode(errors="replace")
        return answer.status_code, f"HTTP {answer.status_code} {answer.reason.decode('latin-1')}: {said[:120]}"

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _body(self) -> bytes:
        """Return the body of an answer. One that is too long, or too slow, ends the connection."""
        self._until_s, body = time.monotonic() + self._body_s, b""
        try:
            while isinstance(event := self._next_event(), h11.Data):
                body += event.data
        except (OSError, h11.ProtocolError) as error:
            self.oddity = str(error)
        if self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            self._http.start_next_cycle()
        else:
            self.close()
        return body

    def _next_event(self) -> object:
        """Return what comes next of an answer. Raises OSError when time, or what may be read, is over."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._left_bytes <= 0:
                raise OSError(f"its answer is longer than {_ANSWER_BYTES >> 10} KiB")
            data = self._in_time(self._socket.recv, min(self._left_bytes, _READ_BYTES))
            self._left_bytes -= len(data)
            self._http.receive_data(data)
        return event

    def _in_time(self, work: Callable[[_A], _R], argument: _A) -> _R:
        self._socket.settimeout(max(self._until_s - time.monotonic(), 0.001))
        try:
            return work(argument)
        except TimeoutError as error:
            raise TimeoutError("it takes too long to answer") from error


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
