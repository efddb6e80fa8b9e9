"""A stand-in for PyNvVideoCodec: FFmpeg decodes, surfaces lie in the memory of :class:`CudaDouble`.

As strict as the real one: a surface keeps its image until it is unlocked, is written over after that, and is unlocked
once. An image comes when the next one begins, or something else shows that it is whole. What names and signatures the
real one has is in ``tests/data/nvdec/api.json``.
"""

from __future__ import annotations

import ctypes
from collections import deque
from types import SimpleNamespace
from typing import Any

import av

from edgert.memory.cuda import CudaDevice

_GONE = 0xEE
_START = b"\0\0\0\1"


class PyNvVCException(Exception): ...


class PyNvVCExceptionUnsupported(Exception): ...


class PacketData:
    def __init__(self) -> None:
        self.bsl = self.bsl_data = 0


class Decoder:
    def __init__(self, double: NvdecDouble, codec: str, options: dict[str, Any]) -> None:
        self._double, self._codec, self.options = double, codec, options
        self._context: Any = av.CodecContext.create(codec, "r")
        self._ready: deque[Any] = deque()
        self._free: list[Any] = []
        self.locked: dict[int, Any] = {}
        self._held = b""
        self.made = 0
        self._size = (0, 0)

    def GetNumDecodedFrame(self, packet: PacketData) -> int:
        self._double.fail("decode")
        data = ctypes.string_at(packet.bsl_data, packet.bsl) if packet.bsl else b""
        # As its parser: a unit is whole when the next one begins.
        units = [*([self._held] if self._held else []), *self._units(data)]
        self._held = b"" if not data or data.endswith(_START) else units.pop()
        for memory in self._ready:  # those that were not fetched are lost, as in the real one
            self._free.append(memory)
        self._ready.clear()
        images = [image for unit in units for image in self._context.decode(av.Packet(unit))]
        images += [] if data else self._context.decode(None)
        self._ready.extend(self._surface(image) for image in images)
        return len(images)

    def _units(self, data: bytes) -> list[bytes]:
        if not data or data.endswith(_START):
            return []
        cutter: Any = av.CodecContext.create(self._codec, "r")
        return [bytes(packet) for packet in (*cutter.parse(data), *cutter.parse(None))]

    def GetLockedFrame(self) -> int:
        memory = self._ready.popleft()
        self.locked[int(memory)] = memory
        return int(memory)

    def UnlockFrame(self, address: int) -> None:
        if address not in self.locked:
            raise PyNvVCException("the surface is not locked")
        memory = self.locked.pop(address)
        memory.bytes[:] = _GONE
        self._free.append(memory)

    def GetWidth(self) -> int:
        return self._size[0]

    def GetHeight(self) -> int:
        return self._size[1]

    def _surface(self, image: Any) -> Any:
        pixels = image.reformat(format="nv12").to_ndarray()
        self._size = (pixels.shape[1], pixels.shape[0] * 2 // 3)
        memory = self._free.pop() if self._free else self._allocate(pixels.size)
        memory.bytes[:] = pixels.reshape(-1)
        return memory

    def _allocate(self, nbytes: int) -> Any:
        self.made += 1
        with self._double.device:
            return self._double.device.driver.mem_alloc(nbytes)


class NvdecDouble:
    """The package. ``caps`` is what the GPU says it can; ``broken`` makes what it names fail."""

    PacketData, PyNvVCException, PyNvVCExceptionUnsupported = PacketData, PyNvVCException, PyNvVCExceptionUnsupported
    cudaVideoCodec = SimpleNamespace(H264="h264", HEVC="hevc")
    DisplayDecodeLatencyType = SimpleNamespace(NATIVE=0, LOW=1)

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.caps = {"num_decoder_engines": 1, "width_max": 4096, "height_max": 4096}
        self.broken: dict[str, Exception] = {}
        self.decoders: list[Decoder] = []
        self.caps_asked = 0

    def CreateDecoder(self, **options: Any) -> Decoder:
        self.fail("create")
        self.decoders.append(Decoder(self, options["codec"], options))
        return self.decoders[-1]

    def GetDecoderCaps(self, gpuid: int, codec: str) -> dict[str, int]:
        self.caps_asked += 1
        self.fail("caps")
        return self.caps

    def fail(self, name: str) -> None:
        if name in self.broken:
            raise self.broken[name]
