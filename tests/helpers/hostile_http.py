"""Servers that answer a POST as no honest one does: twenty ways, each by name."""

import gzip
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

OK = b"HTTP/1.1 200 OK\r\n"
Answer = Callable[[socket.socket, threading.Event], None]


def endless(first: bytes, block: bytes, every_s: float = 0.0) -> Answer:
    def answer(client: socket.socket, over: threading.Event) -> None:
        client.sendall(first)
        while not over.wait(every_s) if every_s else not over.is_set():
            client.sendall(block)

    return answer


def _once(data: bytes, stays: bool = False) -> Answer:
    """Send something and close, or say nothing more."""

    def answer(client: socket.socket, over: threading.Event) -> None:
        client.sendall(data)
        if stays:
            over.wait(120)

    return answer


def _reset(client: socket.socket, _: threading.Event) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


_BOMB = gzip.compress(bytes(1 << 20)) * 128

ANSWERS: Mapping[str, Answer] = {
    "endless body": endless(OK + b"\r\n", b"x" * 65536),
    "endless chunks": endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"ffff\r\n" + b"x" * 65535 + b"\r\n"),
    "endless body of an error": endless(b"HTTP/1.1 500 No\r\n\r\n", b"x" * 65536),
    "body byte by byte": endless(OK + b"Content-Length: 9999\r\n\r\n", b"x", 0.2),
    "headers byte by byte": endless(OK + b"X: ", b"x", 0.2),
    "status byte by byte": endless(b"HTTP", b"x", 0.2),
    "endless 100 Continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "100 Continue now and then": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.2),
    "endless headers": endless(OK, b"X: y\r\n"),
    "a header without end": endless(OK + b"X: ", b"y" * 65536),
    "a status line without end": endless(b"HTTP/1.1 200 ", b"y" * 65536),
    "nothing": _once(b"", stays=True),
    "half a status": _once(b"HTTP/1.1 20", stays=True),
    "closes at once": _once(b""),
    "resets": _reset,
    "junk": _once(bytes(range(256)) * 64),
    "length that is none": _once(OK + b"Content-Length: -5\r\n\r\n" + b"x" * 10, stays=True),
    "chunk that is none": _once(OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx", stays=True),
    "redirect to itself": _once(b"HTTP/1.1 307 On\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
    "redirect to a file": _once(b"HTTP/1.1 302 On\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"),
    "bomb": _once(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(_BOMB) + _BOMB),
    "escape sequences": _once(b"HTTP/1.1 400 \x1b]0;owned\x07\r\nContent-Length: 5\r\n\r\n\x1b[2J\0"),
}
TAKEN = frozenset({"endless body", "endless chunks", "body byte by byte", "chunk that is none", "bomb"})
"""Those whose status says that the message was taken. An answer without a valid length counts as none (RFC 9112)."""


@contextmanager
def server(name: str, reads: bool = True) -> Iterator[int]:
    """Serve an answer of :data:`ANSWERS` until the end of the block; the port."""
    over, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.settimeout(60)
            if reads:
                while b"\r\n\r\n" not in client.recv(65536):
                    pass
            ANSWERS[name](client, over)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        over.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
