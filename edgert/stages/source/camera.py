"""Cameras of this machine.

USB and other V4L2 cameras come through FFmpeg, the board's decoder, or the driver itself, which writes to GPU memory.
CSI cameras of a Jetson (``csi://0``) come through its image processor and the camera daemon.
"""

import logging
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from edgert.board import detect
from edgert.board.devices import ARGUS_SOCKET, CSI_DAEMON, CSI_INSTEAD, csi_sensors, why_no_csi
from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.context import Context
from edgert.stages.source import ffmpeg, gst
from edgert.stages.source.decoders import DecoderChoice
from edgert.stages.source.gst_decoder import jetson_missing, missing_mjpeg
from edgert.stages.source.gst_pipelines import JETSON_DECODER, USB_CODECS, csi, usb
from edgert.stages.source.live import Device, FinalError, LiveSource
from edgert.stages.source.timeline import Image, MediaClock, Timeline
from edgert.stages.source.v4l2 import FORMATS, Kernel, UserPointerCamera
from edgert.stages.source.v4l2_modes import MJPEG, Offers, RateCheck, describe_rates, nearest, offers, wants_mjpeg
from edgert.units import whole_number

log = logging.getLogger("edgert.source")

DEVICES = Path("/dev")
_FOURCC = {"mjpeg": "MJPG", "yuyv422": "YUYV", "yuyv": "YUYV", "h264": "H264", "gray": "GREY", "nv12": "NV12"}
"""``format:`` of a source, FFmpeg's name → V4L2's four letters."""

_ENABLE = "switch the sensor on with sudo /opt/nvidia/jetson-io/jetson-io.py, and check its cable"
_RAW = re.compile(r"BYR2|(?:BG|GB|BA|GR|RG)1[0246]")
"""Four letters of the raw formats of image sensors with more than 8 bits; FFmpeg converts those of 8."""


def camera_source(name: str, config: SourceStage, context: Context) -> LiveSource:
    """Return a live source for the V4L2 device in ``source``, set to ``size``, ``fps`` and ``format`` as far as it can.

    It waits for an unplugged camera. Where a GPU shares the processor's memory and reads ``format``, the driver writes
    where the GPU reads.

    Raises ConfigError: ``source`` names no device. Raises DeviceError: on the first frame: there is no such camera, or
    this user may not read it.
    """
    path = device_path(config.source, f"stages.{name}.source")
    live = True if config.realtime is None else config.realtime
    timeline = Timeline(name, config, context.clock, MediaClock(live=True), fps=None, paced=False)
    devices = _Devices(name, path, config, context)
    return LiveSource(
        name,
        path,
        devices.connect,
        timeline,
        context.clock,
        live=live,
        reconnect=config.reconnect,
        start=config.start,
        why_not=devices.why_not_on_gpu,
    )


