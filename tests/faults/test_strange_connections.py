"""Servers under clients that connect and leave unfinished whatever can be left: silence, TLS, requests, descriptors."""

import http.client
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from edgert import limits
from edgert.config import SinkStage
from edgert.stages.context import Context
from tests.helpers.brokers import certificate
from tests.helpers.command import environment
from tests.helpers.http_request import live_page
from tests.helpers.waiting import wait_until

MANY, ASKED, WAIT_S = 600, 20, 1.0
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
Opened: TypeAlias = "Callable[[str, bool], int]"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"), "localhost")


@pytest.fixture
def opened(own: tuple[Path, Path]) -> Iterator[Opened]:
    sinks = []

    def begin(kind: str, encrypted: bool) -> int:
        if kind == "page":
            tls = {"tls": dict(zip(("cert", "key"), own, strict=True))} if encrypted else {}
            sinks.append(live_page(lambda: {"fps": 1.0, "stages": {}}, **tls))
        else:
            pytest.importorskip("aiortc", reason="aiortc (extra 'webrtc') is not installed")
            from edgert.stages.sink.stream.webrtc_sink import WebrtcSink

            keys: dict[str, Any] = {"sink": "webrtc", "from": "cam", "port": 0, "encode": "cpu", "width": 640}
            keys |= {"tls": dict(zip(("cert", "key"), own, strict=True))} if encrypted else {}
            sinks.append(WebrtcSink("out", SinkStage.model_validate(keys), Context()))
        sinks[-1].open()
        return int(sinks[-1].url.rstrip("/").rpartition(":")[2])

    yield begin
    for sink in sinks:
        sink.close()


@contextmanager
def strangers(port: int, count: int, first: bytes = b"", tls: ssl.SSLContext | None = None) -> Iterator[None]:
    """So many connections that say this much, one after the other, and are kept."""
    clients = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port), timeout=5)
        clients.append(client)
        with suppress(OSError):  # it gave way already
            if tls is not None:
                clients[-1] = tls.wrap_socket(client)
            clients[-1].sendall(first)
    try:
        yield
    finally:
        for client in clients:
            client.close()


def wait_s(port: int, trusting: ssl.SSLContext | None, path: str) -> float:
    begun_s = time.monotonic()
    if trusting is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trusting)
    connection.request("GET", path, headers={"Host": "localhost"})
    assert connection.getresponse().status == 200
    connection.close()
    return time.monotonic() - begun_s


def lenient() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["page", "webrtc"])
@pytest.mark.parametrize("first", [b"", b"\x16", HALF_A_HELLO], ids=["silent", "byte", "hello"])
def test_who_leaves_the_handshake_unfinished_is_counted_and_in_nobodys_way(
    opened: Opened, kind: str, first: bytes
) -> None:
    port, path = opened(kind, True), "/metrics" if kind == "page" else "/streams.json"
    before, tls = descriptors(), lenient()
    with strangers(port, MANY, first):
        assert max(wait_s(port, tls, path) for _ in range(ASKED)) < WAIT_S
        theirs = descriptors() - before - MANY
        assert theirs <= limits.PAGE_CONNECTIONS / 2 + 8, "all of them in the room of who said nothing yet"
        assert max(wait_s(port, tls, path) for _ in range(ASKED)) < WAIT_S


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["page", "webrtc"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["http", "https"])
def test_who_leaves_the_request_unfinished_is_counted_and_in_nobodys_way(
    opened: Opened, kind: str, encrypted: bool
) -> None:
    port, path = opened(kind, encrypted), "/metrics" if kind == "page" else "/streams.json"
    before, tls = descriptors(), lenient() if encrypted else None
    with strangers(port, 150, b"GET / HTTP/1.1\r\nX: ", tls):
        assert max(wait_s(port, tls, path) for _ in range(ASKED)) < WAIT_S
        assert descriptors() - before - 150 <= limits.PAGE_CONNECTIONS / 6 + 8


@pytest.mark.timing
def test_the_time_of_a_client_runs_from_accept_on(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAGE_HEAD_S", 0.3)
    port = opened("page", True)
    for first in (b"", HALF_A_HELLO):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(first)
            begun_s = time.monotonic()
            assert client.recv(1) == b""
            assert 0.2 < time.monotonic() - begun_s < 3.0


FEW = """
import resource, sys, threading
from tests.helpers.http_request import live_page

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
sink = live_page(lambda: {"fps": 1.0, "stages": {}})
sink.open()
print(sink.url.rstrip("/").rpartition(":")[2], flush=True)
failed, is_over = 0, threading.Event()
threading.Thread(target=lambda: is_over.set() if not sys.stdin.read() else None).start()
while not is_over.wait(0.002):
    try:
        with open(__file__ if "__file__" in globals() else "/proc/self/stat") as one, open("/proc/self/stat") as other:
            one.read(1), other.read(1)
    except OSError:
        failed += 1
print(failed, flush=True)
sink.close()
"""


@pytest.mark.timing
def test_files_can_be_opened_while_strangers_take_all_descriptors_that_they_get() -> None:
    command = [sys.executable, "-c", FEW]
    process = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        with strangers(port, 200, b"GET / HTTP/1.1\r\nX: "):
            waits = [wait_s(port, None, "/healthz") for _ in range(10 * ASKED)]
            process.stdin.close()
            assert int(process.stdout.readline()) == 0
        assert max(waits) < WAIT_S


@pytest.mark.timing
def test_without_a_free_descriptor_it_goes_on_as_soon_as_there_is_one(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    port, (soft, hard) = opened("page", False), resource.getrlimit(resource.RLIMIT_NOFILE)
    assert wait_s(port, None, "/healthz") < WAIT_S
    client = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
    try:
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: "descriptors run short" in caplog.text, 5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    client.close()
    assert wait_s(port, None, "/healthz") < 5
    assert caplog.text.count("descriptors run short") == 1
