"""What is sent of a result: which, how often, and that it is what the schema says."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from edgert.clock import REAL
from edgert.runtime import Result
from edgert.stages.sink.send.messages import Choice, Writer, schema
from edgert.stages.zones.areas import Area, ZonesStage
from edgert.stages.zones.rules import EventsStage, Rule
from tests.helpers.moving import Scene

YARD = Area("yard", ((0.5, 0), (1, 0), (1, 1), (0.5, 1)))


def sent(writer: Writer, *results: Result) -> list[dict[str, Any]]:
    found = [json.loads(body) for result in results for *_, body in writer.messages(result)]
    for one in found:
        jsonschema.validate({"id": "x-1", **one}, schema())
    return found


def writer(**choice: Any) -> Writer:
    return Writer(Choice(**choice), "pole", REAL)


def test_every_result() -> None:
    scene = Scene("gate")
    first, second = sent(writer(), scene.at({1: (20, 20)}), scene.at({}))
    assert (first["schema"], first["kind"], first["pipeline"], first["stream"]) == (1, "result", "pole", "gate")
    assert first["outputs"]["track"]["objects"][0]["id"] == 1 and second["frame"] == 1


def test_only_some_records() -> None:
    result = Scene().at({1: (20, 20)}).with_output("more", {"a": 1})
    assert sent(writer(only=("more",)), result)[0]["outputs"] == {"more": {"a": 1}}


def test_at_most_so_often_for_each_stream() -> None:
    one, scene, other = writer(every_ns=10**12), Scene("a"), Scene("b")
    assert len(sent(one, scene.at({}), scene.at({}), other.at({}))) == 2


def test_results_whose_objects_are_others() -> None:
    one, scene = writer(send="changes"), Scene()
    feet = [{}, {}, {1: (20, 20)}, {1: (30, 20)}, {1: (30, 20), 2: (1, 1)}, {2: (1, 1)}]
    assert [one["frame"] for one in sent(one, *[scene.at(places) for places in feet])] == [0, 2, 4, 5]


def test_every_event_by_itself() -> None:
    zones, events = ZonesStage("areas", [YARD], []), EventsStage("alarm", [Rule("in", zones=("yard",))], REAL)
    scene, one = Scene("gate"), writer(send="events")
    found = sent(one, *[events.process(zones.process(scene.at(feet))) for feet in ({}, {1: (70, 20), 2: (80, 20)}, {})])
    assert [event["event"]["track"] for event in found] == [1, 2] and found[0]["frame"] == 1
    assert "outputs" not in found[0] and found[0]["event"]["phase"] == "begin"


@pytest.mark.parametrize("wrong", [{}, {"kind": "event"}, {"schema": 2}, {"event": {"id": "a", "colour": "red"}}])
def test_the_schema_refuses_what_is_none(wrong: dict[str, Any]) -> None:
    good = {"id": "x", **sent(writer(), Scene().at({}))[0]}
    jsonschema.validate(good, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, "kind": "event", **wrong} if wrong else {}, schema())
