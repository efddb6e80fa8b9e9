"""The GPU's own video decoder, through PyNvVideoCodec; images are used where it wrote them.

FFmpeg (through PyAV) reads the container, and only its packets go to the decoder. So files, cut-off recordings and
network cameras behave as with FFmpeg's decoder. API of version 2:
https://docs.nvidia.com/video-technologies/pynvvideocodec/pynvc-api-reference/index.html
"""

from __future__ import annotations

import ctypes
import heapq
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from edgert import installation
from edgert.clock import Clock
from edgert.errors import DeviceError, EdgertError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Loans, Stream
from edgert.stages.source.planes import color_of_tags, device_planes, media_ns
from edgert.stages.source.timeline import Image

if TYPE_CHECKING:
    import av
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

log = logging.getLogger("edgert.source")

CODECS = {"h264": ("H264", "h264_mp4toannexb"), "hevc": ("HEVC", "hevc_mp4toannexb")}
"""FFmpeg's codec → NVDEC's, and the filter that converts its packets to units with start codes."""
_NEXT = {"h264": bytes.fromhex("00000001 09f0 00000001")}
"""Bytes that mark the end of an image for NVDEC's parser before the next one comes: an access unit delimiter (ITU-T
H.264, 7.3.2.4) and a start code. PyNvVideoCodec 2.2 has a flag for it, but not where images are used in place. For HEVC
this was not tried on a GPU, so an image waits for the next one."""
_FORMATS = ("yuv420p", "yuvj420p", "nv12")
_REORDERED = 24
"""Bound above the images that a decoder holds back: 16 to reorder, and those in work."""
FILE_BATCH = 8
"""Packets of a file per decoder call. Each call releases Python's lock and waits to get it back, while the decoder is
idle."""


def nvdec() -> Any:
    """Return the PyNvVideoCodec module. Raises DeviceError where it or its driver libraries are not installed."""
    try:
        import PyNvVideoCodec
    except ModuleNotFoundError as error:
        raise DeviceError(
            "PyNvVideoCodec is not installed", why=str(error), fix=installation.command("nvdec")
        ) from error
    except (ImportError, RuntimeError) as error:  # its import needs libnvidia-encode, even for decoding only
        why = str(error).strip().splitlines()[0]
        fix = "install the NVIDIA driver; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
        raise DeviceError("PyNvVideoCodec does not work here", why=why, fix=fix) from error
    return PyNvVideoCodec


def why_not(stream: VideoStream, device: CudaDevice) -> str:
    """Return why this GPU cannot decode a video stream; empty when it can, as far as its header shows."""
    context = stream.codec_context
    if reason := unsuited(context) or missing():
        return reason
    module, codec, width, height = nvdec(), context.name, context.width, context.height
    try:
        caps = _caps(module, device.ordinal, CODECS[codec][0])
    except (module.PyNvVCException, module.PyNvVCExceptionUnsupported, RuntimeError) as error:
        return f"NVDEC of {device.name}: {error}"
    if not caps.get("num_decoder_engines", 1):
        return f"{device.name} has no NVDEC"
    if not caps.get("supported", 1):
        return f"NVDEC of {device.name} does not decode {codec}"
    most = caps.get("width_max", width), caps.get("height_max", height)
    least = caps.get("width_min", 0), caps.get("height_min", 0)
    if least[0] <= width <= most[0] and least[1] <= height <= most[1]:
        return ""
    return f"NVDEC decodes {codec} from {least[0]}x{least[1]} to {most[0]}x{most[1]} here, not {width}x{height}"


@lru_cache(maxsize=16)
def _caps(module: Any, ordinal: int, codec: str) -> dict[str, int]:
    """Return the capabilities of a GPU's NVDEC, cached.

    PyNvVideoCodec creates and destroys a context for them, which blocks every decoder for a quarter of a second.
    """
    found: dict[str, int] = module.GetDecoderCaps(gpuid=ordinal, codec=getattr(module.cudaVideoCodec, codec))
    return found


