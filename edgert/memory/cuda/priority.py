"""Streams that go first. PyCUDA makes none, so the driver is told after it made one.

Functions and the number are those of cuda.h, from CUDA 12 on:
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from edgert.errors import DeviceError
from edgert.memory.cuda.driver_library import call

_PRIORITY = 8  # CU_STREAM_ATTRIBUTE_PRIORITY
_VALUE_BYTES = 64  # of a CUstreamAttrValue, a union


def raise_priority(stream: int, library: Any) -> None:
    """Gives a stream, by its number, the highest priority of the current context.

    Kernels that are put there from now on, or recorded, start before waiting ones of other streams; what runs is not
    stopped, and copies know no order. Most streams have the lowest priority, so there is nothing below.

    Raises:
        DeviceError: the GPU knows no priorities, or the driver does not take this one.
    """
    least, greatest, taken = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call(library, "cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    if greatest.value == least.value:
        raise DeviceError("this GPU knows no priorities", why=f"all its streams have {least.value}")
    value = ctypes.create_string_buffer(struct.pack("=i", greatest.value), _VALUE_BYTES)
    call(library, "cuStreamSetAttribute", ctypes.c_void_p(stream), ctypes.c_int(_PRIORITY), ctypes.byref(value))
    call(library, "cuStreamGetPriority", ctypes.c_void_p(stream), ctypes.byref(taken))
    if taken.value != greatest.value:
        raise DeviceError(
            "the CUDA driver does not change the priority of a stream",
            why=f"{greatest.value} was asked for, the stream has {taken.value}",
            fix="a driver of CUDA 12 or newer (JetPack 6)",
        )
