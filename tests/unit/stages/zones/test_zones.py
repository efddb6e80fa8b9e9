"""The zones stage: who is where, since when, and who crossed which line."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.errors import StageError
from edgert.runtime import Detections, Result
from edgert.runtime.json_form import plain_result
from edgert.stages.draw import Overlay
from edgert.stages.paint import Label, Stroke
from edgert.stages.zones.areas import Change, Zones, ZonesStage
from edgert.stages.zones.heat import HeatMap
from edgert.stages.zones.section import Inside
from tests.helpers.moving import LABELS, Scene, zones_stage

YARD = {"yard": ((0.5, 0), (1, 0), (1, 1), (0.5, 1))}
GATE = {"gate": ((50, 0), (50, 100))}  # downwards: its right-hand side is the left of the image


def looked(one: ZonesStage, result: Result) -> Zones:
    out = one.process(result)
    record = out.outputs["areas"]
    assert isinstance(record, Zones)
    return record


def changes_of(record: Zones) -> list[tuple[str, str, int]]:
    return [(one.place, one.what, one.track) for one in record.changes]


def test_entering_staying_and_leaving() -> None:
    one, scene = zones_stage(YARD), Scene()
    assert not looked(one, scene.at({7: (20, 50)})).inside.any()
    record = looked(one, scene.at({7: (70, 50)}))
    assert changes_of(record) == [("yard", "entered", 7)] and record.inside.tolist() == [[True]]
    record = looked(one, scene.at({7: (80, 50)}, seconds=1.5))
    assert record.changes == () and record.seconds.tolist() == [[1.5]]
    record = looked(one, scene.at({7: (20, 50)}))
    assert record.changes == (Change("yard", "left", 7, "person", 1.6),)
    assert record.totals.tolist() == [[1, 1]] and record.seconds.tolist() == [[0.0]]


def test_an_object_stands_on_its_foot_unless_asked_otherwise() -> None:
    tall = Detections(
        np.array([[10, 10, 30, 90]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int32), ids=np.array([1])
    )
    low = ((0, 80), (100, 80), (100, 100), (0, 100))
    zones = {how: {"points": low, "inside": how} for how in ("foot", "center", "overlap")}
    for part, is_over in ((0.25, False), (0.1, True)):
        record = looked(zones_stage(zones, part=part), Scene().of(tall))
        assert record.inside[:, 0].tolist() == [True, False, is_over]


def test_a_line_is_crossed_both_ways_and_by_jumps() -> None:
    one, scene = zones_stage(lines=GATE), Scene()
    assert changes_of(looked(one, scene.at({1: (20, 50), 2: (90, 50)}))) == []
    assert changes_of(looked(one, scene.at({1: (80, 50), 2: (10, 50)}))) == [("gate", "out", 1), ("gate", "in", 2)]
    assert changes_of(looked(one, scene.at({1: (20, 50)}))) == [("gate", "in", 1)]
    assert looked(one, scene.at({})).totals.tolist() == [[2, 1]]


def test_an_object_that_was_hidden_while_it_crossed_counts() -> None:
    one, scene = zones_stage(lines=GATE), Scene()
    looked(one, scene.at({1: (20, 50)}))
    for _ in range(9):
        looked(one, scene.at({}))
    assert changes_of(looked(one, scene.at({1: (80, 50)}))) == [("gate", "out", 1)]


def test_who_is_not_seen_any_more_has_left() -> None:
    one, scene = zones_stage(YARD, forget="1s"), Scene()
    looked(one, scene.at({3: (70, 50)}))
    looked(one, scene.at({3: (70, 50)}, seconds=0.5))
    assert changes_of(looked(one, scene.at({}, seconds=0.9))) == []
    record = looked(one, scene.at({}, seconds=0.3))
    assert record.changes == (Change("yard", "left", 3, "person", 0.5),)
    assert changes_of(looked(one, scene.at({3: (70, 50)}))) == [("yard", "entered", 3)]


def test_a_box_that_trembles_at_the_border_settles() -> None:
    one, scene = zones_stage(YARD, settle="500ms"), Scene()
    places = [(49, 50), (51, 50)] * 5
    assert [changes_of(looked(one, scene.at({1: place}))) for place in places] == [[]] * 10
    found = [looked(one, scene.at({1: (60, 50)})) for _ in range(7)]
    assert [changes_of(one) for one in found if one.changes] == [[("yard", "entered", 1)]]
    assert found[-1].seconds[0, 0] == pytest.approx(0.7)  # since it came to stay, not since it counted


def test_classes_count_where_they_are_wanted_and_a_changed_class_leaves() -> None:
    cars = {"yard": {"points": YARD["yard"], "classes": "car"}}
    one, scene = zones_stage(cars, {"gate": {"points": GATE["gate"], "classes": "0"}}), Scene()
    looked(one, scene.at({1: (20, 50), 2: (20, 60)}, classes=(0, 1)))
    record = looked(one, scene.at({1: (70, 50), 2: (70, 60)}, classes=(0, 1)))
    assert changes_of(record) == [("gate", "out", 1), ("yard", "entered", 2)]
    assert changes_of(looked(one, scene.at({1: (70, 50), 2: (70, 60)}, classes=(0, 0)))) == [("yard", "left", 2)]


def test_objects_without_numbers_are_counted_only() -> None:
    found = Detections(np.array([[60, 0, 80, 50]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int32), LABELS)
    record = looked(zones_stage(YARD), Scene().of(found))
    assert record.inside.tolist() == [[True]] and record.changes == ()
    zone = record.to_json()["zones"][0]
    assert zone["count"] == 1 and zone["classes"] == {"person": 1} and "ids" not in zone


def test_a_camera_has_its_own_zones_objects_and_totals() -> None:
    one = zones_stage({"here": {"points": YARD["yard"], "streams": "gate"}, **YARD})
    gate, yard = Scene("gate"), Scene("yard")
    assert looked(one, gate.at({1: (70, 50)})).zones == ("here", "yard")
    record = looked(one, yard.at({1: (20, 50)}))
    assert record.zones == ("yard",) and record.totals.tolist() == [[0, 0]]


def test_parts_follow_a_camera_that_changes_its_size() -> None:
    one, scene = zones_stage(YARD), Scene()
    looked(one, scene.at({1: (70, 50)}))
    scene.size = (200, 200)
    record = looked(one, scene.at({1: (120, 50)}))
    assert record.inside.all() and record.shapes[0].max() == 200 and record.totals[0, 0] == 2


def test_frames_at_which_no_model_looked_pass() -> None:
    result = Scene().of(None)
    assert zones_stage(YARD).process(result) is result


def test_as_json() -> None:
    one, scene = zones_stage(YARD, GATE), Scene()
    looked(one, scene.at({1: (20, 50)}))
    plain = plain_result(one.process(scene.at({1: (70, 50), 4: (90, 20)}, classes=(0, 1))))["outputs"]["areas"]
    assert plain == {
        "type": "zones",
        "zones": [
            {
                "name": "yard", "count": 2, "classes": {"person": 1, "car": 1}, "ids": [1, 4], "seconds": [0.0, 0.0],
                "entered": 2, "left": 0,
            },
        ],
        "lines": [{"name": "gate", "in": 0, "out": 1}],
        "changes": [
            {"place": "gate", "what": "out", "id": 1, "label": "person"},
            {"place": "yard", "what": "entered", "id": 1, "label": "person"},
            {"place": "yard", "what": "entered", "id": 4, "label": "car"},
        ],
    }  # fmt: skip


def test_a_zone_outside_of_the_frame_is_an_error_that_says_so() -> None:
    far = zones_stage({"far": ((500, 500), (600, 500), (600, 600))})
    with pytest.raises(StageError, match="'far' lies outside of the frame") as caught:
        far.process(Scene("gate").at({}))
    assert "reaches from 500, 500 to 600, 600" in caught.value.why and "'gate' are 100x100" in caught.value.why


def test_a_class_that_the_detector_does_not_have_is_an_error() -> None:
    one = zones_stage({"yard": {"points": YARD["yard"], "classes": "persn"}})
    with pytest.raises(StageError, match=r"no class 'persn'; did you mean 'person'"):
        one.process(Scene().at({1: (70, 50)}))


def test_zones_lines_and_counts_are_drawn() -> None:
    one, scene = zones_stage(YARD, GATE), Scene()
    one.process(scene.at({1: (20, 50)}))
    one.process(scene.at({1: (70, 50)}))
    result = one.process(scene.at({1: (75, 50)}, seconds=2.0))
    shapes = Overlay(["zones"]).shapes((200, 200), result)
    assert [shape.text for shape in shapes if isinstance(shape, Label)] == ["2 s", "yard 1", "gate in 0 out 1"]
    strokes = [shape.points // 16 for shape in shapes if isinstance(shape, Stroke)]
    assert strokes[0].tolist() == [[100, 0], [200, 0], [200, 200], [100, 200], [100, 0]]  # closed
    assert strokes[-1].tolist() == [[100, 0], [100, 200]]
    assert Overlay(["boxes"]).shapes((200, 200), result)[1:] == []


def test_a_heat_map_shows_where_objects_stood(tmp_path: Path) -> None:
    one, scene = zones_stage(YARD, heatmap=tmp_path / "maps" / "{stream}.png"), Scene()
    for _ in range(20):
        one.process(scene.at({1: (90, 90)}))
    one.close()
    image = cv2.imread(str(tmp_path / "maps" / "camera.png"))
    assert image is not None and image[486, 864].sum() > 300 > image[10, 10].sum()


SHAPES = {"parts": ((0, 0.5), (1, 0.5), (1, 1), (0, 1)), "pixels": ((0, 50), (100, 50), (100, 100), (0, 100))}


@pytest.mark.parametrize("unit", SHAPES)
@pytest.mark.parametrize("inside", ["foot", "center", "overlap"])
def test_objects_at_the_lower_and_right_border_are_in_the_zone_that_reaches_it(unit: str, inside: Inside) -> None:
    boxes = np.array([[40, 60, 50, 100], [100, 60, 100.5, 90], [96, 70, 104, 100], [40, 55, 60, 145]], np.float32)
    found = Detections(boxes, np.ones(4, np.float32), np.zeros(4, np.int32), ids=np.arange(4))
    record = looked(zones_stage({"low": SHAPES[unit]}, inside=inside), Scene().of(found))
    assert record.inside[0].tolist() == [True, inside != "overlap", True, True]


def test_a_heat_map_counts_objects_at_the_border_in_its_last_cells(tmp_path: Path) -> None:
    heat = HeatMap(tmp_path / "heat.png")
    heat.add("camera", np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.5, 1.0]]))
    counts = heat._counts["camera"]
    assert counts[-1, -1] == counts[-1, 0] == counts[0, -1] == counts[-1, 48] == 1 and counts.sum() == 4
