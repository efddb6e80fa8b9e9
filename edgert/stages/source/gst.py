"""GStreamer pipelines as sources, through PyGObject. Buffers are mapped, not copied.

A Jetson's own camera and decoder are pipelines that :mod:`edgert.stages.source.gst_pipelines` writes.
"""

import ctypes
import importlib
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import DeviceError
from edgert.memory import Counter, Lease, lend
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import U8, Color, PixelFormat
from edgert.stages.context import Context
from edgert.stages.source.gst_pipelines import TO_NVMM
from edgert.stages.source.live import LONGEST_DAEMON_WAIT_S, LONGEST_WAIT_S, Device, FinalError, LiveSource, redact
from edgert.stages.source.nvmm import NvmmLoans
from edgert.stages.source.planes import plane_shapes
from edgert.stages.source.timeline import DEFAULT_PERIOD_NS, Image, MediaClock, Timeline

FIX_CAPS = (
    f"end the pipeline with a format that edgert reads: … ! videoconvert, or on a Jetson … ! {TO_NVMM} (its GPU then "
    "reads it in place)"
)


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
    """A GstBuffer mapped for reading, until the last array on it is freed.

    PyGObject's own ``Gst.Buffer.map`` copies to ``bytes``, so the C function is called. The address of the GstBuffer is
    its boxed object's hash, as in NVIDIA's DeepStream bindings.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer, self._info = buffer, _MapInfo()
        self._is_mapped = bool(_library().gst_buffer_map(hash(buffer), self._info, 1))  # 1 = GST_MAP_READ
        if not self._is_mapped:
            raise DeviceError(
                "a GStreamer buffer cannot be read",
                why="the processor cannot map its memory, such as NVMM or a GPU's",
                fix=FIX_CAPS,
            )

    def __del__(self) -> None:
        if self._is_mapped:
            self._is_mapped = False
            _library().gst_buffer_unmap(hash(self._buffer), self._info)

    @property
    def address(self) -> int:
        return int(self._info.data or 0)

    def planes(self, format: PixelFormat, width: int, height: int, offsets: Any, strides: Any) -> tuple[U8, ...]:
        """Return read-only arrays on the mapped bytes, each keeping the mapping alive."""
        memory = (ctypes.c_uint8 * self._info.size).from_address(self._info.data)
        memory.owner = self
        planes = []
        for number, shape in enumerate(plane_shapes(format, width, height)):
            steps = (int(strides[number]), *shape[2:], 1)
            plane: U8 = np.ndarray(shape, np.uint8, memory, int(offsets[number]), steps)
            plane.flags.writeable = False
            planes.append(plane)
        return tuple(planes)


APPSINK = "edgert"
_FAILED = "the GStreamer pipeline failed"
POLL_NS = 100_000_000
_FORMATS: dict[str, PixelFormat] = {
    "NV12": "nv12",
    "I420": "i420",
    "YUY2": "yuyv",
    "BGR": "bgr",
    "RGB": "rgb",
    "GRAY8": "gray",
}
CAPS = f"video/x-raw,format=(string){{{','.join(_FORMATS)}}}"
_NVMM_CAPS = "video/x-raw(memory:NVMM),format=(string)NV12"
_NVMM = re.compile(r"memory:NVMM[^!]*$")
_OWN_SINK = re.compile(rf"\bappsink\b[^!]*\bname\s*=\s*\"?{APPSINK}\b")
_COUNTED = re.compile(r"\bnum-buffers\s*=")
_LIVE = re.compile(
    r"\b(?:nvarguscamera|nvv4l2camera|v4l2|libcamera|rtsp|rtp|udp|srt|rist|webrtc|pipewire|ximage|decklink\w*|ndi|aravis|"
    r"pylon|tcpclient|tcpserver|shm)src\b|\bis-live\s*=\s*(?:true|1|yes)\b|\brtsps?://"
)


def gst_source(
    name: str,
    config: SourceStage,
    context: Context,
    pipeline: str = "",
    *,
    title: str = "GStreamer pipeline",
    lost: Callable[[str], DeviceError] | None = None,
) -> LiveSource:
    """Return a source for a ``gst-launch-1.0`` pipeline, by default that of ``gst:PIPELINE``.

    Adds ``appsink name=edgert`` where the pipeline has none.

    The pipeline is live when it holds a live element (a camera, a network source, ``is-live=true``); ``realtime:``
    overrides that. Live pipelines drop old frames and restart when they fail or end, unless ``num-buffers`` or
    ``reconnect: false`` lets them end. Other pipelines lose nothing; with ``realtime: true`` they run at their own
    speed.

    A frame's buffer belongs to the element that made it and returns there when the frame's lease ends. Cameras own few
    buffers, so copy frames that are kept for long. ``lost`` makes the error of a camera behind a daemon, which never
    ends and is tried again less often.

    Raises DeviceError: PyGObject or GStreamer is missing; on the first frame: the pipeline is refused or fails.
    """
    where, pipeline, clock = f"stages.{name}", pipeline or config.source.partition(":")[2], context.clock
    if lost is None:  # a pipeline file with a board's camera can be checked on machines without GStreamer
        gstreamer(where)
    is_live = names_live(pipeline)
    live = is_live if config.realtime is None else config.realtime
    timeline = Timeline(name, config, clock, MediaClock(is_live, DEFAULT_PERIOD_NS), fps=config.fps, paced=False)
    flags = {"drop": live and is_live, "sync": bool(config.realtime) and not is_live}

    def connect(device: CudaDevice | None) -> Device:
        gstreamer(where)
        text = with_appsink(pipeline, nvmm=device is not None, **flags)
        endless = reconnect and not _COUNTED.search(pipeline)
        return Pipeline(
            text, is_live, config.timeout, context.counter, clock, where, device, endless=endless, lost=lost
        )

    reconnect, why_not = config.reconnect and is_live, partial(why_not_on, pipeline)
    return LiveSource(
        name,
        title,
        connect,
        timeline,
        clock,
        live=live,
        reconnect=reconnect,
        start=config.start,
        why_not=why_not,
        longest_wait_s=LONGEST_WAIT_S if lost is None else LONGEST_DAEMON_WAIT_S,
    )


def why_not_on(pipeline: str, device: CudaDevice) -> str:
    """Return why this GPU cannot read a pipeline's buffers in place; empty when it can."""
    if not device.traits.integrated:
        return "GStreamer's buffers are in host memory"
    if _OWN_SINK.search(pipeline):
        return "the pipeline has its own appsink"
    return "" if _NVMM.search(pipeline) else "the pipeline does not end in video/x-raw(memory:NVMM),format=NV12"


