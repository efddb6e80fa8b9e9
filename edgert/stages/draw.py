"""``draw:`` stage: the records of a result painted on an image of its frame."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.clock import REAL, Clock
from edgert.config.stages import DrawStage
from edgert.errors import BuildError, DeviceError
from edgert.runtime.frame import U8, Frame, bgr_into, origin_of
from edgert.runtime.records import AnomalyMap, Classification, Crops, DepthMap, Detections, Record, Result, Segmentation
from edgert.runtime.stage import Stage
from edgert.stages import shapes
from edgert.stages.context import ImageBuffers, SimpleStage
from edgert.stages.gpu.download import Downloader
from edgert.stages.paint import INK, Bgr, Pen, Shape, color_of, load_font, paint
from edgert.stages.shapes import Canvas
from edgert.stages.zones.areas import Zones

if TYPE_CHECKING:
    from edgert.memory.cuda import DeviceView
    from edgert.stages.gpu.overlay import GpuPainter

log = logging.getLogger("edgert.draw")

_LENGTH = 30
"""Centers of a trail, about a second of video."""


class Trails:
    """Last centers of every track of one stream."""

    def __init__(self) -> None:
        self._tracks: dict[int, _Track] = {}
        self._frames = 0

    def add(self, record: Detections) -> None:
        """Add the objects' positions, and drop tracks that were not seen for the length of a trail."""
        if record.ids is None:
            return
        self._frames += 1
        centers = (record.boxes[:, :2] + record.boxes[:, 2:]) / 2
        for number, center in zip(record.ids.tolist(), centers, strict=True):
            self._tracks.setdefault(number, _Track()).add(center, self._frames)
        for number in [number for number, one in self._tracks.items() if self._frames - one.seen > _LENGTH]:
            del self._tracks[number]

    def paths(self, record: Detections) -> list[tuple[int, npt.NDArray[np.float64]]]:
        """Return (track number, (N, 2) source pixels, oldest first) of every tracked object of a record.

        The arrays are valid until the next :meth:`add`.
        """
        numbers = [] if record.ids is None else record.ids.tolist()
        return [(number, self._tracks[number].centers()) for number in numbers if number in self._tracks]


class _Track:
    """Ring buffer of centers. Each is written twice, so that the last ones are always contiguous."""

    def __init__(self) -> None:
        self._centers, self._count, self.seen = np.zeros((2 * _LENGTH, 2)), 0, 0

    def add(self, center: npt.NDArray[np.floating], frame: int) -> None:
        at = self._count % _LENGTH
        self._centers[at] = self._centers[at + _LENGTH] = center
        self._count, self.seen = self._count + 1, frame

    def centers(self) -> npt.NDArray[np.float64]:
        start = self._count % _LENGTH if self._count > _LENGTH else 0
        return self._centers[start : start + min(self._count, _LENGTH)]


# Sizes depend on the image's shorter side, chosen by eye from 320x240 (lines of 1 px, text of 10 px) to 1920x1080
# (3 px, 26 px).
_LINE_PER_ROOT_PX = 0.1
_TEXT_SHARE = 1 / 42
_TEXT_PX = (10, 30)
_TILE_TEXT_PX = 11  # on the viewer's screen
_RATE_MEMORY = 0.9  # weight of the past in the displayed frame rate


