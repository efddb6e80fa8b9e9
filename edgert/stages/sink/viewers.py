"""Programs that show images in a window: which of them fit this machine, and how each is started.

A viewer is a separate process that reads raw images from its standard input. So a display's failure ends the viewer and
not the pipeline: Xlib ends a process whose server is gone, and EGL may crash one that has none.

GStreamer's ``gst-launch-1.0`` needs nothing of this Python and is part of JetPack. On a desktop, SDL comes first where
it is installed, which ``pip`` alone can do. On X11, GStreamer has no window that fills the screen or scales.
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
"""Message of a viewer whose window was closed by its user."""
_PIPE_BYTES = 1 << 16  # what a pipe holds: GStreamer makes a new buffer of the size asked for, however little it reads
_TO_NVMM = "nvvidconv ! video/x-raw(memory:NVMM),format=NV12"
_CHAINS = {  # behind raw images in host memory
    # https://docs.nvidia.com/jetson/archives/r36.4/DeveloperGuide/SD/Multimedia/AcceleratedGstreamer.html
    "nv3dsink": f"{_TO_NVMM} ! nv3dsink",
    "nvdrmvideosink": f"{_TO_NVMM} ! nvdrmvideosink",
    "kmssink": "videoconvert ! videoscale ! kmssink",
    "ximagesink": "videoconvert ! videoscale ! taginject tags=title={title} ! ximagesink",  # it has no other title
    "waylandsink": "videoconvert ! videoscale ! waylandsink",
}
_FILLS = (SDL, "nvdrmvideosink", "kmssink")  # those that can fill the screen
_APT = (
    "sudo apt install gstreamer1.0-tools gstreamer1.0-x gstreamer1.0-plugins-base gstreamer1.0-plugins-good "
    "gstreamer1.0-plugins-bad"
)
_PROBE_S = 60.0  # GStreamer scans all its plugins when first used
_ERROR_LINE = re.compile(r"(?:ERROR: from element \S+:|WARNING: erroneous pipeline:) (.+)")
_DETAIL = re.compile(r"Additional debug info:\n(?:\S+\(\d+\): .*\n)?(?!\S+\(\d+\):|ERROR)(.+)")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Display server and libraries that a window needs.

    Attributes:
        jetson: whether this is one.
        x11: ``DISPLAY``; empty without.
        wayland: ``WAYLAND_DISPLAY``; empty without.
        screen: whether a screen can be written to without a display server.
        sdl: whether PySDL2 is installed.
        gstreamer: whether ``gst-launch-1.0`` is.
        idle: an X server that is here, though ``DISPLAY`` does not name one: ``:0``.
        container: whether this is one.
    """

    jetson: bool = False
    x11: str = ""
    wayland: str = ""
    screen: bool = False
    sdl: bool = False
    gstreamer: bool = False
    idle: str = ""
    container: bool = False

    @property
    def place(self) -> str:
        """Display on which windows would open."""
        return self.x11 or self.wayland or "the screen without a display server"

    @property
    def is_remote(self) -> bool:
        """Whether the X server is another machine's, as under ``ssh -X``: there is no EGL on it."""
        return bool(self.x11) and not self.x11.startswith((":", "unix:"))


def surroundings(root: Path = Path("/")) -> Surroundings:
    """Return the display environment of this process. Opens nothing."""
    servers = sorted((root / "tmp/.X11-unix").glob("X[0-9]*"))
    return Surroundings(
        jetson=is_jetson(root),
        x11=os.environ.get("DISPLAY", ""),
        wayland=os.environ.get("WAYLAND_DISPLAY", ""),
        screen=any(os.access(card, os.R_OK | os.W_OK) for card in (root / "dev/dri").glob("card*")),
        sdl=find_spec("sdl2") is not None,
        gstreamer=shutil.which("gst-launch-1.0") is not None,
        idle=f":{servers[0].name[1:]}" if servers else "",
        container=any((root / name).exists() for name in (".dockerenv", "run/.containerenv")),
    )


def fitting(here: Surroundings, *, fullscreen: bool = False) -> tuple[str, ...]:
    """Return names of the viewers that may work, the best first.

    With ``fullscreen``, those that can fill the screen come first.
    """
    found: list[str] = []
    if here.x11 or here.wayland:
        board = ["nv3dsink"] if here.jetson and here.gstreamer and not here.is_remote else []
        desktop = [SDL] if here.sdl else []
        if here.gstreamer:  # under Wayland, X11 windows have the frame and the title that Wayland's have not
            desktop += [name for name, has in (("ximagesink", here.x11), ("waylandsink", here.wayland)) if has]
        found = board + desktop
    elif here.screen and here.gstreamer:
        found = ["nvdrmvideosink", "kmssink"] if here.jetson else ["kmssink"]
    return tuple(sorted(found, key=lambda name: fullscreen and not fills(name)))


