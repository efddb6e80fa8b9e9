"""Requests that are malformed, ambiguous, too large or too slow; each gets one answer, and its connection ends."""

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus

import pytest

from edgert import limits
from edgert.stages.sink.tcp_server import listen
from edgert.stages.sink.web.http_exchange import Exchange, Request, Response, text
from edgert.stages.sink.web.http_server import Access, HttpServer

LIMIT = 1000
HOST = "Host: localhost\r\n"
OFFER = f"POST /whep/yard HTTP/1.1\r\n{HOST}"


class Echo:
    async def answer(self, exchange: Exchange, request: Request, address: str) -> Response:
        return Response(HTTPStatus.CREATED, "text/plain", await exchange.body(LIMIT))


class Site:
    open_to_all = changed_at = ()
    whep = Echo()

    async def answer(self, exchange: Exchange, request: Request) -> Response | None:
        if request.path != "/stream":
            return text(HTTPStatus.OK, request.path)
        await exchange.begin(HTTPStatus.OK, "text/plain")
        for part in (b"one ", b"two"):
            await exchange.write(part)
        return None


@pytest.fixture
def port() -> Iterator[int]:
    server = HttpServer("127.0.0.1", listen("127.0.0.1", 0, ""), Access(), Site(), "http")
    yield server.port
    server.stop()


def asked(port: int, *parts: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        for part in parts:
            client.sendall(part.encode("latin-1"))
        answer = b""
        while more := client.recv(1 << 16):
            answer += more
    return answer


def status(answer: bytes) -> int:
    assert answer.count(b"HTTP/1.1 ") == 1, "one answer to each connection"
    assert b"\r\nConnection: close\r\n" in answer
    return int(answer.split()[1])


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("GET\r\n\r\n", 400),
        (f"GET /\r\n{HOST}\r\n", 400),
        (f"GET / / HTTP/1.1\r\n{HOST}\r\n", 400),
        (f"G(T / HTTP/1.1\r\n{HOST}\r\n", 400),
        (f"GET /\x7f HTTP/1.1\r\n{HOST}\r\n", 400),
        (f"GET //[::1 HTTP/1.1\r\n{HOST}\r\n", 400),
        (f"GET /?{'&'.join(f'{one}=1' for one in range(9))} HTTP/1.1\r\n{HOST}\r\n", 400),
        (f"GET / HTTP/2.0\r\n{HOST}\r\n", 505),
        (f"GET / HTTP/9.9\r\n{HOST}\r\n", 505),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        (f"GET / HTTP/1.1\r\n{HOST}{HOST}\r\n", 400),
        (f"GET / HTTP/1.1\r\n{HOST}no colon\r\n\r\n", 400),
        (f"GET / HTTP/1.1\r\n{HOST}Space : before the colon\r\n\r\n", 400),
        (f"GET / HTTP/1.1\r\n{HOST}X: nul\0\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
def test_a_malformed_request_is_refused(
    port: int, request_text: str, expected: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert status(asked(port, request_text)) == expected and capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", 400),
        ("Content-Length: 4\r\nContent-Length: 5\r\n", 400),
        ("Content-Length: 4, 5\r\n", 400),
        ("Content-Length: +4\r\n", 400),
        ("Content-Length: -4\r\n", 400),
        (f"Content-Length: {'9' * 30}\r\n", 400),
        ("Transfer-Encoding: gzip, chunked\r\n", 501),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 501),
        ("Transfer-Encoding: xchunked\r\n", 501),
    ],
)
def test_a_request_whose_end_is_ambiguous_is_refused(port: int, headers: str, expected: int) -> None:
    smuggled = f"0\r\n\r\nGET /smuggled HTTP/1.1\r\n{HOST}\r\n"
    answer = asked(port, f"{OFFER}{headers}\r\n{smuggled}")
    assert status(answer) == expected and b"smuggled" not in answer


@pytest.mark.parametrize(
    "chunks", ["g\r\nabcd\r\n", "4 \r\nabcdef", "-1\r\n", f"{'f' * 21}\r\n", "4\nabcd\n0\n\n", "\r\n"]
)
def test_malformed_chunks_are_refused(port: int, chunks: str) -> None:
    assert status(asked(port, f"{OFFER}Transfer-Encoding: chunked\r\n\r\n{chunks}{'x' * 40}\r\n\r\n")) == 400


