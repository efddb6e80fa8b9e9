"""Conversion of images to NV12 in GPU memory, as hardware encoders read them, without a copy to the host."""

import struct
from collections.abc import Sequence
from typing import Any, cast

import cv2
import numpy as np

from edgert.errors import StageError
from edgert.files import FileStore, cache_folder
from edgert.memory.cuda import Block, CudaDevice, DeviceView, Event, Kernel, Stream, StreamLease
from edgert.runtime.records import Result
from edgert.stages.gpu.gpu_preprocess import hold
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.sink.encoders import I420Writer, video_size

Plane = tuple[int, int]
"""Address on the GPU, and pitch in bytes."""
_IMAGE = struct.Struct("=3Q5i4x")
_BLOCK = (32, 8, 1)


class Nv12Writer:
    """Writer of NV12 with the same result as on the CPU: BT.601, limited range (``Color()``). For one thread.

    Raises:
        BuildError: the kernel does not compile.
        DeviceError: there is no compiler; see :meth:`~edgert.stages.gpu.kernels.Kernels.why_not`.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernel: Kernel = kernels.kernel("nv12", {})
        self._event = kernels.device.event()

    def write(
        self, view: DeviceView, luma: int, luma_pitch: int, chroma: int, chroma_pitch: int, stream: Stream
    ) -> None:
        """Enqueue the conversion after the work that writes the image. Does not wait.

        The image may be released at once: its memory is reused only after this work.

        Args:
            view: (h, w, 3) uint8 BGR, rows may be padded. An odd last row or column is left out.
            luma: address of (h, w) bytes on the GPU.
            luma_pitch: bytes from one row of luma to the next.
            chroma: address of (h / 2, w / 2, 2) bytes on the GPU, U first.
            chroma_pitch: bytes from one row of chroma to the next.
            stream: stream that runs the conversion.

        Raises:
            StageError: the view is no BGR image, or was released.
        """
        if view.ndim != 3 or view.shape[2] != 3 or view.dtype != "uint8" or view.strides[1:] != (3, 1):
            raise StageError(f"a view of {list(view.shape)} of {view.dtype} is no BGR image")
        height, width = (size & ~1 for size in view.shape[:2])
        if view.stream is not None and view.stream is not stream:
            stream.wait(self._event.record(view.stream))
        image = view.address, luma, chroma, view.strides[0], luma_pitch, chroma_pitch, width, height
        grid = (-(-width // (2 * _BLOCK[0])), -(-height // (2 * _BLOCK[1])), 1)
        self._kernel.launch(_IMAGE.pack(*image), grid, _BLOCK, stream)
        if isinstance(view.lease, StreamLease):
            view.lease.after(stream)


class GpuImages:
    """Converter of images of one size. For use in one thread.

    A kernel converts drawn images. NV12 frames are copied on the GPU. A frame on the host, as after its decoder fell
    back to the CPU, is copied to the GPU, and that copy is counted.

    Args:
        drawn: whether to load the kernel at once, because drawn images are expected.

    Raises:
        BuildError, DeviceError: the kernel is missing.
    """

    def __init__(self, device: CudaDevice, drawn: bool) -> None:
        self._device, self.stream = device, device.stream()
        self._frame_ready, self._image_written = Event(device), Event(device, patient=True)
        self._writer = self._kernel() if drawn else None
        self._i420, self._staged = I420Writer(), list[Block]()

    def write(self, result: Result, planes: Sequence[Plane]) -> None:
        """Write the drawn image, or the frame where nothing was drawn, into the planes Y and UV; wait for the GPU.

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
            width, height = video_size(result)
            views = cast("tuple[DeviceView, ...]", frame.planes)
            for source, rows, (address, pitch) in zip(views, (height, height // 2), planes, strict=True):
                if source.stream is not None and source.stream is not self.stream:
                    self.stream.wait(self._frame_ready.record(source.stream))
                self._copy((source.address, source.strides[0]), (address, pitch), width, rows)
            hold([frame], self.stream)
        else:
            self._upload(result, planes)
        self._image_written.record(self.stream).synchronize()

    def close(self) -> None:
        """Free the memory."""
        self._i420.close()
        while self._staged:
            self._staged.pop().release()

    def _kernel(self) -> Nv12Writer:
        return Nv12Writer(Kernels(self._device, FileStore(cache_folder() / "cuda")))

    def _upload(self, result: Result, planes: Sequence[Plane]) -> None:
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
