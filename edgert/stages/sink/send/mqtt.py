"""MQTT 3.1.1, by Eclipse Paho."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgert.stages.sink.send.server import TIMEOUT_S, Server, filled
from edgert.stages.sink.send.spool import Message

PORT, TLS_PORT = 1883, 8883
_KEEPALIVE_S = 30
_POLL_S = 0.05
_SETTLE_S = 2.0
"""Brokers acknowledge before they have delivered or saved: mosquitto saves at the end of a turn of its loop."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Where messages go.

    Attributes:
        pattern: with ``{pipeline}``, ``{stream}``, ``{kind}`` and ``{rule}``.
        status: says ``online`` or ``offline``, retained; by the broker's last will where we die.
        discovery: prefix of Home Assistant's topics, which then knows every rule as a binary sensor; empty: none.
    """

    pattern: str
    status: str
    discovery: str = ""


class MqttDoor:
    """A broker. ``qos`` and ``retain`` are those of every message; with ``qos: 0`` nothing is acknowledged."""

    def __init__(self, server: Server, topics: Topics, pipeline: str, qos: int, retain: bool) -> None:
        self._server, self._topics, self._pipeline, self._qos, self._retain = server, topics, pipeline, qos, retain
        self._port = server.port(TLS_PORT if server.scheme == "mqtts" else PORT)
        self.name = server.name(self._port)
        self.settle_s = _SETTLE_S if qos else 0.0
        self._status = filled(topics.status, pipeline, "", "status", "")
        self._client: Any = None
        self._announced: set[tuple[str, str]] = set()

    def connect(self) -> None:
        """See :class:`~edgert.stages.sink.send.courier.Door`."""
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion

        name = f"edgert-{uuid.uuid4().hex[:12]}"
        # By itself it would connect again unseen, and nobody would send again what had not settled.
        client: Any = Client(CallbackAPIVersion.VERSION2, client_id=name, reconnect_on_failure=False)
        if self._server.user:
            client.username_pw_set(self._server.user, self._server.password or None)
        if self._server.scheme == "mqtts":
            client.tls_set_context(self._server.tls.context())
        client.will_set(self._status, "offline", qos=1, retain=True)
        client.max_inflight_messages_set(1024)
        answered, answer = threading.Event(), []

        def on_connect(_client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
            answer.append(code)
            answered.set()

        client.on_connect = on_connect
        self._client = client
        client.connect(self._server.host, self._port, keepalive=_KEEPALIVE_S)
        client.loop_start()
        if not answered.wait(TIMEOUT_S):
            raise OSError("it accepts the connection and does not answer: is it an MQTT broker, with TLS or without?")
        if answer[0].is_failure:
            raise OSError(f"the broker refuses us: {answer[0]}")
        self._announced.clear()
        self._published([client.publish(self._status, "online", qos=1, retain=True)])

    def send(self, messages: Sequence[Message]) -> None:
        """See :class:`~edgert.stages.sink.send.courier.Door`."""
        sent = []
        for message in messages:
            if self._topics.discovery and message.kind == "event":
                sent += self._discovered(message)
            sent.append(self._client.publish(self._topic(message), message.body, self._qos, self._retain))
        self._published(sent)

    def close(self) -> None:
        """See :class:`~edgert.stages.sink.send.courier.Door`."""
        client, self._client = self._client, None
        if client is not None:
            if client.is_connected():
                client.publish(self._status, "offline", qos=1, retain=True).wait_for_publish(1.0)
            client.disconnect()
            client.loop_stop()

    def _topic(self, message: Message) -> str:
        return filled(self._topics.pattern, self._pipeline, message.stream, message.kind, message.rule)

    def _published(self, sent: Sequence[Any]) -> None:
        """Waits until all are acknowledged, but not for a broker that is gone."""
        if not self._client.is_connected():
            raise OSError("the broker has gone")
        end = time.monotonic() + TIMEOUT_S
        for one in sent:
            while one.rc == 0 and not one.is_published():
                if not self._client.is_connected():
                    break
                if time.monotonic() > end:
                    raise OSError(f"the broker acknowledges nothing for {TIMEOUT_S:g} s")
                one.wait_for_publish(_POLL_S)
            if one.rc != 0 or not one.is_published():
                raise OSError("the broker has gone")

    def _discovered(self, message: Message) -> list[Any]:
        """The first event of a rule tells Home Assistant of it (https://www.home-assistant.io/integrations/mqtt/)."""
        key = message.stream, message.rule
        if key in self._announced:
            return []
        self._announced.add(key)
        own = re.sub(r"\W", "_", "_".join(("edgert", self._pipeline, *key)))
        topic = self._topic(message)
        sensor = {
            "name": f"{message.stream} {message.rule}",
            "unique_id": own,
            "state_topic": topic,
            "value_template": "{{ 'OFF' if value_json.event.phase == 'end' else 'ON' }}",
            "json_attributes_topic": topic,
            "json_attributes_template": "{{ value_json.event | tojson }}",
            "availability_topic": self._status,
            "payload_available": "online",
            "payload_not_available": "offline",
            "device": {"identifiers": [f"edgert_{self._pipeline}"], "name": self._pipeline, "manufacturer": "edgert"},
        }
        where = f"{self._topics.discovery}/binary_sensor/{own}/config"
        return [self._client.publish(where, json.dumps(sensor), qos=1, retain=True)]