class _Devices:
    """Ways to open one camera, best first: the board's decoder, the driver writing to GPU memory, FFmpeg.

    Its pixel format and rate are chosen by what the pipeline file requests and the driver lists.
    """

    def __init__(self, name: str, path: str, config: SourceStage, context: Context) -> None:
        self._where, self._path, self._requested = f"stages.{name}", path, config
        self._config = config  # with ``format: mjpeg`` where that was chosen
        self._offers: Offers = {}  # formats and rates of the camera at its size; empty where its driver lists nothing
        self._counter, self._clock = context.counter, context.clock
        self._choice = DecoderChoice(self._where, config.decode)
        self._check = RateCheck(self._where, path, config.fps, context.clock) if config.fps else None

    def connect(self, device: CudaDevice | None) -> Device:
        """Open the camera. Raises DeviceError: there is no such camera, or this user may not read it."""
        check_device(self._path, self._where)
        self._update_modes()
        refuse_bare_sensor(self._path, self._offers, self._where)
        camera = self._open(device)
        return camera if self._check is None else self._check.watch(camera, self._offers)

    def why_not_on_gpu(self, device: CudaDevice) -> str:
        """Return why the camera cannot write images to GPU memory, as far as is known before it is opened."""
        self._update_modes()
        is_known = not self._why_not_on_board() or self._format in FORMATS
        return "" if is_known else f"its format is not known; {', '.join(FORMATS)} can be read in place"

    @property
    def _format(self) -> str:
        return (self._config.format or "").lower()

    def _update_modes(self) -> None:
        """Read the camera's modes again, because another one may be plugged in. Without a camera nothing changes."""
        requested = self._requested
        size, offered = offers(self._path, requested.size, Kernel())
        if not offered:
            return
        self._offers, before = offered, self._config.format
        is_mjpeg = not requested.format and (
            wants_mjpeg(offered, requested.fps) or (requested.decode == "gpu" and MJPEG in offered)
        )
        self._config = requested.model_copy(update={"format": "mjpeg"}) if is_mjpeg else requested
        if is_mjpeg and before != "mjpeg" and size is not None:
            shown = "%s: MJPEG is requested from camera %s; frames/s at %dx%d: %s"
            log.info(shown, self._where, self._path, *size, describe_rates(offered))

    def _open(self, device: CudaDevice | None) -> Device:
        path, where, config, counter, clock = self._path, self._where, self._config, self._counter, self._clock
        if (camera := self._open_on_board(device)) is not None:
            return camera
        if device is not None and self._format in FORMATS:
            try:
                return UserPointerCamera(path, config, device, counter, clock, where, Kernel())
            except DeviceError as error:  # opening it another way reports a camera that is really broken
                log.info("%s: its frames go through the processor: %s", where, error.why)
        requested = {
            "video_size": "x".join(map(str, config.size)) if config.size else None,
            "framerate": f"{config.fps:g}" if config.fps else None,
            "input_format": config.format,
        }
        options = {key: value for key, value in requested.items() if value is not None}
        return ffmpeg.Video(
            path, counter, clock, where=where, format="v4l2", options=options, timeout_s=config.timeout, live=True
        )

    def _open_on_board(self, device: CudaDevice | None) -> Device | None:
        """Return the camera whose images the board decodes; None where the board cannot.

        Raises FinalError: ``decode: gpu``, and neither the board nor a GPU can decode them.
        """
        config = self._config
        reason = self._why_not_on_board()
        if not reason:
            if config.fps:  # GStreamer refuses a rate that the camera does not offer
                fps = nearest(self._offers, _FOURCC.get(self._format, ""), config.fps)
                config = config.model_copy(update={"fps": fps})
            try:
                camera = JetsonCamera(self._path, config, self._counter, self._clock, self._where, device, self._choice)
                self._choice.log_decoder("", JETSON_DECODER)
                return camera
            except DeviceError as error:
                reason = error.why
                if config.decode != "gpu":
                    self._choice.fall_back(reason)
        if config.decode == "gpu" and device is None:
            what = f"the images of camera {self._path} cannot be decoded on the GPU"
            raise FinalError(what, why=reason, where=f"{self._where}.decode", fix="leave decode: out")
        return None

    def _why_not_on_board(self) -> str:
        """Return why the board does not decode the camera's images; empty when it does."""
        if self._config.decode == "cpu":
            return "decode: cpu"
        if self._format not in USB_CODECS:
            return f"format: is none of {', '.join(USB_CODECS)}"
        return self._choice.refused or jetson_missing() or (missing_mjpeg() if self._format == "mjpeg" else "")


class JetsonCamera(Device):
    """V4L2 device whose compressed images the board's own decoder decodes.

    Where that fails before the first image, or often after it, the next connection decodes on the processor, unless
    ``decode: gpu``.
    """

    def __init__(
        self,
        path: str,
        config: SourceStage,
        counter: Counter,
        clock: Clock,
        where: str,
        device: CudaDevice | None,
        choice: DecoderChoice,
    ) -> None:
        text = gst.with_appsink(usb(path, config), drop=True, sync=False, nvmm=device is not None)
        fix = f"check cable, power and USB bandwidth; fuser {path} shows who uses it"
        self._choice, self._clock = choice, clock
        lost = lambda why: DeviceError(f"lost camera {path}", why=why, where=where, fix=fix)  # noqa: E731
        self._pipeline = gst.Pipeline(text, True, config.timeout, counter, clock, where, device, lost=lost)

    def images(self) -> Iterator[Image]:
        count = 0
        try:
            for image in self._pipeline.images():
                count += 1
                yield image
                del image
        except DeviceError as error:
            if not count and self._choice.decode != "gpu":
                self._choice.fall_back(error.why)
            elif "v4l2src" not in error.why:  # that element is the camera itself, perhaps unplugged
                self._choice.record_failure(error.why, self._clock.now_ns())
            raise

    def close(self) -> None:
        self._pipeline.close()


