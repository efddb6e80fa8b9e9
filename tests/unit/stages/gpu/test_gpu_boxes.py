"""Boxes that the kernels decode and suppress, on the processor and on a GPU where there is one, are the host's."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgert.errors import StageError
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoded import Decoded
from edgert.stages.decode.detection import CANDIDATES, Detector
from edgert.stages.decode.yolo import YoloPose, YoloV5, YoloV8, YoloX
from edgert.stages.gpu.gpu_detections import GpuDetector, GpuPose
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.gpu import rounds
from tests.helpers.gpu_readers import (
    CELLS,
    GEOMETRY,
    NETWORK,
    like_the_host,
    read_on_gpu,
    same,
    why_not,
)

HEADS: dict[str, Any] = {"yolox": YoloX(), "yolov5": YoloV5(), "yolov8": YoloV8(), "yolov8 rows": YoloV8()}


def outputs(head: str, rows: int, classes: int, seed: int, boxes: int = CELLS, extras: int = 0) -> Any:
    """Noise with boxes of every size and many overlaps."""
    random = np.random.default_rng(seed)
    scores = random.uniform(0, 1, (rows, boxes, classes)).astype(np.float32) ** 3
    places = random.uniform(0, 1, (rows, boxes, 4)).astype(np.float32)
    if head == "yolox":
        places[..., 2:] = places[..., 2:] * 2 + 0.5
    else:
        places[..., :2] *= NETWORK
        places[..., 2:] = places[..., 2:] * 60 + 4
    rest = random.uniform(-9, 99, (rows, boxes, extras)).astype(np.float32)
    if head.startswith("yolov8"):
        table = np.concatenate([places, scores, rest], axis=2)
        return table.transpose(0, 2, 1).copy() if head == "yolov8" else table
    objectness = random.uniform(0, 1, (rows, boxes, 1)).astype(np.float32)
    return np.concatenate([places, objectness, scores], axis=2)


def table(boxes: Any, scores: Any) -> Any:
    """(1, N, 6), what a yolov5 of one class writes for these corners and scores."""
    center, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    return np.hstack([center, size, scores[:, None], np.ones((len(boxes), 1))]).astype(np.float32)[None]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("classes", "score", "limit"), [(3, 0.05, 300), (80, 0.3, 300), (1, 0.2, 5), (4, 0.9999, 9)])
def test_is_the_hosts_answer(kernels: Kernels, head: str, dtype: Any, classes: int, score: float, limit: int) -> None:
    for seed in range(rounds(2)):
        values = outputs(head, 3, classes, 10 * seed + classes).astype(dtype)
        tolerance = {"boxes": 1e-4} if head == "yolox" else {}  # exp may differ in its last bit
        like_the_host(kernels, GpuDetector, Detector(HEADS[head], score, 0.45, limit), values, **tolerance)


@pytest.mark.parametrize("head", HEADS)
def test_boxes_of_different_classes_suppress_each_other_where_asked(kernels: Kernels, head: str) -> None:
    values = outputs(head, 2, 5, 3)
    apart = like_the_host(kernels, GpuDetector, Detector(HEADS[head], 0.1), values, boxes=1e-4)
    together = like_the_host(kernels, GpuDetector, Detector(HEADS[head], 0.1, agnostic=True), values, boxes=1e-4)
    assert len(together[0]) < len(apart[0]) and len(set(together[0].classes.tolist())) > 1


def test_bodies_of_different_classes_suppress_each_other_where_asked(kernels: Kernels) -> None:
    values = outputs("yolov8", 2, 4, 5, extras=15)
    apart, together = (
        like_the_host(kernels, GpuPose, YoloPose(0.1, limit=999, classes=4, agnostic=agnostic), values)[0]
        for agnostic in (False, True)
    )
    assert len(together) < len(apart)


@pytest.mark.parametrize("can_map", [True, False])
@pytest.mark.parametrize("kind", ["boxes", "bodies"])
def test_each_image_has_a_way_of_its_own_in_every_run(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, kind: str, can_map: bool
) -> None:
    device = kernels.device
    monkeypatch.setattr(
        device, "traits", replace(device.traits, can_map=can_map)
    )  # without, the host brings them there
    decoder: Any = Detector(YoloV8(), 0.3, 0.45) if kind == "boxes" else YoloPose(0.3, 0.45, 100, labels=("nose",))
    values = outputs("yolov8", 3, 1, 5, extras=3 * (kind == "bodies"))
    ways = [
        GEOMETRY,
        Geometry(1.7, 0.3, 11.25, -9.5, NETWORK, (20.0, 0.0, 200.0, 20.0)),
        Geometry(1 / 3, 1 / 7, 0.1, 1e-3, NETWORK, (-1e6, -1e6, 1e6, 1e6)),
    ]
    found = read_on_gpu(kernels, GpuDetector if kind == "boxes" else GpuPose, decoder, values, 2, geometries=ways)
    for record, image, way in zip(found, values, ways, strict=True):
        assert len(record) > 5
        same(record, decoder([image], way))


@pytest.mark.parametrize("iou", [0.0, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("count", [32, 33, 64, 500, 512, 513, 1024, 1500, CANDIDATES + 200, 4096])
def test_every_count_of_candidates(kernels: Kernels, count: int, iou: float) -> None:
    """Every one of them scores enough."""
    values = outputs("yolov5", 1, 2, count, boxes=count)
    values[..., 4] += 1
    for limit in (40, 5000):
        like_the_host(kernels, GpuDetector, Detector(YoloV5(), 0.0, iou, limit), values)


@pytest.mark.parametrize("count", [300, 700])
def test_boxes_that_do_not_overlap_all_stay(kernels: Kernels, count: int) -> None:
    corner = np.stack([np.arange(count) * 8.0, np.zeros(count)], axis=1)
    scores = np.random.default_rng(count).permutation(count) / count / 2 + 0.4
    values = table(np.hstack([corner, corner + 6]), scores)
    (record,) = like_the_host(kernels, GpuDetector, Detector(YoloV5(), 0.3, 0.1, 1000), values)
    assert len(record) == count


@pytest.mark.parametrize("count", [31, 100, 600])
def test_a_chain_is_settled_link_by_link(kernels: Kernels, count: int) -> None:
    """Each box overlaps its neighbors alone: the first suppresses the second, which then cannot touch the third."""
    corner = np.stack([np.arange(count) * 4.0, np.zeros(count)], axis=1)
    values = table(np.hstack([corner, corner + 10]), np.linspace(0.9, 0.1, count))
    (record,) = like_the_host(kernels, GpuDetector, Detector(YoloV5(), 0.05, 0.4, 1000), values)
    assert len(record) == -(-count // 2)


@pytest.mark.parametrize("head", HEADS)
def test_nothing_scores_enough(kernels: Kernels, head: str) -> None:
    values = outputs(head, 2, 2, 1)
    (first, second) = like_the_host(kernels, GpuDetector, Detector(HEADS[head], 1.0), values * np.float32(0.9))
    assert len(first) == len(second) == 0


def test_equal_scores_keep_their_order(kernels: Kernels) -> None:
    values = outputs("yolov5", 1, 2, 5, boxes=600)
    values[..., 4:] = 0.5
    like_the_host(kernels, GpuDetector, Detector(YoloV5(), 0.2), values)
    values[..., 4] = np.where(np.arange(600) % 2, -0.0, 0.0)  # which are equal, too
    like_the_host(kernels, GpuDetector, Detector(YoloV5(), 0.0), values)


@pytest.mark.parametrize("head", HEADS)
def test_a_score_that_is_not_a_number_is_none(kernels: Kernels, head: str) -> None:
    values = outputs(head, 1, 4, 7)
    random = np.random.default_rng(8)
    first = 4 if head.startswith("yolov8") else 5
    rows = values[0].T if head == "yolov8" else values[0]
    for row in random.choice(CELLS, 60, replace=False):
        rows[row, random.integers(first - 1 if first == 5 else first, first + 4)] = np.nan
    detector = Detector(HEADS[head], 0.05, 0.45, 1000)
    (record,) = like_the_host(kernels, GpuDetector, detector, values, boxes=1e-4)
    assert len(record) > 0 and np.isfinite(record.scores).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, -30.0])
def test_boxes_that_are_none(kernels: Kernels, odd: float) -> None:
    """Sides that are no number, endless or below zero."""
    values = outputs("yolov5", 1, 1, 9)
    random = np.random.default_rng(10)
    values[0, random.choice(CELLS, 40), random.integers(0, 4, 40)] = odd
    like_the_host(kernels, GpuDetector, Detector(YoloV5(), 0.05), values)


def test_more_than_are_sorted(kernels: Kernels) -> None:
    values = np.ones((2, 5000, 7), np.float32)
    values[1, 4096:, 4] = 0
    with pytest.raises(StageError, match="more than 4096 boxes score"):
        read_on_gpu(kernels, GpuDetector, Detector(YoloV5(), 0.1), values, runs=2)
    like_the_host(kernels, GpuDetector, Detector(YoloV5(), 0.1), values[1:])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("points", [1, 5, 17])
def test_bodies_and_their_points(kernels: Kernels, points: int, dtype: Any) -> None:
    values = outputs("yolov8", 2, 1, points, extras=3 * points).astype(dtype)
    for limit in (100, 3):
        found = like_the_host(kernels, GpuPose, YoloPose(0.1, 0.45, limit, ("a",) * points), values)
        assert found[0].points.shape[1:] == (points, 3) and len(found[0])
    assert not len(like_the_host(kernels, GpuPose, YoloPose(1.0), values * np.float16(0.5))[0])
    several = outputs("yolov8", 2, 4, points, extras=3 * points).astype(dtype)
    found = like_the_host(kernels, GpuPose, YoloPose(0.1, classes=4), several)
    assert len(np.unique(found[0].classes)) > 1


@pytest.mark.parametrize(
    ("reader", "decoder", "shape", "dtype", "reason"),
    [
        (GpuDetector, Detector(Decoded()), (1, 9, 6), "float32", "not decoded"),
        (GpuDetector, Detector(YoloX((8, 16))), (1, 9, 6), "float32", "not (8, 16)"),
        (GpuDetector, Detector(YoloV5()), (1, 9, 6), "int8", "not int8"),
        (GpuDetector, Detector(YoloV5()), (1, 9, 6, 1), "float32", "not [1, 9, 6, 1]"),
        (GpuDetector, Detector(YoloV8()), (1, 300, 6), "float32", "end-to-end"),
        (GpuPose, YoloPose(), (1, 300, 57), "float32", "end-to-end"),
        (GpuPose, YoloPose(), (1, 56, 300), "uint8", "not uint8"),
    ],
)
def test_what_no_kernel_reads_is_named(
    reader: Any, decoder: Any, shape: tuple[int, ...], dtype: str, reason: str
) -> None:
    assert reason in why_not(reader, decoder, shape, dtype)
