"""Rows that the kernel brings, on the processor or on a GPU where there is one, become the host's boxes, to the bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgert.backend.gpu import GpuTensor
from edgert.errors import StageError
from edgert.stages.decode import anchors, decoded, decoder, detection, faces, instances, nanodet, yolo
from edgert.stages.gpu.gpu_rows import GpuRows
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.gpu_readers import CELLS, NETWORK, like_the_host, read_on_gpu, why_not

LEVELS = (240, 60, 15)
PRIORS = 3 * 240, 2 * 60, 2 * 15, 3 * 2
"""Rows of YuNet's older layout, of strides 8 to 64; the last is rounded down."""
RETINA = 2 * sum(LEVELS)
RAW = ((12, 20), (6, 10), (3, 5))

HEADS = [
    (decoded.Ssd(), [(300, 4), (300, 9)]),
    (decoded.Ssd("none", "pixels", "yxyx"), [(300, 9), (300, 4)]),
    (yolo.YoloNas(), [(CELLS, 4), (CELLS, 80)]),
    (decoded.PpYoloe(), [(CELLS, 4), (7, CELLS)]),
    (decoded.PpYoloe(), [(7, CELLS), (CELLS, 4)]),
    (decoded.PpYoloe(), [(CELLS, 4 + 7)]),
    (decoded.Detr(activation="none"), [(100, 4), (100, 91)]),
    (decoded.Detr(activation="sigmoid"), [(100, 91), (100, 4)]),
    (decoded.Detr(activation="none"), [(100, 4 + 20)]),
    (decoded.Detr(activation="softmax"), [(100, 8), (100, 4)]),
    (decoded.Detr(activation="softmax"), [(100, 4 + 8)]),
    (instances.DetrSeg(activation="sigmoid"), [(50, 91), (50, 4), (50, 16, 24)]),
    (instances.DetrSeg(activation="none"), [(50, 4), (50, 12, 20), (50, 7)]),
    (instances.DetrSeg(activation="softmax"), [(50, 12, 20), (50, 7), (50, 4)]),
    (faces.Scrfd(), [(2 * rows, count) for rows in LEVELS for count in (1, 4, 10)]),
    (faces.Scrfd(), [(2 * rows, count) for count in (4, 1) for rows in LEVELS]),
    (faces.RetinaFace(), [(RETINA, 10), (RETINA, 2), (RETINA, 4)]),
    (faces.YuNet(), [(rows, count) for count in (1, 1, 4, 10) for rows in LEVELS]),
    (faces.YuNet(), [(sum(PRIORS), count) for count in (14, 2, 1)]),
    (faces.YoloV5Face(), [(3 * CELLS, 16)]),
    (nanodet.NanoDet(), [(rows, count) for rows in LEVELS for count in (20, 32)]),
    (nanodet.NanoDet(), [(CELLS + 6, 5 + 32)]),
    (nanodet.YoloV8Raw(activation="sigmoid"), [(64 + 20, *size) for size in RAW]),
    (nanodet.YoloV8Raw(activation="none"), [(*size, count) for size in RAW for count in (64, 20)]),
    (yolo.YoloV4(), [(300, 1, 4), (300, 9)]),
    (nanodet.FastestDet(), [(5 + 80, 6, 10)]),
    (anchors.YoloRaw(activation="none"), [(3, *size, 5 + 4) for size in RAW]),
    (anchors.YoloRaw(activation="sigmoid"), [(3 * (5 + 4), *size) for size in RAW]),
    (anchors.YoloRaw("yolov7", activation="sigmoid", formula="exp"), [(*size, 3 * (5 + 1)) for size in RAW[::-1]]),
    (anchors.YoloRaw("yolov5-p6", activation="none"), [(3, *size, 5 + 4) for size in (*RAW, (2, 3))]),
    (anchors.DetectNet(), [(3, 6, 10), (12, 6, 10)]),
    (anchors.DetectNet(), [(16, 6, 10), (4, 6, 10)]),
]


def outputs(shapes: Sequence[tuple[int, ...]], dtype: Any, seed: int) -> tuple[Any, ...]:
    """Of two images: numbers from 0 to 1, equal ones among them, and a few that are none."""
    random = np.random.default_rng(seed)
    found = []
    for shape in shapes:
        values = random.integers(0, 65, (2, *shape)) / np.float32(64)
        values[random.random(values.shape) < 0.002] = np.nan
        found.append(values.astype(dtype))
    return tuple(found)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("head", "shapes"), HEADS)
