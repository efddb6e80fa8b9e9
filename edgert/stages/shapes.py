"""Shapes that are drawn for each kind of record."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt

from edgert.runtime import records
from edgert.runtime.records import Classification, Detections, Keypoints, Segmentation
from edgert.stages import paint
from edgert.stages.zones.areas import Zones

F32 = npt.NDArray[np.float32]
LEFT, RIGHT, MIDDLE = 1, 0, 2  # palette entries for the sides of a body
_BACKGROUNDS = ("background", "__background__", "unlabeled", "unlabeled", "void", "other")
_POINT_SCORE = 0.3
_BEST_CLASSES = 3

# The 17 points of COCO (nose, eyes, ears, shoulders, elbows, wrists, hips, knees, ankles; left before right).
_COCO_POINTS = 17
_BONES = (
    *((a, b, LEFT) for a, b in ((5, 7), (7, 9), (11, 13), (13, 15), (5, 11), (1, 3), (0, 1))),
    *((a, b, RIGHT) for a, b in ((6, 8), (8, 10), (12, 14), (14, 16), (6, 12), (2, 4), (0, 2))),
    *((a, b, MIDDLE) for a, b in ((5, 6), (11, 12))),
)


@dataclass(frozen=True, slots=True)
class Canvas:
    """Image to draw on, and its position in source pixels.

    Attributes:
        size: (width, height) of the image.
        origin: source position of the image's first pixel.
        scale: image pixels per source pixel, horizontally and vertically.
        line_px: thickness of the lines of a box.
        pen: renderer of the text.
        is_brief: whether labels are names only, without numbers and scores.
    """

    size: tuple[int, int]
    origin: tuple[float, float]
    scale: tuple[float, float]
    line_px: int
    pen: paint.Pen
    is_brief: bool = False

    def corners(self, boxes: F32) -> list[list[int]]:
        """Convert (N, 4) source boxes to lists of x1, y1, x2, y2 in integer image pixels."""
        return cast("list[list[int]]", np.rint(self._to_image(boxes, 2)).astype(int).tolist())

    def fine(self, points: npt.NDArray[np.floating]) -> npt.NDArray[np.int32]:
        """Convert (..., 2) source points to sixteenths of an image pixel."""
        fine: npt.NDArray[np.int32] = np.rint(self._to_image(points, 1) * (1 << paint.SUBPIXEL_BITS)).astype(np.int32)
        return fine

    def _to_image(self, points: npt.NDArray[np.floating], pairs: int) -> npt.NDArray[np.float64]:
        moved = (points - np.array(self.origin * pairs)) * np.array(self.scale * pairs)
        moved[moved != moved] = 0  # NaN
        limit = 4 * max(self.size)  # far outside the image, but within OpenCV's integers
        placed: npt.NDArray[np.float64] = np.clip(moved, -limit, limit, out=moved)
        return placed


def colors(record: Detections) -> list[paint.Bgr]:
    """Return one color per object: of its track number, or else of its class."""
    numbers = record.classes if record.ids is None else record.ids
    return [paint.color_of(number) for number in numbers.tolist()]


def _edged(points: npt.NDArray[np.int32], line_px: int, shade: paint.Bgr) -> Iterator[paint.Stroke]:
    """Yield a line with a dark edge."""
    last = len(points) - 1
    yield paint.Stroke(points, ((0, last, line_px + 2),), paint.INK)
    yield paint.Stroke(points, ((0, last, line_px),), shade)


def object_masks(canvas: Canvas, record: Detections) -> Iterator[paint.Mask]:
    """Yield the mask of every object that has one, in its box's color."""
    numbers = record.classes if record.ids is None else record.ids
    for one, number in zip(record.masks or (), numbers.tolist(), strict=False):
        codes = one.mask * np.uint8(paint.code_of(number))
        yield mask(canvas, Segmentation(codes, one.region))