def fills(name: str) -> bool:
    """Return whether a viewer can fill the screen."""
    return name in _FILLS


def get_sdl() -> str:
    """Return the command that installs SDL."""
    return installation.command("display")


def command(name: str, size: tuple[int, int], title: str, *, fullscreen: bool = False) -> list[str]:
    """Return the command of a viewer for BGRx images of (width, height), both even, on its standard input."""
    width, height = size
    if name == SDL:
        return [*_sdl(), str(width), str(height), title, str(int(fullscreen))]
    images = f"fdsrc fd=0 blocksize={_PIPE_BYTES} ! rawvideoparse width={width} height={height} format=bgrx"
    return _launch(f"{images} framerate=0/1 ! {_CHAINS[name]} sync=false", title)


def environment(name: str, here: Surroundings) -> dict[str, str]:
    """Return a viewer's environment variables; without a driver set, SDL would draw invisibly rather than fail."""
    if name != SDL:
        return dict(os.environ)
    renderer = {"SDL_RENDER_DRIVER": "software"} if here.is_remote else {}
    return {**os.environ, "SDL_VIDEODRIVER": "x11" if here.x11 else "wayland", **renderer}


def trouble(name: str, here: Surroundings) -> str:
    """Return why a viewer does not work here, empty when it does: open the display, and show nothing."""
    probe = _sdl() if name == SDL else _launch(f"fakesrc num-buffers=0 ! {_CHAINS[name]}", "probe")
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and every word of it is written here
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
    return reason(done.stderr, done.returncode) if done.returncode else ""


def reason(said: str, code: int) -> str:
    """Return why a viewer ended, from its output."""
    lines = [line for line in said.splitlines() if line.strip()]
    found = _ERROR_LINE.search(said)
    if found is None:
        return lines[-1].strip() if lines else f"it ended with code {code}"
    detail = _DETAIL.search(said)
    return f"{found[1]}: {detail[1]}" if detail else found[1]


def working(here: Surroundings, *, fullscreen: bool = False, where: str = "") -> tuple[str, dict[str, str]]:
    """Return the first viewer that works here, and why those before it do not. Raises DeviceError: there is none."""
    refused: dict[str, str] = {}
    if here.jetson and here.is_remote:
        refused["nv3dsink"] = f"EGL does not reach {here.x11}, another machine's display"
    for name in fitting(here, fullscreen=fullscreen):
        refused[name] = trouble(name, here)
        if not refused[name]:
            del refused[name]
            return name, refused
    raise no_display(here, refused, where)


def no_display(here: Surroundings, refused: dict[str, str], where: str = "") -> DeviceError:
    """Return the error for a machine that cannot show a window."""
    fix = "sink: http shows the same in a browser"
    if not (here.x11 or here.wayland or here.screen):
        why = "neither DISPLAY nor WAYLAND_DISPLAY is set"
        if here.idle:
            fix = f"export DISPLAY={here.idle}, whose socket is here; or {fix}"
        elif here.container:
            fix = f"docker run -e DISPLAY -v /tmp/.X11-unix:/tmp/.X11-unix ..., after xhost +local: outside; or {fix}"
        else:
            fix = f"log in at the screen, or by ssh -X; or {fix}"
    elif not refused:
        why, fix = "neither GStreamer nor SDL is installed", f"{_APT}; or {get_sdl()}; or {fix}"
    else:
        why = f"{here.place}: {'; '.join(f'{name}: {said}' for name, said in refused.items())}"
        if any("no element" in said for said in refused.values()):
            fix = f"{_APT}; or {fix}"
        elif here.idle and here.x11 != here.idle:
            fix = f"export DISPLAY={here.idle}, whose socket is here; or {fix}"
        elif here.x11:
            fix = f"check that DISPLAY and XAUTHORITY are those of the user logged in at the screen; or {fix}"
    return DeviceError("no window can be shown", why=why, where=where, fix=fix)


def _sdl() -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "edgert.stages.sink.sdl_viewer"]


def _launch(pipeline: str, title: str) -> list[str]:
    return ["gst-launch-1.0", "-q", *pipeline.format(title=re.sub(r"[^\w.\-]", "_", title)).split()]
