"""MQTT 3.1.1 by Eclipse Paho."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from edgert.errors import ArtifactError
from edgert.files import replace_bytes
from edgert.stages.context import Context
from edgert.stages.sink.send.home_assistant import BIRTH, PREFIX, Publication, Sensor, Sensors, sensors_of
from edgert.stages.sink.send.segment import Message
from edgert.stages.sink.send.sender import Publisher
from edgert.stages.sink.send.server import PACKET_BYTES, TIMEOUT_S, fill_topic
from edgert.stages.sink.send.sink import Sends, Topic

log = logging.getLogger("edgert.send")

PORT, TLS_PORT = 1883, 8883
_KEEPALIVE_S = 20
_LAST_WILL_S = 1.5 * _KEEPALIVE_S + 5
"""Seconds until a broker notices that a client is gone, and publishes its last will."""
_POLL_S = 0.05
_STABLE_S = 2.0
"""Seconds from an acknowledgement until a message is safe: brokers acknowledge before they deliver or save."""
_ONLINE, _OFFLINE = "online", "offline"
_SENSOR = re.compile(rf"{PREFIX}/binary_sensor/edgert_[A-Za-z0-9_]+/config")
"""Discovery topic of one of edgert's sensors."""
_TWIN = "two pipelines of the same name disturb one another: give each a name:, or its sink a status: of its own"
_PRESENT, _PRESENT_LOCK = Counter[tuple[str, str]](), threading.Lock()
"""Number of this process's connected sinks, by broker and status topic. The last one publishes offline."""


