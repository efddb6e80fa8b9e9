"""What is sent of a result: which, how often, and that it is what the schema says."""

import base64
import json
from dataclasses import replace
from typing import Any

import cv2
import jsonschema
import numpy as np
import pytest

from edgert.clock import REAL
from edgert.runtime import Result
from edgert.stages.sink.send.messages import Snapshots, Writer, schema
from edgert.testing import sample
from tests.helpers.moving import Scene, events_stage, zones_stage

YARD = {"yard": ((0.5, 0), (1, 0), (1, 1), (0.5, 1))}


def sent(writer: Writer, *results: Result) -> list[dict[str, Any]]:
    found = [json.loads(body) for result in results for *_, body in writer.messages(result)]
    for one in found:
        jsonschema.validate({"id": "x-1", **one}, schema())
    return found


def writer(**choice: Any) -> Writer:
    return Writer("pole", REAL, **choice)


def test_every_result() -> None:
    scene = Scene("gate")
    first, second = sent(writer(), scene.at({1: (20, 20)}), scene.at({}))
    assert (first["schema"], first["kind"], first["pipeline"], first["stream"]) == (1, "result", "pole", "gate")
    assert first["outputs"]["track"]["objects"][0]["id"] == 1 and second["frame"] == 1


def test_only_some_records() -> None:
    result = Scene().at({1: (20, 20)}).with_output("more", {"a": 1})
    assert sent(writer(only=("more",)), result)[0]["outputs"] == {"more": {"a": 1}}


def test_at_most_so_often_for_each_stream() -> None:
    one, scene, other = writer(every_s=1000), Scene("a"), Scene("b")
    assert len(sent(one, scene.at({}), scene.at({}), other.at({}))) == 2


def test_crops_of_every_object_and_one_trace_for_all_messages_about_a_frame() -> None:
    scene = Scene("gate")
    seen, empty = scene.at({1: (20, 20), 2: (60, 60)}), scene.at({})
    (crops,) = sent(writer(send="crops"), seen, empty)
    (about,) = sent(writer(), seen)
    assert crops["kind"] == "crops" and "outputs" not in crops
    assert [(one["row"], one["id"], one["label"]) for one in crops["crops"]] == [(0, 1, "person"), (1, 2, "person")]
    jpeg = np.frombuffer(base64.b64decode(crops["crops"][0]["image"]["data"]), np.uint8)
    assert cv2.imdecode(jpeg, cv2.IMREAD_COLOR).shape == (16, 8, 3)  # the box, without a margin
    assert crops["trace"] == about["trace"] != sent(writer(), empty)[0]["trace"]


def test_results_whose_objects_are_others() -> None:
    one, scene = writer(send="changes"), Scene()
    feet = [{}, {}, {1: (20, 20)}, {1: (30, 20)}, {1: (30, 20), 2: (1, 1)}, {2: (1, 1)}]
    assert [one["frame"] for one in sent(one, *[scene.at(places) for places in feet])] == [0, 2, 4, 5]


def test_every_event_by_itself() -> None:
    zones, events = zones_stage(YARD), events_stage(**{"in": {"zone": "yard"}})
    scene, one = Scene("gate"), writer(send="events")
    found = sent(one, *[events.process(zones.process(scene.at(feet))) for feet in ({}, {1: (70, 20), 2: (80, 20)}, {})])
    assert [event["event"]["track"] for event in found] == [1, 2] and found[0]["frame"] == 1
    assert "outputs" not in found[0] and found[0]["event"]["phase"] == "begin"


def image_of(message: dict[str, Any]) -> Any:
    found = message["image"]
    data = cv2.imdecode(np.frombuffer(base64.b64decode(found["data"]), np.uint8), cv2.IMREAD_COLOR)
    assert data is not None and data.shape == (found["height"], found["width"], 3)
    return data


def test_a_frame_goes_along_as_it_was_drawn() -> None:
    drawn = np.zeros((100, 1280, 3), np.uint8)
    drawn[:, 640:] = 200
    (plain,) = sent(writer(attach="frame"), Scene().at({1: (20, 20)}))
    assert image_of(plain).shape[1] <= 640
    image = image_of(sent(writer(attach="frame"), replace(Scene().at({}), image=drawn))[0])
    assert image.shape == (50, 640, 3) and image[:, :300].max() < 20 and image[:, 340:].min() > 180


def test_the_object_of_an_event_goes_along_and_no_image_when_it_ends() -> None:
    zones, events = zones_stage(YARD), events_stage(**{"in": {"zone": "yard"}})
    scene, one = Scene("gate"), writer(send="events", attach="crop")
    feet: list[dict[int, tuple[float, float]]] = [{}, {1: (56, 30)}, {}, *[{}] * 40]
    found = sent(one, *[events.process(zones.process(scene.at(places))) for places in feet])
    begin, end = found[0], found[-1]
    assert (begin["event"]["phase"], end["event"]["phase"]) == ("begin", "end") and "image" not in end
    height, width = image_of(begin).shape[:2]
    assert 8 < width < 20 and 16 < height < 30  # the box is 8 x 16
    one.close()


@pytest.mark.parametrize("box", [(-50.0, -50.0, -20.0, -20.0), (5.0, 5.0, 5.0, 5.0), (-10.0, -10.0, 500.0, 500.0)])
def test_a_box_that_is_not_within_the_frame(box: tuple[float, float, float, float]) -> None:
    result = sample(0)
    made = Snapshots("crop").snapshot(result, box)
    assert image_of({"image": made}).shape[:2] == (result.frame.height, result.frame.width)


@pytest.mark.parametrize("wrong", [{}, {"kind": "event"}, {"schema": 2}, {"event": {"id": "a", "colour": "red"}}])
def test_the_schema_refuses_what_is_none(wrong: dict[str, Any]) -> None:
    good = {"id": "x", **sent(writer(), Scene().at({}))[0]}
    jsonschema.validate(good, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, "kind": "event", **wrong} if wrong else {}, schema())