class Overlay:
    """Painter of results onto images. It stores trails and frame rates, so each stage that draws needs its own.

    Args:
        elements: some of ``boxes labels masks keypoints trails zones stats``.
        tile_px: width of the 16:9 tile in which viewers see the image. Text is then legible in the tile, and labels are
            names only. 0 sizes text for the image.
    """

    def __init__(self, elements: Collection[str], clock: Clock = REAL, tile_px: int = 0) -> None:
        self._elements, self._clock, self._tile_px = frozenset(elements), clock, tile_px
        self._trails: defaultdict[str, Trails] = defaultdict(Trails)
        self._rates: defaultdict[str, _Rate] = defaultdict(_Rate)

    def paint(self, image: U8, result: Result) -> None:
        """Paint the outputs of ``result`` onto ``image`` (h, w, 3), which shows its frame at any size."""
        paint(image, self.shapes((image.shape[1], image.shape[0]), result))

    def shapes(self, size: tuple[int, int], result: Result) -> list[Shape]:
        """Return the shapes to paint on an image of (width, height), in order. Call it once for every frame."""
        canvas, found = _canvas(size, result, self._tile_px), list[Shape]()
        shown = list(current_outputs(result).values())
        crops = [record for record in shown if isinstance(record, Crops)]
        nested = [record for one in crops for record in one.records]
        for record in shown + nested:
            if isinstance(record, Segmentation) and "masks" in self._elements:
                found.append(shapes.mask(canvas, record))
            elif isinstance(record, Detections) and "masks" in self._elements:
                found += shapes.object_masks(canvas, record)
            elif isinstance(record, (AnomalyMap, DepthMap)) and "masks" in self._elements:
                found.append(shapes.heat(canvas, record))
        for record in shown:
            if isinstance(record, Detections) and record.ids is not None and "trails" in self._elements:
                trails = self._trails[result.frame.stream]
                trails.add(record)
                found += shapes.trails(canvas, trails.paths(record))
        if "zones" in self._elements:
            found += [shape for one in shown if isinstance(one, Zones) for shape in shapes.zone_outlines(canvas, one)]
        if "boxes" in self._elements:
            for record in shown:
                if isinstance(record, Detections):
                    found += shapes.boxes(canvas, record, canvas.line_px)
            for record in nested:
                if isinstance(record, Detections):
                    found += shapes.boxes(canvas, record, max(1, canvas.line_px - 1))
        for record in shown + nested:
            if isinstance(record, Detections) and "keypoints" in self._elements:
                found += shapes.keypoints(canvas, record)
        if "labels" in self._elements:
            for record in shown + nested:
                if isinstance(record, Detections):
                    found += shapes.labels(canvas, record)
            for one in crops:
                found += _notes(canvas, one, result.outputs.get(one.parent))
        if "zones" in self._elements:
            found += [label for one in shown if isinstance(one, Zones) for label in shapes.zone_labels(canvas, one)]
        return found + self._headings(canvas, result, shown)

    def _headings(self, canvas: Canvas, result: Result, records: list[Record]) -> list[Shape]:
        lines: list[tuple[str, Bgr]] = []
        if "stats" in self._elements:
            frame = result.frame
            rate_hz = self._rates[frame.stream].add(frame.timestamp_ns)
            age_ms = (self._clock.now_ns() - frame.timestamp_ns) / 1e6
            count = sum(len(record) for record in records if isinstance(record, Detections))
            objects = f"{count} object{'' if count == 1 else 's'}"
            lines.append((f"{frame.stream} {frame.index}   {rate_hz:.1f} fps   {age_ms:.0f} ms   {objects}", INK))
        if "labels" in self._elements:
            for record in records:
                if isinstance(record, Classification):
                    lines += zip(shapes.class_texts(record), map(color_of, record.classes.tolist()), strict=False)
                elif not isinstance(record, str):
                    lines += [(text, INK) for text in shapes.note_texts(record)]
        pen, margin = canvas.pen, canvas.pen.height_px // 2
        return [
            pen.label(canvas.size, text, margin, margin + row * pen.line_px, shade)
            for row, (text, shade) in enumerate(lines)
        ]


class _Rate:
    """Smoothed number of frames per second."""

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


