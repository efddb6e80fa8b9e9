"""Known boxes, written into maps of cells as raw heads write them, come back as they were."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from edgert.config.model_section import DetectTask
from edgert.errors import ConfigError
from edgert.stages.decode.anchors import DetectNet, YoloRaw
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.kinds import decoder_for
from tests.helpers.known_boxes import KnownBoxes, assert_same, identity, known_boxes

NETWORK = (640, 384)
STRIDES = (8, 16, 32)
YOLOV7 = ((12, 16, 19, 36, 40, 28), (36, 75, 76, 55, 72, 146), (142, 110, 192, 243, 459, 401))


def logits(values: Any) -> Any:
    return np.log(values / (1 - values))


def raw_maps(known: KnownBoxes, classes: int, anchors: Any, exp: bool = False) -> list[Any]:
    """[3, h, w, 5 + classes] of each stride, before the sigmoid; every box in the cell of its center."""
    maps = [np.full((3, NETWORK[1] // stride, NETWORK[0] // stride, 5 + classes), -9, np.float32) for stride in STRIDES]
    for row, (center, size) in enumerate(zip(known.centers, known.sizes, strict=True)):
        level, anchor = next(
            (level, anchor)
            for level in (2, 1, 0)
            for anchor in range(3)
            if (size < 4 * np.array(anchors[level][2 * anchor : 2 * anchor + 2])).all()
        )
        column, line = (center // STRIDES[level]).astype(int)
        place = center / STRIDES[level] - [column, line]
        part = size / anchors[level][2 * anchor : 2 * anchor + 2]
        cell = maps[level][anchor, line, column]
        cell[:2] = logits(np.clip(place, 1e-6, 1 - 1e-6) if exp else (place + 0.5) / 2)
        cell[2:4] = np.log(part) if exp else logits(np.sqrt(part) / 2)
        cell[4], cell[5 + known.classes[row]] = logits(0.99), logits(known.scores[row] / 0.99)
    return maps


@pytest.mark.parametrize("seed", range(5))
def test_raw_heads_in_every_layout_and_order(seed: int) -> None:
    known = known_boxes(seed, NETWORK, 7)
    maps = raw_maps(known, 7, YOLOV7)
    convolutions = [one.transpose(0, 3, 1, 2).reshape(-1, *one.shape[1:3]) for one in maps]
    last = [one.transpose(1, 2, 0, 3).reshape(*one.shape[1:3], -1) for one in maps]
    done = [1 / (1 + np.exp(-one)) for one in maps]
    head = Detector(YoloRaw(anchors="yolov7"))
    for outputs in (maps, convolutions, last, done):
        assert_same(head(outputs, known.geometry), known)
    for order in permutations(range(3)):
        assert_same(head([maps[index] for index in order], known.geometry), known)
    half = [one.astype(np.float16) for one in maps]
    assert_same(head(half, known.geometry), known, pixels=2.0)


def test_anchors_of_one_s_own_and_of_darknet() -> None:
    known = known_boxes(3, NETWORK, 7)
    own = tuple(tuple(2 * side for side in row) for row in YOLOV7)
    task = DetectTask(detect="yolo-raw", options={"sizes": own, "formula": "exp"})
    assert_same(decoder_for(task, ())(raw_maps(known, 7, own, exp=True), known.geometry), known)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="option 'anchors' of decoder 'yolo-raw'"):
        decoder_for(DetectTask(detect="yolo-raw", options={"anchors": "yolov9"}), ())


def test_nothing_found_in_a_raw_head() -> None:
    maps = [np.full((3, NETWORK[1] // stride, NETWORK[0] // stride, 6), -20, np.float32) for stride in STRIDES]
    assert len(Detector(YoloRaw())(maps, identity(NETWORK))) == 0


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_detectnet(seed: int, swapped: bool) -> None:
    known = known_boxes(seed, (960, 544), 3)
    coverage, sides = np.full((3, 34, 60), 0.01, np.float32), np.ones((3, 4, 34, 60), np.float32)
    column, line = (known.centers // 16).astype(int).T
    middle = np.stack([column, line], axis=1) * 16 + 0.5
    coverage[known.classes, line, column] = known.scores
    away = np.hstack([middle - known.corners[:, :2], known.corners[:, 2:] - middle])
    sides[known.classes, :, line, column] = away / 35
    outputs = [coverage, sides.reshape(12, 34, 60)]
    assert_same(Detector(DetectNet())(outputs[::-1] if swapped else outputs, known.geometry), known)


def test_overlap_of_detectnet_counts_pixels() -> None:
    """Two boxes of 1 x 1 beside each other share half of what they stand on: 2 of 6 pixels."""
    coverage, sides = np.zeros((1, 4, 4), np.float32), np.zeros((4, 4, 4), np.float32)
    for cell, (left, right), score in ((0, (0, 1), 0.9), (1, (15, -14), 0.8)):
        coverage[0, 0, cell] = score
        sides[:, 0, cell] = np.array([left, 0, right, 1]) / 35
    network = identity((64, 64))
    assert len(Detector(DetectNet(), iou=0.34)([coverage, sides], network)) == 2
    assert len(Detector(DetectNet(), iou=0.32)([coverage, sides], network)) == 1


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("yolov5", "[10,13, 16,30, 33,23] [30,61, 62,45, 59,119] [116,90, 156,198, 373,326]"),
        ("yolov7", "[12,16, 19,36, 40,28] [36,75, 76,55, 72,146] [142,110, 192,243, 459,401]"),
        (
            "yolov5-p6",
            "[19,27, 44,40, 38,94] [96,68, 86,152, 180,137] [140,301, 303,264, 238,542] [436,615, 739,380, 925,792]",
        ),
    ],
)
def test_anchors_are_those_of_the_authors_files(name: str, file: str) -> None:
    """A cell of zeros is a box of the anchor's own size around the middle of the cell."""
    levels = [[float(side) for side in part.strip("[] ").split(",")] for part in file.split("] [")]
    strides = [8 * 2**level for level in range(len(levels))]
    maps = [np.full((3, 384 // stride, 640 // stride, 6), -20, np.float32) for stride in strides]
    for level, sides in enumerate(levels):
        for anchor in range(3):
            made = [one.copy() for one in maps]
            made[level][anchor, 2, 3] = (0, 0, 0, 0, 20, 20)
            (box,) = Detector(YoloRaw(anchors=name))(made, identity((640, 384))).boxes
            center = np.array([3.5, 2.5]) * strides[level]
            half = np.array(sides[2 * anchor : 2 * anchor + 2]) / 2
            expected = np.clip([*(center - half), *(center + half)], 0, [640, 384, 640, 384])
            assert box == pytest.approx(expected, abs=0.01)
