"""Images as encoders of hardware read them, NV12 in memory of a GPU: written there, no pixel comes to the host."""

from collections.abc import Sequence
from typing import Any, cast

import cv2
import numpy as np

from edgert.files import FileStore, cache_folder
from edgert.memory.cuda import Block, CudaDevice, DeviceView, Event
from edgert.runtime.records import Result
from edgert.stages.gpu.gpu_preprocess import hold
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.nv12 import Nv12Writer
from edgert.stages.sink.encoders import I420Writer, size_of

Plane = tuple[int, int]
"""Address on the GPU, and bytes from row to row."""


class GpuImages:
    """Writer of images of one size: drawn ones by a kernel, NV12 frames by copies on the GPU. For one thread.

    A frame on the host, as after its decoder fell back, is copied to the GPU; that is counted.

    Args:
        drawn: whether drawn images are expected, so that a missing kernel is known at the start.

    Raises:
        BuildError, DeviceError: there is no kernel.
    """

    def __init__(self, device: CudaDevice, drawn: bool) -> None:
        self._device, self.stream = device, device.stream()
        self._written, self._read = Event(device), Event(device, patient=True)
        self._writer = self._kernel() if drawn else None
        self._i420, self._staged = I420Writer(), list[Block]()

    def write(self, result: Result, planes: Sequence[Plane]) -> None:
        """Write the drawn image, or the frame where nothing was drawn, to the planes Y and UV; wait for the GPU.

        Raises DeviceError when the GPU fails.
        """
        (luma, luma_pitch), (chroma, chroma_pitch) = planes
        frame = result.frame
        image: Any = result.image
        if image is None and frame.is_on_gpu and frame.format == "bgr":
            image = frame.planes[0]
        if isinstance(image, DeviceView):
            self._writer = self._writer or self._kernel()
            self._writer.write(image, luma, luma_pitch, chroma, chroma_pitch, self.stream)
        elif image is None and frame.is_on_gpu and frame.format == "nv12":
            width, height = size_of(result)
            views = cast("tuple[DeviceView, ...]", frame.planes)
            for source, rows, (address, pitch) in zip(views, (height, height // 2), planes, strict=True):
                if source.stream is not None and source.stream is not self.stream:
                    self.stream.wait(self._written.record(source.stream))
                self._copy((source.address, source.strides[0]), (address, pitch), width, rows)
            hold([frame], self.stream)
        else:
            self._bring_up(result, planes)
        self._read.record(self.stream).synchronize()

    def close(self) -> None:
        """Free its memory."""
        self._i420.close()
        while self._staged:
            self._staged.pop().release()

    def _kernel(self) -> Nv12Writer:
        return Nv12Writer(Kernels(self._device, FileStore(cache_folder() / "cuda")))

    def _bring_up(self, result: Result, planes: Sequence[Plane]) -> None:
        packed = self._i420.write(result)
        height, width = packed.shape[0] * 2 // 3, packed.shape[1]
        if not self._staged:
            self._staged.append(self._device.block(packed.nbytes, "staged"))
        (block,) = self._staged
        nv12 = block.host.reshape(packed.shape)
        np.copyto(nv12[:height], packed[:height])
        blue, red = packed[height:].reshape(2, height // 2, width // 2)
        cv2.merge([blue, red], dst=nv12[height:].reshape(height // 2, width // 2, 2))
        block.upload(self.stream)
        self._copy((block.address, width), planes[0], width, height)
        self._copy((block.address + width * height, width), planes[1], width, height // 2)

    def _copy(self, source: Plane, target: Plane, nbytes: int, rows: int) -> None:
        copy = self._device.driver.Memcpy2D()
        copy.set_src_device(source[0])
        copy.set_dst_device(target[0])
        copy.src_pitch, copy.dst_pitch = source[1], target[1]
        copy.width_in_bytes, copy.height = nbytes, rows
        self._device.run(copy, self.stream.raw, doing="copying")
