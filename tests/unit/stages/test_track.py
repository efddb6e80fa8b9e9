import re
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from edgert.config import TrackStage
from edgert.runtime import Crops, Detections, Embedding, Result, Segmentation
from edgert.runtime.json_form import plain_result
from edgert.stages.botsort import BotSort
from edgert.stages.context import Context
from edgert.stages.kinds import BotSortStage
from edgert.stages.track import Track
from tests.helpers.frames import frame_of, result_of, things
from tests.helpers.written import opened

CONFIG = TrackStage.model_validate({"track": "bytetrack", "from": "find", "confirm": 1})


def found(*boxes: tuple[float, float, float, float], score: float = 0.9) -> Detections:
    return things(*boxes, scores=score, labels=("car",))


def ids(stage: Track, detections: Detections | None, stream: str = "cam", index: int = 0) -> list[int] | None:
    outputs = {} if detections is None else {"find": detections}
    out = stage.process(result_of(frame_of(stream=stream, index=index), outputs))
    if "track" not in out.outputs:
        return None
    tracked = out.outputs["track"]
    assert tracked.labels == ("car",) and len(tracked) == len(tracked.ids)
    return tracked.ids.tolist()  # type: ignore[no-any-return]


def test_streams_are_kept_apart() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=30))
    for n in range(5):
        north, south = ids(stage, found((10, 10, 50, 50)), "north", n), ids(stage, found(), "south", n)
    assert north and south == []
    assert ids(stage, found((10, 10, 50, 50)), "south", 5) in ([], [1])


def test_a_frame_that_nobody_looked_at_passes() -> None:
    stage = Track("track", CONFIG.model_copy(update={"predict": False}), Context(rate_hz=30))
    for n in range(3):
        ids(stage, found((10, 10, 50, 50)), index=n)
    assert ids(stage, None, index=3) is None
    assert ids(stage, found((10, 10, 50, 50)), index=4) == [1]


def test_between_two_looks_objects_are_where_they_are_expected() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=10))
    for n in range(0, 90, 3):  # every: 3, and 2 pixels a frame
        record = replace(
            found((10 + 2 * n, 10, 50 + 2 * n, 50)),
            corners=np.array([[(10 + 2 * n, 10), (50 + 2 * n, 10), (50 + 2 * n, 50), (10 + 2 * n, 50)]], np.float32),
            masks=(Segmentation(np.ones((4, 4), np.uint8), (10 + 2 * n, 10, 50 + 2 * n, 50)),),
            points=np.array([[(30 + 2 * n, 30, 0.7)]], np.float32),
        )
        for index in (n, n + 1, n + 2):
            frame = frame_of(stream="cam", index=index, media_ns=index * 33_000_000)
            out = stage.process(result_of(frame, {"find": record} if index == n else {}))
            tracked = out.outputs["track"]
            assert tracked.predicted is (index != n) and tracked.ids.tolist() == [1]
    assert tracked.corners is not None and tracked.masks is not None and tracked.points is not None
    expected = 10 + 2 * index
    assert tracked.boxes[0].tolist() == pytest.approx([expected, 10, expected + 40, 50], abs=1.5)
    assert tracked.masks[0].region == pytest.approx(tracked.boxes[0].tolist(), abs=1e-3)
    assert tracked.corners[0, 2].tolist() == pytest.approx(tracked.boxes[0, 2:].tolist(), abs=1e-3)
    assert tracked.points[0, 0].tolist() == pytest.approx([*(tracked.boxes[0, :2] + 20).tolist(), 0.7], abs=0.1)
    assert plain_result(out)["outputs"]["track"]["predicted"] is True
    far = stage.process(result_of(frame_of(stream="cam", index=900, media_ns=900 * 33_000_000)))
    assert abs(far.detections.boxes[0, 0] - expected) < 12  # and not out of the image


def test_before_the_first_look_nothing_is_expected() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=30))
    assert ids(stage, None) is None
    assert ids(stage, found((10, 10, 50, 50)), index=1) == [1] and ids(stage, None, index=2) == [1]


