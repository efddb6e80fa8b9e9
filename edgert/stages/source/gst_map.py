"""GStreamer's buffers as memory of this process, without copying them."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from edgert.errors import DeviceError
from edgert.runtime.frame import U8, PixelFormat

FIX_CAPS = (
    "end the pipeline with raw video in system memory: … ! nvvidconv ! video/x-raw,format=NV12 (Jetson), "
    "or … ! videoconvert"
)
_CHANNELS: dict[PixelFormat, tuple[int, ...]] = {
    "nv12": (1, 2),
    "i420": (1, 1, 1),
    "yuyv": (2,),
    "bgr": (3,),
    "rgb": (3,),
    "gray": (1,),
}


class _MapInfo(ctypes.Structure):
    """GstMapInfo of gst/gstmemory.h."""

    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("maxsize", ctypes.c_size_t),
        ("user_data", ctypes.c_void_p * 4),
        ("reserved", ctypes.c_void_p * 4),
    )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libgstreamer-1.0.so.0")
    library.gst_buffer_map.argtypes = (ctypes.c_void_p, ctypes.POINTER(_MapInfo), ctypes.c_int)
    library.gst_buffer_unmap.argtypes = (ctypes.c_void_p, ctypes.POINTER(_MapInfo))
    return library


class Mapping:
    """A GstBuffer mapped for reading, until the last array on it is gone.

    PyGObject's own ``Gst.Buffer.map`` hands out ``bytes``, a copy; so the C function is called. The address of the
    GstBuffer is its boxed object's hash, which is how NVIDIA's DeepStream bindings find it, too.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer, self._info = buffer, _MapInfo()
        self._is_mapped = bool(_library().gst_buffer_map(hash(buffer), self._info, 1))  # 1 = GST_MAP_READ
        if not self._is_mapped:
            raise DeviceError(
                "a GStreamer buffer cannot be read",
                why="its memory is not mapped to the processor, such as NVMM or a GPU's",
                fix=FIX_CAPS,
            )

    def __del__(self) -> None:
        if self._is_mapped:
            self._is_mapped = False
            _library().gst_buffer_unmap(hash(self._buffer), self._info)

    @property
    def address(self) -> int:
        """Of the first byte."""
        return int(self._info.data or 0)

    def planes(self, format: PixelFormat, width: int, height: int, offsets: Any, strides: Any) -> tuple[U8, ...]:
        """Read-only arrays on the mapped bytes, each keeping the mapping alive."""
        memory = (ctypes.c_uint8 * self._info.size).from_address(self._info.data)
        memory.owner = self
        planes = []
        for number, depth in enumerate(_CHANNELS[format]):
            rows, columns = (height, width) if number == 0 else ((height + 1) // 2, (width + 1) // 2)
            shape: tuple[int, ...] = (rows, columns, depth) if depth > 1 else (rows, columns)
            steps = (int(strides[number]), depth, 1) if depth > 1 else (int(strides[number]), 1)
            plane: U8 = np.ndarray(shape, np.uint8, memory, int(offsets[number]), steps)
            plane.flags.writeable = False
            planes.append(plane)
        return tuple(planes)