def device_path(source: str, where: str) -> str:
    """Return ``/dev/video0`` for ``v4l2:///dev/video0``, ``usb:0`` or ``/dev/video0``. Raises ConfigError."""
    path = source.removeprefix("v4l2://")
    if source.startswith("usb:") and (number := whole_number(source[4:])) is not None:
        path = f"/dev/video{number}"
    if not path.startswith("/dev/"):
        why = "expected a device, like v4l2:///dev/video0 or usb:0"
        raise ConfigError(f"{source!r} is no camera", why=why, where=where, fix="ls /dev/video*")
    return path


def check_device(path: str, where: str) -> None:
    """Raise DeviceError when the device is missing or this user may not read it."""
    if not Path(path).exists():
        raise DeviceError(
            f"there is no camera {path}", why="no such device", where=where, fix=_other_devices(path), code="E801"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise FinalError(
            f"camera {path} cannot be opened by this user",
            why="this user has no permission to read and write it",
            where=where,
            fix="sudo usermod -aG video $USER, then log in again",
            code="E801",
        )


def refuse_bare_sensor(path: str, offered: Offers, where: str) -> None:
    """Raise FinalError for a CSI sensor that gives only raw data which FFmpeg does not convert."""
    if not offered or not all(map(_RAW.fullmatch, offered)):
        return
    sensors = [one.path for one in csi_sensors()]
    fix = f"source: csi://{sensors.index(path)}" if path in sensors else "source: gst:..., with elements of its maker"
    why = f"it is a bare CSI sensor, whose raw data ({', '.join(offered)}) needs the board's image processor"
    raise FinalError(f"camera {path} gives no images", why=why, where=where, fix=fix, code="E801")


def _other_devices(path: str) -> str:
    """Return which other cameras are here, or how to look for one."""
    there = sorted(str(device) for device in DEVICES.glob("video*") if str(device) != path)
    return f"devices here: {', '.join(there)}" if there else "no /dev/video* here: plug the camera in, or check dmesg"


def csi_source(name: str, config: SourceStage, context: Context) -> LiveSource:
    """Return a source for the sensor in ``csi://N``.

    Frames stay in video memory where a GPU reads them; else they are copied.

    Raises ConfigError: ``source`` is not a sensor's number, or ``flip: 90`` comes without ``size``. Raises DeviceError:
    on the first frame: GStreamer, the camera, its daemon or the requested mode is missing.
    """
    number, where = whole_number(config.source.removeprefix("csi://")), f"stages.{name}"
    if number is None:
        why = "expected the number of a sensor, such as csi://0"
        raise ConfigError(f"{config.source!r} is no CSI camera", why=why, where=f"{where}.source", fix="edgert doctor")
    if config.flip in ("90", "270") and config.size is None:
        why = f"flip: {config.flip} exchanges the sides of the frames, so the pipeline must set size:"
        raise ConfigError("size: is missing", why=why, where=f"{where}.flip", fix="size: 1920x1080")
    pipeline, lost = csi(number, config), partial(no_camera, number, where)
    return gst.gst_source(name, config, context, pipeline, title=f"CSI camera {number}", lost=lost)


def no_camera(sensor: int, where: str, why: str, root: Path = Path("/")) -> DeviceError:
    """Return the error for a camera without images, from GStreamer's message ``why`` and the state of this machine."""
    found, kind, here = csi_sensors(root), DeviceError, detect(root)
    if reason := why_no_csi(here.soc, here.l4t):
        kind, why, fix = FinalError if here.l4t.startswith("38.") else DeviceError, f"{why}; {reason}", CSI_INSTEAD
    elif "nvarguscamerasrc" in why and "no element" in why:
        kind = FinalError
        fix = "sudo apt install nvidia-l4t-gstreamer nvidia-l4t-camera; in a container: --runtime nvidia"
    elif not (root / ARGUS_SOCKET).exists():
        why, fix = f"{why}; there is no /{ARGUS_SOCKET}, the way to the camera daemon", CSI_DAEMON
    elif not found:
        why, fix = f"{why}; no CSI sensor is seen here", _ENABLE
    elif sensor >= len(found):
        why = f"{why}; {len(found)} CSI sensors are seen here: {', '.join(one.title for one in found)}"
        fix = f"source: csi://0{f' to csi://{len(found) - 1}' if len(found) > 1 else ''}"
    else:
        fix = "free the camera: sudo systemctl restart nvargus-daemon; or ask for a size and fps that the sensor has"
    return kind(f"CSI camera {sensor} gives no images", why=why, where=where, fix=fix)
