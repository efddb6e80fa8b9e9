"""Every kind of record: what has boxes is tracked, cropped, drawn and judged; what has none is judged or refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgert.config.stages import CropConfig, DrawStage, TrackStage
from edgert.dataset.labels import Boxes, GroundTruthBoxes
from edgert.errors import ConfigError
from edgert.evaluation.score import Agreement, BoxScorer
from edgert.runtime import Classification, Detections, Embedding, Keypoints, Segmentation, Text
from edgert.runtime.records import AnomalyMap, Attributes, DepthMap, OutputImage
from edgert.stages.context import Context
from edgert.stages.crop import crop_boxes
from edgert.stages.draw import Draw
from edgert.stages.track import Track
from tests.helpers.frames import frame_of, result_of
from tests.helpers.virtual_clock import VirtualClock

CORNERS = np.array([[20, 20, 80, 70], [120, 30, 180, 110]], np.float32)
PLAIN = Detections(CORNERS, np.array([0.9, 0.8], np.float32), np.zeros(2, np.int32), ("thing",))
RINGS = CORNERS[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
POINTS = np.concatenate([RINGS, np.ones((2, 4, 1), np.float32)], axis=2)
MASKS = tuple(Segmentation(np.ones((8, 8), np.uint8), tuple(box)) for box in CORNERS.tolist())
BOXED = {
    "boxes": PLAIN,
    "oriented boxes": replace(PLAIN, corners=RINGS),
    "masks": replace(PLAIN, masks=MASKS),
    "points": replace(PLAIN, points=POINTS),
    "bodies": Keypoints.of(CORNERS, PLAIN.scores, POINTS),
}
METRICS = {"oriented boxes": "obb_map", "masks": "mask_map", "points": "oks_map", "bodies": "oks_map"}
REGION = (0.0, 0.0, 200.0, 150.0)
MAP = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
SOME = Classification(np.array([0.9, 0.1], np.float32), np.array([1, 0], np.int32), ("a", "b"))
OTHERS: dict[str, Any] = {
    "classes": SOME,
    "several heads": Attributes({"color": SOME, "age": 30.0}),
    "a mask": Segmentation(np.ones((3, 4), np.uint8), REGION),
    "a vector": Embedding(np.array([0.6, 0.8], np.float32)),
    "a text": Text("abc", 0.9),
    "depth": DepthMap(MAP, REGION, "metric"),
    "an image": OutputImage(np.arange(36, dtype=np.uint8).reshape(3, 4, 3), REGION),
    "anomalies": AnomalyMap(MAP, REGION, 0.4, 0.5),
}


@pytest.mark.parametrize("kind", BOXED)
def test_what_has_boxes_is_tracked_cropped_and_drawn(kind: str) -> None:
    record = BOXED[kind]
    frame = frame_of(200, 150, pixels=(np.full((150, 200, 3), 128, np.uint8),))
    track = Track(
        "track", TrackStage.model_validate({"track": "bytetrack", "from": "x", "confirm": 1}), Context(rate_hz=30)
    )
    for _ in range(3):
        result = track.process(result_of(frame, {"x": record}))
    tracked = result.outputs["track"]
    assert type(tracked) is type(record) and len(set(tracked.ids.tolist())) == 2
    for shape in ("corners", "masks", "points"):
        assert (getattr(tracked, shape) is None) == (getattr(record, shape) is None)
    rows, cut = crop_boxes(tracked, frame, CropConfig())
    assert rows.tolist() == [0, 1] and cut.tolist() == CORNERS.astype(int).tolist()
    for element in (
        "boxes",
        "labels",
        *(["masks"] if record.masks else []),
        *(["keypoints"] if record.points is not None else []),
    ):
        stage = Draw("draw", DrawStage.model_validate({"draw": [element], "from": "x"}), VirtualClock())
        image = stage.process(result).image
        assert image is not None and (image != 128).any(), element


@pytest.mark.parametrize("kind", BOXED)
def test_what_has_boxes_is_judged(kind: str) -> None:
    areas, visible = np.array([3000.0, 4800]), np.dstack([RINGS, np.full((2, 4, 1), 2)])
    outlines = tuple([ring.reshape(-1).tolist()] for ring in RINGS)
    truth = Boxes(CORNERS.astype(np.float64), np.zeros(2, np.int64), areas, np.zeros(2, np.bool_), (150, 200), outlines,
                  RINGS.astype(np.float64), visible)  # fmt: skip
    scorer = BoxScorer(GroundTruthBoxes((truth,), (0,)))
    found = scorer.scores([scorer.note(0, BOXED[kind])], None)
    assert found["map"].value == pytest.approx(1) and found[METRICS.get(kind, "map50")].value == pytest.approx(1)
    assert set(found) == {"map", "map50", METRICS.get(kind, "map"), f"{METRICS.get(kind, 'map')}50"}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_has_no_boxes_is_compared_or_refused(kind: str) -> None:
    record, agreement = OTHERS[kind], Agreement()
    note = [agreement.note(0, record)]
    (score,) = agreement.scores(note, note).values()
    assert score.value == pytest.approx(1)
    with pytest.raises(ConfigError, match="labels of boxes do not fit this model"):
        BoxScorer(GroundTruthBoxes((), ())).note(0, record)
