"""Masks and peaks found by the kernels, here on the processor and on a GPU where there is one, are the host's."""

from typing import Any

import numpy as np
import pytest

from edgert.stages.crop import Geometry
from edgert.stages.decode.maps import Heatmap, SegmentArgmax, SegmentThreshold
from edgert.stages.gpu.gpu_scores import GpuMask, GpuPeaks
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.gpu_readers import like_the_host, why_not

WHOLE = Geometry(2.0, 2.0, 0.0, 0.0, (96, 64), (0.0, 0.0, 192.0, 128.0))
PADDED = Geometry(2.0, 2.0, 0.0, -24.0, (96, 64), (0.0, 0.0, 192.0, 80.0))


def scores(*shape: int, levels: int = 0) -> Any:
    """Noise; of a few levels, which are often equal."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return (np.rint(values * levels) if levels else values).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(2, 64, 96), (21, 32, 48), (255, 8, 12), (3, 21, 31)])
def test_the_best_class_of_every_cell(kernels: Kernels, shape: tuple[int, ...], dtype: Any) -> None:
    for levels in (0, 2):
        values = scores(2, *shape, levels=levels).astype(dtype)
        for geometry in (WHOLE, PADDED):
            like_the_host(kernels, GpuMask, SegmentArgmax(("a",) * shape[0]), values, geometry)
            like_the_host(kernels, GpuMask, SegmentArgmax(), values.transpose(0, 2, 3, 1).copy(), geometry)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(64, 96), (1, 64, 96), (64, 96, 1), (1, 21, 31)])
def test_classes_that_were_chosen_already(kernels: Kernels, shape: tuple[int, ...], dtype: Any) -> None:
    values = np.random.default_rng(3).integers(0, 300, (3, *shape)).astype(dtype)
    for geometry in (WHOLE, PADDED):
        (first, *_) = like_the_host(kernels, GpuMask, SegmentArgmax(("a",) * shape[0]), values, geometry)
        assert first.mask.max() > 200


def test_cells_whose_scores_are_not_numbers(kernels: Kernels) -> None:
    values = scores(1, 4, 64, 96)
    values[0, 0, :9] = values[0, 2, 20:30, ::3] = np.nan
    values[0, :, 40:50] = -np.inf
    for turned in (values, values.transpose(0, 2, 3, 1).copy()):
        (record,) = like_the_host(kernels, GpuMask, SegmentArgmax(), turned, WHOLE)
        assert (record.mask[:9] == 255).all() and not record.mask[40:50].any()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1, 64, 96), (64, 96, 1), (64, 96), (1, 33, 47)])
@pytest.mark.parametrize("labels", [(), ("road",), ("a", "b")])
def test_maps_above_a_threshold(kernels: Kernels, shape: tuple[int, ...], dtype: Any, labels: tuple[str, ...]) -> None:
    for threshold in (0.1, 0.5):
        values = (np.random.default_rng(4).integers(0, 21, (2, *shape)) / 20).astype(dtype)
        values[0].reshape(-1)[:7] = np.nan
        for geometry in (WHOLE, PADDED):
            like_the_host(kernels, GpuMask, SegmentThreshold(threshold, labels), values, geometry)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(17, 64, 48), (1, 3, 3), (5, 21, 31), (2, 3, 200)])
def test_peaks_of_heat_maps(kernels: Kernels, shape: tuple[int, ...], dtype: Any) -> None:
    for levels in (0, 1):
        values = abs(scores(3, *shape, levels=levels)).astype(dtype)
        like_the_host(kernels, GpuPeaks, Heatmap(0.0, ("a",) * shape[0]), values, WHOLE)
        assert not len(like_the_host(kernels, GpuPeaks, Heatmap(99.0), values, WHOLE)[0])


def test_peaks_at_the_border_and_of_maps_without_numbers(kernels: Kernels) -> None:
    values = np.zeros((1, 8, 16, 12), np.float32)
    for index, (y, x) in enumerate([(0, 0), (0, 5), (15, 11), (7, 0), (7, 11)]):
        values[0, index, y, x] = 1
    values[0, 5], values[0, 6] = -1, -np.inf
    values[0, 7, 3, 3] = np.nan
    with np.errstate(invalid="ignore"):
        like_the_host(kernels, GpuPeaks, Heatmap(-1.0), values[:, :7], WHOLE)
        like_the_host(kernels, GpuPeaks, Heatmap(0.0), values, WHOLE)


@pytest.mark.parametrize(
    ("reader", "decoder", "shape", "dtype", "reason"),
    [
        (GpuMask, SegmentArgmax(), (1, 4, 64, 96), "int32", "float32 and float16 there, not int32"),
        (GpuMask, SegmentArgmax(), (1, 64, 96), "float32", "int32 and int64 there, not float32"),
        (GpuMask, SegmentThreshold(), (1, 1, 64, 96), "uint8", "not uint8"),
        (GpuPeaks, Heatmap(), (1, 17, 64, 48), "int8", "not int8"),
    ],
)
def test_what_no_kernel_reads_is_named(
    reader: Any, decoder: Any, shape: tuple[int, ...], dtype: str, reason: str
) -> None:
    assert reason in why_not(reader, decoder, shape, dtype, WHOLE.network)
