"""Zones and lines on the shipped scene, whose parts and places are known: counts are those of the ground truth."""

from collections import Counter
from itertools import pairwise

import numpy as np

from edgert.runtime import Detections
from edgert.stages.zones.areas import Change, Zones
from pipelines.conveyor import Conveyor
from tests.helpers.moving import Scene, zones_stage

SIZE, FRAMES = (640, 480), 450
PACKING = ((400.0, 60.0), (630.0, 60.0), (630.0, 450.0), (400.0, 450.0))
GATE_X = 180.0


def test_counts_are_those_of_the_ground_truth() -> None:
    stage = zones_stage({"packing": PACKING}, {"gate": ((GATE_X, 480), (GATE_X, 0))}, forget="16ms")
    scene, changes, last, places = Scene(), list[Change](), None, list[dict[int, tuple[float, float]]]()
    scene.size = SIZE
    belt, image = Conveyor(*SIZE, 30.0, 7), np.empty((SIZE[1], SIZE[0], 3), np.uint8)
    for index in range(FRAMES):
        truth = belt.render(index, image)
        boxes, classes, ids = truth.boxes, truth.classes, truth.ids
        found = Detections(boxes, np.ones(len(ids), np.float32), classes, (), ids)
        feet = zip(ids.tolist(), ((boxes[:, 0] + boxes[:, 2]) / 2).tolist(), boxes[:, 3].tolist(), strict=True)
        places.append({number: (x, y) for number, x, y in feet})
        last = stage.process(scene.of(found)).outputs["areas"]
        assert isinstance(last, Zones)
        changes += last.changes
        assert int(last.inside.sum()) == sum(map(_is_in_packing, places[-1].values()))
    seen = Counter((one.place, one.what) for one in changes)
    came = [
        [number for number, place in now.items() if _is_in_packing(place) and not _is_in_packing(before.get(number))]
        for before, now in pairwise([{}, *places])
    ]
    assert seen["packing", "entered"] == sum(map(len, came)) > 10
    steps = [
        (before[number][0], now[number][0]) for before, now in pairwise(places) for number in before.keys() & now.keys()
    ]
    assert seen["gate", "in"] == sum(one < GATE_X <= other for one, other in steps) > 10
    assert seen["gate", "out"] == sum(other < GATE_X <= one for one, other in steps)
    assert isinstance(last, Zones)
    assert last.totals.tolist() == [
        [seen["packing", "entered"], seen["packing", "left"]],
        [seen["gate", "in"], seen["gate", "out"]],
    ]


def _is_in_packing(place: tuple[float, float] | None) -> bool:
    (left, top), _, (right, bottom), _ = PACKING
    return place is not None and left <= place[0] < right and top <= place[1] < bottom
