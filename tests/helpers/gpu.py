"""A GPU for tests, where there is one, and frames on it."""

import os
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from edgert.errors import EdgertError
from edgert.memory import Counter, lend
from edgert.memory.cuda import CudaDevice, DeviceView, Stream, open_device
from edgert.memory.cuda.holders import others_on
from edgert.runtime import Frame
from edgert.runtime.frame import with_planes
from edgert.stages.gpu.upload import Uploader


def rounds(usual: int) -> int:
    """How often a test repeats itself with other sizes: once where EDGERT_BRIEF is set, as by ``scripts/sanitize``."""
    return 1 if os.environ.get("EDGERT_BRIEF") else usual


def gpu_or_skip() -> CudaDevice:
    """The first GPU. Skips the test, saying what is missing, where none can be opened."""
    try:
        return open_device(counter=Counter())
    except EdgertError as error:
        pytest.skip(f"needs a GPU: {error.what} ({error.why})")


def room_bytes(device: CudaDevice) -> int:
    """What would be free on a GPU without other processes, as far as NVML shows what these hold: they come and go."""
    device.drain()
    return device.free_bytes()[0] + sum(one.used_bytes for one in others_on(str(device._device.pci_bus_id())))


def to_gpu(device: CudaDevice, frame: Frame) -> Frame:
    """The frame with every plane in a block of its own, strides as they are; blocks live as long as the frame."""
    blocks, planes = [], []
    for plane in frame.planes:
        base = plane if plane.base is None or not isinstance(plane.base, np.ndarray) else plane.base
        nbytes = plane.strides[0] * (plane.shape[0] - 1) + plane[0].size if plane.size else 1
        block = device.device_block(nbytes)
        flat = np.lib.stride_tricks.as_strided(plane, (nbytes,), (1,))
        assert base is not None
        with device:
            device.driver.memcpy_htod(block.address, np.ascontiguousarray(flat))
        blocks.append(block)
        planes.append(DeviceView(block.address, plane.shape, plane.strides, plane.dtype, frame.lease, device.ordinal))
    device.synchronize()  # the driver's copies may still be under way, and our streams do not wait for them
    lease = lend(blocks, frame.lease.counter)
    planes = [replace(plane, lease=lease) for plane in planes]
    return replace(frame, planes=cast("Any", tuple(planes)), lease=lease)


def on_gpu(frame: Frame, stream: Stream) -> Frame:
    """The GPU's view of a frame in shared memory, under the same lease; the stream uploads it if necessary."""
    lease: Any = frame.lease
    writer, ordinal = lease.send(stream), lease.device.ordinal
    planes = [
        DeviceView(address, plane.shape, plane.strides, plane.dtype, lease, ordinal, writer)
        for address, plane in zip(lease.addresses_of(frame.planes), frame.planes, strict=True)
    ]
    return with_planes(frame, cast("Any", tuple(planes)), lease)


def uploaded(uploader: Uploader, frame: Frame) -> Frame:
    """A copy of the frame on the GPU, with a lease to release."""
    return on_gpu(uploader.shared_frame(frame), uploader.stream)


def read(device: CudaDevice, address: int, nbytes: int) -> Any:
    out = np.empty(nbytes, np.uint8)
    device.synchronize()
    with device:
        device.driver.memcpy_dtoh(out, address)
    return out