def _canvas(size: tuple[int, int], result: Result, tile_px: int) -> Canvas:
    frame, (low, high) = result.frame, _TEXT_PX
    text_px = min(max(min(size) * _TEXT_SHARE, low), high)
    if tile_px:
        text_px = _TILE_TEXT_PX * max(size[0] / tile_px, size[1] / (tile_px * 9 / 16))
    return Canvas(
        size=size,
        origin=origin_of(frame),
        scale=(size[0] / frame.width, size[1] / frame.height),
        line_px=max(1, round(math.sqrt(min(size)) * _LINE_PER_ROOT_PX)),
        pen=_pen(round(text_px)),
        is_brief=bool(tile_px),
    )


def current_outputs(result: Result) -> dict[str, Record]:
    """Return the outputs to show, without detections that a tracker repeats with numbers."""
    shown: dict[str, Record] = {}
    numbered: list[tuple[type, tuple[str, ...]]] = []  # type and labels of detections with track numbers
    for stage, record in reversed(list(result.outputs.items())):
        if isinstance(record, Detections):
            kind = type(record), record.labels
            if kind in numbered:
                continue
            if record.ids is not None:
                numbered.append(kind)
        shown[stage] = record
    return dict(reversed(shown.items()))


def _notes(canvas: Canvas, crops: Crops, parent: Record | None) -> Iterable[Shape]:
    """Yield a second model's results for each object, under the object's box."""
    if not isinstance(parent, Detections):
        return
    shades = shapes.colors(parent)
    for row, record in zip(crops.rows.tolist(), crops.records, strict=True):
        texts = shapes.note_texts(record)
        if isinstance(record, Classification):
            texts = texts[:1]
        if texts and 0 <= row < len(parent):
            yield from shapes.notes(canvas, np.asarray(parent.boxes[row]), texts, shades[row])


Shapes = Callable[[tuple[int, int]], Sequence[Shape]]
"""Function from (width, height) of an image to the shapes to paint on it."""


class ImagePainter:
    """Maker of BGR images of results, in reused memory of the host or a GPU. For one thread; its images are for any."""

    def __init__(self) -> None:
        self.buffers = ImageBuffers()
        self._painters: dict[int, GpuPainter] = {}  # by ordinal of the GPU
        self._downloader = Downloader()
        self._why_not = self._logged = ""

    def paint(self, result: Result, width: int | None, found: Shapes) -> U8:
        """Return a new BGR image of the frame, or of the image drawn before, with shapes painted on it.

        It is ``width`` pixels wide when given. It is on the GPU if the frame is, else an array, counted as a copy.
        Where kernels cannot be compiled, frames on the GPU are copied to the host, which is logged once.
        """
        source_height, source_width = _size(result)
        width = width or source_width
        size = width, max(1, round(source_height * width / source_width))
        if is_on_gpu(result):
            if (painter := self._painter(result)) is not None:
                return cast("U8", painter.paint(_source(result), size, found(size)))
            result = _to_host(result)
        image = self._bgr_copy(result, size)
        paint(image, found(size))
        return image

    def host_image(self, result: Result) -> U8:
        """Return (h, w, 3) BGR on the host: the drawn image, or the frame if nothing was drawn.

        Conversions, and copies from a GPU, are counted.
        """
        if is_on_gpu(result):
            if result.image is not None:
                return self._downloader.image(cast("DeviceView", result.image))
            if (painter := self._painter(result)) is not None:
                return self._downloader.image(painter.paint(result.frame, _size(result)[::-1], ()))
            result = _to_host(result)
        if result.image is not None:
            return result.image
        if result.frame.format == "bgr":
            return result.frame.planes[0]
        return self._bgr_copy(result, (result.frame.width, result.frame.height))

    def close(self) -> None:
        self.buffers.clear()
        self._downloader = Downloader()
        while self._painters:
            self._painters.popitem()[1].close()

    def _bgr_copy(self, result: Result, size: tuple[int, int]) -> U8:
        frame = result.frame
        image = self.buffers.take((size[1], size[0], 3), frame.lease.counter)
        if result.image is None:
            bgr_into(frame, image)
        elif result.image.shape == image.shape:
            np.copyto(image, result.image)
        else:
            cv2.resize(result.image, size, dst=image, interpolation=cv2.INTER_AREA)
        frame.lease.counter.copied(image.nbytes)
        return image

    def _painter(self, result: Result) -> "GpuPainter | None":
        """Return the painter for the GPU that holds the result's pixels; None where it cannot paint them."""
        from edgert.stages.gpu.overlay import GpuPainter, device_of, why_unreadable

        source = _source(result)
        why_not = why_unreadable(source) if isinstance(source, Frame) else ""
        view = cast("DeviceView", source.planes[0] if isinstance(source, Frame) else source)
        if view.ordinal not in self._painters and not self._why_not and not why_not:
            try:
                self._painters[view.ordinal] = GpuPainter(device_of(view), result.frame.lease.counter)
            except (BuildError, DeviceError) as error:
                why_not = self._why_not = f"{error.what} ({error.fix or error.why})"
        if (why_not := why_not or self._why_not) and why_not != self._logged:
            self._logged = why_not
            log.warning("%s: images are made on the host: %s", result.frame.stream, why_not)
        return None if why_not else self._painters[view.ordinal]