def test_of_pipelined_requests_the_first_is_answered(port: int) -> None:
    answer = asked(port, "".join(f"GET /{name} HTTP/1.1\r\n{HOST}\r\n" for name in ("first", "second", "third")))
    assert status(answer) == 200 and answer.endswith(b"\r\n\r\n/first\n")
    offer = f"{OFFER}Content-Length: 4\r\n\r\nabcd"
    answer = asked(port, f"{offer}GET /second HTTP/1.1\r\n{HOST}\r\n")
    assert status(answer) == 201 and answer.endswith(b"\r\n\r\nabcd")


def test_a_head_request_gets_the_head_of_the_answer(port: int) -> None:
    full, head = (asked(port, f"{method} /path HTTP/1.1\r\n{HOST}\r\n") for method in ("GET", "HEAD"))
    assert status(head) == 200 and head == full.removesuffix(b"/path\n") and b"Content-Length: 6\r\n" in head
    assert asked(port, f"HEAD /stream HTTP/1.1\r\n{HOST}\r\n").endswith(b"\r\n\r\n")


def test_an_answer_without_a_known_length_is_chunked_for_those_who_know_chunks(port: int) -> None:
    answer = asked(port, f"GET /stream HTTP/1.1\r\n{HOST}\r\n")
    assert b"\r\nTransfer-Encoding: chunked\r\n" in answer and answer.endswith(b"\r\n\r\n4\r\none \r\n3\r\ntwo\r\n")
    answer = asked(port, f"GET /stream HTTP/1.0\r\n{HOST}\r\n")
    assert b"chunked" not in answer and answer.endswith(b"\r\n\r\none two")


@pytest.mark.parametrize("headers", [f"X: {'y' * 100_000}\r\n", "X: y\r\n" * 20_000, "X: y\r\n y\r\n" * 9000])
def test_headers_that_are_too_large_are_refused(port: int, headers: str) -> None:
    assert status(asked(port, f"GET / HTTP/1.1\r\n{HOST}{headers}")) == 431


def test_a_body_is_read_up_to_a_limit(port: int) -> None:
    chunk = f"{LIMIT:x}\r\n{'x' * LIMIT}\r\n"
    assert status(asked(port, f"{OFFER}Content-Length: {LIMIT}\r\n\r\n", "x" * LIMIT)) == 201
    assert status(asked(port, f"{OFFER}Content-Length: {LIMIT + 1}\r\n\r\n")) == 413
    assert status(asked(port, f"{OFFER}Transfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n")) == 201
    assert status(asked(port, f"{OFFER}Transfer-Encoding: chunked\r\n\r\n{chunk}{chunk}")) == 413


def test_a_client_that_waits_for_the_go_ahead_gets_it(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(f"{OFFER}Content-Length: 4\r\nExpect: 100-continue\r\n\r\n".encode())
        assert client.recv(1 << 10) == b"HTTP/1.1 100 \r\n\r\n"
        client.sendall(b"abcd")
        assert client.makefile("rb").read().endswith(b"\r\n\r\nabcd")


@pytest.mark.timing
@pytest.mark.parametrize(
    "first",
    [
        "",
        f"GET / HTTP/1.1\r\n{HOST}X: ",
        f"{OFFER}Content-Length: 900\r\n\r\n",
        f"{OFFER}Transfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["silent", "headers", "body", "chunks"],
)
def test_clients_that_send_a_byte_now_and_then_end_and_delay_nobody(
    port: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PAGE_HEAD_S", 0.5)
    monkeypatch.setattr(limits, "PAGE_SEND_S", 0.5)
    began_s, clients = time.monotonic(), list[socket.socket]()
    for _ in range(200):
        clients.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        clients[-1].sendall(first.encode())
    for number in range(10):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        connection.request("GET", f"/{number}", headers={"Host": "localhost"})
        assert connection.getresponse().read() == b"/%d\n" % number
        connection.close()
    for client in clients:
        client.setblocking(False)
    while clients:
        time.sleep(0.02)
        for client in list(clients):
            try:
                with suppress(BlockingIOError):
                    if not client.recv(1 << 10):
                        raise ConnectionAbortedError
                client.sendall(b"1")
            except ConnectionError:
                clients.remove(client)
                client.close()
        assert time.monotonic() - began_s < 20
