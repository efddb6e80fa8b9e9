"""A Jetson's own video decoder, GStreamer's ``nvv4l2decoder``, fed with FFmpeg's packets.

FFmpeg reads the container or the network, as for :mod:`nvdec`. So reconnection, passwords, cut-off files and clocks
work as with FFmpeg's decoder. One thread feeds packets, so that an image is available as soon as it is decoded, not
with the next packet. None of this has run on a board.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from edgert.board import detect
from edgert.board.detect import is_jetson
from edgert.board.devices import why_no_mjpeg
from edgert.clock import Clock
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.source import gst, gst_pipelines, nvdec
from edgert.stages.source.planes import color_of_tags, media_ns
from edgert.stages.source.timeline import Image

if TYPE_CHECKING:
    import av
    from av.video.stream import VideoStream

_ELEMENTS = {
    gst_pipelines.JETSON_DECODER: "nvidia-l4t-gstreamer; in a container: --runtime nvidia",
    "nvvidconv": "nvidia-l4t-gstreamer; in a container: --runtime nvidia",
    "h264parse": "gstreamer1.0-plugins-bad",
}


@lru_cache(maxsize=1)
def jetson_missing() -> str:
    """Return why GStreamer's nvv4l2decoder cannot be used here, and what to do; empty when it can."""
    if not is_jetson():
        return "this is no Jetson"
    try:
        found, _ = gst.gstreamer()
    except DeviceError as error:
        return f"{error.why}: {error.fix}"
    absent = next((name for name in _ELEMENTS if found.ElementFactory.find(name) is None), "")
    return f"GStreamer has no {absent}: sudo apt install {_ELEMENTS[absent]}" if absent else ""


def missing_mjpeg() -> str:
    """Return why this board's nvv4l2decoder does not decode MJPEG; empty when it does, and without such a decoder."""
    return why_no_mjpeg(detect().soc)


def why_not(stream: VideoStream, device: CudaDevice | None) -> str:
    """Return why hardware cannot decode a video stream, as far as its header shows; empty when it can."""
    board = jetson_missing()
    if not board:
        return nvdec.unsuited(stream.codec_context)
    if device is not None and detect().has_desktop_nvdec:
        return nvdec.why_not(stream, device)
    return board


def missing() -> str:
    """Return why no hardware decodes video for frames on a GPU, and what to do; empty when there is some."""
    board = jetson_missing()
    return board and (nvdec.missing() if detect().has_desktop_nvdec else board)


def decoding(codec: str, low_latency: bool) -> str:
    """Return the decoder's elements for ``h264`` or ``hevc``; ``low_latency`` sets the properties that it has."""
    text = DECODERS[codec]
    name = text.rpartition("! ")[2].partition(" ")[0]
    known = gst.properties_of(name) if low_latency else frozenset[str]()
    return " ".join([text, *(f"{key}={value}" for key, value in LOW_LATENCY.items() if key in known)])


def is_nvdec(stream: VideoStream, device: CudaDevice) -> bool:
    """Return whether PyNvVideoCodec is the decoder for frames on this GPU; for streams without a :func:`why_not`."""
    return detect().has_desktop_nvdec and not nvdec.why_not(stream, device)


DECODERS = {codec: f"{parse} ! {gst_pipelines.JETSON_DECODER}" for codec, parse in gst_pipelines.PARSERS.items()}
LOW_LATENCY = {"disable-dpb": 1, "enable-max-performance": 1, "low-latency-mode": 1}
"""Properties of nvv4l2decoder for live streams without reordering. It then outputs an image as soon as it is decoded,
not when the reorder buffer is full. An Orin's has the first two, a Thor's the last."""
END = gst_pipelines.TO_NVMM
_PACKETS = "packets"
_BEFORE_NS = 3_600_000_000_000
"""Offset added to times inside GStreamer, which are unsigned; a stream's times may begin below zero."""
_UNDERWAY = 1 << 14
"""Most images inside the decoder whose packets have a decoding time only."""
_START_CODES = (b"\x00\x00\x01", b"\x00\x00\x00\x01")


class DecoderFailedError(DeviceError):
    """Failure of the decoder after it had given images."""


