"""Kafka, by librdkafka: idempotent, and acknowledged by all replicas. A message's key is the name of its stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from edgert.stages.context import Context
from edgert.stages.sink.send.segment import Message
from edgert.stages.sink.send.sender import Publisher, RefusedError
from edgert.stages.sink.send.server import PACKET_BYTES, TIMEOUT_S, fill_topic
from edgert.stages.sink.send.sink import Sends, Topic

PORT = 9092


class Kafka(Sends):
    """A Kafka cluster. The camera's name is the key, so its messages stay in order."""

    schemes: ClassVar[tuple[str, ...]] = ("kafka", "kafkas")
    extra: ClassVar[tuple[str, str]] = ("confluent_kafka", "kafka")
    topic: Topic = Field(default="edgert", description="topic, with the fields of an MQTT topic")
    options: dict[str, str] = Field(default_factory=dict, repr=False, description="settings of librdkafka")

    def publisher(self, context: Context, spool: Path | None) -> KafkaPublisher:
        return KafkaPublisher(self, context.pipeline)


class KafkaPublisher(Publisher):
    """Publisher to a Kafka cluster, by one of its brokers."""

    def __init__(self, config: Kafka, pipeline: str) -> None:
        self._server, self._topic, self._options = config.connection(), config.topic, config.options
        self._pipeline = pipeline
        self.name = self._server.name(PORT)
        self._producer: Any = None
        self._failures: list[tuple[Any, Message]] = []

    def connect(self) -> None:
        from confluent_kafka import KafkaException, Producer

        self._server.look_up(self._server.port(PORT))
        self._producer = Producer(self._settings())
        try:
            self._producer.list_topics(timeout=TIMEOUT_S / 2)
        except KafkaException as error:
            raise OSError(str(error.args[0].str())) from error

    def send(self, messages: Sequence[Message]) -> None:
        self._failures.clear()
        for message in messages:
            topic = fill_topic(self._topic, self._pipeline, message.stream, message.kind, message.rule)
            value, key, done = message.body, message.stream.encode(), partial(self._on_delivery, message)
            try:
                self._producer.produce(topic, value, key, headers={"id": message.id}, on_delivery=done)
            except BufferError as error:
                raise OSError("its queue is full") from error
            self._producer.poll(0)
        if self._producer.flush(2 * TIMEOUT_S):
            raise OSError(f"it acknowledged nothing for {2 * TIMEOUT_S:g} s")
        for failure, message in self._failures:
            if failure.name() == "MSG_SIZE_TOO_LARGE":
                raise RefusedError(failure.str(), message)
            raise OSError(failure.str())

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()

    def _on_delivery(self, message: Message, error: Any, _: Any) -> None:
        if error is not None:
            self._failures.append((error, message))

    def _settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap.servers": f"{self._server.host}:{self._server.port(PORT)}",
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "message.timeout.ms": int(1000 * TIMEOUT_S),
            "client.id": f"edgert-{self._pipeline}",
            "log_level": 0,
            "receive.message.max.bytes": 16 * PACKET_BYTES,  # for the list of all topics
        }
        secure, tls = self._server.scheme == "kafkas", self._server.tls
        if secure or self._server.user:
            found["security.protocol"] = ("SASL_" if self._server.user else "") + ("SSL" if secure else "PLAINTEXT")
        if self._server.user:
            found |= {
                "sasl.mechanism": "PLAIN",
                "sasl.username": self._server.user,
                "sasl.password": self._server.password,
            }
        files = {"ssl.ca.location": tls.ca, "ssl.certificate.location": tls.cert, "ssl.key.location": tls.key}
        found |= {key: str(path) for key, path in files.items() if path is not None}
        if secure and not tls.verify:
            found["enable.ssl.certificate.verification"] = False
        return {**found, **self._options}
