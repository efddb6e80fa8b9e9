"""A Jetson's own video encoder: GStreamer's ``nvv4l2h264enc`` and ``nvv4l2h265enc``.

Images on the GPU are written into video memory (NVMM) that the encoder reads in place. Images on the host go there
through ``nvvidconv``. None of this has run on a board.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from edgert.clock import REAL
from edgert.errors import DeviceError
from edgert.installation import command
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.runtime.records import Result
from edgert.stages.sink.encoders import KEYFRAME_EVERY, TICKS_HZ, Codec, I420Writer, Kind, Unit, VideoFormat, log
from edgert.stages.sink.gpu_images import GpuImages
from edgert.stages.source import gst, gst_pipelines
from edgert.stages.source.nvmm_mapping import JetsonCalls, MappedSurface, Surface, jetson_calls, map_surface

# A GstBuffer of NVMM holds exactly the ``NvBufSurface`` struct, and elements use the memory that this names. Savant
# feeds ``nvv4l2h264enc`` in the same way (https://github.com/insight-platform/Savant, NvBufSurfaceGenerator).
SURFACE_BYTES = ctypes.sizeof(Surface)


class NvmmPool:
    """Pitch-linear NV12 images in a Jetson's video memory (NVMM), each mapped to CUDA once for writing.

    Args:
        calls: function that returns the C functions.

    Attributes:
        surfaces: addresses of their NvBufSurfaces.
        access: how CUDA accesses them, and why not in a better way.

    Raises:
        DeviceError: there is too little memory, or CUDA cannot write it. Nothing stays allocated then.
    """

    def __init__(
        self, device: CudaDevice, width: int, height: int, count: int, calls: Callable[[], JetsonCalls] = jetson_calls
    ) -> None:
        self._device = device
        self.images, self.surfaces = list[MappedSurface](), list[int]()
        self.access, known = "", None
        with device:
            self._calls = calls()
            try:
                for _ in range(count):
                    self.surfaces.append(self._calls.create(width, height))
                    image, known = map_surface(self.surfaces[-1], self._calls, known, writes=True)
                    self.images.append(image)
                    self.access = f"{known.way} ({known.why})" if known.why else known.way
            except DeviceError:
                self.close()
                raise

    def close(self) -> None:
        """Unmap and free the memory, which nothing may use any more. May be called twice.

        Raises DeviceError when a mapping cannot be undone, after undoing all others.
        """
        failure: DeviceError | None = None
        with self._device:
            while self.images:
                try:
                    self.images.pop().close()
                except DeviceError as error:
                    failure = error
            while self.surfaces:
                self._calls.destroy(self.surfaces.pop())
        if failure is not None:
            raise failure


ENCODERS = dict(gst_pipelines.ENCODERS)
_IMAGES = "images"
IN_FLIGHT = 10
"""Images in video memory: more than V4L2 requires for an encoder's input."""
_ON_HOST = 4
"""Images on the host that may wait for nvvidconv: fewer than its buffers."""
_MOST_BEHIND = 60
"""Images inside an encoder that has failed; a working one holds a few."""
_TRIAL_FRAMES = 2
_TAKE_NS = 20_000_000
_JETSON_PROPERTIES = frozenset({"insert-sps-pps", "maxperf-enable", "preset-level", "ratecontrol-enable"})
"""Properties that the encoder of the same name in a desktop GPU's driver does not have."""
_CLOCK_TIME_NONE = (1 << 64) - 1  # GST_CLOCK_TIME_NONE


@lru_cache(maxsize=2)
def missing(codec: Codec) -> str:
    """Return why GStreamer cannot use this board's encoder, and what to do; empty when it can."""
    try:
        found, _ = gst.gstreamer()
    except DeviceError as error:
        return f"{error.why}: {error.fix}"
    names = gst_pipelines.ENCODERS[codec], "nvvidconv"
    absent = next((name for name in names if found.ElementFactory.find(name) is None), "")
    fix = "sudo apt install nvidia-l4t-gstreamer; in a container: --runtime nvidia"
    if absent:
        return f"GStreamer has no {absent}: {fix}"
    lacking = _JETSON_PROPERTIES.difference(gst.properties_of(names[0]))  # Thor has a desktop GPU's driver
    return f"{names[0]} has no {', '.join(sorted(lacking))}: {command('nvdec')} (PyNvVideoCodec)" if lacking else ""


