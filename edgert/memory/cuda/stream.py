"""Order on a GPU: streams of work, and events between them."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from edgert.errors import DeviceError
from edgert.memory.cuda.driver import call, load_driver
from edgert.memory.cuda.gpu_context import Context

# Stream priorities. PyCUDA cannot create such streams, so the driver changes their priority afterwards.
#
# Functions and the number are those of cuda.h, from CUDA 12 on:
# https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html.

_PRIORITY = 8  # CU_STREAM_ATTRIBUTE_PRIORITY
_VALUE_BYTES = 64  # of a CUstreamAttrValue, a union


def raise_priority(stream: int, library: Any) -> None:
    """Give a stream, by its number, the highest priority of the current context.

    Its later kernels start before waiting ones of other streams. Running kernels are not stopped, and copies have no
    priority. Most streams have the lowest priority, so there is nothing below. Raises DeviceError when the GPU or the
    driver does not support it.
    """
    least, greatest, taken = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call(library, "cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    if greatest.value == least.value:
        raise DeviceError("this GPU has no stream priorities", why=f"all its streams have {least.value}")
    value = ctypes.create_string_buffer(struct.pack("=i", greatest.value), _VALUE_BYTES)
    call(library, "cuStreamSetAttribute", ctypes.c_void_p(stream), ctypes.c_int(_PRIORITY), ctypes.byref(value))
    call(library, "cuStreamGetPriority", ctypes.c_void_p(stream), ctypes.byref(taken))
    if taken.value != greatest.value:
        raise DeviceError(
            "the CUDA driver does not change the priority of a stream",
            why=f"{greatest.value} was asked for, the stream has {taken.value}",
            fix="a driver of CUDA 12 or newer (JetPack 6)",
        )


_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: never waits for the default stream


class Event:
    """A position in a stream, passed when all work before it is done.

    ``timed`` allows :meth:`since_ms` and costs a little. ``patient`` makes waiting threads sleep, which saves processor
    time and notices the end later. ``raw`` is PyCUDA's event. ``records`` is how often it was recorded, ``known`` how
    many of these are known to have passed.
    """

    def __init__(self, device: Context, timed: bool = False, patient: bool = False) -> None:
        self._device, self.records, self.known = device, 0, 0
        flags = device.driver.event_flags
        timing = flags.DEFAULT if timed else flags.DISABLE_TIMING
        with device:
            self.raw: Any = device.driver.Event(timing | (flags.BLOCKING_SYNC if patient else 0))

    def __del__(self) -> None:
        if "raw" in self.__dict__ and self._device.is_open:
            with self._device:  # PyCUDA leaves it behind where no context is current
                del self.raw

    def record(self, stream: Stream) -> Event:
        """Put the event behind all present work of the stream. Raises DeviceError when earlier work failed."""
        self._device.run(self.raw.record, stream.raw)
        self.records += 1
        return self

    def note_passed(self) -> None:
        """Note that it has passed, as seen by waiting for something behind it; saves other threads a query."""
        self.known = self.records

    def passed(self) -> bool:
        """Return whether that work is done. Does not wait. Raises DeviceError when the work failed."""
        return bool(self._device.run(self.raw.query))

    def synchronize(self) -> None:
        """Block until that work is done. Raises DeviceError when it failed."""
        self._device.run(self.raw.synchronize)

    def since_ms(self, earlier: Event) -> float:
        """Return milliseconds of GPU time between two timed events that have passed."""
        with self._device:
            return float(self.raw.time_since(earlier.raw))


class Stream:
    """Work for a GPU, done in order; never the default stream, and never waiting for it.

    ``raw`` is PyCUDA's stream, ``handle`` the ``cudaStream_t``: ``torch.cuda.ExternalStream(stream.handle)``.
    """

    def __init__(self, device: Context) -> None:
        self.device = self._device = device
        with device:
            self.raw: Any = device.driver.Stream(_NON_BLOCKING)
        self.handle = int(self.raw.handle)

    def __del__(self) -> None:
        if "raw" in self.__dict__ and self._device.is_open:
            with self._device:  # as with events
                del self.raw

    def raise_priority(self) -> None:
        """Give later kernels of this stream the GPU's highest priority.

        Raises DeviceError when the GPU or its driver cannot do that; the stream works as before.
        """
        with self._device:
            raise_priority(self.handle, load_driver())

    def wait(self, event: Event) -> None:
        """Work put here from now on starts after the event. Does not block the host. Raises DeviceError."""
        self._device.run(self.raw.wait_for_event, event.raw)

    def synchronize(self) -> None:
        """Block until all work is done. Raises DeviceError when some of it failed."""
        self._device.run(self.raw.synchronize)