@pytest.mark.parametrize(
    ("keys", "score", "expected"),
    [
        ({}, 0.3, (0.1, 0.3, 0.4)),
        ({}, 0.1, (0.1, 0.25, 0.35)),
        ({}, None, (0.1, 0.25, 0.35)),
        ({}, 0.05, (0.1, 0.25, 0.35)),
        ({}, 0.9, (0.1, 0.9, 0.95)),
        ({"high": 0.6}, 0.3, (0.1, 0.6, 0.7)),
        ({"high": 0.05}, 0.3, (0.05, 0.05, 0.15)),
        ({"activate": 0.8, "low": 0.2}, 0.3, (0.2, 0.3, 0.8)),
    ],
)
def test_limits_follow_the_models_score(
    keys: dict[str, float], score: float | None, expected: tuple[float, float, float]
) -> None:
    section = TrackStage.model_validate({"track": "botsort", "from": "find", **keys})
    assert section.limits(score) == pytest.approx(expected)  # type: ignore[attr-defined]
    text = section.thresholds(score)
    assert f"{expected[1]:.2g}" in text
    assert ("by the model's score" in text) is ("high" not in keys and score is not None)


def test_a_tracker_that_does_not_follow_the_camera_needs_no_images() -> None:
    for follows in (True, False):
        keys = {"track": "botsort", "from": "find", "camera_motion": follows}
        assert BotSortStage.model_validate(keys).reads_images is follows


def test_looks_that_are_too_far_apart_are_no_match() -> None:
    """Something jumps to where no box was, and looks a little different there."""
    ids = {}
    for accepted in (0.0, 0.5):
        keys = {"track": "botsort", "from": "find", "camera_motion": False, "proximity": 1.0}
        stage = BotSortStage.model_validate({**keys, "appearance": accepted})
        tracker = stage.make("track", Context(score=0.3))
        assert isinstance(tracker, BotSort)
        for left, look in ((10, (1.0, 0.0)), (10, (1.0, 0.0)), (200, (0.9, 0.4)), (200, (0.9, 0.4))):
            record = found((left, 50, left + 60, 200))
            crops = Crops("find", np.array([0], np.int32), (Embedding(np.array(look, np.float32)),))
            tracker.look(Result(frame_of(320, 240, "gray"), {"find": record, "recognize": crops}), record)
            ids[accepted] = [int(one) for one in tracker.update(record.boxes, record.scores, record.classes)]
    assert ids == {0.5: [1], 0.0: [2]}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"low": 0.5, "high": 0.3}, "low: 0.5 is above high: 0.3"),
        ({"activate": 0.2, "high": 0.3}, "activate: 0.2 is below high: 0.3"),
        ({"high": 1.2}, "less than or equal to 1"),
        ({"proximity": -1}, "greater than or equal to 0"),
    ],
)
def test_limits_that_cannot_be(keys: dict[str, float], why: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(why)):
        BotSortStage.model_validate({"track": "botsort", "from": "find", **keys})


def test_a_model_of_low_scores_keeps_its_tracks() -> None:
    """Scores of 0.3 to 0.45 on objects that move by half their width: the first pairing must take them."""
    stage = Track("track", TrackStage.model_validate({"track": "bytetrack", "from": "find"}), Context(score=0.3))
    numbers = [
        ids(stage, found((10 + 12 * n, 10, 50 + 12 * n, 50), score=0.45 if n == 0 else 0.31 + 0.02 * (n % 3)), index=n)
        for n in range(20)
    ]
    assert numbers[1:] == [[1]] * 19


def test_low_scores_are_not_heard_and_belong_to_none() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=30))
    assert ids(stage, found((10, 10, 50, 50), score=0.05)) == []
    assert ids(stage, found((10, 10, 50, 50), score=0.24)) == []


def test_an_empty_frame_and_the_end() -> None:
    with opened(Track("track", CONFIG, Context(rate_hz=30))) as stage:
        assert ids(stage, found()) == []
        for n in range(3):
            before = ids(stage, found((10, 10, 50, 50)), index=n)
    assert [ids(stage, found((10, 10, 50, 50)), index=n) for n in range(3)][-1] == before
