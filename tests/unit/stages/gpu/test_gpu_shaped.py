"""Oriented boxes and masks made by the kernels, on the processor and on a GPU where there is one, are the host's."""

from itertools import count
from typing import Any

import numpy as np
import pytest

from edgert.stages.crop import Geometry
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.instances import YoloV8Seg
from edgert.stages.decode.shaped import YoloV8Obb, bound_of, gaussian_overlap, gaussians
from edgert.stages.gpu.gpu_detections import GpuInstances, GpuOriented
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.gpu_readers import NETWORK, like_the_host, why_not

PADDED = Geometry(3.0, 3.0, 0.0, -24.0, NETWORK, (0.0, 0.0, 480.0, 240.0))


def oriented(boxes: int, classes: int, iou: float, dtype: Any) -> Any:
    """(2, 4 + classes + 1, boxes) of boxes no two of which overlap by about ``iou``: the last bit would decide."""
    for seed in count(boxes):
        random = np.random.default_rng(seed)
        values = random.uniform(0, 1, (2, 5 + classes, boxes))
        values[:, :2] *= np.array(NETWORK)[:, None]
        values[:, 2:4] = values[:, 2:4] * 40 + 3
        values[:, -1] = values[:, -1] * 6 - 3
        values = values.astype(dtype)
        if all(_is_clear(one, iou) for one in values.astype(np.float32)):
            return values
    raise AssertionError


def _is_clear(image: Any, iou: float) -> bool:
    ours = gaussians(image[[0, 1, 2, 3, -1]].T)
    every, none = np.arange(len(ours)), np.zeros(len(ours), np.int32)
    near = [1 - np.sqrt(1 - np.exp(-(bound_of(iou) + more))) for more in (-1e-4, 1e-4)]
    low, high = (gaussian_overlap(ours, none, every, every, part) for part in near)
    return bool((low == high).all())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("boxes", "classes", "limit"), [(40, 1, 300), (315, 15, 300), (315, 3, 7), (700, 2, 300)])
def test_oriented_boxes(kernels: Kernels, boxes: int, classes: int, limit: int, dtype: Any) -> None:
    iou = 0.45
    values = oriented(boxes, classes, iou, dtype)
    found = like_the_host(kernels, GpuOriented, Detector(YoloV8Obb(), 0.1, iou, limit), values)
    assert found[0].corners.shape == (len(found[0]), 4, 2) and len(found[0])
    if classes > 1:
        apart, together = (
            like_the_host(kernels, GpuOriented, Detector(YoloV8Obb(), 0.1, iou, 999, agnostic=agnostic), values)[0]
            for agnostic in (False, True)
        )
        assert len(together) < len(apart)
    assert not len(like_the_host(kernels, GpuOriented, Detector(YoloV8Obb(), 1.0, iou), values * np.float16(0.5))[0])


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float16"])
@pytest.mark.parametrize(("masks", "size"), [(32, (24, 40)), (3, (48, 80)), (33, (6, 20))])
def test_masks_of_objects(kernels: Kernels, masks: int, size: tuple[int, int], dtype: Any) -> None:
    """Numbers of which every sum is exact, whatever the order, and often 0."""
    random = np.random.default_rng(masks)
    table = random.uniform(0, 1, (2, 4 + 5 + masks, 315))
    table[:, :2] *= np.array(NETWORK)[:, None] * 1.2
    table[:, 2:4] = table[:, 2:4] * 60 - 1
    table[:, 9:] = random.integers(-3, 4, (2, masks, 315))
    maps = random.integers(-8, 9, (2, masks, *size))
    for limit in (300, 25):
        for geometry in (PADDED, Geometry(3.0, 3.0, -7.0, 2.0, NETWORK, (0.0, 0.0, 470.0, 280.0))):
            values = table.astype(dtype), maps.astype(dtype)
            found = like_the_host(kernels, GpuInstances, Detector(YoloV8Seg(), 0.6, 0.45, limit), values, geometry)
            assert len(found[0].masks) == len(found[0]) > 0
    turned = maps.astype(dtype), (table * (np.arange(9 + masks) < 4)[:, None]).astype(dtype)
    assert like_the_host(kernels, GpuInstances, Detector(YoloV8Seg(), 0.6), turned, PADDED)[1].masks == ()


def test_what_no_kernel_reads_is_named() -> None:
    assert "not int8" in why_not(GpuOriented, Detector(YoloV8Obb()), (1, 20, 315), "int8")
