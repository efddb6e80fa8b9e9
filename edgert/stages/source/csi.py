"""CSI cameras of a Jetson (``csi://0``), through its image processor and the camera daemon."""

from functools import partial
from pathlib import Path

from edgert.board import detect
from edgert.board.devices import ARGUS_SOCKET, CSI_DAEMON, CSI_INSTEAD, csi_sensors, why_no_csi
from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError
from edgert.memory import Counter
from edgert.stages.source import gst_pipelines
from edgert.stages.source.gst import gst_source
from edgert.stages.source.live import FinalError, LiveSource
from edgert.units import whole_number

_ENABLE = "switch the sensor on with sudo /opt/nvidia/jetson-io/jetson-io.py, and check its cable"


def csi_source(name: str, config: SourceStage, counter: Counter, clock: Clock) -> LiveSource:
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
    pipeline, lost = gst_pipelines.csi(number, config), partial(no_camera, number, where)
    return gst_source(name, pipeline, config, counter, clock, title=f"CSI camera {number}", lost=lost)


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
