"""How long decoding takes per frame: ours and the NumPy code people write, on the same outputs, in one process.

    python tests/bench/bench_decode.py [--rounds 15] [--calls 40] [--json FILE]

Outputs are made up: noise that scores too little, and 60 boxes around nine objects that score enough, about what a
detector says about a busy street. The other side decodes every row, multiplies every score, takes the best class of
all and suppresses with a loop over the kept boxes (or, where a case says so, in OpenCV); both answers must be the same.
Rounds alternate, so that other work on the machine meets both; reported is each side's best round's median, in time of
the processor, all threads together. Exits 1 if an answer differs, if decoding yolox_nano's output is not at least four
times as quick as the code people write, or if a head at 640 × 640 takes more than 1.5 ms, 4 ms with masks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgert.config.model_section import DetectTask
from edgert.stages.crop import Geometry
from edgert.stages.decode import classify, dense, faces, poses, text
from edgert.stages.decode.decoded import Decoded
from edgert.stages.decode.detection import Detector, Head, suppress
from edgert.stages.decode.kinds import decoder_for
from edgert.stages.decode.maps import SegmentArgmax
from edgert.stages.decode.yolo import YoloV8, YoloX
from tests.unit.stages.decode.test_poses import plausible

F32 = npt.NDArray[np.float32]
Call = Callable[[], Any]
BAR = 4.0
SCORE, IOU = 0.4, 0.45


@dataclass(frozen=True)
class Row:
    """One case; times in microseconds per frame."""

    case: str
    ours_us: float
    plain_us: float | None
    same: bool | None
    most_us: float | None = None


def letterbox(side: int) -> Geometry:
    """A 1920x1080 image in a square network, top-left."""
    return Geometry(1920 / side, 1920 / side, 0, 0, (side, side), (0, 0, 1920, 1080))


def crowd(rng: np.random.Generator, side: int) -> tuple[F32, F32, npt.NDArray[np.int64]]:
    """60 boxes x, y, w, h around nine objects, their scores, and classes."""
    objects = rng.integers(0, 9, 60)
    center = np.stack([objects % 3, objects // 3], axis=1) * side * 0.28 + side * 0.2
    boxes = np.hstack([center + rng.normal(0, 2, (60, 2)), side * 0.2 + rng.normal(0, 2, (60, 2))])
    return boxes.astype(np.float32), rng.uniform(0.45, 0.95, 60).astype(np.float32), objects * 7


def grid(side: int) -> tuple[F32, F32]:
    """(S, 2) cells and (S, 1) strides of 8, 16, 32, as most code makes them."""
    cells, strides = [], []
    for stride in (8, 16, 32):
        count = side // stride
        x, y = np.meshgrid(np.arange(count), np.arange(count))
        cells.append(np.stack([x, y], 2).reshape(-1, 2))
        strides.append(np.full((count * count, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)


def yolox_output(side: int) -> F32:
    """[S, 85], as the model writes it."""
    rng = np.random.default_rng(1)
    cells, strides = grid(side)
    output = rng.uniform(0, 1, (len(cells), 85)).astype(np.float32)
    output[:, 4] = rng.uniform(0, 0.05, len(cells))
    output[rng.choice(len(cells), 60), 4] = 0.45
    output[:, 5:] *= 0.8  # so these are objects of no clear class
    rows = rng.choice(len(cells), 60, replace=False)
    boxes, scores, classes = crowd(rng, side)
    output[rows, :2] = boxes[:, :2] / strides[rows] - cells[rows]
    output[rows, 2:4] = np.log(boxes[:, 2:] / strides[rows])
    output[rows, 4], output[rows, 5:] = 1, 0.01
    output[rows, 5 + classes] = scores
    return output


def yolov8_output(side: int) -> F32:
    """[84, S]."""
    rng = np.random.default_rng(2)
    count = len(grid(side)[0])
    output = rng.uniform(0, 0.05, (84, count)).astype(np.float32)
    columns = rng.choice(count, 60, replace=False)
    boxes, scores, classes = crowd(rng, side)
    output[:4, columns] = boxes.T
    output[4 + classes, columns] = scores
    return output


def plain_yolox(output: F32, side: int, scale: float) -> tuple[F32, F32, F32]:
    """All rows decoded, all scores multiplied."""
    cells, strides = grid(side)
    xy, wh = (output[:, :2] + cells) * strides, np.exp(output[:, 2:4]) * strides
    return plain_finish(xy, wh, output[:, 4:5] * output[:, 5:], scale)


def plain_yolov8(output: F32, scale: float) -> tuple[F32, F32, F32]:
    """Turned round first."""
    rows = output.T
    return plain_finish(rows[:, :2], rows[:, 2:4], rows[:, 4:], scale)


def plain_finish(xy: F32, wh: F32, table: F32, scale: float) -> tuple[F32, F32, F32]:
    """Best class of every row, threshold, suppression per class."""
    classes = table.argmax(1)
    scores = table.max(1)
    boxes = np.concatenate([xy - wh / 2, xy + wh / 2], axis=1)
    keep = scores > SCORE
    boxes, scores, classes = boxes[keep], scores[keep], classes[keep]
    rows = plain_nms(boxes + classes[:, None] * 4096, scores)
    out = np.clip(boxes[rows] * scale, 0, [1920, 1080, 1920, 1080])
    return out, scores[rows], classes[rows]


def plain_nms(boxes: F32, scores: F32) -> list[int]:
    """The loop everybody copies."""
    x1, y1, x2, y2 = boxes.T
    areas, order, kept = (x2 - x1) * (y2 - y1), scores.argsort()[::-1], []
    while order.size:
        best = order[0]
        kept.append(int(best))
        rest = order[1:]
        width = np.maximum(0, np.minimum(x2[best], x2[rest]) - np.maximum(x1[best], x1[rest]))
        height = np.maximum(0, np.minimum(y2[best], y2[rest]) - np.maximum(y1[best], y1[rest]))
        shared = width * height
        order = rest[shared / (areas[best] + areas[rest] - shared) <= IOU]
    return kept


def every_head() -> list[tuple[str, str, list[F32], dict[str, Any]]]:
    """A name, its decoder, outputs at 640 × 640 (DetectNet's: 960 × 544) and options, one for each layout."""
    rng = np.random.default_rng(4)
    boxes, scores, classes = crowd(rng, 640)
    corners = np.hstack([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2]).astype(np.float32)
    classes %= 15

    def rows(count: int, numbers: int, places: F32, relative: bool = False) -> tuple[F32, F32]:
        found, table = np.zeros((count, 4), np.float32), rng.uniform(0, 0.05, (count, numbers)).astype(np.float32)
        which = rng.choice(count, 60, replace=False)
        found[which], table[which, classes] = places / (640 if relative else 1), scores
        return found, table

    def logits(table: F32) -> F32:
        return np.log(np.maximum(table, 1e-6) / (1 - table))

    def columns(*parts: F32) -> F32:
        return np.ascontiguousarray(np.hstack(parts).T)

    shares, angles = (
        rng.standard_normal((8400, 32)).astype(np.float32),
        rng.uniform(-1, 1, (8400, 1)).astype(np.float32),
    )
    smooth = cv2.resize(rng.standard_normal((9, 9, 32)).astype(np.float32), (160, 160)).transpose(2, 0, 1)
    maps = np.ascontiguousarray(smooth)
    places, table = rows(25200, 80, boxes)
    objectness = np.full((25200, 1), 0.01, np.float32)
    objectness[places.any(axis=1)] = 0.99
    five = np.hstack([places, objectness, table])
    raw = [logits(rng.uniform(0, 0.02, (3, 640 // s, 640 // s, 85)).astype(np.float32)) for s in (8, 16, 32)]
    raw[1].reshape(-1, 85)[rng.choice(4800, 60, replace=False), :6] = 2
    final = np.zeros((300, 38), np.float32)
    final[:60] = np.hstack([corners, scores[:, None], classes[:, None], shares[:60]])
    coverage, sides = rng.uniform(0, 0.05, (3, 34, 60)).astype(np.float32), rng.random((12, 34, 60)).astype(np.float32)
    coverage.reshape(-1)[rng.choice(6120, 60, replace=False)] = scores
    few, some = rows(200, 91, boxes, True)
    near = np.indices((160, 160))[::-1, None] / 160  # x and y of cells, as parts of the image
    off = (np.abs(near - few.T[:2, :, None, None]) - few.T[2:, :, None, None] * 0.55).max(axis=0)
    masks = np.where(off > 0, np.float32(-4), maps[0] + np.float32(1))
    return [
        ("yolov5 [25200, 85]", "yolov5", [five], {}),
        ("yolo-raw, 3 maps", "yolo-raw", raw, {}),
        ("yolov8 [84, 8400]", "yolov8", [columns(*rows(8400, 80, boxes))], {}),
        ("yolov8-obb [20, 8400]", "yolov8-obb", [columns(*rows(8400, 15, boxes), angles)], {}),
        ("yolov8-seg [116, 8400]", "yolov8-seg", [columns(*rows(8400, 80, boxes), shares), maps], {}),
        ("yolov8-seg [300, 38]", "yolov8-seg", [final, maps], {}),
        ("detr [300, 80]", "detr", list(rows(300, 80, boxes, True)), {"activation": "none"}),
        ("detr [300, 80], logits", "detr", [few, logits(some)], {}),
        ("detr-seg [200, 160, 160]", "detr-seg", [few, logits(some), masks], {}),
        ("yolo-nas [8400, 80]", "yolo-nas", list(rows(8400, 80, corners)), {}),
        ("ppyoloe [80, 8400]", "ppyoloe", [(pair := rows(8400, 80, corners))[0], columns(pair[1])], {}),
        ("detectnet [3, 34, 60]", "detectnet", [coverage, sides], {}),
    ]  # fmt: skip


def head_case(name: str, kind: str, outputs: list[F32], options: dict[str, Any], rounds: int, calls: int) -> Row:
    """One of them, against its bound."""
    task = DetectTask(detect=kind, score=SCORE, iou=IOU, options=options)
    side = (960, 544) if kind == "detectnet" else (640, 640)
    decoder, geometry = decoder_for(task, ()), Geometry(2, 2, 0, 0, side, (0, 0, 2 * side[0], 2 * side[1]))
    assert len(decoder(outputs, geometry)) >= 9
    row = case(name, lambda: decoder(outputs, geometry), None, rounds, calls)
    return replace(row, most_us=4000.0 if kind.endswith("-seg") else 1500.0)


def case(name: str, ours: Call, plain: Call | None, rounds: int, calls: int) -> Row:
    """Measures one pair."""
    same = None if plain is None else agree(ours(), plain())
    best = [min(medians) for medians in zip(*[_round((ours, plain), calls) for _ in range(rounds)], strict=True)]
    return Row(name, round(best[0], 1), None if plain is None else round(best[1], 1), same)


def _round(sides: tuple[Call, Call | None], calls: int) -> list[float]:
    return [0.0 if side is None else _median_us(side, calls) for side in sides]


def _median_us(call: Call, calls: int) -> float:
    times = []
    for _ in range(calls):
        start = time.process_time_ns()
        call()
        times.append((time.process_time_ns() - start) / 1e3)
    return statistics.median(times)


def agree(ours: Any, plain: Any) -> bool:
    """Same boxes within a hundredth of a pixel, or the same indices."""
    if not isinstance(plain, tuple):
        return np.array_equal(getattr(ours, "mask", ours), plain)
    found = (ours.boxes, ours.scores, ours.classes)
    return len(ours) == len(plain[1]) and all(np.allclose(a, b, atol=0.01) for a, b in zip(found, plain, strict=True))


def cases(rounds: int, calls: int) -> list[Row]:
    """All of them."""

    def detect(head: Head, output: F32, side: int) -> Call:
        decoder, geometry = Detector(head, SCORE, IOU), letterbox(side)
        return lambda: decoder([output], geometry)

    rng = np.random.default_rng(3)
    yolox, yolov8 = yolox_output(416), yolov8_output(640)
    final = np.zeros((300, 6), np.float32)
    final[:9] = [10, 10, 50, 50, 0.9, 1]
    maps = rng.standard_normal((21, 257, 257)).astype(np.float32)
    last = np.ascontiguousarray(maps.transpose(1, 2, 0))
    whole = Geometry(1, 1, 0, 0, (257, 257), (0, 0, 257, 257))
    segment = SegmentArgmax()
    corner, size = rng.uniform(0, 600, (3000, 2)), rng.uniform(5, 60, (3000, 2))
    boxes, scores = np.hstack([corner, corner + size]).astype(np.float32), rng.random(3000).astype(np.float32)
    classes = np.zeros(3000, np.int32)
    rectangles = np.hstack([corner, size]).astype(np.float64)

    def suppressing(count: int) -> Call:
        return lambda: suppress(boxes[:count], scores[:count], classes[:count], IOU, count)

    def in_opencv(count: int) -> Call:
        return lambda: np.array(cv2.dnn.NMSBoxesBatched(rectangles[:count], scores[:count], classes[:count], 0.0, IOU))

    scale8 = 1920 / 640
    return [
        case(
            "yolox [3549, 85]", detect(YoloX(), yolox, 416), lambda: plain_yolox(yolox, 416, 1920 / 416), rounds, calls
        ),
        case("yolov8 [84, 8400]", detect(YoloV8(), yolov8, 640), lambda: plain_yolov8(yolov8, scale8), rounds, calls),
        case("end to end [300, 6]", detect(Decoded(), final, 640), None, rounds, calls),
        case("argmax [21, 257, 257]", lambda: segment([maps], whole), lambda: maps.argmax(0), rounds, calls // 8),
        case("argmax [257, 257, 21]", lambda: segment([last], whole), lambda: last.argmax(2), rounds, calls // 8),
        case("suppress 60", suppressing(60), lambda: np.array(plain_nms(boxes[:60], scores[:60])), rounds, calls),
        case("suppress 60, OpenCV", suppressing(60), in_opencv(60), rounds, calls),
        case("suppress 3000", suppressing(3000), lambda: np.array(plain_nms(boxes, scores)), rounds, 2),
        case("suppress 3000, OpenCV", suppressing(3000), in_opencv(3000), rounds, 2),
        *(head_case(*head, rounds, calls // 4) for head in every_head()),
        *(
            replace(case(name, call, None, rounds, max(calls // 4, 1)), most_us=1500.0)
            for name, call in other_heads().items()
        ),
    ]


def other_heads() -> dict[str, Call]:
    """Faces, poses, text and maps of an image of 640x640, or of the size that such networks have."""
    rng = np.random.default_rng(4)
    found: dict[str, Call] = {}

    def add(name: str, decoder: Any, outputs: list[F32], side: int = 640) -> None:
        geometry = letterbox(side)
        found[f"{name} {' '.join(str(list(one.shape)) for one in outputs[:2])}"] = lambda: decoder(outputs, geometry)

    def numbers(*shape: int) -> F32:
        return rng.uniform(0, 0.3, shape).astype(np.float32)

    def scores(count: int) -> F32:
        """60 of them high."""
        all_of_them = numbers(count, 1) / 3
        all_of_them[rng.choice(count, min(60, count // 4), replace=False)] = 0.8
        return all_of_them

    sizes = [2 * (640 // stride) ** 2 for stride in (8, 16, 32)]
    levels = (
        [scores(size) for size in sizes],
        [4 + numbers(size, 4) for size in sizes],
        [numbers(size, 10) for size in sizes],
    )
    add("scrfd", Detector(faces.Scrfd(), SCORE, IOU), [one for level in levels for one in level])
    flat = scores(sum(sizes))
    retina = [numbers(len(flat), 4), np.hstack([1 - flat, flat]), numbers(len(flat), 10)]
    add("retinaface", Detector(faces.RetinaFace(), SCORE, IOU), retina)
    cells = [size // 2 for size in sizes]
    twice = [*map(scores, cells), *[np.full((count, 1), 0.9, np.float32) for count in cells]]
    add(
        "yunet",
        Detector(faces.YuNet(), SCORE, IOU),
        [*twice, *[numbers(n, 4) for n in cells], *[numbers(n, 10) for n in cells]],
    )
    table = 100 * numbers(25200, 16)
    table[:, 4:5], table[:, 15] = scores(25200), 0.9
    add("yolov5-face", Detector(faces.YoloV5Face(), SCORE, IOU), [table])
    body = 100 * numbers(25200, 57)
    body[:, 4:5], body[:, 5] = scores(25200), 0.9
    add("yolov7-pose", poses.YoloV7Pose(), [body])
    add("simcc", poses.SimCC(0.0), [numbers(17, 1280), numbers(17, 1280)])
    add("movenet", poses.MoveNet(0.0), [numbers(6, 56)])
    add("landmarks", poses.Landmarks(), [numbers(212)])
    add("trt-pose, 5 bodies", poses.TrtPose(), list(plausible(np.random.default_rng(5), 5)), 224)
    for how, slope in (("level", 0), ("turned", 6)):
        page = numbers(640, 640)
        for top in range(5, 600, 20):
            corners = np.array([[40, top], [600, top + slope], [600, top + slope + 9], [40, top + 9]])
            cv2.fillPoly(page, [corners], 0.9)
        add(f"db, 30 {how} lines", Detector(text.DB(), 0.6), [page[None]])
    add("ctc", text.CTC(), [numbers(80, 6625)])
    add("depth", dense.Depth(), [numbers(1, 640, 640)])
    add("image", dense.ImageToImage(), [numbers(3, 640, 640)])
    add("anomaly", dense.Anomaly(), [numbers(1, 640, 640), numbers(1)])
    path = Path(tempfile.mkdtemp()) / "people.npz"
    rows = rng.normal(0, 1, (1000, 512)).astype(np.float32)
    np.savez(path, names=np.array([f"person {number}" for number in range(1000)]), vectors=rows)
    add("embed, gallery of 1000", classify.Embed(match=path), [numbers(512)])
    add("multilabel", classify.MultiLabel(), [numbers(1000)])
    return found


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    rows = cases(options.rounds, options.calls)
    for row in rows:
        plain = "" if row.plain_us is None else f"{row.plain_us:9.1f} us plain  {row.plain_us / row.ours_us:5.1f}x"
        bound = "" if row.most_us is None else f"{row.most_us:9.1f} us at most"
        wrong = "  DIFFERENT" if row.same is False else "  TOO SLOW" if row.ours_us > (row.most_us or np.inf) else ""
        print(f"{row.case:24}{row.ours_us:9.1f} us{plain}{bound}{wrong}")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    quick = (rows[0].plain_us or 0) >= BAR * rows[0].ours_us
    slow = any(row.ours_us > (row.most_us or np.inf) for row in rows)
    return 0 if quick and not slow and all(row.same is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
