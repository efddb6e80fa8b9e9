"""Whom bench_send.py sends to: a server that can be killed and started again, and what of all the messages has come."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers import brokers


class Partner(Protocol):
    """A server, and whoever listens to it."""

    keys: dict[str, Any]
    """Of the sink that sends there."""
    ahead: int
    """How many results may be sent that have not come yet."""

    def kill(self) -> None:
        """At once; what it acknowledged it has to keep."""
        ...

    def start(self) -> None:
        """Once more."""
        ...

    def news(self) -> list[bytes]:
        """Bodies that came since the last call, in their order."""
        ...


class _Mqtt:
    """mosquitto, which is told to write all that waits at every change: into memory, as a disk takes hours for that."""

    ahead = 1_000

    def __init__(self, program: brokers.Program) -> None:
        self.kill, self.start = program.kill, program.start
        self.keys = {"sink": "mqtt", "server": f"mqtt://127.0.0.1:{program.port}"}
        self._listener, self._taken = brokers.MqttListener(program.port), 0

    def news(self) -> list[bytes]:
        messages = self._listener.messages
        found = [body for _, body in messages[self._taken :]]
        self._taken += len(found)
        if self._taken > 100_000:
            del messages[: self._taken]
            self._taken = 0
        return [body for body in found if body.startswith(b"{")]  # no status


class _Nats:
    """Follows the stream by its numbers; every time that the server comes back from the one after the last."""

    ahead = 20_000

    def __init__(self, program: brokers.Program) -> None:
        self.kill, self.start, self._port = program.kill, program.start, program.port
        self.keys = {"sink": "nats", "server": f"nats://127.0.0.1:{program.port}"}
        self._bodies, self._last = list[bytes](), 0
        asyncio.run(self._store())
        threading.Thread(target=lambda: asyncio.run(self._follow()), daemon=True).start()

    def news(self) -> list[bytes]:
        found, self._bodies = self._bodies, []
        return found

    async def _store(self) -> None:
        import nats

        client = await nats.connect(f"nats://127.0.0.1:{self._port}")
        await client.jetstream().add_stream(name="results", subjects=["edgert.>"], max_msgs=200_000)
        await client.close()

    async def _follow(self) -> None:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        async def ignore(_: Exception) -> None: ...

        while True:
            with suppress(Exception):
                client: Any = await nats.connect(
                    f"nats://127.0.0.1:{self._port}", allow_reconnect=False, error_cb=ignore
                )
                policy = ConsumerConfig(
                    ack_policy=AckPolicy.NONE,
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=self._last + 1,
                )
                await client.jetstream().subscribe(
                    "edgert.>", stream="results", config=policy, cb=self._take, pending_bytes_limit=-1
                )
                while not client.is_closed:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)

    async def _take(self, message: Any) -> None:
        number = message.metadata.sequence.stream
        if number == self._last + 1:  # else one of an earlier subscription, which comes again
            self._last = number
            self._bodies.append(message.data)


class _Kafka:
    """librdkafka's mock cluster of one broker in this process. A kill closes its port and its connections; it has no
    disk, so the process stays, as a broker's log would. Its log keeps 5 MB, so nobody may be far ahead."""

    ahead = 3_000

    def __init__(self) -> None:
        import confluent_kafka

        package = Path(confluent_kafka.__file__).parent
        (path,) = (package.parent / "confluent_kafka.libs").glob("librdkafka*")
        library = self._library = ctypes.CDLL(str(path))
        library.rd_kafka_new.restype = library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        client = ctypes.c_void_p(library.rd_kafka_new(0, None, None, 0))
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
        library.rd_kafka_mock_topic_create(self._cluster, b"edgert", 1, 1)
        where = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self.keys = {"sink": "kafka", "server": f"kafka://{where}"}
        settings = {"bootstrap.servers": where, "group.id": "a", "log_level": 0, "reconnect.backoff.max.ms": 200}
        self._consumer: Any = confluent_kafka.Consumer(settings)
        self._consumer.assign([confluent_kafka.TopicPartition("edgert", 0, 0)])

    def kill(self) -> None:
        self._library.rd_kafka_mock_broker_set_down(self._cluster, 1)
        time.sleep(0.2)

    def start(self) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, 1)

    def news(self) -> list[bytes]:
        return [one.value() for one in self._consumer.consume(10_000, 0.02) if one.error() is None]


class _Webhook(brokers.Program):
    """A program that takes POST over TLS, and answers when it has written the body to a file."""

    ahead = 20_000

    def __init__(self, folder: Path) -> None:
        cert, key = brokers.certificate(folder)
        port = brokers.free_port()
        self._path = folder / "bodies"
        self._path.touch()
        super().__init__([sys.executable, __file__, str(port), str(self._path), str(cert), str(key)], port)
        self.keys = {"sink": "webhook", "server": f"https://localhost:{port}", "tls": {"ca": str(cert)}}
        self.start()
        self._file, self._rest = self._path.open("rb"), b""

    def news(self) -> list[bytes]:
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return whole


@contextmanager
def partner(name: str, folder: Path) -> Iterator[Partner]:
    """One of ``mqtt``, ``nats``, ``kafka``, ``webhook``, running."""
    if name == "mqtt":
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryDirectory(dir=memory) as own, brokers.mosquitto(Path(own)) as program:
            yield _Mqtt(program)
    elif name == "nats":
        with brokers.nats(folder / "jetstream") as program:
            yield _Nats(program)
    elif name == "kafka":
        yield _Kafka()
    else:
        stub = _Webhook(folder)
        try:
            yield stub
        finally:
            stub.kill()


def _receive(port: int, path: str, cert: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            with suppress(OSError):
                one, _ = server.accept()
                with context.wrap_socket(one, server_side=True) as connection:
                    _take(connection, file)


def _take(connection: ssl.SSLSocket, file: int) -> None:
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            part = connection.recv(65536)
            if not part:
                return
            data += part
        head, data = data.split(b"\r\n\r\n", 1)
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(data) < size:
            part = connection.recv(65536)
            if not part:
                return
            data += part
        os.write(file, data[:size] + b"\n")
        data = data[size:]
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")


if __name__ == "__main__":
    _receive(int(sys.argv[1]), *sys.argv[2:])
