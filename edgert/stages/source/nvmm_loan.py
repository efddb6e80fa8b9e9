"""Pictures in a Jetson's video memory, lent to the GPU; each keeps its buffer until the GPU has read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, DeviceView, Loans, StreamLease
from edgert.runtime.frame import U8
from edgert.stages.source.nvmm import Calls, MappedPlane, OnGpu, jetson_calls


class NvmmLoans:
    """Makes planes of NVMM buffers, for one thread.

    Args:
        calls: gives the C functions, when the first picture is there.
    """

    def __init__(self, device: CudaDevice, counter: Counter, calls: Callable[[], Calls] = jetson_calls) -> None:
        self._device, self._calls = device, calls
        self._stream = device.stream()
        self._mapped: dict[int, tuple[OnGpu, object]] = {}
        self._loans = Loans(device, counter, self._give_back)

    def take(self, surface: int, owner: object) -> tuple[tuple[U8, ...], StreamLease]:
        """Planes (NV12) and lease of the NvBufSurface at this address; ``owner`` keeps it, and is let go afterwards.

        Raises:
            DeviceError: it is no picture that kernels can read.
        """
        with self._device:
            mapped = OnGpu(surface, self._calls())
        self._mapped[surface] = mapped, owner
        lease = self._loans.lend(surface)
        luma, chroma = mapped.planes
        size = mapped.height, mapped.width
        planes = (
            self._plane(luma, size, (luma.pitch, 1), lease),
            self._plane(chroma, (size[0] // 2, size[1] // 2, 2), (chroma.pitch, 2, 1), lease),
        )
        return cast("tuple[U8, ...]", planes), lease

    def settle(self) -> None:
        """Gives buffers back that the GPU is done with."""
        self._loans.settle()

    def close(self) -> None:
        """Waits for the GPU; what is lent still goes back when its lease ends."""
        self._loans.close()

    def _plane(
        self, plane: MappedPlane, shape: tuple[int, ...], strides: tuple[int, ...], lease: StreamLease
    ) -> DeviceView:
        kind, ordinal = np.dtype(np.uint8), self._device.ordinal
        return DeviceView(plane.address, shape, strides, kind, lease, ordinal, self._stream)

    def _give_back(self, surface: int) -> None:
        mapped, _ = self._mapped.pop(surface)
        with self._device:
            mapped.close()