def unsuited(context: VideoCodecContext) -> str:
    """Return why hardware cannot decode a video, by its codec, pixels and size; empty when it may."""
    if context.name not in CODECS:
        return f"NVDEC is given {' and '.join(CODECS)} here, not {context.name}"
    if context.pix_fmt not in _FORMATS:
        return f"pixels are {context.pix_fmt}; on the GPU they are read as 4:2:0 of 8 bits"
    if context.width % 2 or context.height % 2:
        return f"NVDEC rounds {context.width}x{context.height} up to even numbers"
    return ""


def missing() -> str:
    """Return why PyNvVideoCodec cannot be used, and what to do; empty when it can."""
    try:
        nvdec()
    except DeviceError as error:
        return f"{error.what} ({error.why}): {error.fix}"
    return ""


class StartCodes:
    """Converter of packets into units with start codes, as hardware decoders read them."""

    def __init__(self, name: str, stream: VideoStream) -> None:
        from av.bitstream import BitStreamFilterContext

        self._filter = BitStreamFilterContext(name, stream)

    def convert(self, packet: av.Packet[Any]) -> Sequence[av.Packet[Any]]:
        """Return the units of a packet; none for a damaged one, such as the last of a file that was cut off."""
        from av.error import InvalidDataError

        try:
            return self._filter.filter(packet if packet.size else None)
        except InvalidDataError as error:
            log.debug("a packet is damaged: %s", error)
            return ()


class DisplayTimes:
    """Times of images in display order, from times of packets in decoding order.

    The decoder's call that locks a surface (``GetLockedFrame``) does not report its time. Images come in display order,
    so each has the smallest waiting time. Images before the first key frame are never shown. More waiting times than
    ``most`` belong to images that the decoder dropped.
    """

    def __init__(self, most: int = _REORDERED) -> None:
        self._waiting: list[int] = []
        self._first: int | None = None
        self._most = most

    def put(self, pts: int | None) -> None:
        """Add a packet's time."""
        if pts is None:
            return
        self._first = pts if self._first is None else self._first
        if pts >= self._first:
            heapq.heappush(self._waiting, pts)
        if len(self._waiting) > self._most:
            heapq.heappop(self._waiting)

    def take(self) -> int | None:
        """Remove and return the next image's time; None where packets have none."""
        return heapq.heappop(self._waiting) if self._waiting else None


class _PacketMemory:
    """Contiguous copy of some packets, at a fixed address while it does not grow."""

    def __init__(self) -> None:
        self.nbytes, self.address, self._memory = 0, 0, bytearray()
        self._reserve(1 << 18)

    def add(self, packet: av.Packet[Any]) -> None:
        """Append a copy of a packet."""
        stop = self.nbytes + packet.size
        if stop > len(self._memory):
            self._reserve(2 * stop)
        self._view[self.nbytes : stop] = memoryview(packet)
        self.nbytes = stop

    def _reserve(self, nbytes: int) -> None:
        memory = bytearray(nbytes)
        memory[: self.nbytes] = self._memory[: self.nbytes]
        self._memory, self._view = memory, memoryview(memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))


class _SurfaceOwner:
    """Decoder and its stream, kept alive by surfaces in use."""

    def __init__(self, decoder: Any, stream: Stream) -> None:
        self._decoder, self._stream = decoder, stream  # freed in this order

    def release(self, surface: int) -> None:
        self._decoder.UnlockFrame(surface)


