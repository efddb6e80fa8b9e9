"""The demo's detector run the plain way, from its file: letterbox, ONNX Runtime, decode, suppress, average precision.

Independent of edgert's own preprocessing and decoding on purpose: the two can be compared.
"""

from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import onnxruntime

from pipelines.conveyor import Conveyor
from tests.helpers.average_precision import Found, Wanted, overlap

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

PAD = 114
SIZES = ((640, 480), (1280, 720), (960, 540))


def letterbox(image: U8, size: tuple[int, int]) -> tuple[U8, float, tuple[int, int]]:
    """``image`` scaled into (width, height) without distortion, centered, the rest filled with PAD.

    Returns the new (height, width, 3) image, the scale and the (left, top) offset.
    """
    height, width = image.shape[:2]
    scale = min(size[0] / width, size[1] / height)
    inner = (round(width * scale), round(height * scale))
    left, top = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    boxed = np.full((size[1], size[0], 3), PAD, np.uint8)
    small = cv2.resize(image, inner, interpolation=cv2.INTER_LINEAR)
    boxed[top : top + inner[1], left : left + inner[0]] = small
    return boxed, scale, (left, top)


def decode(raw: F32, size: tuple[int, int]) -> tuple[F32, F32, F32]:
    """YOLOX rows (N, 5+C) of strides 8, 16, 32 → boxes (N, 4) x1 y1 x2 y2 in network pixels, scores, classes (N,)."""
    grids, strides = [], []
    for stride in (8, 16, 32):
        y, x = np.mgrid[: size[1] // stride, : size[0] // stride]
        grids.append(np.stack((x, y), axis=-1).reshape(-1, 2))
        strides.append(np.full((x.size, 1), stride))
    grid, step = np.concatenate(grids), np.concatenate(strides)
    center, half = (raw[:, :2] + grid) * step, np.exp(raw[:, 2:4]) * step / 2
    quality = raw[:, 4:5] * raw[:, 5:]
    boxes = np.concatenate((center - half, center + half), axis=1)
    return boxes.astype(np.float32), quality.max(axis=1), quality.argmax(axis=1).astype(np.float32)


def suppress(boxes: F32, scores: F32, classes: F32, floor: float = 0.05, iou: float = 0.5) -> Found:
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] >= floor]
    close = (overlap(boxes[order], boxes[order]) > iou) & (classes[order][:, None] == classes[order])
    kept: list[int] = []
    for i in range(len(order)):
        if not close[i, kept].any():
            kept.append(i)
    best = order[kept]
    return boxes[best], scores[best], classes[best]


class DemoDetector:
    """The shipped model as a function of one BGR image."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        _, _, height, width = self._session.get_inputs()[0].shape
        self.size = (int(width), int(height))

    def __call__(self, image: U8) -> Found:
        """Boxes in the image's pixels, scores, classes; of everything scored 0.05 or more."""
        boxed, scale, offset = letterbox(image, self.size)
        planes = np.ascontiguousarray(boxed[..., ::-1].transpose(2, 0, 1)[None], np.float32) / np.float32(255)
        raw = self._session.run(None, {"images": planes})[0][0]
        boxes, scores, classes = suppress(*decode(raw, self.size))
        return (np.asarray(boxes, np.float32) - np.tile(offset, 2)) / scale, scores, classes


def compare(detector: DemoDetector, seeds: Iterable[int], frames_each: int) -> tuple[list[Found], list[Wanted]]:
    """Detections and truth on frames spread over 20 seconds of the scene of each seed, in three frame sizes."""
    found: list[Found] = []
    wanted: list[Wanted] = []
    for seed in seeds:
        width, height = SIZES[seed % len(SIZES)]
        scene, image = Conveyor(width, height, 30.0, seed), np.empty((height, width, 3), np.uint8)
        for index in range(seed % 7, 600, 600 // frames_each)[:frames_each]:
            truth = scene.render(index, image)
            found.append(detector(image))
            wanted.append((truth.boxes, truth.classes))
    return found, wanted
