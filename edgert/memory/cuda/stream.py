"""Streams of work on a GPU, and events in them."""

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
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: never waits for the default stream


class Event:
    """A position in a stream, passed when all work before it is done.

    ``timed`` allows :meth:`since_ms` and costs a little. ``patient`` makes waiting threads sleep, which saves processor
    time and notices the end later. ``raw`` is PyCUDA's event. ``records`` is the number of times that the event was
    recorded, ``passed_records`` that of the last record that is known to have passed.
    """

    def __init__(self, device: Context, timed: bool = False, patient: bool = False) -> None:
        self._device, self.records, self.passed_records = device, 0, 0
        flags = device.driver.event_flags
        timing = flags.DEFAULT if timed else flags.DISABLE_TIMING
        with device:
            self.raw: Any = device.driver.Event(timing | (flags.BLOCKING_SYNC if patient else 0))

    def __del__(self) -> None:
        if "raw" in self.__dict__ and self._device.is_open:
            with self._device:  # PyCUDA frees it only in its context
                del self.raw

    def record(self, stream: Stream) -> Event:
        """Record the event behind all present work of the stream. Raises DeviceError if earlier work failed."""
        self._device.run(self.raw.record, stream.raw)
        self.records += 1
        return self

    def note_passed(self) -> None:
        """Note that the event has passed, as later work is done; this saves other threads a query."""
        self.passed_records = self.records

    def passed(self) -> bool:
        """Return whether the work before it is done. Does not wait. Raises DeviceError if the work failed."""
        return bool(self._device.run(self.raw.query))

    def synchronize(self) -> None:
        """Block until the work before it is done. Raises DeviceError if it failed."""
        self._device.run(self.raw.synchronize)

    def since_ms(self, earlier: Event) -> float:
        """Return the milliseconds of GPU time from an earlier timed event to this one; both have passed."""
        with self._device:
            return float(self.raw.time_since(earlier.raw))


class Stream:
    """Work for a GPU that is done in order. Not the default stream, and never waiting for it.

    ``raw`` is PyCUDA's stream, ``handle`` the ``cudaStream_t``: ``torch.cuda.ExternalStream(stream.handle)``.
    """

    def __init__(self, device: Context) -> None:
        self.device = self._device = device
        with device:
            self.raw: Any = device.driver.Stream(_NON_BLOCKING)
        self.handle = int(self.raw.handle)

    def __del__(self) -> None:
        if "raw" in self.__dict__ and self._device.is_open:
            with self._device:  # as in Event
                del self.raw

    def raise_priority(self) -> None:
        """Give the stream the highest priority of its GPU.

        Its later kernels start before waiting ones of other streams. Running kernels are not stopped, and copies have
        no priority. By default, streams have the lowest priority. Raises DeviceError if the GPU or the driver does not
        support priorities; the stream works as before.
        """
        library, stream = load_driver(), ctypes.c_void_p(self.handle)
        least, greatest, taken = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        with self._device:
            call(library, "cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
            if greatest.value == least.value:
                raise DeviceError("this GPU has no stream priorities", why=f"all its streams have {least.value}")
            value = ctypes.create_string_buffer(struct.pack("=i", greatest.value), _VALUE_BYTES)
            call(library, "cuStreamSetAttribute", stream, ctypes.c_int(_PRIORITY), ctypes.byref(value))
            call(library, "cuStreamGetPriority", stream, ctypes.byref(taken))
        if taken.value != greatest.value:
            raise DeviceError(
                "the CUDA driver does not change the priority of a stream",
                why=f"{greatest.value} was requested, and the stream has {taken.value}",
                fix="install a driver of CUDA 12 or newer (JetPack 6)",
            )

    def wait(self, event: Event) -> None:
        """Let later work of this stream start after the event. Does not block the host. Raises DeviceError."""
        self._device.run(self.raw.wait_for_event, event.raw)

    def synchronize(self) -> None:
        """Block until all work is done. Raises DeviceError if any of it failed."""
        self._device.run(self.raw.synchronize)
