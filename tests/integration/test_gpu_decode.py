"""Decoding on a GPU gives the answer of the CPU's decoders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgert.errors import StageError
from edgert.memory.cuda import CudaDevice
from edgert.stages.crop import Geometry
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.yolo import YoloV5, YoloV8, YoloX
from edgert.stages.gpu.gpu_detections import GpuDetector
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.gpu import gpu_or_skip

pytestmark = pytest.mark.gpu
NETWORK = (160, 96)
BOXES = 20 * 12 + 10 * 6 + 5 * 3
GEOMETRY = Geometry(3.0, 3.0, -7.0, 2.0, NETWORK, (0.0, 0.0, 470.0, 280.0))


@pytest.fixture(scope="module")
def kernels() -> Iterator[Kernels]:
    yield Kernels(gpu_or_skip())


def outputs(head: str, rows: int, classes: int, seed: int) -> Any:
    """Noise with boxes of every size and many overlaps."""
    random = np.random.default_rng(seed)
    scores = random.uniform(0, 1, (rows, BOXES, classes)).astype(np.float32) ** 3
    boxes = random.uniform(0, 1, (rows, BOXES, 4)).astype(np.float32)
    if head == "yolox":
        boxes[..., 2:] = boxes[..., 2:] * 2 + 0.5
    else:
        boxes[..., :2] *= NETWORK
        boxes[..., 2:] = boxes[..., 2:] * 60 + 4
    objectness = random.uniform(0, 1, (rows, BOXES, 1)).astype(np.float32)
    if head.startswith("yolov8"):
        table = np.concatenate([boxes, scores], axis=2)
        return table.transpose(0, 2, 1).copy() if head == "yolov8" else table
    return np.concatenate([boxes, objectness, scores], axis=2)


HEADS: dict[str, Any] = {"yolox": YoloX(), "yolov5": YoloV5(), "yolov8": YoloV8(), "yolov8 rows": YoloV8()}


def decoded(kernels: Kernels, detector: Detector, values: Any, runs: int = 1) -> Any:
    device: CudaDevice = kernels.device
    block, stream = device.device_block(values.nbytes), device.stream()
    with device:
        device.driver.memcpy_htod(block.address, values)
    device.synchronize()
    decoder = GpuDetector(detector, values.shape, values.dtype.name, block.address, NETWORK, kernels)
    for _ in range(runs):
        decoder.enqueue(len(values), stream)
    stream.synchronize()
    try:
        return decoder.read([GEOMETRY] * len(values))
    finally:
        decoder.close()
        block.release()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("classes", "score", "limit"), [(3, 0.05, 300), (80, 0.3, 300), (1, 0.2, 5), (4, 0.999, 300)])
def test_is_the_cpus_answer(kernels: Kernels, head: str, dtype: Any, classes: int, score: float, limit: int) -> None:
    values = outputs(head, 3, classes, classes).astype(dtype)
    detector = Detector(HEADS[head], score, 0.45, limit)
    found = decoded(kernels, detector, values, runs=2)
    for row, one in enumerate(found):
        wanted = detector([values[row]], GEOMETRY)
        assert len(one) == len(wanted)
        assert np.array_equal(one.classes, wanted.classes) and np.allclose(one.scores, wanted.scores, atol=1e-6)
        assert np.allclose(one.boxes, wanted.boxes, atol=1e-2)


def test_equal_scores_keep_their_order(kernels: Kernels) -> None:
    values = outputs("yolov5", 1, 2, 5)
    values[..., 4:] = 0.5
    detector = Detector(YoloV5(), 0.2, 0.45, 300)
    (one,) = decoded(kernels, detector, values)
    wanted = detector([values[0]], GEOMETRY)
    assert np.array_equal(one.boxes, wanted.boxes)


def test_too_many_to_sort(kernels: Kernels) -> None:
    values = np.ones((1, 5000, 7), np.float32)
    with pytest.raises(StageError, match="more than 4096 boxes score"):
        decoded(kernels, Detector(YoloV5(), 0.1), values)
