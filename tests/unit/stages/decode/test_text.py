"""Text: boxes and characters beside PaddleOCR's post-processing, written again from its description."""

import math
from itertools import groupby
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.config.model_section import TextTask
from edgert.errors import ConfigError
from edgert.stages.crop import Geometry, clockwise, upright
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.kinds import decoder_for, read_labels
from edgert.stages.decode.text import CTC, DB, offset
from tests.helpers.frames import frame_of
from tests.helpers.known_boxes import identity

SIDE = 320


def page(rng: np.random.Generator) -> np.ndarray:
    """A map of text: turned bars of high numbers that do not touch, and noise."""
    sure = rng.uniform(0, 0.2, (SIDE, SIDE)).astype(np.float32)
    for row in range(4):
        for column in range(2):
            size = rng.uniform(40, 110), rng.uniform(6, 24)
            center = 80 + 160 * column + rng.uniform(-10, 10), 40 + 80 * row + rng.uniform(-8, 8)
            bar = cv2.boxPoints((center, size, rng.uniform(-25, 25)))
            cv2.fillPoly(sure, [np.rint(bar).astype(np.int32)], float(rng.uniform(0.4, 1)))
    return sure


def clipper(box: np.ndarray, away: float) -> list[tuple[int, int]]:
    """``ClipperOffset`` with round joins, a corner after the other: whole numbers go in and come out."""
    points = [(int(x), int(y)) for x, y in box.tolist()]
    normals = []
    for (x1, y1), (x2, y2) in zip(points, points[1:] + points[:1], strict=True):
        length = math.hypot(x2 - x1, y2 - y1)
        normals.append(((y2 - y1) / length, (x1 - x2) / length))
    circle = min(math.pi / math.acos(1 - 0.25 / away), away * math.pi)
    sin, cos = math.sin(2 * math.pi / circle), math.cos(2 * math.pi / circle)
    found = []
    for (x, y), (ax, ay), (bx, by) in zip(points, normals[-1:] + normals[:-1], normals, strict=True):
        turn = math.atan2(ax * by - bx * ay, ax * bx + ay * by)
        nx, ny = ax, ay
        for _ in range(max(int(circle / (2 * math.pi) * abs(turn) + 0.5), 1)):
            found.append((x + nx * away, y + ny * away))
            nx, ny = nx * cos - sin * ny, nx * sin + ny * cos
        found.append((x + bx * away, y + by * away))
    return [(int(x + math.copysign(0.5, x)), int(y + math.copysign(0.5, y))) for x, y in found]