def is_on_gpu(result: Result) -> bool:
    """Return whether the image of a result, or else its frame, is on a GPU."""
    return result.frame.is_on_gpu if result.image is None else hasattr(result.image, "__cuda_array_interface__")


def _source(result: Result) -> "Frame | DeviceView":
    return result.frame if result.image is None else cast("DeviceView", result.image)


def _size(result: Result) -> tuple[int, int]:
    return (result.frame.height, result.frame.width) if result.image is None else result.image.shape[:2]


def _to_host(result: Result) -> Result:
    if result.image is None:
        return replace(result, frame=result.frame.to_host())
    return replace(result, image=cast("DeviceView", result.image).to_host())


class Draw(SimpleStage):
    """Stage that adds an ``image`` to each result; the frame itself is never modified.

    The image is valid as long as something refers to it, with or without the frame's lease. Making it is the only copy
    of this stage, and counted. For a frame on a GPU it is made on the GPU. At steady state nothing is allocated. With
    ``width`` the planes are scaled first, and only the small image is converted.
    """

    def __init__(self, name: str, config: DrawStage, clock: Clock = REAL) -> None:
        self.name = name
        self._width = config.width
        self._overlay = Overlay(config.draw, clock)
        self._images = ImagePainter()
        self._writes = not {"labels", "stats"}.isdisjoint(config.draw)

    def open(self) -> None:
        """Load the font, while files and models open in other threads."""
        if self._writes:
            load_font()

    def process(self, result: Result) -> Result:
        """Return the result with its image. An image drawn before is copied, because other stages may use it."""
        image = self._images.paint(result, self._width, lambda size: self._overlay.shapes(size, result))
        return replace(result, image=image)

    def close(self) -> None:
        self._images.close()


KEY = "simulated"
"""Key of the label among the outputs of a result."""
_LABEL_SHARE, _LEAST_PX = 1 / 30, 12


class SimulationLabel:
    """Sink wrapper that marks every result of a simulated board, so that it cannot be mistaken for a real one.

    Images that it shows get a label, on a copy.
    """

    def __init__(self, sink: Stage, label: str, shows: bool) -> None:
        self._sink, self._label, self._shows = sink, label, shows
        self.closing_s: float = getattr(sink, "closing_s", 0.0)
        self._images = ImagePainter()

    def open(self) -> None:
        self._sink.open()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        result = result.with_output(KEY, self._label)
        if self._shows:
            result = replace(result, image=self._images.paint(result, None, self._mark))
        return self._sink.process(result)

    def close(self) -> None:
        self._sink.close()
        self._images.close()

    def _mark(self, size: tuple[int, int]) -> Sequence[Shape]:
        pen = _pen(max(_LEAST_PX, round(size[1] * _LABEL_SHARE)))
        return [pen.label(size, self._label, 0, size[1], INK)]