def test_boxes_are_the_host_s(kernels: Kernels, head: Any, shapes: Sequence[tuple[int, ...]], dtype: str) -> None:
    some = 0
    for seed, score in enumerate((0.6, 0.9)):
        found = outputs(shapes, dtype, seed)
        if getattr(head, "activation", "") in ("sigmoid", "softmax"):
            found = tuple((one * 16 - 8).astype(dtype) for one in found)
        for values in (found, tuple(np.full_like(one, -9) for one in found)):
            records = like_the_host(kernels, GpuRows, detection.Detector(head, score, 0.45, 50), values)
            some += len(records[0])
    assert some


@pytest.mark.parametrize("score", [0.0, 1e-5, 0.3, 0.5, 0.95, 1.0])
def test_queries_of_a_softmax_are_those_of_all_its_numbers(kernels: Kernels, score: float) -> None:
    random = np.random.default_rng(3)
    logits = random.normal(0, 6, (2, 300, 12)).astype(np.float32)
    logits[0, :40, 3] += 30  # as good as sure
    logits[1, :5] = np.inf, -np.inf, np.inf, *[0] * 9
    values = logits, random.random((2, 300, 4)).astype(np.float32)
    head, whole = decoded.Detr(activation="softmax"), decoder.softmax(logits[0])[:, :-1]
    found = head.read([one[0] for one in values], NETWORK, score)
    wanted = np.flatnonzero(whole.max(axis=1) >= score)
    assert found.extras is not None and np.array_equal(found.extras[:, 0], wanted)
    like_the_host(kernels, GpuRows, detection.Detector(head, score, 0.45, 400), values)


def test_more_rows_than_come_to_the_host_are_an_error_and_the_next_image_is_read(kernels: Kernels) -> None:
    values = np.zeros((2, 6000, 4), np.float32), np.zeros((2, 6000, 2), np.float32)
    values[0][:, :, 2:], values[1][0, :, 1] = 0.5, 0.7
    decoder = detection.Detector(decoded.Ssd(), 0.5)
    with pytest.raises(StageError, match="more than 4096 boxes") as caught:
        read_on_gpu(kernels, GpuRows, decoder, values)
    assert caught.value.fix == "raise task: score"
    values[1][0, 4096:] = 0
    assert len(like_the_host(kernels, GpuRows, decoder, values)[0])


@pytest.mark.parametrize(
    ("head", "shape", "dtype", "reason"),
    [
        (decoded.PpYoloe(), (2, 100, 6), "float32", "has final boxes"),
        (decoded.Detr(), (2, 100, 84), "float32", "activation: auto reads every number"),
        (faces.YoloV5Face(), (2, 3 * CELLS, 16), "int8", "float32 or float16 of all outputs, not int8"),
    ],
)
def test_what_the_kernel_does_not_read(head: Any, shape: tuple[int, ...], dtype: str, reason: str) -> None:
    assert reason in why_not(GpuRows, detection.Detector(head), shape, dtype)


def test_several_outputs_that_the_kernel_does_not_read() -> None:
    maps = [GpuTensor("map", (2, 3, *size, 9), "float32", None) for size in RAW]  # type: ignore[arg-type]
    assert "auto reads every row" in GpuRows.unsupported(detection.Detector(anchors.YoloRaw()), maps, NETWORK)
    mixed = [GpuTensor("one", (2, 300, width), dtype, None) for width, dtype in ((4, "float32"), (9, "float16"))]  # type: ignore[arg-type]
    assert "not float16, float32" in GpuRows.unsupported(detection.Detector(decoded.Ssd()), mixed, NETWORK)
    sizes = tuple((10.0, 20.0) * 6 for _ in RAW)
    many = [GpuTensor("map", (2, 6, *size, 9), "float32", None) for size in RAW]  # type: ignore[arg-type]
    head = anchors.YoloRaw(sizes=sizes, activation="none")
    assert "up to 16 levels, not 18" in GpuRows.unsupported(detection.Detector(head), many, NETWORK)