class Nvdec:
    """GPU decoder of one opened video stream.

    The decoder writes each image into one of its surfaces. A surface is free again when the image's lease has ended and
    the GPU has read it; the decoder creates as many surfaces as are in use. It works on its own stream, which readers
    on other streams wait for. Surfaces in use stay valid after :meth:`close`. With ``low_latency``, each image comes at
    once; for streams without B frames only.

    Raises DeviceError: the package is missing, or refuses the codec.
    """

    title = "NVDEC"

    def __init__(
        self,
        stream: VideoStream,
        device: CudaDevice,
        counter: Counter,
        clock: Clock,
        *,
        low_latency: bool,
        where: str,
        batch: int = 1,
    ) -> None:
        self._module, self._device, self._clock, self._where = nvdec(), device, clock, where
        context = stream.codec_context
        self._source, self._time_base = stream, stream.time_base
        self._color = color_of_tags(context.colorspace, context.color_range, str(context.pix_fmt))
        self._stream = device.stream()
        self._codec, self._filter_name = CODECS[context.name]
        ends = _NEXT.get(context.name) if low_latency else None
        self._next = None if ends is None else ctypes.create_string_buffer(ends, len(ends))
        self._times, self._batch, self._memory = DisplayTimes(_REORDERED + batch), batch, _PacketMemory()
        self._data = self._module.PacketData()
        latency = self._module.DisplayDecodeLatencyType
        self._decoder = self._call(
            self._module.CreateDecoder,
            gpuid=device.ordinal,
            codec=getattr(self._module.cudaVideoCodec, self._codec),
            cudacontext=device.context_handle,
            cudastream=self._stream.handle,
            usedevicememory=True,
            latency=latency.LOW if low_latency else latency.NATIVE,
        )
        self._loans = Loans(device, counter, _SurfaceOwner(self._decoder, self._stream).release)

    def images(self, packets: Iterable[av.Packet[Any]]) -> Iterator[Image]:
        """Yield images in display order. The decoder conceals damage inside an image.

        Raises DeviceError: the GPU cannot decode this stream, or has too little memory.
        """
        for address, nbytes in self._packet_runs(packets):
            yield from self._decoded(address, nbytes)

    def close(self) -> None:
        """Wait for the GPU's work with surfaces whose leases have ended. No packet may follow."""
        self._loans.close()

    def _packet_runs(self, packets: Iterable[av.Packet[Any]]) -> Iterator[tuple[int, int]]:
        """Yield address and size of the bytes for each decoder call; zero bytes mark the end.

        The bytes stay valid until the next item is requested.
        """
        units, held, failure = StartCodes(self._filter_name, self._source), 0, None
        memory = self._memory
        try:
            for packet in packets:
                for part in units.convert(packet):
                    self._times.put(part.dts if part.pts is None else part.pts)  # AVI has no pts
                    if self._batch == 1:
                        yield part.buffer_ptr, part.buffer_size
                        continue
                    memory.add(part)
                    held += 1
                    if held == self._batch:
                        yield memory.address, memory.nbytes
                        held = memory.nbytes = 0
        except EdgertError as error:  # raised below, after the packets before it are decoded
            failure = error
        if held:
            yield memory.address, memory.nbytes
        if failure is not None:
            raise failure
        yield 0, 0

    def _decoded(self, address: int, nbytes: int) -> Iterator[Image]:
        """Yield the images that the bytes at an address complete; the bytes must stay valid during the call."""
        self._loans.reclaim()
        yield from self._completed(address, nbytes)
        if self._next is not None and nbytes:
            yield from self._completed(ctypes.addressof(self._next), len(self._next))

    def _completed(self, address: int, nbytes: int) -> Iterator[Image]:
        self._data.bsl_data, self._data.bsl = address, nbytes
        count = self._call(self._decoder.GetNumDecodedFrame, self._data)
        for _ in range(count):
            yield self._image(int(self._call(self._decoder.GetLockedFrame)))

    def _image(self, surface: int) -> Image:
        """Return the image in a surface: rows without gaps, chroma behind luma."""
        lease = self._loans.lend(surface)
        width, height = self._decoder.GetWidth(), self._decoder.GetHeight()
        rows = (surface, width), (surface + width * height, width)
        return Image(
            format="nv12",
            planes=device_planes("nv12", (width, height), rows, lease, self._device, self._stream),
            lease=lease,
            timestamp_ns=self._clock.now_ns(),
            media_ns=media_ns(self._times.take(), self._time_base),
            color=self._color,
        )

    def _call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (self._module.PyNvVCException, self._module.PyNvVCExceptionUnsupported, RuntimeError) as error:
            raise DeviceError(
                f"the GPU cannot decode this {self._codec} video",
                why=str(error).strip() or type(error).__name__,
                where=self._where,
                fix="decode: cpu",
            ) from error
