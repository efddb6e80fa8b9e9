"""A stand-in for PyNvVideoCodec's encoder: x264 encodes, images come from the host or the memory of a CudaDouble.

As the real one it takes images of exactly the size and kind that it was made for, and is some images behind. Names and
signatures of the real one are in ``tests/data/nvdec/api.json``.
"""

from __future__ import annotations

import ctypes
from collections import deque
from fractions import Fraction
from typing import Any

import av
import numpy as np

from edgert.memory.cuda import CudaDevice
from tests.helpers.nvdec_double import NvdecDouble, PyNvVCException

BEHIND = 3
_IDR, _P = 3, 0


class NV_ENC_PIC_PARAMS:
    inputTimeStamp = 0


class Encoder:
    def __init__(self, double: NvencDouble, size: tuple[int, int], fmt: str, on_host: bool, options: Any) -> None:
        self._double, self._size, self.fmt, self.on_host, self.options = double, size, fmt, on_host, options
        self.ended, self.addresses = False, set[int]()
        codec = {"h264": "libx264", "hevc": "libx265"}[options["codec"]]
        context: Any = av.CodecContext.create(codec, "w")
        self._context = context
        context.width, context.height = size
        context.pix_fmt, context.time_base = "yuv420p", Fraction(1, 60000)
        context.gop_size, context.max_b_frames = options["gop"], options["bf"]
        quiet = {"x265-params": "log-level=none"} if codec == "libx265" else {}
        context.options = {"preset": "ultrafast", "tune": "zerolatency", "qp": str(options.get("constqp", 23)), **quiet}
        self._ready: deque[dict[str, Any]] = deque()

    def Encode(self, frame: Any, picParams: NV_ENC_PIC_PARAMS) -> list[Any]:
        self._double.fail("encode")
        given = "nv12" if self.fmt == "NV12" else "yuv420p"
        image: Any = av.VideoFrame.from_ndarray(self._pixels(frame), given).reformat(format="yuv420p")
        image.pts, image.time_base = picParams.inputTimeStamp, Fraction(1, 60000)
        self._add(self._context.encode(image))
        return [self._ready.popleft() for _ in range(len(self._ready) - BEHIND)]

    def EndEncode(self) -> list[Any]:
        self._double.fail("end")
        self.ended = True
        self._add(self._context.encode(None))
        return list(self._ready)

    def _pixels(self, frame: Any) -> Any:
        width, height = self._size
        if self.on_host:
            if frame.dtype != np.uint8 or frame.shape != (width * height * 3 // 2,):
                raise PyNvVCException(f"PyNvEncoder : \nError Type : {frame.shape} is no image")
            return frame.reshape(-1, width).copy()
        planes = [one.__cuda_array_interface__ for one in frame.cuda()]
        assert [one["shape"] for one in planes] == [(height, width, 1), (height // 2, width // 2, 2)]
        assert [one["strides"] for one in planes] == [(width, 1, 1), (width, 2, 1)]
        assert all(one["typestr"] == "|u1" and one["version"] == 3 for one in planes)
        first, second = (one["data"][0] for one in planes)
        assert second == first + width * height
        self.addresses.add(first)
        return np.frombuffer(ctypes.string_at(first, width * height * 3 // 2), np.uint8).reshape(-1, width)

    def _add(self, packets: list[Any]) -> None:
        for packet in packets:
            kind = _IDR if packet.is_keyframe else _P
            self._ready.append({"data": bytes(packet), "timestamp": packet.pts, "picture_type": kind})


class NvencDouble(NvdecDouble):
    """The package. ``broken`` makes what it names fail: encoder, encoder caps, encode, end."""

    NV_ENC_PIC_PARAMS = NV_ENC_PIC_PARAMS

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device)
        self.encoder_caps: dict[str, int] = {"num_encoder_engines": 1}
        self.encoders: list[Encoder] = []
        self.sessions = 8

    def CreateEncoder(self, width: int, height: int, fmt: str, usecpuinputbuffer: bool, **kwargs: Any) -> Encoder:
        self.fail("encoder")
        if len(self.encoders) >= self.sessions:
            raise PyNvVCException(
                "PyNvEncoder : \nError code : 10\nError Type : OpenEncodeSessionEx: out of memory\nat x"
            )
        self.encoders.append(Encoder(self, (width, height), fmt, usecpuinputbuffer, kwargs))
        return self.encoders[-1]

    def GetEncoderCaps(self, gpuid: int = 0, codec: str = "h264") -> dict[str, int]:
        self.fail("encoder caps")
        return self.encoder_caps
