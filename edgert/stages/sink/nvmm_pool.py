"""Video memory of a Jetson (NVMM) for elements that take images: made once, mapped to CUDA once, written by its GPU.

A GstBuffer of NVMM holds the ``NvBufSurface`` itself, exactly as long as the struct; elements take the memory that it
names. So does Savant feed ``nvv4l2h264enc`` through appsrc (https://github.com/insight-platform/Savant,
NvBufSurfaceGenerator). None of this has run on a board.
"""

import ctypes
from collections.abc import Callable

from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice
from edgert.stages.source.nvmm_mapping import JetsonCalls, OnGpu, Surface, jetson_calls, on_gpu

SURFACE_BYTES = ctypes.sizeof(Surface)


class NvmmPool:
    """Pitch-linear NV12 images in video memory.

    Args:
        calls: gives the C functions.

    Attributes:
        images: each mapped for writing; see :class:`~edgert.stages.source.nvmm_mapping.OnGpu`.
        surfaces: addresses of their NvBufSurfaces.
        access: how CUDA gets at them, and why not in a better way.

    Raises:
        DeviceError: there is too little memory, or CUDA cannot write it; nothing is left behind then.
    """

    def __init__(
        self, device: CudaDevice, width: int, height: int, count: int, calls: Callable[[], JetsonCalls] = jetson_calls
    ) -> None:
        self._device = device
        self.images, self.surfaces = list[OnGpu](), list[int]()
        self.access, known = "", None
        with device:
            self._calls = calls()
            try:
                for _ in range(count):
                    self.surfaces.append(self._calls.create(width, height))
                    image, known = on_gpu(self.surfaces[-1], self._calls, known, writes=True)
                    self.images.append(image)
                    self.access = f"{known.way} ({known.why})" if known.why else known.way
            except DeviceError:
                self.close()
                raise

    def close(self) -> None:
        """Undo every mapping and free the memory, which must not be in use any more. May be called twice.

        Raises DeviceError when a mapping cannot be undone, after all that can be.
        """
        failure: DeviceError | None = None
        with self._device:
            while self.images:
                try:
                    self.images.pop().close()
                except DeviceError as error:
                    failure = error
            while self.surfaces:
                self._calls.destroy(self.surfaces.pop())
        if failure is not None:
            raise failure