class GstEncoder:
    """Encoder in a GStreamer pipeline.

    Args:
        device: GPU that holds the images; None for the host.
        stall_s: seconds without input or output after which the encoder has failed.
        drawn: whether images are drawn ones, which a CUDA kernel converts.
        trial: whether to encode and discard two images first: only a running pipeline reports missing hardware, or a
            size that it does not support.

    Raises:
        DeviceError: the pipeline cannot be made, the trial fails, or CUDA cannot write video memory.
        BuildError: the CUDA kernel is missing.
    """

    def __init__(
        self,
        format: VideoFormat,
        device: CudaDevice | None,
        where: str,
        stall_s: float,
        drawn: bool = False,
        trial: bool = True,
    ) -> None:
        self.kind: Kind = "board" if device is None else "board, on the GPU"
        self.title = f"the board's own encoder ({gst_pipelines.ENCODERS[format.codec]})"
        self.raw = "h264" if format.codec == "h264" else "hevc"
        self._format, self._where, self._stall_s = format, where, stall_s
        if trial:
            self._try()
        self._i420 = I420Writer()
        self._ticks = list[int]()
        self._in_use: dict[int, object] = {}
        self._room = threading.Condition()
        self._pool: NvmmPool | None = None
        self._on_gpu: GpuImages | None = None
        names, size = (_IMAGES, gst.APPSINK), (format.width, format.height)
        fps = None if format.rate is None else float(format.rate)
        encoder, nvmm = ENCODERS[format.codec], device is not None
        self._most = IN_FLIGHT if nvmm else _ON_HOST
        text = gst_pipelines.encoding(
            format.codec, encoder, names, size, fps, format.quality, KEYFRAME_EVERY, nvmm=nvmm, bps=format.bitrate_bps
        )
        self._gst, self._video = gst.gstreamer(where)
        self._pipeline = gst.Pipeline(text, False, stall_s, Counter(), REAL, where, None)
        self._put, self._sink = self._pipeline.element(_IMAGES), self._pipeline.element(gst.APPSINK)
        try:
            if device is not None:
                self._on_gpu = GpuImages(device, drawn)
                self._pool = NvmmPool(device, *size, IN_FLIGHT)
                log.info("%s: CUDA writes video memory in place, by %s", where, self._pool.access)
        except Exception:  # of any kind: no element may go on with freed memory
            self.close()
            raise

    def encode(self, result: Result, tick: int) -> list[Unit]:
        """Encode like every encoder. Raises DeviceError: GStreamer's error, or the encoder is stuck."""
        slot = self._free_slot()
        if self._pool is not None and self._on_gpu is not None:
            self._on_gpu.write(result, self._pool.images[slot].planes)
            self._push(slot, self._pool.surfaces[slot], SURFACE_BYTES, self._pool, tick)
        else:
            packed = self._i420.write(result)
            self._push(slot, packed.ctypes.data, packed.nbytes, packed, tick)
        units = list(iter(lambda: self._unit(0), None))
        if len(self._ticks) > _MOST_BEHIND:
            raise self._error(f"it is {_MOST_BEHIND} images behind")
        return units

    def refresh(self) -> None:
        """Make the next image a key frame, by NVIDIA's signal, or by GStreamer's event where there is none."""
        if (encoder := self._pipeline.element(gst_pipelines.ENCODER)) is not None:
            encoder.emit("force-IDR")
        else:
            self._sink.send_event(self._video.video_event_new_upstream_force_key_unit(_CLOCK_TIME_NONE, True, 0))

    def finish(self) -> list[Unit]:
        """Finish like every encoder. Raises DeviceError: GStreamer's error, or the encoder is stuck."""
        self._put.end_of_stream()
        units, last_s = list[Unit](), time.monotonic()
        while True:
            if (unit := self._unit(_TAKE_NS)) is not None:
                units.append(unit)
                last_s = time.monotonic()
            elif self._sink.is_eos():
                break
            elif time.monotonic() - last_s > self._stall_s:
                raise self._stalled("gives no image")
        if self._ticks:
            self._warn_of_lost(len(self._ticks))
        return units

    def close(self) -> None:
        """End the pipeline, whose elements may hold images; then free the images' memory."""
        self._pipeline.close()
        del self._pipeline, self._put, self._sink
        self._i420.close()
        if self._on_gpu is not None:
            self._on_gpu.close()
        if self._pool is not None:
            self._pool.close()

    def _try(self) -> None:
        trial = GstEncoder(self._format, None, self._where, self._stall_s, trial=False)
        gray = np.full((self._format.height * 3 // 2, self._format.width), 128, np.uint8)
        try:
            for tick in range(_TRIAL_FRAMES):
                trial._push(tick, gray.ctypes.data, gray.nbytes, gray, tick * TICKS_HZ // 30)
            if not trial.finish():
                raise trial._error("it gave no image")
        finally:
            trial.close()

    def _free_slot(self) -> int:
        """Return a free slot, waiting for one at most ``stall_s``. Raises DeviceError."""
        with self._room:
            for _ in range(max(1, int(self._stall_s / 0.1))):
                if self._room.wait_for(lambda: len(self._in_use) < self._most, 0.1):
                    return next(slot for slot in range(self._most) if slot not in self._in_use)
                if (failure := self._pipeline.failure()) is not None:
                    raise failure
        raise self._stalled("takes no image")

    def _push(self, slot: int, address: int, nbytes: int, owner: object, tick: int) -> None:
        with self._room:
            self._in_use[slot] = owner

        def free() -> None:
            with self._room:
                self._in_use.pop(slot, None)
                self._room.notify_all()

        buffer = self._gst.Buffer.new()
        _append(hash(buffer), address, nbytes, free)
        buffer.pts = tick * 1_000_000_000 // TICKS_HZ
        self._ticks.append(tick)
        if self._put.push_buffer(buffer) != self._gst.FlowReturn.OK:
            raise self._pipeline.failure() or self._error("it takes no more images")

    def _unit(self, wait_ns: int) -> Unit | None:
        """Return the next unit, or None. Raises the error that an element reported."""
        sample = self._sink.try_pull_sample(wait_ns)
        if sample is None:
            if (failure := self._pipeline.failure()) is not None:
                raise failure
            return None
        buffer = sample.get_buffer()
        at_ns = sample.get_segment().to_running_time(self._gst.Format.TIME, buffer.pts)
        is_key = not buffer.has_flags(self._gst.BufferFlags.DELTA_UNIT)
        return Unit(buffer.extract_dup(0, buffer.get_size()), self._tick_of(at_ns), is_key)

    def _tick_of(self, at_ns: int) -> int:
        """Return the tick of the image with this time; elements round times, V4L2 to microseconds."""
        near = next((tick for tick in self._ticks if abs(tick * 1_000_000_000 // TICKS_HZ - at_ns) <= 2_000), None)
        if near is None:
            return self._ticks.pop(0) if self._ticks else at_ns * TICKS_HZ // 1_000_000_000
        lost = self._ticks.index(near)
        if lost:
            self._warn_of_lost(lost)
        del self._ticks[: lost + 1]
        return near

    def _warn_of_lost(self, count: int) -> None:
        log.warning("%s: the encoder lost %d image%s", self._where, count, "s" * (count > 1))

    def _stalled(self, what: str) -> DeviceError:
        return self._error(f"it {what} for {self._stall_s:g} s")

    def _error(self, why: str) -> DeviceError:
        return DeviceError(f"{self.title} failed", why=why, where=self._where, fix="encode: cpu")


# PyGObject copies memory into a GstBuffer. gst_memory_new_wrapped does not, and reports when the last element frees it.

_Notify = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_waiting: dict[int, Callable[[], None]] = {}
"""Function to call when GStreamer frees a buffer's memory, by its id."""


def _release_buffer(number: int) -> None:
    _waiting.pop(number)()


_notify = _Notify(_release_buffer)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libgstreamer-1.0.so.0")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.gst_memory_new_wrapped.argtypes = (ctypes.c_int, pointer, size, size, size, pointer, _Notify)
    library.gst_memory_new_wrapped.restype = pointer
    library.gst_buffer_append_memory.argtypes = (pointer, pointer)
    return library


def _append(buffer: int, address: int, nbytes: int, release: Callable[[], None]) -> None:
    """Append memory to a GstBuffer; call ``release`` when GStreamer frees it."""
    number = id(release)
    _waiting[number] = release
    memory = _library().gst_memory_new_wrapped(0, address, nbytes, 0, nbytes, number, _notify)
    _library().gst_buffer_append_memory(buffer, memory)
