"""Home Assistant's MQTT discovery: every rule of a camera is a binary sensor.

Its state is retained until it changes, so that Home Assistant may start later
(https://www.home-assistant.io/integrations/mqtt/, https://www.home-assistant.io/integrations/binary_sensor.mqtt/).
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from edgert.config.flow import sources_of
from edgert.config.stages import StageConfig
from edgert.stages.sink.send.segment import Message
from edgert.stages.zones.areas import ZonesSection
from edgert.stages.zones.rules import EventsSection

PREFIX = "homeassistant"
BIRTH = f"{PREFIX}/status"
"""Topic to which Home Assistant publishes ``online`` when it starts."""
_PLAIN = re.compile(r"[A-Za-z0-9]+")
_OFF_DELAY_S = 1
"""Seconds after which a sensor turns off whose events have no end."""


class Sensor(NamedTuple):
    """A rule of a camera; ``lasts`` is whether its events have an end."""

    stream: str
    rule: str
    lasts: bool = True


def sensors_of(before: Mapping[str, StageConfig]) -> list[Sensor]:
    """Return a sensor for every rule and camera, as far as the pipeline file shows.

    Args:
        before: stages before the sink, by name.
    """
    areas: dict[str, tuple[str, ...]] = {}
    for one in before.values():
        if isinstance(one, ZonesSection):
            areas |= {name: area.streams for name, area in (*one.zones.items(), *one.lines.items())}
    found, streams = list[Sensor](), sources_of(before)
    for name, one in before.items():
        if isinstance(one, EventsSection):
            for rule, keys in one.rules.items():
                places = [areas.get(place, ()) for place in (*keys.zone, *keys.line)]
                here = [each for each in sorted(streams[name]) if _reaches(places, each)]
                found += [Sensor(stream, rule, not keys.line) for stream in here]
    return found


def _reaches(places: list[tuple[str, ...]], stream: str) -> bool:
    """Return whether one of the places belongs to a camera; a place without cameras belongs to all."""
    return not places or any(not streams or stream in streams for streams in places)


class Publication(NamedTuple):
    """An MQTT message of discovery or state."""

    topic: str
    payload: str
    retain: bool


class Sensors:
    """The sensors of a pipeline and their states. For use in one thread.

    Args:
        status: topic of its status, ``online`` or ``offline``.
        topic: function that returns the topic of events, given camera and rule.
        known: sensors of the rules in the pipeline file; others are added with their first event.

    Attributes:
        own_topics: discovery topics of the sensors of the pipeline file.
    """

    def __init__(
        self, pipeline: str, status: str, topic: Callable[[str, str], str], known: Sequence[Sensor] = ()
    ) -> None:
        self._pipeline, self._status, self._topic = pipeline, status, topic
        self._sensors = {(one.stream, one.rule): one for one in known}
        self._live: dict[tuple[str, str], set[str]] = {key: set() for key in self._sensors}
        self.own_topics = tuple(self._discovery(one) for one in known)

    def announce(self) -> Iterator[Publication]:
        """Yield discovery and state of all sensors, for the start of Home Assistant or of the pipeline."""
        for key, sensor in self._sensors.items():
            yield Publication(self._discovery(sensor), self._config(sensor), True)
            if sensor.lasts:
                yield self._state(sensor, bool(self._live[key]))

    def update(self, message: Message) -> Iterator[Publication]:
        """Yield the changes by an event. An event of an earlier run changes nothing, because its end is unknown."""
        if message.kind != "event" or message.is_earlier:
            return
        key, event = (message.stream, message.rule), json.loads(message.body)["event"]
        if key not in self._sensors:
            self._sensors[key], self._live[key] = Sensor(*key), set()
            yield Publication(self._discovery(self._sensors[key]), self._config(self._sensors[key]), True)
        sensor, live = self._sensors[key], self._live[key]
        if not sensor.lasts:
            yield self._state(sensor, True)
            return
        number = str(event.get("id", ""))
        if event.get("phase") == "end":
            live.discard(number)
        else:
            live.add(number)
        yield self._state(sensor, bool(live))

    def turn_off(self) -> Iterator[Publication]:
        """Return the states at the end of the pipeline: all sensors are off."""
        return (self._state(one, False) for key, one in self._sensors.items() if self._live[key])

    def _state(self, sensor: Sensor, is_on: bool) -> Publication:
        topic = self._discovery(sensor).removesuffix("config") + "state"
        return Publication(topic, "ON" if is_on else "OFF", sensor.lasts)

    def _discovery(self, sensor: Sensor) -> str:
        return f"{PREFIX}/binary_sensor/{identifier('edgert', self._pipeline, *sensor[:2])}/config"

    def _config(self, sensor: Sensor) -> str:
        events = self._topic(sensor.stream, sensor.rule)
        found: dict[str, object] = {
            "name": f"{sensor.stream} {sensor.rule}",
            "unique_id": identifier("edgert", self._pipeline, *sensor[:2]),
            "state_topic": self._state(sensor, False).topic,
            "json_attributes_topic": events,
            "json_attributes_template": "{{ value_json.event | tojson }}",
            "availability_topic": self._status,
            "payload_available": "online",
            "payload_not_available": "offline",
            "device": {
                "identifiers": [identifier("edgert", self._pipeline)],
                "name": self._pipeline,
                "manufacturer": "edgert",
            },
        }
        if not sensor.lasts:
            found |= {"off_delay": _OFF_DELAY_S, "force_update": True}
        return json.dumps(found)


def identifier(*names: str) -> str:
    """Return a unique identifier for names, of the signs of a discovery topic, ``[a-zA-Z0-9_-]+``.

    Names of plain letters and digits are joined unchanged. Others are written in such letters, with a digest.
    """
    if all(map(_PLAIN.fullmatch, names)):
        return "_".join(names)
    plain = unicodedata.normalize("NFKD", "_".join(names)).encode("ascii", "ignore").decode()
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9]+', '_', plain)[:64]}__{digest}"