def names_live(pipeline: str) -> bool:
    """Return whether a pipeline has a live element: a camera or a network source."""
    return bool(_LIVE.search(pipeline))


def with_appsink(pipeline: str, *, drop: bool, sync: bool, nvmm: bool = False) -> str:
    """Return the pipeline with an ``appsink name=edgert`` at its end that accepts the formats a frame may have.

    With ``nvmm`` it accepts a Jetson's video memory in place; without, video memory is copied to the host.
    """
    if _OWN_SINK.search(pipeline):
        return pipeline
    bare = pipeline.strip().rstrip("!").rstrip()
    if _NVMM.search(bare) and not nvmm:
        bare += " ! nvvidconv"
    flags = f"max-buffers={2 if drop else 4} drop={str(drop).lower()} sync={str(sync).lower()}"
    return f'{bare} ! appsink name={APPSINK} {flags} caps="{_NVMM_CAPS if nvmm else CAPS}"'


@lru_cache(maxsize=1)
def _modules() -> tuple[Any, Any]:
    # GStreamer loads libunwind. Libraries that are loaded later, such as ONNX Runtime, would then find its
    # _Unwind_Resume, and their C++ exceptions would abort the process. So libgcc's is loaded first.
    ctypes.CDLL("libgcc_s.so.1", mode=ctypes.RTLD_GLOBAL)
    gi = importlib.import_module("gi")
    for library in ("Gst", "GstApp", "GstVideo"):
        gi.require_version(library, "1.0")
    gst = importlib.import_module("gi.repository.Gst")
    importlib.import_module("gi.repository.GstApp")  # without it an appsink has no methods
    gst.init(None)
    return gst, importlib.import_module("gi.repository.GstVideo")


