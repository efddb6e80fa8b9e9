"""Poses and landmarks: each decoder beside its authors' description of it, in loops over one number at a time."""

import itertools
import math

import numpy as np
import pytest
import scipy

from edgert.config import KeypointsTask
from edgert.stages.crop import Geometry
from edgert.stages.decode.kinds import decoder_for
from edgert.stages.decode.poses import _LINKS, MoveNet, SimCC, TrtPose, YoloV7Pose
from tests.helpers.known_boxes import identity

TIMES = range(100)


def test_simcc() -> None:
    """mmpose's ``get_simcc_maximum``, then divided by the split ratio 2."""
    for seed in TIMES:
        rng = np.random.default_rng(seed)
        across, down = (rng.normal(0, 0.05, (17, 2 * n)).astype(np.float32) for n in (192, 256))
        for point in range(17):  # a bump at one place, here and there none
            high = rng.uniform(0.3, 1.2) * (rng.random() > 0.1)
            across[point, rng.integers(384)] += high
            down[point, rng.integers(512)] += high * rng.uniform(0.5, 1)
        outputs = [across, down] if seed % 2 else [down, across]
        record = SimCC(score=0.1)(outputs, identity((192, 256)))
        assert record.points is not None and len(record) == 1
        for point in range(17):
            x, y = int(np.argmax(across[point])), int(np.argmax(down[point]))
            score = min(across[point, x], down[point, y])
            np.testing.assert_allclose(record.points[0, point], [x / 2, y / 2, min(max(score, 0), 1)], atol=1e-5)


def test_simcc_of_a_square_network_has_columns_first() -> None:
    across, down = np.zeros((3, 64), np.float32), np.zeros((3, 64), np.float32)
    across[:, 10], down[:, 50] = 0.9, 0.8
    record = SimCC()([across, down], identity((32, 32)))
    np.testing.assert_allclose(record.points, [[[5, 25, 0.8]] * 3])
    np.testing.assert_allclose(record.boxes, [[5, 25, 5, 25]])
    assert len(SimCC(score=0.85)([across, down], identity((32, 32)))) == 0


def test_movenet() -> None:
    for seed in TIMES:
        rng = np.random.default_rng(seed)
        geometry = Geometry(2, 3, 10, 20, (192, 256), (0, 0, 5000, 5000))
        single = rng.uniform(0, 1, (1, 17, 3)).astype(np.float32)
        one = MoveNet(score=0)([single], geometry)
        expected = [[192 * x * 2 + 10, 256 * y * 3 + 20, score] for y, x, score in single[0].tolist()]
        np.testing.assert_allclose(one.points, [expected], atol=1e-3)
        assert one.scores[0] == pytest.approx(single[0, :, 2].mean(), abs=1e-6)

        many = rng.uniform(0, 1, (6, 56)).astype(np.float32)
        found = MoveNet(score=0.3)([many], geometry)
        rows = sorted((row for row in many.tolist() if row[55] >= 0.3), key=lambda row: -row[55])
        assert len(found) == len(rows)
        for number, row in enumerate(rows):
            ymin, xmin, ymax, xmax, score = row[51:]
            box = [192 * xmin * 2 + 10, 256 * ymin * 3 + 20, 192 * xmax * 2 + 10, 256 * ymax * 3 + 20]
            np.testing.assert_allclose(found.boxes[number], box, atol=1e-3)
            assert found.scores[number] == pytest.approx(score) and found.points is not None
            points = [[192 * row[3 * k + 1] * 2 + 10, 256 * row[3 * k] * 3 + 20, row[3 * k + 2]] for k in range(17)]
            np.testing.assert_allclose(found.points[number], points, atol=1e-3)


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [("relative", 0.25, 8), ("centered", -0.5, 8), ("pixels", 8, 8), ("relative", -0.1, -3.2)],
)
@pytest.mark.parametrize(("numbers", "shape"), [(2, (136,)), (2, (1, 1, 136)), (3, (68, 3)), (3, (204, 1, 1))])
def test_landmarks(unit: str, value: float, expected: float, numbers: int, shape: tuple[int, ...]) -> None:
    decoder = decoder_for(KeypointsTask(keypoints="landmarks", options={"unit": unit, "numbers": numbers}), ())
    flat = np.full((68, numbers), value, np.float32)
    flat[1] = 0
    decoder.check([shape], (32, 32))
    record = decoder([flat.reshape(shape)], Geometry(1, 1, 0, 0, (32, 32), (-50, -50, 50, 50)))
    assert record.points.shape == (1, 68, 3) and (record.points[..., 2] == 1).all()
    np.testing.assert_allclose(record.points[0, 0, :2], expected, atol=1e-5)
    np.testing.assert_allclose(record.points[0, 1, :2], 16 if unit == "centered" else 0, atol=1e-5)


def test_yolov7_pose() -> None:
    rows = 3 * 84
    for seed in range(20):
        rng = np.random.default_rng(seed)
        output = rng.uniform(0, 0.2, (rows, 57)).astype(np.float32)
        chosen = rng.choice(rows, 3, replace=False)
        output[chosen, :4] = [[10, 10, 8, 8], [30, 30, 8, 10], [50, 50, 6, 6]]
        output[chosen, 4:] = rng.uniform(0.8, 1, (3, 53))
        output[(chosen[0] + 1) % rows] = output[chosen[0]] * 0.99
        record = YoloV7Pose()([output], identity((64, 64)))
        order = chosen[np.argsort(-output[chosen, 4] * output[chosen, 5])]
        np.testing.assert_allclose(record.scores, output[order, 4] * output[order, 5])
        np.testing.assert_allclose(record.points, output[order, 6:].reshape(3, 17, 3))


