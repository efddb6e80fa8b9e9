"""Memory of one GPU in several processes: CUDA's IPC, for GPUs that are not the processor's own (CUDA C++ Programming
Guide, "Interprocess Communication"). Who allocated it frees it, when nobody maps it any more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from edgert.memory.cuda.gpu_context import Context

HANDLE_BYTES = 64  # CU_IPC_HANDLE_SIZE


class Exported(NamedTuple):
    """What another process needs to find memory of this one.

    Attributes:
        handle: of the whole allocation, the same for all that lies in it.
        offset: in it, bytes.
    """

    handle: bytes
    offset: int


def export(device: Context, address: int) -> Exported:
    """Memory of this process's, for others. Raises DeviceError where this GPU or system shares none."""
    with device:
        base, _ = device.run(device.driver.mem_get_address_range, address, doing="looking for memory")
        handle = device.run(device.driver.mem_get_ipc_handle, int(base), doing="sharing memory with another process")
    return Exported(bytes(handle), address - int(base))


class Mapped:
    """An allocation of another process's, from now until :meth:`close`.

    Attributes:
        address: where it begins in this process.

    Raises:
        DeviceError: the other process has ended, is of another user or container, or shares none.
    """

    def __init__(self, device: Context, handle: bytes) -> None:
        self._device = device
        flags = device.driver.ipc_mem_flags.LAZY_ENABLE_PEER_ACCESS
        doing = "mapping another process's memory"
        self._memory: Any = device.run(device.driver.IPCMemoryHandle, bytearray(handle), flags, doing=doing)
        self.address = int(self._memory)

    def close(self) -> None:
        """Unmaps it, once the GPU is done with it. Twice is once."""
        if self._memory is not None and self._device.is_open:
            with self._device:
                self._memory.close()
        self._memory = None
