from __future__ import annotations

import numpy as np

from edgert.config import TrackStage
from edgert.runtime import Detections, Keypoints
from edgert.stages.context import Context
from edgert.stages.track import Track
from tests.helpers.frames import frame_of, result_of

CONFIG = TrackStage.model_validate({"track": "bytetrack", "from": "find", "confirm": 1})


def found(*boxes: tuple[float, float, float, float], score: float = 0.9) -> Detections:
    count = len(boxes)
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.full(count, score, np.float32),
        np.zeros(count, np.int32),
        ("car",),
    )


def ids(stage: Track, detections: Detections | None, stream: str = "cam", index: int = 0) -> list[int] | None:
    outputs = {} if detections is None else {"find": detections}
    out = stage.process(result_of(frame_of(stream=stream, index=index), outputs))
    if "track" not in out.outputs:
        return None
    tracked = out.outputs["track"]
    assert tracked.labels == ("car",) and len(tracked) == len(tracked.ids)
    return tracked.ids.tolist()  # type: ignore[no-any-return]


def test_an_object_keeps_its_number_while_it_moves() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=30))
    numbers = [ids(stage, found((10 + n, 10, 50 + n, 50)), index=n) for n in range(20)]
    assert all(number == numbers[1] and len(number or []) == 1 for number in numbers[1:])


def test_streams_are_kept_apart() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=30))
    for n in range(5):
        north, south = ids(stage, found((10, 10, 50, 50)), "north", n), ids(stage, found(), "south", n)
    assert north and south == []
    assert ids(stage, found((10, 10, 50, 50)), "south", 5) in ([], [1])


def test_a_frame_that_nobody_looked_at_passes() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=30))
    for n in range(3):
        ids(stage, found((10, 10, 50, 50)), index=n)
    assert ids(stage, None, index=3) is None
    assert ids(stage, found((10, 10, 50, 50)), index=4) == [1]


def test_low_scores_are_not_heard_and_belong_to_none() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=30))
    assert ids(stage, found((10, 10, 50, 50), score=0.05)) == []
    assert ids(stage, found((10, 10, 50, 50), score=0.3)) == []


def test_an_empty_frame_and_the_end() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=30))
    stage.open()
    assert ids(stage, found()) == []
    for n in range(3):
        before = ids(stage, found((10, 10, 50, 50)), index=n)
    stage.close()
    assert [ids(stage, found((10, 10, 50, 50)), index=n) for n in range(3)][-1] == before


def test_bodies_are_tracked_with_their_points() -> None:
    stage = Track("track", CONFIG, Context(rate_hz=30))
    for n in range(3):
        boxes = np.array([(10 + n, 10, 50 + n, 90), (200, 10, 240, 90)], np.float32)
        points = np.tile(boxes.reshape(2, 2, 2), (1, 1, 2))[..., :3]
        body = Keypoints.of(boxes, np.array([0.9, 0.8], np.float32), points, ("head", "foot"))
        out = stage.process(result_of(frame_of(index=n), {"find": body}))
        tracked = out.outputs["track"]
        assert isinstance(tracked, Keypoints) and tracked.names == ("head", "foot")
        assert tracked.ids is not None and tracked.points is not None
        assert np.array_equal(tracked.points, points) and tracked.ids.tolist() == [1, 2]
