"""A GPU of NumPy arrays: what is uploaded, downloaded and enqueued happens at once and is written down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgert.backend.trt.device import U8, Array, Block, Device, Stream


class FakeStream:
    def __init__(self, device: FakeDevice) -> None:
        self.handle, self._device = 77, device

    def synchronize(self) -> None:
        self._device.events.append("synchronize")


class FakeBlock:
    """A host's and a GPU's side; the address is that of the GPU's side, in pages of its own."""

    def __init__(self, device: FakeDevice, nbytes: int) -> None:
        self.host: U8 = np.zeros(nbytes, np.uint8)
        self.gpu: U8 = np.zeros(nbytes, np.uint8)
        self.address = 256 * (len(device.blocks) + 1)
        self._device = device

    def upload(self, stream: Stream) -> None:
        self.gpu[...] = self.host
        self._device.events.append("upload")

    def download(self, stream: Stream) -> None:
        self.host[...] = self.gpu
        self._device.events.append("download")

    def release(self) -> None:
        self._device.blocks.pop(self.address)


class FakeDevice:
    """See :class:`~edgert.backend.trt.device.Device`."""

    def __init__(self) -> None:
        self.blocks: dict[int, FakeBlock] = {}
        self.events: list[str] = []
        self.depth = 0
        """Blocks ``with device:`` that are open."""

    def __enter__(self) -> FakeDevice:
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    def stream(self) -> Stream:
        return FakeStream(self)

    def block(self, nbytes: int) -> Block:
        made = FakeBlock(self, nbytes)
        self.blocks[made.address] = made
        return made

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Callable[[], None]:
        self.events.append("capture")

        def launch() -> None:
            self.events.append("launch")
            enqueue()

        return launch

    def array(self, address: int, dtype: str, shape: tuple[int, ...]) -> Array:
        """The GPU's side of a block."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.blocks[address].gpu[:size].view(dtype).reshape(shape)


def is_device(device: FakeDevice) -> Device:
    """Checked by mypy: the double keeps the protocol."""
    return device
