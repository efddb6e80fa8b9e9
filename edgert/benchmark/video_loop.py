"""Video to results, against the loop that people write with OpenCV."""

import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgert.benchmark.measure import Figure, cpu_ms, in_turn, median_ratio
from edgert.clock import REAL
from edgert.config import InputConfig
from edgert.config.stages import SourceStage
from edgert.installation import demo_images
from edgert.memory import Counter, aligned_empty
from edgert.runtime import Result
from edgert.stages.crop import Geometry
from edgert.stages.preprocess import Preprocessor
from edgert.stages.sink.video import VideoSink
from edgert.stages.source.kinds import source_for

# A 1080p H.264 file to measure with, made here so that anyone has the same.


def write_scene(path: Path, width: int, height: int, frames: int, seed: int = 5) -> Path:
    """Encodes the demo's images, H.264 CRF 23; returns ``path``."""
    size = f"{width}x{height}"
    config = SourceStage(source=demo_images(), size=size, fps=30, seed=seed, limit=frames)  # type: ignore[arg-type]
    source = source_for("scene", config, Counter(), REAL, Path())
    sink = VideoSink("clip", path)
    sink.open()
    try:
        for frame in source.frames(threading.Event()):
            sink.process(Result(frame))
            frame.lease.release()
    finally:
        sink.close()
        source.close()
    return path


F32 = npt.NDArray[np.float32]
_COCO_PAD = 114


@dataclass(frozen=True, slots=True)
class Letterbox:
    """What the OpenCV loop does to a frame: centered or top-left letterbox, BGR or RGB, 0–255 or 0–1."""

    width: int
    height: int
    top_left: bool
    rgb: bool
    scale: float

    def config(self) -> InputConfig:
        """The same, as edgert's input section."""
        return InputConfig(
            resize="letterbox",
            anchor="top_left" if self.top_left else "center",
            color="rgb" if self.rgb else "bgr",
            std=(1 / self.scale,),
        )

    def apply(self, bgr: npt.NDArray[np.uint8]) -> tuple[F32, Geometry]:
        """A (1, 3, height, width) float32 tensor and the way back, as the usual code makes them."""
        h, w = bgr.shape[:2]
        ratio = min(self.width / w, self.height / h)
        new_w, new_h = round(w * ratio), round(h * ratio)
        left, top = (0, 0) if self.top_left else ((self.width - new_w) // 2, (self.height - new_h) // 2)
        canvas = np.full((self.height, self.width, 3), _COCO_PAD, np.uint8)
        canvas[top : top + new_h, left : left + new_w] = cv2.resize(bgr, (new_w, new_h))
        image = canvas[:, :, ::-1] if self.rgb else canvas
        tensor = np.ascontiguousarray(image.transpose(2, 0, 1)[None], dtype=np.float32)
        if self.scale != 1:
            tensor *= self.scale
        scale_x, scale_y = w / new_w, h / new_h
        network, bounds = (self.width, self.height), (0.0, 0.0, float(w), float(h))
        return tensor, Geometry(scale_x, scale_y, -left * scale_x, -top * scale_y, network, bounds)


def read_bgr(clip: Path) -> Iterator[npt.NDArray[np.uint8]]:
    """Frames as ``cv2.VideoCapture`` gives them."""
    capture = cv2.VideoCapture(str(clip))
    try:
        while True:
            ok, frame = capture.read()
            if not ok:
                return
            yield frame  # type: ignore[misc]
    finally:
        capture.release()


def preprocess_cost(clip: Path, frames: int, size: int = 640, rounds: int = 7) -> list[Figure]:
    """CPU milliseconds per frame from a video file to the network's tensor, and the copies made on the way."""
    recipe = Letterbox(size, size, False, True, 1 / 255)
    tensor = aligned_empty((1, 3, size, size), np.float32)
    preprocessor, counter = Preprocessor(recipe.config(), tensor), Counter()

    def convert() -> None:
        for frame in _frames(clip, counter):
            preprocessor.into(0, frame)
            frame.lease.release()

    def ours() -> float:
        return cpu_ms(convert) / frames

    def theirs() -> float:
        return cpu_ms(lambda: [recipe.apply(bgr) for bgr in read_bgr(clip)]) / frames

    mine, loop = in_turn(rounds, ours, theirs)
    detail = {"edgert_cpu_ms": statistics.median(mine), "opencv_cpu_ms": statistics.median(loop), "frames": frames}
    return [
        Figure("H.264 → tensor, CPU time", median_ratio(mine, loop), "of the loop's", 0.6, n=rounds, detail=detail),
        Figure(
            "host copies, decoded planes → bound input",
            counter.read().copies,
            "copies",
            0.0,
            n=rounds * frames,
            is_exact=True,
        ),
    ]


def preprocess_error(clip: Path, size: int = 640) -> Figure:
    """Mean difference, in gray levels, between our tensor and the OpenCV loop's, over the image's part of it."""
    recipe = Letterbox(size, size, False, True, 1 / 255)
    tensor = aligned_empty((1, 3, size, size), np.float32)
    preprocessor = Preprocessor(recipe.config(), tensor)
    errors = []
    frames = _frames(clip, Counter())
    for frame, bgr in zip(frames, read_bgr(clip), strict=False):
        preprocessor.into(0, frame)
        frame.lease.release()
        theirs, _ = recipe.apply(bgr)
        rows = round(size * min(1.0, bgr.shape[0] / bgr.shape[1]))
        errors.append(float(np.abs(tensor - theirs).sum()) * 255 / (3 * rows * size))
    mean, detail = statistics.mean(errors), {"worst_frame": max(errors)}
    name = "difference to the OpenCV loop"
    return Figure(name, mean, "gray levels", 1.5, n=len(errors), detail=detail, is_exact=True)


def _frames(clip: Path, counter: Counter) -> Iterator[Any]:
    source = source_for("clip", SourceStage(source=str(clip.resolve())), counter, REAL, Path())
    try:
        yield from source.frames(threading.Event())
    finally:
        source.close()
