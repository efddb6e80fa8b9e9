"""Faces: each head beside what its authors do with the same outputs, written down again from their descriptions."""

import math
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

from edgert.config import DetectTask
from edgert.stages.crop import Geometry
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.faces import NAMES, RetinaFace, Scrfd, YoloV5Face, YuNet
from edgert.stages.decode.kinds import decoder_for
from tests.helpers.evaluation_data import data
from tests.helpers.known_boxes import greedy
from tests.helpers.models import constant

SIDE = 160
HERE = Geometry(1, 1, 0, 0, (SIDE, SIDE), (-1000, -1000, 2000, 2000))
TIMES = range(100)
Faces = list[tuple[float, list[float], list[float]]]
"""Score, x1 y1 x2 y2, ten coordinates of points."""


def best(found: Faces, iou: float = 0.4) -> Faces:
    return [found[row] for row in greedy([face[1] for face in found], [face[0] for face in found], iou)]


def scores_of(rng: np.random.Generator, count: int) -> np.ndarray:
    """Nothing at most places, something at a few, and at their neighbors."""
    scores = rng.uniform(0, 0.2, count)
    for start in rng.choice(count - 4, 6, replace=False):
        scores[start : start + 4] = rng.uniform(0.3, 1, 4)
    return scores.astype(np.float32)


def same(head: object, outputs: list[np.ndarray], expected: Faces, has_points: bool = True) -> None:
    found = Detector(head, 0.5, 0.4)(outputs, HERE)  # type: ignore[arg-type]
    assert len(found) == len(expected) > 0
    np.testing.assert_allclose(found.scores, [face[0] for face in expected], atol=1e-6)
    np.testing.assert_allclose(found.boxes, [face[1] for face in expected], atol=0.01)
    if has_points:
        assert found.points is not None and found.names == NAMES
        flat = found.points[..., :2].reshape(len(found), 10)
        np.testing.assert_allclose(flat, [face[2] for face in expected], atol=0.01)
        np.testing.assert_array_equal(found.points[..., 2], np.repeat(found.scores[:, None], 5, axis=1))


