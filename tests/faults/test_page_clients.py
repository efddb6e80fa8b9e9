"""The page under clients that are slow, silent, greedy or wrong."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from edgert import limits
from edgert.stages.sink.web.http_sink import HttpSink

CLIENTS, ASKED = 200, 100


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    sink = HttpSink("page", "127.0.0.1", 0, lambda: {"fps": 1.0, "stages": {}})
    sink.open()
    yield sink
    sink.close()


def address(sink: HttpSink) -> tuple[str, int]:
    return "127.0.0.1", int(sink.url.rstrip("/").rpartition(":")[2])


def status_of(sink: HttpSink, path: str, timeout_s: float = 5.0) -> int:
    connection = http.client.HTTPConnection(*address(sink), timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


class Attackers:
    """So many clients that begin again as soon as they are turned away; in one thread."""

    def __init__(self, sink: HttpSink, first: bytes, count: int = CLIENTS) -> None:
        self._sink, self._first, self._count = sink, first, count
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        clients: list[socket.socket] = []
        while not self._over.wait(0.05):
            while len(clients) < self._count:
                clients.append(socket.create_connection(address(self._sink), timeout=5))
                clients[-1].sendall(self._first)
            for client in list(clients):
                try:
                    client.send(b"x")
                except OSError:
                    clients.remove(client)
                    client.close()
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    "first", [b"", b"GET /metrics HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"]
)
def test_a_friend_is_answered_among_two_hundred_that_dawdle(sink: HttpSink, first: bytes) -> None:
    with Attackers(sink, first):
        time.sleep(0.5)
        for _ in range(ASKED):
            assert status_of(sink, "/metrics", timeout_s=1.0) == 200


@pytest.mark.timing
def test_a_request_that_comes_in_bytes_ends(sink: HttpSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAGE_HEAD_S", 0.4)
    started = time.monotonic()
    with socket.create_connection(address(sink), timeout=5) as client:
        client.settimeout(0.05)
        for letter in b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 200:
            client.send(bytes([letter]))
            try:
                assert client.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert 0.3 < time.monotonic() - started < 3.0


def test_viewers_that_leave_are_forgotten(sink: HttpSink) -> None:
    for _ in range(3 * limits.PAGE_CONNECTIONS):
        with socket.create_connection(address(sink), timeout=5) as client:
            client.sendall(b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(sink, "/healthz") == 200
