"""Home Assistant's sensors: identifiers that it takes, states that are true over a day."""

import json
import re
from itertools import combinations

import pytest

from edgert.stages.sink.send.home_assistant import Publication, Sensor, Sensors, identifier
from edgert.stages.sink.send.segment import Message

NAMES = [
    "Süd",
    "Sud",
    "S_d",
    "S-d",
    "S d",
    "Sd",
    "süd",
    "Su\u0308d",
    "南",
    "北",
    "",
    "a",
    "a_b",
    "a__b",
    "ÄÖÜ",
    "ß",
    "é" * 99,
]


def event(rule: str, number: str, phase: str, earlier: bool = False, stream: str = "gate") -> Message:
    body = json.dumps({"event": {"id": number, "phase": phase}}).encode()
    return Message(1, 0.0, "event", stream, rule, body, earlier)


def sensors(*known: Sensor, pipeline: str = "pole") -> Sensors:
    return Sensors(pipeline, "edgert/pole/status", lambda stream, rule: f"edgert/pole/{stream}/{rule}", known)


@pytest.mark.parametrize("name", NAMES)
def test_discovery_topics_are_such_as_home_assistant_takes(name: str) -> None:
    one = sensors(Sensor(name, name), pipeline=name)
    (config, state) = one.announce()
    assert re.fullmatch(r"homeassistant/binary_sensor/[a-zA-Z0-9_-]+/config", config.topic)
    found = json.loads(config.payload)
    assert found["name"] == f"{name} {name}" and found["device"]["name"] == name
    assert found["state_topic"] == state.topic and state.payload == "OFF" and config.retain and state.retain


def test_other_names_have_other_identifiers() -> None:
    several = [(one, other) for one in NAMES for other in NAMES]
    found = [identifier("edgert", *one) for one in several]
    assert all(one != other for one, other in combinations(found, 2))
    assert identifier("edgert", "pole", "gate", "yard") == "edgert_pole_gate_yard"


def test_a_sensor_is_on_while_any_of_its_events_lasts() -> None:
    one = sensors(Sensor("gate", "yard"))
    phases = [("a", "begin"), ("b", "begin"), ("a", "end"), ("b", "update"), ("b", "end"), ("a", "end")]
    states = [[each.payload for each in one.update(event("yard", *phase))] for phase in phases]
    assert states == [["ON"], ["ON"], ["ON"], ["ON"], ["OFF"], ["OFF"]]
    assert list(one.update(event("yard", "old", "begin", earlier=True))) == [], "nobody saw its end"
    list(one.update(event("yard", "c", "begin")))
    assert [each.payload for each in one.announce()][1] == "ON"
    assert [each.payload for each in one.turn_off()] == ["OFF"]


def test_a_crossing_shows_and_goes_off_by_itself() -> None:
    one = sensors(Sensor("gate", "crossed", lasts=False))
    (config,) = one.announce()
    found = json.loads(config.payload)
    assert found["off_delay"] == 1 and found["force_update"] is True
    states = [each for number in "ab" for each in one.update(event("crossed", number, "begin"))]
    assert states == 2 * [Publication(found["state_topic"], "ON", retain=False)]
    assert list(one.turn_off()) == []


def test_a_rule_that_the_file_does_not_have_is_known_by_its_first_event() -> None:
    one = sensors()
    first = list(one.update(event("own", "a", "begin")))
    assert [each.topic.rpartition("/")[2] for each in first] == ["config", "state"]
    assert len(list(one.update(event("own", "a", "end")))) == 1 and len(list(one.announce())) == 2
    assert one.own_topics == ()