@pytest.mark.parametrize(("levels", "anchors", "has_points"), [(3, 2, True), (3, 2, False), (5, 1, True)])
def test_scrfd(levels: int, anchors: int, has_points: bool) -> None:
    """As ``scrfd.py`` of insightface: distances from the cell's corner, times the stride."""
    for seed in TIMES if levels == 3 and has_points else range(10):
        rng, found = np.random.default_rng(seed), Faces()
        scores, boxes, points = [], [], []
        for level in range(levels):
            stride = 8 << level
            across = math.ceil(SIDE / stride)
            rows = across * across * anchors
            scores.append(scores_of(rng, rows)[:, None] if rows > 12 else np.full((rows, 1), 0.1, np.float32))
            boxes.append(rng.uniform(0.4, 4, (rows, 4)).astype(np.float32))
            points.append(rng.uniform(-2, 2, (rows, 10)).astype(np.float32))
            for row in np.flatnonzero(scores[-1][:, 0] >= 0.5):
                y, x = divmod(row // anchors, across)
                left, top, right, bottom = boxes[-1][row] * stride
                box = [x * stride - left, y * stride - top, x * stride + right, y * stride + bottom]
                marks = [(x, y)[n % 2] * stride + points[-1][row, n] * stride for n in range(10)]
                found.append((float(scores[-1][row, 0]), box, marks))
        outputs = [*scores, *boxes, *(points if has_points else [])]
        order = rng.permutation(len(outputs))  # exporters write them in several
        same(Scrfd(), [outputs[n] for n in order], best(found), has_points)


def priors(
    sizes: Sequence[Sequence[int]], is_floored: bool, width: int = SIDE, height: int = SIDE
) -> list[list[float]]:
    """Center and side, as the double loops of both training repositories make them."""
    found = []
    for level, sides in enumerate(sizes):
        stride = 8 * 2**level
        rows, columns = (int(n / stride) if is_floored else math.ceil(n / stride) for n in (height, width))
        for i in range(rows):
            for j in range(columns):
                found += [[(j + 0.5) * stride, (i + 0.5) * stride, side] for side in sides]
    return found


def regressed(prior: Sequence[float], box: np.ndarray, points: np.ndarray) -> tuple[list[float], list[float]]:
    """SSD's ``decode`` and ``decode_landm`` with variances 0.1 and 0.2."""
    x, y, side = prior
    cx, cy = x + box[0] * 0.1 * side, y + box[1] * 0.1 * side
    w, h = side * math.exp(box[2] * 0.2), side * math.exp(box[3] * 0.2)
    marks = [(x, y)[n % 2] + points[n] * 0.1 * side for n in range(10)]
    return [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], marks


def test_retinaface() -> None:
    sizes = ((16, 32), (64, 128), (256, 512))
    places = priors(sizes, False)
    for seed in TIMES:
        rng = np.random.default_rng(seed)
        score = scores_of(rng, len(places))
        boxes = rng.normal(0, 1, (len(places), 4)).astype(np.float32)
        points = rng.normal(0, 2, (len(places), 10)).astype(np.float32)
        rows = np.flatnonzero(score >= 0.5)
        found = [(float(score[row]), *regressed(places[row], boxes[row], points[row])) for row in rows]
        same(RetinaFace(), [boxes, np.stack([1 - score, score], axis=1), points], best(found))


def test_the_older_yunet() -> None:
    sizes = ((10, 16, 24), (32, 48), (64, 96), (128, 192, 256))
    places = priors(sizes, True)
    for seed in TIMES:
        rng = np.random.default_rng(seed)
        score = scores_of(rng, len(places))
        iou = rng.normal(0.8, 0.3, len(places)).astype(np.float32)  # of no range: it is cut to 0-1
        table = rng.normal(0, 1, (len(places), 14)).astype(np.float32)
        mean = np.sqrt(score * np.clip(iou, 0, 1))
        rows = np.flatnonzero(mean >= 0.5)
        found = [(float(mean[row]), *regressed(places[row], table[row, :4], table[row, 4:])) for row in rows]
        same(YuNet(), [table, np.stack([1 - score, score], axis=1), iou[:, None]], best(found))


def yunet_outputs(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """By name, in the order of the models of the OpenCV Zoo."""
    found = {}
    for kind, columns in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10)):
        for stride in (8, 16, 32):
            rows = (SIDE // stride) ** 2
            values = rng.normal(0.5, 0.03, (rows, columns))
            values[:, 2:4] += 0.65  # a little over three cells: OpenCV suppresses boxes of whole pixels
            found[f"{kind}_{stride}"] = (scores_of(rng, rows)[:, None] if columns == 1 else values).astype(np.float32)
    for stride in (8, 16, 32):
        found[f"obj_{stride}"] = np.sqrt(found[f"cls_{stride}"])
    return found


def constant_model(path: Path, outputs: dict[str, np.ndarray]) -> Path:
    """A model that answers this to any image."""
    model = constant({name: value[None] for name, value in outputs.items()}, (1, 3, SIDE, SIDE), name="input")
    onnx.save(model.proto, path)
    return path


def test_yunet_is_opencvs_own(tmp_path: Path) -> None:
    """The same faces in the same order as FaceDetectorYN, which has its own decoding of these models."""
    names, image = [], np.zeros((SIDE, SIDE, 3), np.uint8)
    for seed in TIMES:
        outputs = yunet_outputs(np.random.default_rng(seed))
        model = constant_model(tmp_path / "yunet.onnx", outputs)
        theirs = cv2.FaceDetectorYN.create(str(model), "", (SIDE, SIDE), 0.5, 0.4, 5000).detect(image)[1]
        faces = [(float(row[14]), [*row[:2], *(row[:2] + row[2:4])], row[4:14].tolist()) for row in theirs]
        same(YuNet(), list(outputs.values()), faces)
        names.append(len(faces))
    assert max(names) > 5


def test_yolov5_face() -> None:
    """Score = objectness * class; boxes and points come decoded."""
    rows = 3 * (20 * 20 + 10 * 10 + 5 * 5)
    for seed in TIMES:
        rng = np.random.default_rng(seed)
        output = rng.uniform(10, 150, (rows, 16)).astype(np.float32)
        output[:, 2:4] = rng.uniform(10, 60, (rows, 2))
        output[:, 4], output[:, 15] = scores_of(rng, rows), rng.uniform(0.7, 1, rows)
        found = []
        for row in output:
            x, y, w, h = row[:4].tolist()
            if row[4] * row[15] >= 0.5:
                box = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
                found.append((float(row[4] * row[15]), box, row[5:15].tolist()))
        same(YoloV5Face(), [output], best(found))


def test_points_are_where_the_image_has_them() -> None:
    output = np.zeros((3 * 525, 16), np.float32)
    output[7] = [40, 50, 20, 20, 1, 35, 45, 45, 45, 40, 50, 36, 55, 44, 55, 1]
    record = Detector(YoloV5Face())([output], Geometry(2, 3, 100, 50, (SIDE, SIDE), (0, 0, 1000, 1000)))
    assert record.points is not None
    np.testing.assert_array_equal(record.points[0, 0], [170, 185, 1])
    np.testing.assert_array_equal(record.boxes, [[160, 170, 200, 230]])


def test_a_real_yunet_finds_the_faces_of_a_group() -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(data("models", "yunet_120x160.onnx"), providers=["CPUExecutionProvider"])
    decoder = decoder_for(DetectTask(detect="yunet", score=0.6), ("face",))
    count = 0
    for photo in sorted(data("images", "faces").glob("*.jpg")):
        image = cv2.imread(str(photo))
        assert image is not None
        height, width = image.shape[:2]
        small = cv2.resize(image, (160, 120)).transpose(2, 0, 1)[None].astype(np.float32)
        outputs = session.run(None, {session.get_inputs()[0].name: small})
        record = decoder(outputs, Geometry(width / 160, height / 120, 0, 0, (160, 120), (0, 0, width, height)))
        inside = (record.points[..., :2] >= record.boxes[:, None, :2]) & (
            record.points[..., :2] <= record.boxes[:, None, 2:]
        )
        assert inside.mean() > 0.9
        count += len(record)
    assert count >= 40
