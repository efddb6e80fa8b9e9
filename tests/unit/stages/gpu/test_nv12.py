"""BGR on the GPU into an encoder's planes: the kernel itself, on the processor here and on a GPU where there is one."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from edgert.errors import StageError
from edgert.memory import Counter, lend
from edgert.memory.cuda import DeviceView
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.sink.gpu_images import Nv12Writer
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.gpu import read

PADDING = 64


@pytest.mark.parametrize(("width", "height"), [(64, 48), (2, 2), (35, 21), (130, 18)])
def test_the_planes_are_those_of_the_processor(kernels: Kernels, width: int, height: int) -> None:
    device = kernels.device
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    even = pixels[: height & ~1, : width & ~1]
    rows, columns, pitch = even.shape[0], even.shape[1], width + PADDING
    image, planes = device.device_block(pixels.nbytes), device.device_block(rows * 3 // 2 * pitch)
    with device:
        device.driver.memcpy_htod(image.address, pixels)
    device.synchronize()
    view = DeviceView(image.address, pixels.shape, pixels.strides, pixels.dtype, lend(image, Counter()))
    stream = device.stream()
    Nv12Writer(kernels).write(view, planes.address, pitch, planes.address + rows * pitch, pitch, stream)
    stream.synchronize()
    found = read(device, planes.address, planes.nbytes).reshape(-1, pitch)
    exact = cv2.cvtColor(np.ascontiguousarray(even), cv2.COLOR_BGR2YUV_I420)
    luma, chroma = found[:rows, :columns], found[rows:, :columns].reshape(rows // 2, columns // 2, 2)
    assert np.array_equal(luma, exact[:rows])
    assert np.array_equal(chroma.transpose(2, 0, 1), exact[rows:].reshape(2, rows // 2, columns // 2))
    assert not found[:, columns:].any()  # nothing between the rows
    image.release()
    planes.release()


def test_what_is_no_image_and_one_that_was_released_are_refused() -> None:
    kernels = kernels_or_skip()
    stream, writer = kernels.device.stream(), Nv12Writer(kernels)
    view = DeviceView(256, (4, 4, 3), (12, 3, 1), np.dtype(np.uint8), lend(None, Counter()))
    for wrong in (view[0], replace(view, shape=(4, 4, 4)), replace(view, strides=(12, 1, 4))):
        with pytest.raises(StageError, match="is no BGR image"):
            writer.write(wrong, 0, 4, 0, 4, stream)
    view.lease.release()
    with pytest.raises(StageError, match="after its release"):
        writer.write(view, 0, 4, 0, 4, stream)