class DecoderRefusedError(DeviceError):
    """Failure of the decoder before its first image: it cannot decode this video, or does not work here."""


class GstDecoder:
    """GStreamer decoder of one opened video stream.

    With ``low_latency``, a live stream has no B frames, and images come in display order.

    Raises DeviceError: GStreamer refuses the pipeline.
    """

    title = "the board's own decoder (nvv4l2decoder)"

    def __init__(
        self,
        stream: VideoStream,
        device: CudaDevice | None,
        counter: Counter,
        clock: Clock,
        *,
        timeout_s: float,
        where: str,
        low_latency: bool = False,
    ) -> None:
        context = stream.codec_context
        self._source, self._where, self._filter_name = stream, where, nvdec.CODECS[context.name][1]
        self._color = color_of_tags(context.colorspace, context.color_range, str(context.pix_fmt))
        self._gst, _ = gst.gstreamer(where)
        text = gst_pipelines.packets(context.name, _PACKETS, decoding(context.name, low_latency), END)
        text = gst.with_appsink(text, drop=False, sync=False, nvmm=device is not None)
        self._pipeline = gst.Pipeline(text, False, timeout_s, counter, clock, where, device)
        self._put = self._pipeline.element(_PACKETS)
        self._feeder: threading.Thread | None = None
        self._closed, self._packets, self._on_host = threading.Event(), 0, device is None
        self._failure: Exception | None = None
        self._times = nvdec.DisplayTimes(_UNDERWAY)  # times of packets without a pts

    def images(self, packets: Iterable[av.Packet[Any]]) -> Iterator[Image]:
        """Yield images in display order. The decoder conceals damage inside an image.

        Raises:
            DecoderRefusedError: the decoder gave no image.
            DecoderFailedError: the decoder failed after an image.
            DeviceError: reading the packets failed.
        """
        self._feeder = threading.Thread(target=self._feed, args=(packets,), name="edgert-packets", daemon=True)
        self._feeder.start()
        count, refused = 0, ""
        try:
            for image in self._pipeline.images():
                count += 1
                if image.media_ns:
                    at_ns: int | None = image.media_ns - _BEFORE_NS
                else:  # GStreamer's parsers give 0 to a first packet without a time
                    at_ns = media_ns(self._times.take(), self._source.time_base)
                # A buffer in video memory declares its colors; the caps of nvvidconv's host memory do not.
                color = self._color if self._on_host else image.color
                yield replace(image, media_ns=at_ns, color=color)
                del image
        except DeviceError as error:
            refused = error.why
        if self._failure is not None:
            raise self._failure
        if refused or (self._packets and not count):
            kind = DecoderFailedError if count else DecoderRefusedError
            what, why = "the board cannot decode this video", refused or "it gave no image"
            raise kind(what, why=why, where=self._where, fix="decode: cpu")

    def close(self) -> None:
        """Stop the decoder, and wait until the packet that is being read has come. May be called twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._pipeline.close()
        if self._feeder is not None:
            self._feeder.join()

    def _feed(self, packets: Iterable[av.Packet[Any]]) -> None:
        """Feed packets until there are none or the decoder is closed; keep an error for :meth:`images`."""
        try:
            units = nvdec.StartCodes(self._filter_name, self._source)
            head = bytes(self._source.codec_context.extradata or b"")
            head = head if head.startswith(_START_CODES) else b""  # a camera may send it in its description only
            for packet in packets:
                for part in units.convert(packet):
                    if part.pts is None:
                        self._times.put(part.dts)
                    if self._closed.is_set() or not self._push(head + bytes(part), part.pts):
                        return
                    head = b""
        except Exception as error:  # noqa: BLE001 - images() raises it in the consumer's thread
            self._failure = error
        finally:
            self._put.end_of_stream()

    def _push(self, data: bytes, pts: int | None) -> bool:
        self._packets += 1
        buffer = self._gst.Buffer.new_wrapped(data)
        at_ns = media_ns(pts, self._source.time_base)
        if at_ns is not None:
            buffer.pts = max(at_ns + _BEFORE_NS, 0)
        return bool(self._put.push_buffer(buffer) == self._gst.FlowReturn.OK)