def gstreamer(where: str = "") -> tuple[Any, Any]:
    """Return the ``Gst`` and ``GstVideo`` modules, initialized. Raises DeviceError when they are not installed."""
    try:
        return _modules()
    except (ImportError, OSError, ValueError) as error:
        raise FinalError(
            "gst: needs GStreamer and PyGObject",
            why=str(error),
            where=where,
            fix="sudo apt install python3-gi gir1.2-gst-plugins-base-1.0 gstreamer1.0-plugins-good, and make the "
            "virtual environment with --system-site-packages",
        ) from error


@lru_cache(maxsize=32)
def properties_of(element: str) -> frozenset[str]:
    """Return an element's property names; empty where it is not installed. Raises DeviceError without GStreamer."""
    found, _ = gstreamer()
    made = found.ElementFactory.make(element, None)
    return frozenset() if made is None else frozenset(one.name for one in made.list_properties())


class PipelineError(DeviceError):
    """Error that a GStreamer pipeline reports."""


class BadPipelineError(PipelineError, FinalError):
    """Error of a GStreamer pipeline that can never work."""


class Pipeline(Device):
    """One running pipeline. Raises PipelineError when it is refused or does not start, DeviceError without GStreamer.

    Args:
        endless: whether its end is a failure, as ``rtspsrc`` ends the stream when its server is gone.
        lost: function that makes the error of a camera, whose end or failure means that the camera is lost: without
            one, nvarguscamerasrc prints why and ends the stream. Errors of the installation or of video memory keep
            their class.
    """

    def __init__(
        self,
        text: str,
        is_live: bool,
        timeout_s: float,
        counter: Counter,
        clock: Clock,
        where: str,
        device: CudaDevice | None,
        *,
        endless: bool = False,
        lost: Callable[[str], DeviceError] | None = None,
    ) -> None:
        self._gst, self._video = gstreamer(where)
        self._endless, self._lost = endless or lost is not None, lost
        self._nvmm = NvmmLoans(device, counter, where.removeprefix("stages.")) if device is not None else None
        self._where, self._timeout_s, self._counter, self._clock = where, timeout_s, counter, clock
        glib, why = importlib.import_module("gi.repository.GLib"), ""
        try:
            self._pipeline = self._gst.parse_launch(text)
        except glib.Error as refused:
            why = str(redact(refused.message))
        if why:  # raised outside of ``except``, because GStreamer's error may quote a password
            is_format = f"to {APPSINK}" in why  # "could not link capsfilter0 to edgert"
            fix = FIX_CAPS if is_format else "list the elements that are installed: gst-inspect-1.0"
            raise self._error(why, fix, BadPipelineError)
        self._bus = self._pipeline.get_bus()
        self._sink = self._pipeline.get_by_name(APPSINK)
        self._caps: Any = None
        if self._nvmm is not None:
            self._sink.set_property("enable-last-sample", False)  # it would keep one of the few buffers
            self._pad = self._sink.get_static_pad("sink")
            self._probe = self._pad.add_probe(self._gst.PadProbeType.EVENT_DOWNSTREAM, self._on_event, self._nvmm)
            self._nvmm.start()
        if self._pipeline.set_state(self._gst.State.PLAYING) == self._gst.StateChangeReturn.FAILURE:
            error = self.failure() or self._error("it did not start", "run it with gst-launch-1.0 to see more")
            self.close()
            raise error
        # Cameras number their buffers by offset. The offset of files may be something else, such as bytes.
        self._is_live = is_live
        self._offset: int | None = None

    def element(self, name: str) -> Any:
        return self._pipeline.get_by_name(name)

    def images(self) -> Iterator[Image]:
        """Yield images, blocking for each, until the end of the stream, unless it is endless.

        Raises DeviceError when an element fails, or after ``timeout`` without a frame.
        """
        silent_since_ns = self._clock.now_ns()
        while True:
            if self._nvmm is not None:
                self._nvmm.check()
            sample = self._sink.try_pull_sample(POLL_NS)
            if sample is not None:
                yield self._image(sample)
                del sample
                silent_since_ns = self._clock.now_ns()
                continue
            if (failure := self.failure()) is not None:
                raise failure
            if self._sink.is_eos():
                if self._endless:
                    raise self._error("its stream ended", "check the camera; with num-buffers= it may end")
                return
            if self._clock.now_ns() - silent_since_ns > self._timeout_s * 1e9:
                raise self._error(f"no frame for {self._timeout_s:g} s", "check the camera, or raise timeout:")

    def close(self) -> None:
        if self._nvmm is not None:
            if self._probe:
                self._pad.remove_probe(self._probe)  # which holds this object
                self._probe = 0
            self._nvmm.close()  # before the change of state, which frees the pool's buffers
        self._pipeline.set_state(self._gst.State.NULL)

    def _on_event(self, _: Any, info: Any, nvmm: NvmmLoans) -> Any:
        """Store new caps, and unmap buffers of the old ones, which their element frees after this event."""
        event = info.get_event()
        if event.type == self._gst.EventType.CAPS:
            self._caps = event.parse_caps()
            nvmm.forget()
        return self._gst.PadProbeReturn.OK

    def failure(self) -> DeviceError | None:
        message = self._bus.pop_filtered(self._gst.MessageType.ERROR)
        if message is None:
            return None
        error, debug = message.parse_error()
        debug_text = redact(debug or "")
        why = f"{message.src.get_name()}: {redact(error.message)} {debug_text}".strip()
        if "not-negotiated" in debug_text or "not-linked" in debug_text:
            return self._error(why, FIX_CAPS, BadPipelineError)
        return self._error(why, "run it with gst-launch-1.0 to see more")

    def _error(self, why: str, fix: str, kind: type[PipelineError] = PipelineError) -> DeviceError:
        return kind(_FAILED, why=why, where=self._where, fix=fix) if self._lost is None else self._lost(why)

    def _image(self, sample: Any) -> Image:
        now_ns = self._clock.now_ns()
        buffer = sample.get_buffer()
        info = self._video.VideoInfo.new_from_caps(sample.get_caps())
        pixel_format = _FORMATS[info.finfo.name]
        meta = self._video.buffer_get_video_meta(buffer)
        layout = meta or info
        mapping = Mapping(buffer)
        is_numbered = self._is_live and buffer.offset != self._gst.BUFFER_OFFSET_NONE
        last, self._offset = self._offset, buffer.offset if is_numbered else None
        planes: tuple[U8, ...]
        lease: Lease
        color: Color | None = None
        if self._nvmm is not None:
            is_current = self._caps is not None and sample.get_caps().is_equal(self._caps)
            planes, lease, color = self._nvmm.take(mapping.address, mapping, keep=is_current)
        else:
            planes = mapping.planes(pixel_format, info.width, info.height, layout.offset, layout.stride)
            lease = lend(mapping, self._counter)
        return Image(
            format=pixel_format,
            planes=planes,
            lease=lease,
            timestamp_ns=now_ns,
            media_ns=None if buffer.pts == self._gst.CLOCK_TIME_NONE else buffer.pts,
            color=color or _color(str(info.colorimetry.matrix.value_nick), str(info.colorimetry.range.value_nick)),
            lost=0 if last is None or not is_numbered else max(buffer.offset - last - 1, 0),
        )


@lru_cache(maxsize=32)
def _color(matrix: str, range_name: str) -> Color:
    """Return the colors for the nicknames of a GstVideoColorMatrix and a GstVideoColorRange (0-255 or 16-235)."""
    return Color("bt709" if matrix in ("bt709", "bt2020", "smpte240m") else "bt601", range_name == "0-255")
