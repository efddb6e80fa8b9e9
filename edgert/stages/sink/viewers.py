"""Viewers, programs that show images in a window: which of them suit this machine, and how each is started.

A viewer is a separate process that reads raw images from its standard input. So a failing display ends the viewer and
not the pipeline: Xlib ends a process whose server is gone, and EGL may crash one without a server.

GStreamer's ``gst-launch-1.0`` is part of JetPack and independent of this Python. On a desktop, SDL comes first where it
is installed, for which ``pip`` is enough. On X11, GStreamer has no window that fills the screen or scales.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from edgert import installation
from edgert.board.detect import is_jetson
from edgert.errors import DeviceError

SDL = "SDL"
CLOSED = "Output window was closed"
"""Message of a viewer whose window the user has closed."""
_PIPE_BYTES = 1 << 16  # capacity of a pipe; GStreamer allocates a buffer of this size for each read
_TO_NVMM = "nvvidconv ! video/x-raw(memory:NVMM),format=NV12"
_CHAINS = {  # elements that show raw images in host memory
    # https://docs.nvidia.com/jetson/archives/r36.4/DeveloperGuide/SD/Multimedia/AcceleratedGstreamer.html
    "nv3dsink": f"{_TO_NVMM} ! nv3dsink",
    "nvdrmvideosink": f"{_TO_NVMM} ! nvdrmvideosink",
    "kmssink": "videoconvert ! videoscale ! kmssink",
    "ximagesink": "videoconvert ! videoscale ! taginject tags=title={title} ! ximagesink",  # shows the title
    "waylandsink": "videoconvert ! videoscale ! waylandsink",
}
FULLSCREEN = (SDL, "nvdrmvideosink", "kmssink")
"""Viewers that can fill the screen."""
_APT = (
    "sudo apt install gstreamer1.0-tools gstreamer1.0-x gstreamer1.0-plugins-base gstreamer1.0-plugins-good "
    "gstreamer1.0-plugins-bad"
)
_PROBE_S = 60.0  # GStreamer scans all its plugins when first used
_ERROR_LINE = re.compile(r"(?:ERROR: from element \S+:|WARNING: erroneous pipeline:) (.+)")
_DETAIL = re.compile(r"Additional debug info:\n(?:\S+\(\d+\): .*\n)?(?!\S+\(\d+\):|ERROR)(.+)")


@dataclass(frozen=True, slots=True)
class DisplayEnvironment:
    """The display servers and libraries of a machine.

    Attributes:
        jetson: whether the machine is a Jetson.
        x11: value of ``DISPLAY``; empty where it is not set.
        wayland: value of ``WAYLAND_DISPLAY``; empty where it is not set.
        screen: whether the process can write to a screen without a display server.
        sdl: whether PySDL2 is installed.
        gstreamer: whether ``gst-launch-1.0`` is installed.
    """

    jetson: bool = False
    x11: str = ""
    wayland: str = ""
    screen: bool = False
    sdl: bool = False
    gstreamer: bool = False

    @property
    def place(self) -> str:
        """The display on which windows would open."""
        return self.x11 or self.wayland or "the screen without a display server"

    @property
    def is_remote(self) -> bool:
        """Whether the X server is on another machine, as with ``ssh -X``; it has no EGL then."""
        return bool(self.x11) and not self.x11.startswith((":", "unix:"))


def display_environment(root: Path = Path("/")) -> DisplayEnvironment:
    """Return the display environment of this process, without opening a display."""
    return DisplayEnvironment(
        jetson=is_jetson(root),
        x11=os.environ.get("DISPLAY", ""),
        wayland=os.environ.get("WAYLAND_DISPLAY", ""),
        screen=any(os.access(card, os.R_OK | os.W_OK) for card in (root / "dev/dri").glob("card*")),
        sdl=find_spec("sdl2") is not None,
        gstreamer=shutil.which("gst-launch-1.0") is not None,
    )


def rank_viewers(here: DisplayEnvironment, *, fullscreen: bool = False) -> tuple[str, ...]:
    """Return the names of viewers that may work, best first.

    With ``fullscreen``, viewers that can fill the screen come first.
    """
    found: list[str] = []
    if here.x11 or here.wayland:
        board = ["nv3dsink"] if here.jetson and here.gstreamer and not here.is_remote else []
        desktop = [SDL] if here.sdl else []
        if here.gstreamer:  # under Wayland, GStreamer's X11 windows have a frame and a title, its own windows do not
            desktop += [name for name, has in (("ximagesink", here.x11), ("waylandsink", here.wayland)) if has]
        found = board + desktop
    elif here.screen and here.gstreamer:
        found = ["nvdrmvideosink", "kmssink"] if here.jetson else ["kmssink"]
    return tuple(sorted(found, key=lambda name: fullscreen and name not in FULLSCREEN))


def command(name: str, size: tuple[int, int], title: str, *, fullscreen: bool = False) -> list[str]:
    """Return the command of a viewer that reads BGRx images of (width, height), both even."""
    width, height = size
    if name == SDL:
        return [*_sdl(), str(width), str(height), title, str(int(fullscreen))]
    images = f"fdsrc fd=0 blocksize={_PIPE_BYTES} ! rawvideoparse width={width} height={height} format=bgrx"
    return _launch(f"{images} framerate=0/1 ! {_CHAINS[name]} sync=false", title)


def environment(name: str, here: DisplayEnvironment) -> dict[str, str]:
    """Return a viewer's environment variables. They name SDL's driver: SDL would else draw invisibly, not fail."""
    if name != SDL:
        return dict(os.environ)
    renderer = {"SDL_RENDER_DRIVER": "software"} if here.is_remote else {}
    return {**os.environ, "SDL_VIDEODRIVER": "x11" if here.x11 else "wayland", **renderer}


def probe_viewer(name: str, here: DisplayEnvironment) -> str:
    """Return why a viewer does not work here, after opening the display without a window; empty when it works."""
    probe = _sdl() if name == SDL else _launch(f"fakesrc num-buffers=0 ! {_CHAINS[name]}", "probe")
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and this module wrote every word
            probe,
            env=environment(name, here),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_PROBE_S:g} s"
    except OSError as error:
        return str(error)
    return exit_reason(done.stderr, done.returncode) if done.returncode else ""


def exit_reason(said: str, code: int) -> str:
    """Return why a viewer ended, from its output."""
    lines = [line for line in said.splitlines() if line.strip()]
    found = _ERROR_LINE.search(said)
    if found is None:
        return lines[-1].strip() if lines else f"it ended with code {code}"
    detail = _DETAIL.search(said)
    return f"{found[1]}: {detail[1]}" if detail else found[1]


def find_viewer(here: DisplayEnvironment, *, fullscreen: bool = False, where: str = "") -> tuple[str, dict[str, str]]:
    """Return the best viewer that works here, and why better ones do not, by name.

    Raises:
        DeviceError: no viewer works.
    """
    refused: dict[str, str] = {}
    if here.jetson and here.is_remote:
        refused["nv3dsink"] = f"EGL cannot use {here.x11}, which is another machine's display"
    for name in rank_viewers(here, fullscreen=fullscreen):
        if not (reason := probe_viewer(name, here)):
            return name, refused
        refused[name] = reason
    raise no_window_error(here, refused, where)


def no_window_error(here: DisplayEnvironment, refused: dict[str, str], where: str = "") -> DeviceError:
    """Return the error for a machine that cannot show a window."""
    fix = (
        "set DISPLAY and XAUTHORITY to those of the user who is logged in at the screen, in a container by docker run "
        "-e DISPLAY -v /tmp/.X11-unix:/tmp/.X11-unix; or use sink: http, which shows the same in a browser"
    )
    if not (here.x11 or here.wayland or here.screen):
        why = "neither DISPLAY nor WAYLAND_DISPLAY is set"
    elif not refused:
        why, fix = "neither GStreamer nor SDL is installed", f"{_APT}; or {installation.command('display')}; or {fix}"
    else:
        why = f"{here.place}: {'; '.join(f'{name}: {said}' for name, said in refused.items())}"
        fix = f"{_APT}; or {fix}" if any("no element" in said for said in refused.values()) else fix
    return DeviceError("cannot show a window", why=why, where=where, fix=fix)


def _sdl() -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "edgert.stages.sink.sdl_viewer"]


def _launch(pipeline: str, title: str) -> list[str]:
    return ["gst-launch-1.0", "-q", *pipeline.format(title=re.sub(r"[^\w.\-]", "_", title)).split()]
