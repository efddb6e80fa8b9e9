"""Conversion of BGR images on the GPU to the NV12 planes of an encoder."""

import struct

from edgert.errors import StageError
from edgert.memory.cuda import DeviceView, Kernel, Stream, StreamLease
from edgert.stages.gpu.kernels import Kernels

_IMAGE = struct.Struct("=3Q5i4x")
_BLOCK = (32, 8, 1)


class Nv12Writer:
    """NV12 writer with the same output as the CPU's: BT.601, limited range (``Color()``). For one thread.

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
            stream: runs the conversion.
            view: (h, w, 3) uint8 BGR, rows may be padded. An odd last row or column is left out.
            luma: address on the GPU of (h, w) bytes.
            luma_pitch: bytes from row to row.
            chroma: address on the GPU of (h / 2, w / 2, 2) bytes, U first.
            chroma_pitch: bytes from row to row.

        Raises:
            StageError: the view is not such an image, or was released.
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
