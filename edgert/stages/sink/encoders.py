"""The interface of video encoders, and FFmpeg's encoders: on the CPU, or by NVENC.

The others are a Jetson's own (:mod:`.gst_encoder`) and NVENC without FFmpeg (:mod:`.nvenc`). Each returns complete
access units with start codes, the first with the parameter sets. None reorders images, so each unit has its image's
time.
"""

import logging
import os
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, cast

import cv2
import numpy as np

from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice, DeviceView
from edgert.runtime.frame import U8, Color, yuv_planes
from edgert.runtime.records import Result
from edgert.runtime.worker import Worker
from edgert.stages.context import ImageBuffers
from edgert.stages.draw import ImagePainter
from edgert.stages.gpu.download import Downloader

log = logging.getLogger("edgert.sink")

TICKS_HZ = 60_000  # a multiple of 24, 25, 30 and 60 fps and their NTSC forms; MPEG-4 allows at most 65535
KEYFRAME_EVERY = 60  # frames; players seek to key frames
_MAX_THREADS = 4
_MOST_PENDING = 2  # images of a stream that are not encoded yet
# ITU-T H.273 code points, which FFmpeg's enumerations follow: primaries, transfer, matrix.
_CODE_POINTS = {"bt601": (6, 6, 6), "bt709": (1, 1, 1)}
_LIMITED, _FULL = 1, 2  # AVColorRange

Codec = Literal["h264", "h265"]
Kind = Literal["board, on the GPU", "board", "nvenc", "ffmpeg", "cpu"]


@dataclass(frozen=True, slots=True)
class VideoFormat:
    """The format of a video.

    Attributes:
        quality: 0 to 51, lower is better: the CRF on the CPU, the constant quantizer in hardware.
        width, height: size in pixels, even.
        rate: frames per second; None: each image is shown at its own time.
        color: matrix and range of its YUV.
        bitrate_bps: bits per second of live video; 0 for a file, which is encoded by ``quality``.
    """

    codec: Codec
    quality: int
    width: int
    height: int
    rate: Fraction | None
    color: Color
    bitrate_bps: int = 0


class Unit(NamedTuple):
    """One encoded image: an access unit with start codes. ``tick`` is when it is shown, in 1 / :data:`TICKS_HZ` s."""

    data: bytes
    tick: int
    is_key: bool


class Encoder(Protocol):
    """Video encoder, for use in one thread. Its methods raise DeviceError when it fails.

    Attributes:
        title: name in messages.
        raw: FFmpeg's name of the raw stream format of its units.
    """

    kind: Kind
    title: str
    raw: str

    def encode(self, result: Result, tick: int) -> list[Unit]:
        """Encode the drawn image, or the frame where nothing was drawn, for ``tick``; return the finished units.

        The result may be released afterwards.
        """

    def refresh(self) -> None:
        """Request a key frame as the next image. An encoder that takes no requests makes one at its regular time."""

    def finish(self) -> list[Unit]:
        """End the video; return the remaining units."""

    def close(self) -> None:
        """Free the encoder's resources, also after a failure."""


def video_size(result: Result) -> tuple[int, int]:
    """Return (width, height) of a result's video: those of its image, rounded down to even numbers."""
    if result.image is None:
        return result.frame.width & ~1, result.frame.height & ~1
    height, width = result.image.shape[:2]
    return width & ~1, height & ~1


def video_color(result: Result) -> Color:
    """Return the colors of a result's video: the frame's where its planes are copied, else those of OpenCV."""
    is_copied = result.image is None and result.frame.format in ("i420", "nv12")
    return result.frame.color if is_copied else Color()  # OpenCV converts to BT.601 of limited range


def video_format(
    result: Result, codec: Codec, quality: int, rate: Fraction | None, bitrate_bps: int = 0
) -> VideoFormat:
    """Return the format of a video that begins with a result."""
    return VideoFormat(codec, quality, *video_size(result), rate, video_color(result), bitrate_bps)


def image_gpu(result: Result) -> CudaDevice | None:
    """Return the GPU that holds the image to encode; None where it is on the host."""
    shown: Any = result.frame.planes[0] if result.image is None else result.image
    if not isinstance(shown, DeviceView) or shown.stream is None:
        return None
    return cast("CudaDevice", shown.stream.device)


