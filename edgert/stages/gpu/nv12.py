"""Conversion of BGR images on the GPU to the NV12 planes of an encoder."""

import struct

from edgert.errors import StageError
from edgert.memory.cuda import DeviceView, Kernel, Stream, StreamLease
from edgert.stages.gpu.kernels import Kernels

_IMAGE = struct.Struct("=3Q5i4x")
_BLOCK = (32, 8, 1)


class Nv12Writer:
    """Writer of NV12 with the same result as on the CPU: BT.601, limited range (``Color()``). For one thread.

    Raises:
        BuildError: the kernel does not compile.
        DeviceError: there is no compiler; see :meth:`~edgert.stages.gpu.kernels.Kernels.why_not`.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernel: Kernel = kernels.kernel("nv12", {}, _IMAGE.size)
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
