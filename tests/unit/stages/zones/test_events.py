"""The events stage: what begins, goes on and ends, and when nothing does."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pytest

from edgert.clock import rfc3339
from edgert.errors import StageError
from edgert.runtime import Classification, Crops, Result
from edgert.stages.zones.rules import Event, Events
from edgert.stages.zones.schedule import is_within, parse_hours
from tests.helpers.moving import Scene, events_stage, zones_stage

YARD, GATE = ((0.5, 0), (1, 0), (1, 1), (0.5, 1)), ((50, 0), (50, 100))
IN, OUT = (70.0, 50.0), (20.0, 50.0)


class House:
    """A zones stage and an events stage behind it."""

    def __init__(self, **rules: dict[str, Any]) -> None:
        self._zones, self._events = zones_stage({"yard": YARD}, {"gate": GATE}), events_stage(**rules)
        self.scene = Scene()

    def at(self, *args: Any, **keys: Any) -> list[Event]:
        return self.events(self.scene.at(*args, **keys))

    def events(self, result: Result) -> list[Event]:
        record = self._events.process(self._zones.process(result)).outputs.get("alarm", Events(()))
        return list(record.events)

    def phases(self, times: int, *args: Any, **keys: Any) -> list[str]:
        """Of so many frames: rule:phase of every event."""
        return [f"{one.rule}:{one.phase}" for _ in range(times) for one in self.at(*args, **keys)]


def test_an_object_that_stays_begins_one_event_which_ends_when_it_goes() -> None:
    house = House(intruder={"zone": "yard", "classes": "person", "for": "3s"})
    assert house.phases(30, {5: IN}) == []
    (begun,) = house.at({5: IN})
    assert (begun.phase, begun.track, begun.place, begun.label) == ("begin", 5, "yard", "person")
    assert begun.seconds == pytest.approx(3.0) and begun.box == (66, 34, 74, 50)
    assert abs(begun.time_ns - (datetime.now(timezone.utc).timestamp() - 3) * 1e9) < 2e9
    assert house.phases(50, {5: IN}) == []
    assert house.phases(10, {5: OUT}) == []  # a gap of a second ends nothing
    (ended,) = house.at({5: OUT})
    assert (ended.phase, ended.id) == ("end", begun.id) and ended.seconds == pytest.approx(8.0)
    assert house.phases(31, {5: IN}) == ["intruder:begin"]


def test_a_detection_that_is_missing_for_a_moment_changes_nothing() -> None:
    house = House(intruder={"zone": "yard", "for": "2s"})
    assert house.phases(15, {5: IN}) + house.phases(5, {}) == []
    assert house.phases(1, {5: IN}) == ["intruder:begin"]
    assert house.phases(10, {}) == [] and house.phases(1, {}) == ["intruder:end"]


def test_every_object_has_its_own_event_and_only_one_where_asked() -> None:
    house = House(seen={"zone": "yard"}, first={"zone": "yard", "once": True})
    assert house.phases(1, {1: IN, 2: IN}) == ["seen:begin"] * 2 + ["first:begin"] * 2
    assert sorted(house.phases(11, {1: OUT, 2: OUT})) == sorted(["seen:end"] * 2 + ["first:end"] * 2)
    assert house.phases(1, {1: IN, 2: IN}) == ["seen:begin"] * 2


def test_classes_and_scores_must_hold() -> None:
    house = House(car={"zone": "yard", "classes": "car", "score": 0.8})
    assert house.phases(3, {1: IN, 2: IN}, classes=(0, 1), scores=(0.9, 0.7)) == []
    (one,) = house.at({1: IN, 2: IN}, classes=(0, 1), scores=(0.9, 0.85))
    assert one.track == 2 and one.label == "car"


def test_the_best_frame_is_that_of_the_surest_detection() -> None:
    house = House(seen={"zone": "yard", "update": "1s"})
    found = [one for score in (0.5, 0.6, 0.95, *[0.7] * 9) for one in house.at({1: IN}, scores=[score])]
    assert [(one.phase, one.best_frame) for one in found] == [("begin", 0), ("update", 2)]
    assert found[1].best_score == pytest.approx(0.95) and found[1].score == pytest.approx(0.7)
    assert found[0].id == found[1].id


def test_a_line_makes_an_event_without_end() -> None:
    house = House(left={"line": "gate", "way": "out"}, any={"line": "gate", "classes": "person"})
    house.at({1: OUT, 2: OUT}, classes=(0, 1))
    found = house.at({1: IN, 2: IN}, classes=(0, 1))
    assert [(one.rule, one.track, one.way, one.place) for one in found] == [
        ("left", 1, "out", "gate"), ("left", 2, "out", "gate"), ("any", 1, "out", "gate"),
    ]  # fmt: skip
    assert [one.rule for one in house.at({1: OUT}, classes=(0,))] == ["any"]
    assert house.phases(20, {}) == []


def test_a_crowd_is_one_event() -> None:
    house = House(crowd={"zone": "yard", "count": 3, "for": "1s"})
    assert house.phases(30, {1: IN, 2: IN, 3: OUT}) == [] == house.phases(10, {1: IN, 2: IN, 3: IN})
    (one,) = house.at({1: IN, 2: IN, 4: IN, 5: IN})
    assert (one.phase, one.count, one.place, one.box) == ("begin", 4, "yard", None)
    assert house.phases(11, {1: IN, 2: IN}) == ["crowd:end"]


def test_absence_is_an_event_that_a_moments_mistake_does_not_end() -> None:
    house = House(empty={"zone": "yard", "absent": "5s"})
    assert house.phases(50, {1: OUT}) == [] and house.phases(1, {}) == ["empty:begin"]
    assert house.phases(3, {1: IN}) == [] and house.phases(30, {}) == []
    assert house.phases(12, {1: IN}) == ["empty:end"]


def test_at_most_so_often() -> None:
    house = House(seen={"zone": "yard", "every": "60s"})
    assert house.phases(1, {1: IN, 2: IN}) == ["seen:begin"]
    assert house.phases(300, {3: IN}, seconds=0.1) == ["seen:end"]
    assert house.phases(300, {3: IN}, seconds=0.1) == ["seen:begin"]


def test_only_during_the_hours_that_are_asked_for() -> None:
    today = datetime.now().weekday()
    never, always = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[(today + 3) % 7], "mon-sun"
    assert House(seen={"zone": "yard", "during": [never]}).phases(5, {1: IN}) == []
    assert House(seen={"zone": "yard", "during": [never, always]}).phases(5, {1: IN}) == ["seen:begin"]


def test_what_a_second_model_found_in_an_object() -> None:
    house = House(bare={"zone": "yard", "attributes": {"helmet": "no"}})
    result = house.scene.at({1: IN, 2: IN})
    look = [Classification(np.ones(1, np.float32), np.array([number], np.int32), ("yes", "no")) for number in (0, 1)]
    crops = Crops("track", np.array([0, 1], np.int32), tuple(look))
    (one,) = house.events(result.with_output("helmet", crops))
    assert one.track == 2
    assert house.at({1: IN, 2: IN}) == []  # not looked at in this frame


def test_a_class_that_the_detector_does_not_have_is_an_error() -> None:
    with pytest.raises(StageError, match=r"no class 'persn'; did you mean 'person'") as caught:
        House(seen={"classes": "persn"}).at({1: IN})
    assert caught.value.where == "stages.alarm"
    assert House(seen={"classes": "0"}).phases(1, {1: IN}) == ["seen:begin"]


def test_a_label_that_the_second_model_does_not_have_is_an_error() -> None:
    house = House(bare={"attributes": {"helmet": "noo"}})
    look = Classification(np.ones(1, np.float32), np.zeros(1, np.int32), ("yes", "no"))
    crops = Crops("track", np.array([0], np.int32), (look,))
    with pytest.raises(StageError, match="no class 'noo'; did you mean 'no'") as caught:
        house.events(house.scene.at({1: IN}).with_output("helmet", crops))
    assert caught.value.where == "stages.alarm.rules.bare" and caught.value.why == "stage 'helmet' names 2 classes"


def test_all_that_is_written_must_hold() -> None:
    """A class, for a time, once per object, and not too often."""
    house = House(late={"zone": "yard", "classes": "person", "for": "1s", "once": True, "every": "60s"})
    assert house.phases(10, {1: IN, 2: IN, 3: OUT}, classes=(0, 1, 0)) == []
    assert house.phases(1, {1: IN, 2: IN, 3: IN}, classes=(0, 1, 0)) == ["late:begin"]
    assert house.phases(590, {3: IN}) == ["late:end"]  # object 3 has to wait
    assert house.phases(20, {1: IN, 3: IN}) == ["late:begin"]  # and object 1 had its event


def test_cameras_do_not_mix() -> None:
    house, other = House(crowd={"count": 2, "every": "60s"}), Scene("other")
    assert house.phases(3, {1: IN}) == [] == [one for _ in range(3) for one in house.events(other.at({2: IN}))]
    assert house.phases(1, {1: IN, 2: IN}) == ["crowd:begin"]
    assert [one.stream for one in house.events(other.at({2: IN, 3: IN}))] == ["other"]


def test_an_object_that_is_gone_for_long_is_forgotten() -> None:
    house = House(first={"zone": "yard", "once": True})
    assert house.phases(1, {1: IN}) == ["first:begin"] and house.phases(11, {}) == ["first:end"]
    house.at({}, seconds=61.0)
    assert house.phases(1, {1: IN}) == ["first:begin"]


def test_as_json() -> None:
    place = "yard", "", 5, "person", 0.91234, (1.0, 2.0, 3.0, 4.005)
    event = Event("ab", "intruder", "begin", "gate", 0, 3.25, *place, 1, 9, 0.95)
    assert event.to_json() == {
        "id": "ab", "rule": "intruder", "phase": "begin", "stream": "gate", "time": "1970-01-01T00:00:00.000000Z",
        "seconds": 3.25, "place": "yard", "track": 5, "label": "person", "score": 0.9123, "box": [1, 2, 3, 4.0],
        "best": {"frame": 9, "score": 0.95},
    }  # fmt: skip
    assert replace(event, box=None).to_json()["count"] == 1
    assert rfc3339(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"


MONDAY = datetime(2026, 11, 23)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("mon-fri 08:00-18:00", [(0, 8, 0), (4, 17, 59)], [(0, 7, 59), (0, 18, 0), (5, 12, 0)]),
        ("sat,sun", [(5, 0, 0), (6, 23, 59)], [(0, 0, 0), (4, 23, 59)]),
        ("22:00-06:00", [(0, 22, 0), (0, 5, 59), (6, 23, 0)], [(0, 6, 0), (0, 21, 59)]),
        ("fri 22:00-06:00", [(4, 22, 0), (5, 5, 59)], [(4, 5, 0), (5, 22, 0)]),
        ("sat-mon,wed 0:00-24:00", [(5, 0, 0), (6, 12, 0), (0, 23, 59), (2, 1, 0)], [(1, 0, 0), (3, 0, 0)]),
    ],
)
def test_hours(text: str, inside: Sequence[tuple[int, int, int]], outside: Sequence[tuple[int, int, int]]) -> None:
    hours = parse_hours(text)
    for wanted, moments in ((True, inside), (False, outside)):
        for day, hour, minute in moments:
            moment = MONDAY.replace(day=MONDAY.day + day, hour=hour, minute=minute)
            assert is_within([hours], int(moment.timestamp() * 1e9)) == wanted, moment


@pytest.mark.parametrize("text", ["", "monday", "8-18", "mon-fri 08:00", "25:00-26:00", "08:61-09:00", "9:00-9:00", 8])
def test_hours_that_are_none(text: object) -> None:
    with pytest.raises(ValueError, match=r"expected days|no time|end when they begin"):
        parse_hours(text)