class I420Writer:
    """Converter of results to packed I420. Buffers are reused once nothing refers to them."""

    def __init__(self) -> None:
        self._packed, self._bgr, self._downloader = ImageBuffers(), ImagePainter(), Downloader()

    def write(self, result: Result) -> U8:
        """Return the drawn image, or the frame where nothing was drawn, as I420.

        An i420 or nv12 frame is copied plane by plane, never through BGR. An odd last row or column is left out: 4:2:0
        has no half chroma pixels. The copy is counted; an image on a GPU is first copied to the host, once.

        Returns:
            (h * 3 / 2, w) uint8, h and w even: the planes Y, U and V, in the colors of :func:`video_color`.
        """
        width, height = video_size(result)
        counter = result.frame.lease.counter
        packed = self._packed.take((height * 3 // 2, width), counter)
        if result.image is None and result.frame.format in ("i420", "nv12"):
            result.frame.lease.retain()
            frame = self._downloader.to_host(result).frame
            chroma = packed[height:].reshape(2, height // 2, width // 2)
            luma, *others = yuv_planes(frame)
            np.copyto(packed[:height], luma[:height, :width])
            for out, plane in zip(chroma, others, strict=True):
                np.copyto(out, plane[: height // 2, : width // 2])
            frame.lease.release()
        else:
            cv2.cvtColor(self._bgr.host_image(result)[:height, :width], cv2.COLOR_BGR2YUV_I420, dst=packed)
        counter.copied(packed.nbytes)
        return packed

    def close(self) -> None:
        """Free the buffers."""
        self._bgr.close()


class FfmpegEncoder:
    """One of FFmpeg's encoders, by name. Raises DeviceError when it cannot be opened.

    On the CPU, a file's images are encoded in a thread of their own, because one thread is not enough for several
    cameras. Live video is encoded in the caller's thread, so that each image comes out at once.
    """

    def __init__(self, name: str, format: VideoFormat) -> None:
        import av

        self._av: Any = av
        self._i420 = I420Writer()
        self.kind: Kind = "cpu" if name not in NVENC.values() else "ffmpeg"
        self.title = f"the CPU ({name})" if name not in NVENC.values() else f"NVENC (FFmpeg's {name})"
        self.raw = "m4v" if name == "mpeg4" else "h264" if format.codec == "h264" else "hevc"
        codec = self._codec = self._av.CodecContext.create(name, "w")
        codec.width, codec.height, codec.pix_fmt = format.width, format.height, "yuv420p"
        codec.time_base = Fraction(1, TICKS_HZ)
        codec.framerate = format.rate or Fraction(30)
        codec.gop_size = KEYFRAME_EVERY
        codec.max_b_frames = 0  # they would delay the output, and shift all times by two frames
        codec.thread_count = min(_MAX_THREADS, os.cpu_count() or 1)
        set_color(codec, format.color)
        bitrate_bps = format.bitrate_bps
        codec.options = _live_options(name, bitrate_bps) if bitrate_bps else _file_options(name, format.quality)
        self._key_requested = False
        try:
            codec.open()
        except (ValueError, av.FFmpegError) as error:
            raise DeviceError(f"{name} cannot be opened", why=str(error)) from error
        self._pending = deque[Future[list[Unit]]]()
        self._worker = Worker("edgert-encoder") if self.kind == "cpu" and not bitrate_bps else None
        if self._worker is not None:
            self._worker.start()

    def encode(self, result: Result, tick: int) -> list[Unit]:
        """Encode an image; return the finished units. Raises PyAV's errors."""
        image = self._i420.write(result)
        if self._worker is None:
            return self._encode(image, tick)
        self._pending.append(self._worker.submit(partial(self._encode, image, tick)))
        return self._finished_units(_MOST_PENDING)

    def _finished_units(self, most: int) -> list[Unit]:
        """Return the units of finished images; wait while more than ``most`` images are pending."""
        found = list[Unit]()
        while self._pending and (len(self._pending) > most or self._pending[0].done()):
            found += self._pending.popleft().result()
        return found

    def _encode(self, image: U8, tick: int) -> list[Unit]:
        frame = self._av.VideoFrame.from_numpy_buffer(image, "yuv420p")  # no copy: FFmpeg holds it
        frame.pts, frame.time_base = tick, Fraction(1, TICKS_HZ)
        if self._key_requested:
            frame.pict_type, self._key_requested = self._av.video.frame.PictureType.I, False
        return self._units(frame)

    def refresh(self) -> None:
        """Make the next image a key frame."""
        self._key_requested = True

    def finish(self) -> list[Unit]:
        """Return the remaining units. Raises PyAV's errors."""
        return [*self._finished_units(0), *self._units(None)]

    def close(self) -> None:
        """Free the encoder's memory."""
        if self._worker is not None:
            self._worker.stop()
            self._worker.join()
        self._pending.clear()  # errors of images refer to this object
        self._i420.close()

    def _units(self, frame: Any) -> list[Unit]:
        return [Unit(bytes(packet), packet.pts, packet.is_keyframe) for packet in self._codec.encode(frame)]


def encoder_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that encoders raise while running."""
    import av

    return DeviceError, ValueError, av.FFmpegError


def set_color(codec: Any, color: Color) -> None:
    """Write the colors into a video's header; without them, players guess from the size."""
    codec.color_primaries, codec.color_trc, codec.colorspace = _CODE_POINTS[color.matrix]
    codec.color_range = _FULL if color.full_range else _LIMITED


ON_CPU: dict[Codec, tuple[str, ...]] = {"h264": ("libx264", "mpeg4"), "h265": ("libx265",)}
"""FFmpeg's encoders on the CPU. Every FFmpeg has MPEG-4, and nearly every player plays it."""
NVENC: dict[Codec, str] = {"h264": "h264_nvenc", "h265": "hevc_nvenc"}


def _file_options(name: str, quality: int) -> dict[str, str]:
    """Return the options for a file of some quality.

    CRF and quantizer share the scale 0 to 51 of ITU-T H.264 and H.265, on which 6 more halve the precision. x265 needs
    a CRF that is 5 higher than x264's for the same look (https://trac.ffmpeg.org/wiki/Encode/H.265).
    """
    if name == "libx264":
        return {"preset": "veryfast", "crf": str(quality)}
    if name == "libx265":
        return {"preset": "superfast", "crf": str(min(quality + 5, 51)), "x265-params": "log-level=error"}
    if name == "mpeg4":
        return dict.fromkeys(("qmin", "qmax"), str(2 + quality * 29 // 51))  # maps CRF to MPEG-4's quantizer, 2 to 31
    return {"preset": "p4", "rc": "constqp", "qp": str(quality)}


_LIVE = {  # settings without delay: each image is encoded before the next one comes
    "libx264": {"preset": "superfast", "tune": "zerolatency", "profile": "baseline", "forced-idr": "1"},
    "h264_nvenc": {"preset": "p3", "tune": "ull", "profile": "baseline", "rc": "cbr", "delay": "0", "forced-idr": "1"},
}


def _live_options(name: str, bitrate_bps: int) -> dict[str, str]:
    """Return the options for live video. ``bufsize`` limits an image to the bits of half a second."""
    rate = {"b": str(bitrate_bps), "maxrate": str(bitrate_bps), "bufsize": str(bitrate_bps // 2)}
    return {**_LIVE[name], **rate, "sc_threshold": "0"}  # no key frames at scene cuts


def has_encoder(name: str) -> bool:
    """Return whether PyAV's FFmpeg was built with an encoder; opening it may still fail."""
    import av

    try:
        av.codec.Codec(name, "w")
    except av.codec.codec.UnknownCodecError:
        return False
    return True


def cpu_encoder_name(codec: Codec, where: str, live: bool = False) -> str:
    """Return the name of FFmpeg's encoder on the CPU. Raises DeviceError when there is none.

    With ``live``, MPEG-4 is not used, because browsers do not play it.
    """
    wanted, *others = ON_CPU[codec][: 1 if live else None]
    for name in (wanted, *others):
        if not has_encoder(name):
            continue
        if name != wanted:
            log.warning("%s: PyAV has no %s encoder; writing %s, with larger and softer video", where, wanted, name)
        return name
    raise DeviceError(
        "no video encoder",
        why=f"PyAV was built without {' and '.join((wanted, *others))}",
        where=where,
        fix="pip install --force-reinstall --only-binary av av, or "
        + ("codec: h264" if codec == "h265" else "use sink: images"),
    )
