"""Compiled kernels, and launching them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgert.errors import DeviceError
from edgert.memory.cuda.context import Context
from edgert.memory.cuda.library import failed
from edgert.memory.cuda.stream import Stream

Size3 = tuple[int, int, int]


class Kernel:
    """A function of the GPU whose one argument is a struct, passed by value.

    Attributes:
        registers: per thread.
        local_bytes: per thread of memory that registers spilled to; 0 is what a kernel should have.
    """

    def __init__(self, device: Context, module: Any, name: str, nbytes: int) -> None:
        self._device, self._function, self.name = device, module.get_function(name), name
        self._function.prepare([f"{nbytes}s"])
        self.registers = int(self._function.num_regs)
        self.local_bytes = int(self._function.local_size_bytes)

    def __del__(self) -> None:
        if "_function" in self.__dict__ and self._device.is_open:
            with self._device:  # it may hold the module; PyCUDA leaves that behind where no context is current
                del self._function

    def launch(self, argument: bytes, grid: Size3, block: Size3, stream: Stream) -> None:
        """Puts one launch on the stream. Raises DeviceError."""
        try:
            with self._device:
                self._function.prepared_async_call(grid, block, stream.raw, argument)
        except self._device.driver.Error as error:
            raise failed(error, f"launching {self.name}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A kernel, what it is told, and its grid and blocks; not yet on a stream."""

    kernel: Kernel
    argument: bytes
    grid: Size3
    block: Size3

    def enqueue(self, stream: Stream) -> None:
        """Puts it on the stream. Raises DeviceError."""
        self.kernel.launch(self.argument, self.grid, self.block, stream)


class Module:
    """Kernels that were compiled together."""

    def __init__(self, device: Context, module: Any) -> None:
        self._device, self._module = device, module

    def __del__(self) -> None:
        if self._device.is_open:
            with self._device:  # as with kernels
                del self._module

    def kernel(self, name: str, nbytes: int) -> Kernel:
        """The kernel of that name, whose argument has ``nbytes``. Raises DeviceError where there is none."""
        try:
            with self._device:
                return Kernel(self._device, self._module, name, nbytes)
        except self._device.driver.Error as error:
            raise DeviceError(f"there is no kernel {name!r}", why=str(error)) from error
