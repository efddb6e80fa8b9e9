"""Arrays that another library holds on :class:`~tests.helpers.cuda_double.CudaDouble`, and the driver's calls about
them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from edgert.memory import Counter, lend
from edgert.memory.cuda import CudaDevice
from edgert.memory.cuda.view import DeviceView, to_capsule
from tests.helpers.cuda_double import CudaDouble

LEGACY = 1


class Driver:
    """libcuda, as far as it knows streams of others, which are numbers, and who owns memory."""

    def __init__(self, gpu: CudaDouble) -> None:
        self.gpu, self.pending, self.recording = gpu, dict[int, list[Callable[[], None]]](), set[int]()
        self.waits: list[tuple[int, int]] = []
        self.elsewhere: dict[int, int] = {}
        self._events: dict[int, int] = {}
        self.made = self.destroyed = 0

    def cuEventCreate(self, event: Any, flags: Any) -> int:
        assert flags.value == 2 and self.gpu.stack, "a context must be current"
        self.made += 1
        event._obj.value = 0xE000 + self.made
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        if stream.value not in self.pending:
            return 400
        self._events[event.value] = stream.value
        return 0

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: Any) -> int:
        foreign = self._events[event.value]
        self.waits.append((stream.value, foreign))
        own = next(one for one in self.gpu.streams if one.handle == stream.value)
        own.put(lambda: self.run(foreign))
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        self.destroyed += 1
        return 0

    def cuStreamIsCapturing(self, stream: Any, status: Any) -> int:
        status._obj.value = int(stream.value in self.recording)
        return 0

    def cuPointerGetAttribute(self, found: Any, attribute: Any, address: Any) -> int:
        assert attribute.value == 9
        if address.value in self.elsewhere:
            found._obj.value = self.elsewhere[address.value]
            return 0
        if not any(int(one) <= address.value < int(one) + one.nbytes for one in self.gpu.allocations):
            return 1
        found._obj.value = 0
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = {1: b"invalid argument", 400: b"invalid resource handle"}[code]
        return 0

    def run(self, foreign: int) -> None:
        work = self.pending.get(foreign, [])
        while work:
            work.pop(0)()


class Tensor:
    """An array on the GPU, by DLPack; its producer makes the consumer's stream wait for its own, number ``stream``."""

    def __init__(self, device: CudaDevice, array: Any, driver: Driver, stream: int = LEGACY, ordinal: int = 0) -> None:
        self.device, self.driver, self.stream, self.ordinal = device, driver, stream, ordinal
        span = (
            sum((size - 1) * abs(step) for size, step in zip(array.shape, array.strides, strict=True)) + array.itemsize
        )
        self.block = device.device_block(max(span, 1))
        flat = np.lib.stride_tricks.as_strided(array, (span,), (1,)) if array.itemsize == 1 else array
        with device:
            device.driver.memcpy_htod(self.block.address, np.ascontiguousarray(flat))
        lease = lend(self, Counter())
        self.view = DeviceView(self.block.address, array.shape, array.strides, array.dtype, lease, ordinal)
        self.asked: list[int] = []
        driver.pending.setdefault(stream, [])

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.ordinal

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        assert stream is not None
        self.asked.append(stream)
        if self.stream in self.driver.recording:
            self.driver.recording.add(stream)  # as CUDA has it
        own = next(one for one in self.device.driver.streams if one.handle == stream)
        with self.device:
            own.put(lambda: self.driver.run(self.stream))
        return to_capsule(self.view)

    @property
    def given_back(self) -> bool:
        return self.view.lease._holders == 1


class CaiArray:
    """The same by the CUDA array interface, which may name the stream."""

    def __init__(self, tensor: Tensor, version: int = 3, **changed: Any) -> None:
        self._tensor = tensor
        described = dict(tensor.view.__cuda_array_interface__, version=version)
        described.pop("stream")
        self.__cuda_array_interface__ = {**described, **changed}
