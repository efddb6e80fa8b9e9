"""Frames made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgert.memory import Counter, lend
from edgert.runtime.frame import U8, Color, Frame, PixelFormat
from edgert.runtime.records import Detections, Result

LABELS = ("bolt", "nut", "gear")


def planes(form: PixelFormat, width: int, height: int, seed: int = 0, padding: int = 0) -> tuple[U8, ...]:
    """Noise with luma from 16 up, rows ``padding`` bytes longer than they have to be."""
    half = (height + 1) // 2, (width + 1) // 2
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "i420": ((height, width), half, half),
        "nv12": ((height, width), (*half, 2)),
        "yuyv": ((height, width, 2),),
        "bgr": ((height, width, 3),),
        "rgb": ((height, width, 3),),
        "gray": ((height, width),),
    }
    random = np.random.default_rng(seed)
    return tuple(
        random.integers(16, 256, (shape[0], shape[1] + padding, *shape[2:]), np.uint8)[:, : shape[1]]
        for shape in shapes[form]
    )


def frame_of(
    width: int = 64,
    height: int = 48,
    form: PixelFormat = "bgr",
    *,
    pixels: tuple[U8, ...] | None = None,
    counter: Counter | None = None,
    color: Color | None = None,
    stream: str = "camera",
    index: int = 0,
    media_ns: int = 0,
    timestamp_ns: int = 0,
    padding: int = 0,
) -> Frame:
    pixels = planes(form, width, height, index, padding) if pixels is None else pixels
    lease = lend(pixels, counter or Counter())
    return Frame(stream, index, timestamp_ns, media_ns, width, height, form, pixels, lease, color or Color())


def result_of(frame: Frame | None = None, outputs: Mapping[str, Any] | None = None) -> Result:
    return Result(frame or frame_of(), outputs or {})


def detections(*boxes: Sequence[float], ids: tuple[int, ...] | None = None) -> Detections:
    """One row per box, classes 0, 1, 2, 0, ..., scores falling from 0.9."""
    found = things(*boxes, scores=np.linspace(0.9, 0.5, len(boxes)), labels=LABELS)
    classes = np.arange(len(boxes), dtype=np.int32) % len(LABELS)
    return replace(found, classes=classes, ids=None if ids is None else np.array(ids, np.int64))


def things(*boxes: Sequence[float], scores: Any = 0.9, labels: tuple[str, ...] = ()) -> Detections:
    """One row per box, all of class 0; ``scores`` is one for all, or one for each."""
    rows = np.array(boxes, np.float32).reshape(-1, 4)
    each = np.broadcast_to(np.asarray(scores, np.float32), len(rows)).copy()
    return Detections(rows, each, np.zeros(len(rows), np.int32), labels)
