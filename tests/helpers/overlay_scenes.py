"""Results with everything that can be drawn, for comparing painters."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from edgert.runtime.frame import Frame
from edgert.runtime.records import Classification, Crops, Detections, Keypoints, Result, Segmentation

ELEMENTS = ("boxes", "labels", "masks", "keypoints", "trails", "stats")
_LABELS = ("person", "Fahrrad groß", "car", "g|jÅ,y")


def busy_scene(
    frame: Frame, step: int, objects: int = 50, masks: int = 1, bodies: int = 0, seed: int = 0, jitter: float = 0.03
) -> Result:
    """Moving objects with numbers, at one step; ``jitter`` changes scores, and so labels, between them."""
    rng = np.random.default_rng(seed)
    size = np.array([frame.width, frame.height], np.float64)
    start, speed = rng.uniform(0.02, 0.9, (objects, 2)) * size, rng.normal(0, 0.004, (objects, 2)) * size
    extent = rng.uniform(0.01, 0.12, (objects, 2)) * size
    corner = start + speed * step
    boxes = np.hstack([corner, corner + extent]).astype(np.float32)
    scores = rng.uniform(0.4, 0.95, objects)
    scores += np.random.default_rng((seed, step)).uniform(-jitter, jitter, objects)
    classes, ids = rng.integers(0, 5, objects).astype(np.int32), np.arange(1, objects + 1)
    outputs: dict[str, Any] = {}
    for number in range(masks):
        mask = rng.integers(0, 5, (9 + number, 16)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
        outputs[f"segment{number}"] = Segmentation(mask, (0.0, 0.0, *size.tolist()), ("background", "road", "sky"))
    outputs["track"] = Detections(boxes, scores.astype(np.float32), classes, _LABELS, ids)
    if bodies:
        points = np.concatenate(
            [rng.uniform(-0.1, 1.1, (bodies, 17, 2)) * size + step, rng.uniform(0.1, 1, (bodies, 17, 1))], axis=2
        ).astype(np.float32)
        outputs["pose"] = Keypoints.of(boxes[:bodies], scores[:bodies].astype(np.float32), points)
    return Result(frame, outputs)


def odd_scenes(frame: Frame) -> Iterator[Result]:
    """What hangs over the edges, is tiny, turned round, not a number, nested or not there at all."""
    width, height = frame.width, frame.height
    corners = [
        (0, 0, width - 1, height - 1), (-30, -20, 25, 30), (width - 20, height - 15, width + 40, height + 60),
        (-5000, 30, 90000, 50), (40, 40, 40, 40), (60, 60, 63, 62), (70, 70, 74, 110), (90, 60, 110, 62),
        (130, 90, 100, 50), (np.nan, 5, 60, np.inf), (-100, -100, -50, -50), (width + 5, 10, width + 50, 60),
    ]  # fmt: skip
    boxes = np.array(corners, np.float32)
    count = len(boxes)
    scores, classes = np.linspace(0.99, 0.2, count).astype(np.float32), np.arange(count, dtype=np.int32)
    found = Detections(boxes, scores, classes, _LABELS)
    plate = Classification(np.array([0.9, 0.05], np.float32), np.array([0, 1], np.int32), ("AB 123", "none"))
    nested = Detections(np.array([[80, 50, 130, 90]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int32))
    yield Result(frame)
    yield Result(frame, {"find": found})
    yield Result(frame, {"find": found, "read": Crops("find", np.array([6, 8, 3], np.int32), (plate, "word", nested))})
    yield Result(frame, {"class": plate, "long": Classification(scores[:2], classes[:2], ("a word " * 60, "short"))})
    mask = np.random.default_rng(0).integers(0, 256, (13, 21)).astype(np.uint8)
    for region in ((0.0, 0.0, width, height), (-20.0, -30.0, width / 2, height * 1.5), (30.0, 20.0, 36.0, 24.0),
                   (width + 5.0, 0.0, width + 50.0, 50.0), (50.0, 50.0, 20.0, 20.0)):  # fmt: skip
        labels = ("road", "car") if region[0] < 0 else ()
        yield Result(frame, {"a": Segmentation(mask, region, labels), "b": Segmentation(mask[:5, :7], region)})
    for points in (17, 5):
        at = np.random.default_rng(points).uniform(-40, width + 40, (3, points, 2))
        whole = np.concatenate([at, np.ones((3, points, 1))], axis=2).astype(np.float32)
        yield Result(frame, {"pose": Keypoints.of(boxes[:3], scores[:3], whole)})
    turned = np.random.default_rng(6).uniform(-40, width + 40, (count, 4, 2)).astype(np.float32)
    turned[-1, 2, 1] = np.nan
    pieces = tuple(Segmentation(mask[: 2 + row, row:] % 2, tuple(box)) for row, box in enumerate(boxes.tolist()[:9]))
    yield Result(frame, {"find": replace(found, corners=turned)})
    yield Result(frame, {"find": replace(found[np.arange(9)], masks=pieces)})
