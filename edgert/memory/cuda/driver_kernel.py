"""Kernels launched through the CUDA driver itself, in whatever context is current: for libraries that call back.

TensorRT hands its plugins the number of a stream, which PyCUDA cannot take. Functions are those of cuda.h:
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html.
"""

from __future__ import annotations

import ctypes
from typing import Any

from edgert.memory.cuda.driver_library import call, load_driver

THREADS = 256
"""Of a block."""


class DriverKernel:
    """A compiled function whose one argument is a struct, passed by value.

    Args:
        binary: cubin or PTX.
        name: of the function.
        library: the driver's; libcuda by default.

    Raises:
        DeviceError: there is no driver, or the binary is not for this GPU.
    """

    def __init__(self, binary: bytes, name: str, library: Any = None) -> None:
        self._library, self.name = library or load_driver(), name
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), binary)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, name.encode())

    def launch(self, argument: bytes, count: int, stream: int) -> None:
        """Puts one launch of at least ``count`` threads on a stream, given by its number. Raises DeviceError."""
        if not count:
            return
        stored = ctypes.create_string_buffer(argument, len(argument))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(stored))
        sizes = [ctypes.c_uint(size) for size in (-(-count // THREADS), 1, 1, THREADS, 1, 1, 0)]
        self._call("cuLaunchKernel", self._function, *sizes, ctypes.c_void_p(stream), pointers, None)

    def _call(self, name: str, *arguments: Any) -> None:
        call(self._library, name, *arguments, whose=f"kernel {self.name}")
