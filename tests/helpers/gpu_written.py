"""Frames that ``preprocess.cu`` writes into a network's input, on a GPU or on the processor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.config import InputConfig
from edgert.memory.cuda import Stream
from edgert.runtime import Frame
from edgert.runtime.frame import U8
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor, Target, hold
from edgert.stages.gpu.kernels import Kernels
from tests.helpers.gpu import read, to_gpu

POISON = 0xAB


def fill(preprocessor: GpuPreprocessor, frames: Sequence[Frame], stream: Stream) -> None:
    """Puts the writing of frames into the first rows on a stream, as an inference slot does. Does not wait."""
    ready = [preprocessor.plans.ready(frame, getattr(frame.planes[0], "stream", None)) for frame in frames]
    launches = preprocessor.launches(ready)
    preprocessor.wait_for(ready, stream)
    for launch in launches:
        launch.enqueue(stream)
    hold(ready, stream)


def written(kernels: Kernels, frames: Sequence[Frame], config: InputConfig, wanted: Target, **how: Any) -> U8:
    """Every byte of the target: those that the kernel writes, and those that it leaves, which are poison."""
    device = kernels.device
    block, stream = device.device_block(wanted.nbytes), device.stream()
    with device:
        device.driver.memset_d8_async(block.address, POISON, wanted.nbytes, stream.raw)
    on_gpu = [to_gpu(device, frame) for frame in frames]
    device.synchronize()
    fill(GpuPreprocessor(config, wanted, block.address, kernels, **how), on_gpu, stream)
    stream.synchronize()
    found: U8 = read(device, block.address, wanted.nbytes)
    block.release()
    return found


def images_in(memory: U8, wanted: Target) -> npt.NDArray[Any]:
    """A view of the target's memory as (rows, height, width, channels) of its type."""
    flat = memory.view(wanted.dtype)
    row, channel, line, pixel = (stride * flat.itemsize for stride in wanted.strides)
    shape = wanted.rows, wanted.height, wanted.width, wanted.channels
    return np.lib.stride_tricks.as_strided(flat, shape, (row, line, pixel, channel))