class Mqtt(Sends):
    """An MQTT broker."""

    schemes: ClassVar[tuple[str, ...]] = ("mqtt", "mqtts")
    extra: ClassVar[tuple[str, str]] = ("paho", "mqtt")
    topic: Topic = Field(
        default="edgert/{pipeline}/{stream}/{rule}",
        description="topic, with `{pipeline}`, `{stream}`, `{kind}` and `{rule}`",
    )
    qos: int = Field(default=1, ge=0, le=2, description="0 is not acknowledged, so a broken connection loses messages")
    retain: bool = Field(default=False, description="the broker keeps the last message for later subscribers")
    status: Topic = Field(default="edgert/{pipeline}/status", description="topic of online or offline, retained")
    home_assistant: bool = Field(
        default=False,
        description="with send: events, every rule is a sensor of [Home Assistant](sending.md#home-assistant)",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Mqtt:
        if self.home_assistant and self.send != "events":
            raise ValueError("home_assistant: shows events; add send: events")
        return self

    def publisher(self, context: Context, spool: Path | None) -> MqttPublisher:
        sensors = sensors_of(context.before) if self.home_assistant else None
        announced = spool / "announced.json" if spool is not None and self.home_assistant else None
        return MqttPublisher(self, context.pipeline, sensors, announced)


class MqttPublisher(Publisher):
    """Publisher to a broker. With ``qos: 0`` nothing is acknowledged.

    It stays connected during a run, so that its status is right. When another client publishes offline there, such as
    the last will of a broken connection, it publishes online again.

    Args:
        sensors: sensors to announce to Home Assistant at the start; None: Home Assistant is not used.
        announced: file of past announcements, by which those of removed rules are withdrawn; None: they stay.
    """

    def __init__(self, config: Mqtt, pipeline: str, sensors: Sequence[Sensor] | None, announced: Path | None) -> None:
        server = self._server = config.connection()
        self._topic, self._qos, self._retain = config.topic, config.qos, config.retain
        self._pipeline, self._announced = pipeline, announced
        self._port = server.port(TLS_PORT if server.scheme == "mqtts" else PORT)
        self.name = server.name(self._port)
        self.stable_s, self.stays = _STABLE_S if config.qos else 0.0, True
        self._status = fill_topic(config.status, pipeline, "", "status", "")
        self._own = self.name, self._status
        self._sensors = None if sensors is None else Sensors(pipeline, self._status, self._events_topic, sensors)
        self._client: Any = None
        self._is_present, self._is_first, self._knows_of_twin = False, True, False
        self._refusals = 0  # connections that ended after a subscription
        self._is_denied, self._is_born, self._since = threading.Event(), threading.Event(), 0.0

    def connect(self) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        self._server.look_up(self._port)  # Paho's own look-up has no time-out
        name = f"edgert-{uuid.uuid4().hex[:12]}"
        # Without Paho's own reconnection, after which unfinished messages would not be sent again.
        client: Any = _bounded(Client)(CallbackAPIVersion.VERSION2, client_id=name, reconnect_on_failure=False)
        if self._server.user:
            client.username_pw_set(self._server.user, self._server.password or None)
        if self._server.scheme == "mqtts":
            client.tls_set_context(self._server.tls.context())
        client.will_set(self._status, _OFFLINE, qos=1, retain=True)
        client.max_inflight_messages_set(1024)
        client.connect_timeout = TIMEOUT_S
        answered, answer = threading.Event(), []

        def on_connect(_client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
            answer.append(code)
            answered.set()

        client.on_connect, client.on_message = on_connect, self._on_message
        self._client = client
        client.connect(self._server.host, self._port, keepalive=_KEEPALIVE_S)
        client.loop_start()
        if not answered.wait(TIMEOUT_S):
            raise OSError("it accepts the connection but does not answer: is it an MQTT broker, with or without TLS?")
        if answer[0].is_failure:
            raise OSError(f"the broker refuses the connection: {answer[0]}")
        self._announce()

    def send(self, messages: Sequence[Message]) -> None:
        sent = []
        if self._is_denied.is_set():
            self._is_denied.clear()
            sent.append(self._client.publish(self._status, _ONLINE, qos=1, retain=True))
        if self._is_born.is_set() and self._sensors is not None:
            self._is_born.clear()
            sent += self._publish(self._sensors.announce())
        for message in messages:
            topic = fill_topic(self._topic, self._pipeline, message.stream, message.kind, message.rule)
            sent.append(self._client.publish(topic, message.body, self._qos, self._retain))
            if self._sensors is not None:
                sent += self._publish(self._sensors.update(message))
        self._wait_for_all(sent)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            is_last = self._count_out()
            if client.is_connected() and is_last:
                for one in self._sensors.turn_off() if self._sensors is not None else ():
                    client.publish(one.topic, one.payload, qos=1, retain=one.retain)
                client.publish(self._status, _OFFLINE, qos=1, retain=True).wait_for_publish(1.0)
        finally:
            client.disconnect()
            client.loop_stop()

    def _announce(self) -> None:
        """Publish availability and discovery, and subscribe to status messages."""
        self._is_denied.clear()
        self._is_born.clear()
        self._since = time.monotonic()
        with _PRESENT_LOCK:
            self._is_first &= not _PRESENT[self._own]
            _PRESENT[self._own] += 1
            self._is_present = True
        listens = self._refusals < 2
        if listens:
            topics = [self._status] + ([BIRTH] if self._sensors is not None else [])
            self._client.subscribe([(topic, 1) for topic in topics])
        sent = [self._client.publish(self._status, _ONLINE, qos=1, retain=True)]
        if self._sensors is not None:
            sent += self._publish((*self._withdrawals(), *self._sensors.announce()))
        try:
            self._wait_for_all(sent)
        except OSError:
            self._refusals += listens  # some brokers end the connection of a client that may only publish
            raise
        self._refusals = 0 if listens else self._refusals
        self._is_first = False
        self._save_announced()

    def _count_out(self) -> bool:
        """Count this sink out; return whether no other sink of this process has the same status topic."""
        with _PRESENT_LOCK:
            _PRESENT[self._own] -= self._is_present
            self._is_present = False
            return not _PRESENT[self._own]

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        """Handle a message about this client's status, or Home Assistant's. Called in Paho's thread."""
        is_online = message.payload == _ONLINE.encode()
        if message.topic == BIRTH and is_online:
            self._is_born.set()
        if message.topic != self._status:
            return
        if message.retain:  # the status before this connection
            if is_online and self._is_first:
                self._warn_of_twin(f"was {_ONLINE} before this pipeline began, or one was just cut off; ")
        elif message.payload == _OFFLINE.encode():
            self._is_denied.set()
            if time.monotonic() - self._since > _LAST_WILL_S:
                self._warn_of_twin(f"is set to {_OFFLINE} by another; ")

    def _warn_of_twin(self, what: str) -> None:
        if not self._knows_of_twin:
            self._knows_of_twin = True
            log.warning("%s: %s %s%s", self.name, self._status, what, _TWIN)

    def _events_topic(self, stream: str, rule: str) -> str:
        return fill_topic(self._topic, self._pipeline, stream, "event", rule)

    def _publish(self, some: Iterable[Publication]) -> list[Any]:
        return [self._client.publish(one.topic, one.payload or None, qos=1, retain=one.retain) for one in some]

    def _wait_for_all(self, sent: Sequence[Any]) -> None:
        """Wait until all messages are acknowledged. Raises OSError where the broker is gone or too slow."""
        if not self._client.is_connected():
            raise OSError("the broker has gone")
        end = time.monotonic() + TIMEOUT_S
        for one in sent:
            while one.rc == 0 and not one.is_published():
                if not self._client.is_connected():
                    break
                if time.monotonic() > end:
                    raise OSError(f"the broker acknowledged nothing for {TIMEOUT_S:g} s")
                one.wait_for_publish(_POLL_S)
            if one.rc != 0 or not one.is_published():
                raise OSError("the broker has gone")

    def _withdrawals(self) -> list[Publication]:
        """Return the withdrawals of sensors that the last run announced and the pipeline file no longer has."""
        known, gone = self._announced, list[Publication]()
        if known is not None and self._sensors is not None and self._is_first:
            with suppress(OSError, ValueError, TypeError, RecursionError):
                for topic in json.loads(known.read_bytes()):
                    if topic not in self._sensors.own_topics and _SENSOR.fullmatch(topic):
                        state = topic.removesuffix("config") + "state"
                        gone += [Publication(topic, "", True), Publication(state, "", True)]
        return gone

    def _save_announced(self) -> None:
        if self._announced is not None and self._sensors is not None:
            with suppress(ArtifactError):  # on a full disk; they are then not withdrawn
                replace_bytes(self._announced, json.dumps(self._sensors.own_topics).encode())


def _bounded(client: Any) -> Any:
    """Return Paho's class of clients with a limit on the size of packets, which brokers may announce up to 256 MB."""

    class Bounded(client):  # type: ignore[misc]
        def _sock_recv(self, count: int) -> bytes:
            """Receive bytes. Raise OSError, which ends the connection, for too large packets."""
            if count > PACKET_BYTES:
                raise OSError(f"the broker announces a packet of {count} bytes")
            return bytes(super()._sock_recv(count))

    return Bounded
