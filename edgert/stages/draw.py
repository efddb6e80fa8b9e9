"""The draw stage: a whole result painted on its frame, records in an order that keeps all of them visible."""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from edgert.clock import REAL, Clock
from edgert.config.stages import DrawStage
from edgert.errors import StageError
from edgert.memory import Counter, Pool
from edgert.runtime.frame import U8, bgr_into
from edgert.runtime.records import Classification, Crops, Detections, Keypoints, Record, Result, Segmentation
from edgert.runtime.stage import Stage
from edgert.stages import paint
from edgert.stages.context import SimpleStage
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


# ``draw:`` makes the one BGR image of a frame and paints on it what the stages before found.

# Images that live as long as somebody looks at them.
#
# A drawn image does not end with its frame: an encoder, a viewer of the live page or the user keeps it as long as
# he likes. So its lease is given back at once, and what protects it is that a Pool never lends a buffer that any
# array still refers to. Whoever holds the image, or a view of it, is safe without doing anything.

_IN_FLIGHT = 6  # being painted, waiting in a queue or two, in a sink, shown to a viewer


class Images:
    """Lends uint8 arrays of one shape at a time from a Pool. For one thread; the arrays may go anywhere."""

    def __init__(self) -> None:
        self._pool: Pool | None = None

    def take(self, shape: tuple[int, ...], counter: Counter) -> U8:
        """A C-contiguous array of ``shape``, contents undefined. Never waits.

        Allocates when the shape changes, and when more than a handful are held at the same time.
        """
        nbytes = math.prod(shape)
        if self._pool is None or self._pool.nbytes != nbytes or self._pool.counter is not counter:
            self._pool = Pool(nbytes, _IN_FLIGHT, counter)
        lent = self._pool.acquire(0)
        if lent is None:
            raise StageError("no image buffer is free", why="a lease on one was kept")
        buffer, lease = lent
        lease.release()
        return buffer.reshape(shape)

    def shown(self, result: Result) -> U8:
        """(h, w, 3) BGR: the drawn image, or the frame where nothing was drawn. Converting a frame is counted."""
        if result.image is not None:
            return result.image
        frame = result.frame
        if frame.format == "bgr":
            return frame.planes[0]
        image = self.take((frame.height, frame.width, 3), frame.lease.counter)
        bgr_into(frame, image)
        frame.lease.counter.copied(image.nbytes)
        return image


class Draw(SimpleStage):
    """Results come out with a ``image``; the frame itself is never touched.

    The image is valid as long as anybody refers to it, with or without the frame's lease. Making it is the one copy
    of this stage, and counted; at steady state nothing is allocated. With ``width`` the planes are scaled first and
    only the small image is converted.
    """

    def __init__(self, name: str, config: DrawStage, clock: Clock = REAL) -> None:
        self.name = name
        self._width = config.width
        self._overlay = Overlay(config.draw, clock)
        self._images = Images()

    def process(self, result: Result) -> Result:
        """The result with its image. One that has been drawn on is not painted over but copied: others see it."""
        image = image_of(result, self._width, self._images)
        self._overlay.paint(image, result)
        return replace(result, image=image)

    def close(self) -> None:
        """Gives the buffers back; images still held by others stay valid."""
        self._images = Images()


def image_of(result: Result, width: int | None, images: Images) -> U8:
    """A new BGR image of the frame, or of what was drawn before; ``width`` pixels wide when given. Counted."""
    frame = result.frame
    source_height, source_width = (frame.height, frame.width) if result.image is None else result.image.shape[:2]
    width = width or source_width
    height = max(1, round(source_height * width / source_width))
    image = images.take((height, width, 3), frame.lease.counter)
    if result.image is None:
        bgr_into(frame, image)
    elif result.image.shape == image.shape:
        np.copyto(image, result.image)
    else:
        cv2.resize(result.image, (width, height), dst=image, interpolation=cv2.INTER_AREA)
    frame.lease.counter.copied(image.nbytes)
    return image


KEY = "simulated"
"""Among the outputs of a result: the label."""
_LABEL_SHARE, _LEAST_PX = 1 / 30, 12


class Marked:
    """Gives every result of a simulated board the label, and writes it across the foot of its image, so that nobody
    takes it for real.

    Args:
        shows: whether the sink shows images; they are copied, since others may see them, too.
    """

    def __init__(self, sink: Stage, label: str, shows: bool) -> None:
        self._sink, self._label, self._shows = sink, label, shows
        self._images = Images()

    def open(self) -> None:
        self._sink.open()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        result = result.with_output(KEY, self._label)
        if self._shows:
            image = image_of(result, None, self._images)
            height = image.shape[0]
            Pen(max(_LEAST_PX, round(height * _LABEL_SHARE))).boxed(image, self._label, 0, height, INK)
            result = replace(result, image=image)
        return self._sink.process(result)

    def close(self) -> None:
        self._sink.close()
