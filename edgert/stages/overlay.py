"""Painting a whole result: which records, in which order."""

import math
from collections import defaultdict, deque
from collections.abc import Collection
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from edgert.clock import REAL, Clock
from edgert.runtime.frame import U8
from edgert.runtime.records import Classification, Crops, Detections, Keypoints, Record, Result, Segmentation
from edgert.stages import paint
from edgert.stages.paint import INK, Bgr, Canvas, Pen, color_of

_LENGTH = 30  # centers: a second of video


class Trails:
    """The last centers of every track of one stream."""

    def __init__(self) -> None:
        self._centers: dict[int, deque[list[float]]] = {}
        self._seen: dict[int, int] = {}
        self._frames = 0

    def add(self, record: Detections) -> None:
        """Notes where the objects are now, and forgets tracks that were not seen for as long as a trail is."""
        if record.ids is None:
            return
        self._frames += 1
        centers = ((record.boxes[:, :2] + record.boxes[:, 2:]) / 2).tolist()
        for number, center in zip(record.ids.tolist(), centers, strict=True):
            self._centers.setdefault(number, deque(maxlen=_LENGTH)).append(center)
            self._seen[number] = self._frames
        for number in [number for number, seen in self._seen.items() if self._frames - seen > _LENGTH]:
            del self._seen[number], self._centers[number]

    def of(self, record: Detections) -> list[tuple[int, npt.NDArray[np.float64]]]:
        """(track number, (N, 2) source pixels, oldest first) of every object that is in the image now."""
        numbers = [] if record.ids is None else record.ids.tolist()
        return [(number, np.array(self._centers[number])) for number in numbers if number in self._centers]


# Sizes by the image's shorter side, chosen by eye from 320x240 to 1920x1080: 1 to 3 px of line, 10 to 26 px of text.
_LINE_PER_ROOT_PX = 0.1
_TEXT_SHARE = 1 / 42
_TEXT_PX = (10, 30)
_RATE_MEMORY = 0.9  # weight of the past in the frame rate shown


class Overlay:
    """Paints results onto images. Remembers trails and frame rates, so one of its own per place that draws.

    Args:
        elements: of ``boxes labels masks keypoints trails stats``.
    """

    def __init__(self, elements: Collection[str], clock: Clock = REAL) -> None:
        self._elements, self._clock = frozenset(elements), clock
        self._trails: defaultdict[str, Trails] = defaultdict(Trails)
        self._rates: defaultdict[str, _Rate] = defaultdict(_Rate)

    def paint(self, image: U8, result: Result) -> None:
        """Paints what ``result`` holds onto ``image`` (h, w, 3), which shows its frame at any size."""
        canvas = _canvas(image, result)
        shown = list(current_outputs(result).values())
        crops = [record for record in shown if isinstance(record, Crops)]
        nested = [record for one in crops for record in one.records]
        for record in shown + nested:
            if isinstance(record, Segmentation) and "masks" in self._elements:
                paint.paint_mask(canvas, record)
        for record in shown:
            if isinstance(record, Detections) and record.ids is not None and "trails" in self._elements:
                self._trails[result.frame.stream].add(record)
                for number, places in self._trails[result.frame.stream].of(record):
                    paint.paint_trail(canvas, places, color_of(number))
        if "boxes" in self._elements:
            for record in shown:
                _box(canvas, record, canvas.line_px)
            for record in nested:
                _box(canvas, record, max(1, canvas.line_px - 1))
        for record in shown + nested:
            if isinstance(record, Keypoints) and "keypoints" in self._elements:
                paint.paint_keypoints(canvas, record)
        if "labels" in self._elements:
            for record in shown + nested:
                if isinstance(record, Detections):
                    paint.paint_labels(canvas, record)
            for one in crops:
                _notes(canvas, one, result.outputs.get(one.parent))
        self._headings(canvas, result, shown)

    def _headings(self, canvas: Canvas, result: Result, records: list[Record]) -> None:
        lines: list[tuple[str, Bgr]] = []
        if "stats" in self._elements:
            frame = result.frame
            rate_hz = self._rates[frame.stream].add(frame.timestamp_ns)
            age_ms = (self._clock.now_ns() - frame.timestamp_ns) / 1e6
            count = sum(len(record) for record in records if isinstance(record, (Detections, Keypoints)))
            objects = f"{count} object{'' if count == 1 else 's'}"
            lines.append((f"{frame.stream} {frame.index}   {rate_hz:.1f} fps   {age_ms:.0f} ms   {objects}", INK))
        if "labels" in self._elements:
            whole = (record for record in records if isinstance(record, Classification))
            lines += [
                (text, color_of(number))
                for record in whole
                for text, number in zip(paint.class_texts(record), record.classes.tolist(), strict=False)
            ]
        margin = canvas.pen.height_px // 2
        for row, (text, shade) in enumerate(lines):
            canvas.pen.boxed(canvas.image, text, margin, margin + row * canvas.pen.line_px, shade)


class _Rate:
    """Frames per second, smoothed."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._interval_ns = 0.0

    def add(self, timestamp_ns: int) -> float:
        if self._last_ns is not None:
            interval_ns = timestamp_ns - self._last_ns
            past = _RATE_MEMORY if self._interval_ns else 0.0
            self._interval_ns = past * self._interval_ns + (1 - past) * interval_ns
        self._last_ns = timestamp_ns
        return 1e9 / self._interval_ns if self._interval_ns > 0 else 0.0


_pen = lru_cache(maxsize=16)(Pen)


def _canvas(image: U8, result: Result) -> Canvas:
    height, width = image.shape[:2]
    frame, short = result.frame, min(height, width)
    low, high = _TEXT_PX
    return Canvas(
        image=image,
        origin=frame.origin,
        scale=(width / frame.width, height / frame.height),
        line_px=max(1, round(math.sqrt(short) * _LINE_PER_ROOT_PX)),
        pen=_pen(min(max(round(short * _TEXT_SHARE), low), high)),
    )


def current_outputs(result: Result) -> dict[str, Record]:
    """The outputs to show: detections that a tracker has taken up and numbered are not shown a second time."""
    shown: dict[str, Record] = {}
    numbered: list[tuple[str, ...]] = []  # the labels of detections that have numbers
    for stage, record in reversed(list(result.outputs.items())):
        if isinstance(record, Detections):
            if record.labels in numbered:
                continue
            if record.ids is not None:
                numbered.append(record.labels)
        shown[stage] = record
    return dict(reversed(shown.items()))


def _box(canvas: Canvas, record: Record, line_px: int) -> None:
    if isinstance(record, Detections):
        paint.paint_boxes(canvas, record.boxes, paint.colors(record), line_px)
    elif isinstance(record, Keypoints):
        paint.paint_boxes(canvas, record.boxes, [color_of(0)] * len(record), line_px)


def _notes(canvas: Canvas, crops: Crops, parent: Record | None) -> None:
    """What a second model found in each object, under the object's box."""
    if not isinstance(parent, Detections):
        return
    shades = paint.colors(parent)
    for row, record in zip(crops.rows.tolist(), crops.records, strict=True):
        texts = [record] if isinstance(record, str) and record else []
        if isinstance(record, Classification):
            texts = paint.class_texts(record)[:1]
        if texts and 0 <= row < len(parent):
            paint.paint_notes(canvas, np.asarray(parent.boxes[row]), texts, shades[row])