def their_boxes(sure: np.ndarray, floor: float, ratio: float) -> list[tuple[float, np.ndarray]]:
    """``DBPostProcess`` of PaddleOCR."""
    found = []
    contours, _ = cv2.findContours((sure > 0.3).astype(np.uint8) * 255, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    for contour in contours:
        rectangle = cv2.minAreaRect(contour)
        if min(rectangle[1]) < 3:
            continue
        box = cv2.boxPoints(rectangle)
        inside = np.zeros(sure.shape, np.uint8)
        cv2.fillPoly(
            inside, [(box - np.floor(box.min(axis=0))).astype(np.int32) + np.floor(box.min(axis=0)).astype(int)], 1
        )
        score = float(sure[inside > 0].mean())
        if score < floor:
            continue
        edges = np.roll(box, -1, axis=0) - box
        area = abs(sum(box[n][0] * box[n - 1][1] - box[n][1] * box[n - 1][0] for n in range(4))) / 2
        away = area * ratio / np.hypot(*edges.T).sum()
        found.append(
            (score, cv2.boxPoints(cv2.minAreaRect(np.array(clipper(clockwise(box[None])[0], away), np.float32))))
        )
    return sorted(found, key=lambda one: -one[0])


def test_boxes_are_paddles() -> None:
    """The same boxes in the same order, corners within half a pixel."""
    turned = 0
    for seed in range(100):
        sure = page(np.random.default_rng(seed))
        record = Detector(DB(), score=0.6)([sure[None]], Geometry(1, 1, 0, 0, (SIDE, SIDE), (0, 0, SIDE, SIDE)))
        expected = their_boxes(sure, 0.6, 1.5)
        assert len(record) == len(expected) > 0 and record.corners is not None
        np.testing.assert_allclose(record.scores, [score for score, _ in expected], atol=1e-5)
        for mine, (_, box) in zip(record.corners, expected, strict=True):
            theirs = clockwise(box[None])[0]
            assert np.abs(mine - theirs).max() <= 0.5
            turned += abs(theirs[0, 1] - theirs[1, 1]) > 5
        hulls = np.concatenate([record.corners.min(axis=1), record.corners.max(axis=1)], axis=1)
        np.testing.assert_allclose(record.boxes, np.clip(hulls, 0, SIDE), atol=1e-4)
    assert turned > 100


def test_boxes_grow_by_their_own_area_over_their_own_sides() -> None:
    """OpenCV's corners are no exact rectangle: of this one, two points lie half a cell off by one product of sides."""
    box = np.array([[456.3011169, 272.4402466], [506.7859803, 168.4108582], [526.7705688, 178.1092529],
                    [476.2857361, 282.1386414]], np.float32)  # fmt: skip
    exact = box.astype(np.float64)
    area = abs(np.roll(exact, -1, axis=0)[:, 1] @ exact[:, 0] - np.roll(exact, -1, axis=0)[:, 0] @ exact[:, 1]) / 2
    away = area * 1.5 / np.linalg.norm(np.roll(exact, -1, axis=0) - exact, axis=1).sum()
    (grown,) = offset(box[None], 1.5)
    assert {tuple(point) for point in grown.astype(int).tolist()} == set(clipper(box, away))
    assert {(450, 285), (470, 295), (512, 155), (532, 165)} <= set(clipper(box, away))  # as pyclipper has them


def test_a_map_of_another_size_than_the_network() -> None:
    sure = np.zeros((80, 80), np.float32)
    sure[20:31, 10:61] = 0.9
    record = Detector(DB(), score=0.5)([sure], identity((320, 320)))
    away = 4 * 6  # 50 x 10 cells grow by 1.5 * 500 / 120, rounded
    np.testing.assert_allclose(record.boxes, [[40 - away, 80 - away, 240 + away, 120 + away]], atol=0.01)
    assert len(Detector(DB())([np.zeros((1, 80, 80), np.float32)], identity((320, 320)))) == 0


def their_text(table: np.ndarray, characters: str) -> tuple[str, float]:
    """``CTCLabelDecode``: the best of each place, repeats and blanks left out."""
    best = [(int(row.argmax()), float(row.max())) for row in table]
    kept = [next(group) for number, group in groupby(best, key=lambda one: one[0]) if number != 0]
    return "".join(characters[number - 1] for number, _ in kept), float(np.mean([p for _, p in kept])) if kept else 0.0


def test_texts_are_paddles() -> None:
    characters = "".join(map(chr, range(33, 127))) + "é "
    for seed in range(200):
        rng = np.random.default_rng(seed)
        logits = rng.normal(0, 1, (40, 97))
        for place in range(40):  # runs of one character, with blanks between
            logits[place, (0 if rng.random() < 0.4 else rng.integers(97)) if place % 3 else rng.integers(97)] += 8
        table = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
        record = CTC(labels=tuple(characters[:-1]))([table], identity((320, 32)))
        text, score = their_text(table, characters)
        assert record.text == text
        assert record.score == pytest.approx(score, abs=1e-6)


def test_nothing_is_an_empty_text() -> None:
    table = np.zeros((10, 5), np.float32)
    table[:, 0] = 1
    assert CTC(labels=("a", "b", "c"))([table], identity((320, 32))).text == ""
    assert CTC()([table[:, ::-1]], identity((320, 32))).text == "3"
    assert CTC(blank="last")([table[:, ::-1]], identity((320, 32))).score == 0


@pytest.mark.parametrize("count", [1, 93, 97, 200])
def test_a_dictionary_of_another_model_is_refused(count: int) -> None:
    decoder = decoder_for(TextTask(text="ctc"), ("x",) * count)
    with pytest.raises(ConfigError, match=f"{count} characters for 97 classes") as caught:
        decoder.check([(40, 97)], (320, 32))
    assert "dictionary" in caught.value.fix


def test_a_dictionary_keeps_its_spaces(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a\n \n\u3000\n#\nb\n", encoding="utf-8")
    assert read_labels(tmp_path / "dict.txt") == ("a", " ", "\u3000", "#", "b")


@pytest.mark.parametrize("angle", [0, 20, -40, 85])
def test_turned_boxes_are_cut_out_upright(angle: float) -> None:
    """A bar whose left half is red and whose right half is blue comes out so, whatever its angle."""
    image = np.full((240, 320, 3), 40, np.uint8)
    center, size = (170, 110), (120, 30)
    whole = clockwise(cv2.boxPoints((center, size, angle))[None].astype(np.float32))[0]
    middle = (whole[0] + whole[1]) / 2, (whole[2] + whole[3]) / 2
    first = [whole[0], *middle, whole[3]]
    if angle == 85:  # it runs downwards, and begins at the top
        first = [whole[0], whole[1], (whole[1] + whole[2]) / 2, (whole[3] + whole[0]) / 2]
    cv2.fillPoly(image, [np.rint(whole).astype(np.int32)], (255, 0, 0))
    cv2.fillPoly(image, [np.rint(first).astype(np.int32)], (0, 0, 255))
    frame = frame_of(320, 240, pixels=(image,))
    found = upright(frame, whole[[2, 0, 3, 1]])  # in any order
    assert (found.width, found.height) == pytest.approx(size, abs=1)
    assert found.planes[0][10:20, 10:50].mean(axis=(0, 1)) == pytest.approx([0, 0, 255], abs=12)
    assert found.planes[0][10:20, 70:110].mean(axis=(0, 1)) == pytest.approx([255, 0, 0], abs=12)
    assert upright(frame, whole + 300).width == pytest.approx(size[0], abs=1)  # outside there is what is at the edge