def boxes(canvas: Canvas, record: Detections, line_px: int) -> Iterator[paint.Shape]:
    """Yield the outline of each box, rotated ones along their sides."""
    if record.corners is None:
        for (x1, y1, x2, y2), shade in zip(canvas.corners(record.boxes), colors(record), strict=True):
            yield paint.Box(x1, y1, x2, y2, shade, line_px)
        return
    closed = canvas.fine(np.concatenate([record.corners, record.corners[:, :1]], axis=1))
    for points, shade in zip(closed, colors(record), strict=True):
        yield from _edged(points, line_px, shade)


def labels(canvas: Canvas, record: Detections) -> Iterator[paint.Label]:
    """Yield class, number and score above each box, or inside if there is no room above; only the number of bodies."""
    half = canvas.line_px // 2 + 1
    ids = [""] * len(record) if record.ids is None else [f" #{number}" for number in record.ids.tolist()]
    is_plain = isinstance(record, Keypoints) and not record.labels  # one class, which needs no name
    if is_plain and record.ids is None:
        return
    columns = record.classes.tolist(), ids, record.scores.tolist(), colors(record)
    for (x1, y1, _, _), number, track, score, shade in reversed(
        list(zip(canvas.corners(record.boxes), *columns, strict=True))
    ):  # the best is drawn last, on top
        text = f"{'' if is_plain else _name(record.labels, number)}"
        if not canvas.is_brief or not text:
            text = f"{text}{track} {score:.2f}".strip()
        above = y1 - half - canvas.pen.line_px
        yield canvas.pen.label(canvas.size, text, x1 - half, above if above >= 0 else y1 - half, shade)


def notes(canvas: Canvas, box: F32, texts: Iterable[str], shade: paint.Bgr) -> Iterator[paint.Label]:
    """Yield lines of text under a box, such as a second model's results."""
    ((x1, _, _, y2),) = canvas.corners(box[None])
    half = canvas.line_px // 2 + 1
    for row, text in enumerate(texts):
        top = y2 + half + 1 + row * canvas.pen.line_px
        yield canvas.pen.label(canvas.size, text, x1 - half, top, shade)


def zone_outlines(canvas: Canvas, record: Zones) -> Iterator[paint.Stroke]:
    """Yield the outlines of zones, and lines."""
    for at, points in enumerate(record.shapes):
        path = canvas.fine(np.concatenate([points, points[:1]]) if at < len(record.zones) else points)
        yield from _edged(path, canvas.line_px, paint.color_of(at))


def zone_labels(canvas: Canvas, record: Zones) -> Iterator[paint.Label]:
    """Yield the counts of zones and lines, and each object's seconds in a zone."""
    for row in np.flatnonzero((record.seconds >= 1).any(axis=0)).tolist():
        yield from notes(canvas, record.objects.boxes[row], [f"{record.seconds[:, row].max():.0f} s"], paint.INK)
    for at, points in enumerate(record.shapes):
        first, second = record.totals[at].tolist()
        line = at - len(record.zones)
        text = f"{record.lines[line]} in {first} out {second}" if line >= 0 else ""
        text = text or f"{record.zones[at]} {int(record.inside[at].sum())}"
        left, top = (canvas.fine(points[points[:, 1].argmin()]) >> paint.SUBPIXEL_BITS).tolist()
        yield canvas.pen.label(canvas.size, text, left, top, paint.color_of(at))


def class_texts(record: Classification) -> list[str]:
    """Return ``name score`` for each of the best classes."""
    rows = zip(record.classes[:_BEST_CLASSES].tolist(), record.scores[:_BEST_CLASSES].tolist(), strict=True)
    return [f"{_name(record.labels, number)} {score:.2f}" for number, score in rows]


def mask(canvas: Canvas, record: Segmentation) -> paint.Mask:
    """Return the mask of a segmentation: every class in its color, the background transparent."""
    ((left, top, right, bottom),) = canvas.corners(np.array([record.region], np.float32))
    has_background = not record.labels or record.labels[0].lower() in _BACKGROUNDS
    return paint.Mask(record.mask, (left, top, right, bottom), has_background)


