import enum
import json
import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from edgert.clock import rfc3339
from edgert.errors import StageError
from edgert.runtime.json_form import encoded, plain, plain_result
from edgert.runtime.records import Classification, Crops, Detections, Embedding, Keypoints, Segmentation
from tests.helpers.frames import detections, frame_of, result_of


def test_a_result_has_the_documented_keys() -> None:
    frame = frame_of(stream="cam", index=12, timestamp_ns=81, media_ns=480_000_000)
    data = plain_result(result_of(frame, {"find": detections((1.004, 2, 3, 4.006))}))
    assert abs(data["time_ns"] - (time.time_ns() - time.monotonic_ns())) < 10**9  # captured as the machine started
    assert data["time"] == rfc3339(data["time_ns"])
    assert data == {
        "stream": "cam",
        "frame": 12,
        "time": data["time"],
        "time_ns": data["time_ns"],
        "timestamp_ns": 81,
        "media_s": 0.48,
        "outputs": {
            "find": {
                "type": "detections",
                "objects": [{"label": "bolt", "class": 0, "score": 0.9, "box": [1.0, 2.0, 3.0, 4.01]}],
            }
        },
    }


def test_ids_are_there_when_tracked_and_labels_when_known() -> None:
    tracked = plain(detections((0, 0, 1, 1), (1, 1, 2, 2), ids=(7, 9)))["objects"]
    assert [row["id"] for row in tracked] == [7, 9]
    record = detections((0, 0, 1, 1))
    unnamed = plain(type(record)(record.boxes, record.scores, record.classes))["objects"]
    assert "label" not in unnamed[0] and "id" not in unnamed[0]
    assert plain(detections())["objects"] == []


def test_classification() -> None:
    record = Classification(np.array([0.75, 0.2], np.float32), np.array([1, 0], np.int32), ("cat", "dog"))
    assert plain(record) == {
        "type": "classification",
        "classes": [{"label": "dog", "class": 1, "score": 0.75}, {"label": "cat", "class": 0, "score": 0.2}],
    }


def test_a_mask_comes_back_from_its_runs() -> None:
    mask = np.random.default_rng(0).integers(0, 3, (7, 11), np.uint8)
    data = plain(Segmentation(mask, (0, 0, 110.126, 70), ("ground", "road", "car")))
    assert data["size"] == [11, 7] and data["region"] == [0.0, 0.0, 110.13, 70.0]
    assert np.array_equal(np.repeat(data["values"], data["lengths"]).reshape(7, 11), mask)
    assert {row["label"]: row["share"] for row in data["areas"]} == pytest.approx(
        {name: float((mask == n).mean()) for n, name in enumerate(("ground", "road", "car"))}, abs=1e-4
    )


def test_an_empty_and_a_uniform_mask() -> None:
    assert plain(Segmentation(np.zeros((0, 0), np.uint8), (0, 0, 0, 0)))["values"] == []
    uniform = plain(Segmentation(np.full((2, 3), 5, np.uint8), (0, 0, 3, 2)))
    assert (uniform["values"], uniform["lengths"]) == ([5], [6])


def test_keypoints_and_embedding() -> None:
    points = np.array([[[1.234, 2.346, 0.98766], [3, 4, 0.5]]], np.float32)
    record = Keypoints.of(np.array([[1, 2, 3, 4]], np.float32), np.array([0.5], np.float32), points, ("a", "b"))
    data = plain(record)
    assert data["names"] == ["a", "b"]
    assert data["objects"] == [
        {"class": 0, "score": 0.5, "box": [1.0, 2.0, 3.0, 4.0], "points": [[1.23, 2.35, 0.9877], [3.0, 4.0, 0.5]]}
    ]
    assert data["type"] == "keypoints" and data["objects"] == plain(replace(record, ids=None))["objects"]
    (tracked,) = plain(replace(record, ids=np.array([7]))[np.array([0])])["objects"]
    assert tracked == {**data["objects"][0], "id": 7}
    assert plain(Embedding(np.array([0.6, 0.8], np.float32))) == {"type": "embedding", "vector": [0.6, 0.8]}


def test_shapes_of_objects_stand_beside_their_boxes() -> None:
    mask = Segmentation(np.array([[0, 1, 1], [1, 1, 0]], np.uint8), (1.0, 2.0, 4.0, 4.0))
    boxes, scores, classes = np.array([[1, 2, 4, 4]], np.float32), np.array([0.5], np.float32), np.zeros(1, np.int32)
    corners = np.array([[[1, 2], [4, 2.126], [4, 4], [1, 4]]], np.float32)
    (entry,) = plain(Detections(boxes, scores, classes, corners=corners, masks=(mask,)))["objects"]
    assert entry["corners"] == [[1.0, 2.0], [4.0, 2.13], [4.0, 4.0], [1.0, 4.0]]
    assert entry["mask"] == {
        "region": [1.0, 2.0, 4.0, 4.0], "size": [3, 2], "values": [0, 1, 0], "lengths": [1, 4, 1]
    }  # fmt: skip


def test_crops_nest() -> None:
    inner = Classification(np.array([1], np.float32), np.array([0], np.int32), ("AB 12",))
    data = plain(Crops("track", np.array([3], np.int32), (inner,)))
    assert data == {"type": "crops", "parent": "track", "items": [{"row": 3, "record": plain(inner)}]}


@dataclass
class Speed:
    value: float
    parts: list[np.float32] = field(default_factory=list)


class Gauge:
    def to_json(self) -> Any:
        return {"bar": (1, 2), "at": Speed(math.inf, [np.float32(0.5)])}


class Level(enum.IntEnum):
    HIGH = 3


def test_the_users_own_objects() -> None:
    assert plain(Gauge()) == {"bar": [1, 2], "at": {"value": None, "parts": [0.5]}}
    assert plain({"n": np.int64(4), 5: True, "level": Level.HIGH, "array": np.eye(2, dtype=np.int8)}) == {
        "n": 4,
        "5": True,
        "level": 3,
        "array": [[1, 0], [0, 1]],
    }


def test_what_json_lacks_becomes_null() -> None:
    data = [math.nan, np.float64(math.inf), np.array([1.5, math.nan]), np.array([[math.inf]], np.float32)]
    assert plain(data) == [None, None, [1.5, None], [[None]]]
    spoiled = detections((math.nan, 0, math.inf, 1))
    text = json.dumps(plain(spoiled), allow_nan=False)
    assert json.loads(text)["objects"][0]["box"] == [None, 0.0, None, 1.0]


@pytest.mark.parametrize("value", [object(), b"bytes", 1j, {1.5: 2}, {1, 2}, Speed])
def test_anything_else_is_refused_by_its_type(value: object) -> None:
    with pytest.raises(StageError) as caught:
        plain_result(result_of(outputs={"mine": {"deep": value}}))
    assert caught.value.where == "stages.mine"
    assert caught.value.fix


def test_data_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(StageError, match="nested too deeply"):
        plain(loop)


def test_numbers_of_any_size_are_encoded() -> None:
    assert json.loads(encoded({"small": 1e-7, "large": 2**70, "text": "grün"})) == {
        "small": 1e-7,
        "large": 2**70,
        "text": "grün",
    }