# trt_pose


def plausible(rng: np.random.Generator, count: int, size: int = 56) -> tuple[np.ndarray, np.ndarray]:
    """Parts and fields of bodies with noise, some parts missing: Gaussian peaks, and unit vectors along every link."""
    parts, fields = rng.uniform(0, 0.04, (18, size, size)), rng.normal(0, 0.04, (42, size, size))
    y, x = np.indices((size, size))
    for _ in range(count):
        places = rng.uniform(3, size - 4, 2) + rng.normal(0, 7, (18, 2))
        seen = rng.random(18) > 0.15
        for part in np.flatnonzero(seen):
            distance = (x - places[part, 0]) ** 2 + (y - places[part, 1]) ** 2
            parts[part] = np.maximum(parts[part], rng.uniform(0.5, 1) * np.exp(-distance / 4))
        for link, (a, b) in enumerate(_LINKS):
            if seen[a] and seen[b]:
                way = places[b] - places[a]
                length = math.hypot(*way) + 1e-6
                along = ((x - places[a, 0]) * way[0] + (y - places[a, 1]) * way[1]) / length
                beside = np.abs((x - places[a, 0]) * way[1] - (y - places[a, 1]) * way[0]) / length
                near = (along > -1) & (along < length + 1) & (beside < 1.5)
                fields[2 * link][near], fields[2 * link + 1][near] = way[1] / length, way[0] / length
    return parts.astype(np.float32), fields.astype(np.float32)


def reflect(at: int, size: int) -> int:
    return -at if at < 0 else 2 * size - 2 - at if at >= size else at


def their_peaks(part: np.ndarray) -> list[tuple[float, float]]:
    """``find_peaks`` and ``refine_peaks``: y, x in cells."""
    size, found = len(part), []
    for i, j in np.argwhere(part >= 0.1).tolist():
        window = part[max(i - 2, 0) : i + 3, max(j - 2, 0) : j + 3]
        if window.max() <= part[i, j]:
            total = down = across = 0.0
            for ii, jj in itertools.product(range(i - 2, i + 3), range(j - 2, j + 3)):
                weight = float(part[reflect(ii, size), reflect(jj, size)])
                total, down, across = total + weight, down + weight * ii, across + weight * jj
            found.append((down / total + 0.5, across / total + 0.5))
    return found


def their_score(down: np.ndarray, across: np.ndarray, a: tuple[float, float], b: tuple[float, float]) -> float:
    """``paf_score_graph`` of one pair."""
    way = b[0] - a[0], b[1] - a[1]
    length, integral = math.hypot(*way) + 1e-5, 0.0
    for t in range(7):
        i, j = int(a[0] + t / 6 * way[0]), int(a[1] + t / 6 * way[1])
        if 0 <= i < len(down) and 0 <= j < len(down):
            integral += (down[i, j] * way[0] + across[i, j] * way[1]) / length
    return integral / 7


def their_bodies(parts: np.ndarray, fields: np.ndarray) -> list[dict[int, tuple[float, float]]]:
    """``assignment`` and ``connect_parts``: of each body its parts' y, x in cells."""
    found = [their_peaks(part) for part in parts]
    near: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for link, (a, b) in enumerate(_LINKS):
        scores = np.array(
            [[their_score(fields[2 * link], fields[2 * link + 1], one, two) for two in found[b]] for one in found[a]]
        )
        if scores.size:
            for i, j in zip(*scipy.optimize.linear_sum_assignment(-scores), strict=True):
                if scores[i, j] > 0.1:
                    near.setdefault((a, i), []).append((b, j))
                    near.setdefault((b, j), []).append((a, i))
    seen: set[tuple[int, int]] = set()
    bodies = []
    for first in [(part, i) for part, some in enumerate(found) for i in range(len(some))]:
        body, queue = {}, [first]
        while queue:
            node = queue.pop(0)
            if node not in seen:
                seen.add(node)
                body[node[0]] = found[node[0]][node[1]]
                queue += near.get(node, [])
        if body:
            bodies.append(body)
    return bodies


def test_trt_pose() -> None:
    """The same bodies of the same parts; theirs have no score, so they are compared by theirs in their places."""
    several = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        parts, fields = plausible(rng, 1 + seed % 3, 40)
        record = TrtPose()([parts, fields] if seed % 2 else [fields, parts], identity((160, 160)))
        expected = their_bodies(parts, fields)
        assert record.points is not None and len(record) == len(expected)
        several += len(expected) > 2
        points = record.points
        left = list(range(len(record)))
        for body in expected:
            theirs = np.full((18, 2), np.nan)
            for part, (y, x) in body.items():
                theirs[part] = x * 4, y * 4
            mine = [np.where(points[row, :, 2:] > 0, points[row, :, :2], np.nan) for row in left]
            same = [n for n, one in enumerate(mine) if np.allclose(one, theirs, atol=0.01, equal_nan=True)]
            assert same, (seed, body)
            left.pop(same[0])
        assert (np.diff(record.scores) <= 0).all()
    assert several > 20


def test_trt_pose_of_an_empty_image_is_nobody() -> None:
    record = TrtPose()([np.zeros((18, 8, 8), np.float32), np.zeros((42, 8, 8), np.float32)], identity((32, 32)))
    assert len(record) == 0 and record.points is not None and record.points.shape == (0, 18, 3)