def heat(canvas: Canvas, record: records.DepthMap | records.AnomalyMap) -> paint.Mask:
    """Return the heat map of a depth map, from far (blue) to near (red), or of an anomaly map.

    Anomaly scores go from 0 (blue) to twice the threshold (red).
    """
    ((left, top, right, bottom),) = canvas.corners(np.array([record.region], np.float32))
    if isinstance(record, records.AnomalyMap):
        values = record.scores * np.float32(0.5 / record.threshold if record.threshold > 0 else 1)
    else:
        known = record.depth[np.isfinite(record.depth)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
        values = (record.depth - np.float32(low)) / np.float32(max(high - low, 1e-9))
        values = values if record.unit == "inverse" else 1 - values
    codes = (np.clip(np.nan_to_num(values, posinf=1, neginf=0), 0, 1) * 255).astype(np.uint8)
    return paint.Mask(codes, (left, top, right, bottom), isinstance(record, records.AnomalyMap), is_heat=True)


def note_texts(record: object) -> list[str]:
    """Return a model's result for an image or crop as lines of text; none for records that are drawn as shapes."""
    if isinstance(record, str):
        return [record] if record else []
    if isinstance(record, records.Text):
        return [record.text] if record.text else []
    if isinstance(record, Classification):
        return class_texts(record)
    if isinstance(record, records.Embedding):
        return [f"{record.name} {record.similarity:.2f}"] if record.name and record.similarity is not None else []
    if isinstance(record, records.Attributes):
        heads = record.heads.items()
        return [
            f"{name}: {one:.4g}"
            if isinstance(one, float)
            else ", ".join([f"{name}: {text}" for text in class_texts(one)[:1]])
            for name, one in heads
        ]
    if isinstance(record, records.AnomalyMap):
        return [f"{'unusual' if record.is_anomalous else 'usual'} {record.score:.2f}"]
    return []


def keypoints(canvas: Canvas, record: Detections) -> Iterator[paint.Shape]:
    """Yield dots, and bones between them for COCO's 17 points. Points with a score below 0.3 are left out."""
    radius = (canvas.line_px + 1) << paint.SUBPIXEL_BITS
    for points in () if record.points is None else record.points:
        seen = (points[:, 2] >= _POINT_SCORE).tolist()
        places = canvas.fine(points[:, :2])
        if len(places) == _COCO_POINTS:
            for a, b, side in _BONES:
                if seen[a] and seen[b]:
                    yield from _edged(places[[a, b]], canvas.line_px, paint.color_of(side))
        for (x, y), visible in zip(places.tolist(), seen, strict=True):
            if visible:
                yield paint.Dot(x, y, radius + (1 << paint.SUBPIXEL_BITS), paint.INK)
                yield paint.Dot(x, y, radius, paint.WHITE)


def trails(canvas: Canvas, found: Sequence[tuple[int, npt.NDArray[np.float64]]]) -> Iterator[paint.Stroke]:
    """Yield the lines of trails, thicker towards the newest point.

    ``found`` has (track number, (N, 2) source points, oldest first) of each trail.
    """
    start, points = 0, canvas.fine(np.concatenate([np.zeros((0, 2)), *(places for _, places in found)]))
    for number, places in found:
        stop = start + len(places)
        if pieces := _thirds(len(places), canvas.line_px):
            yield paint.Stroke(points[start:stop], pieces, paint.color_of(number))
        start = stop


@lru_cache(maxsize=256)
def _thirds(count: int, line_px: int) -> tuple[tuple[int, int, int], ...]:
    ends = np.linspace(0, count - 1, 4).astype(int).tolist()
    pieces = zip(ends, ends[1:], range(line_px - 1, line_px + 2), strict=False)
    return tuple((first, last, max(1, thickness)) for first, last, thickness in pieces if last > first)


def _name(labels: tuple[str, ...], number: int) -> str:
    return labels[number] if 0 <= number < len(labels) else f"class {number}"
