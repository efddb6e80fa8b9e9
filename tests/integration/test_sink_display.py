"""Real windows on an X server without a screen, by real GStreamer and real SDL; skipped where these are missing."""

import ctypes
import ctypes.util
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from edgert.diagnosis.probe import ask
from edgert.errors import DeviceError
from edgert.runtime.frame import U8
from edgert.stages.context import Context
from edgert.stages.kinds import Display
from edgert.stages.sink import display, viewers
from edgert.stages.sink.display import DisplaySink
from edgert.stages.sink.viewers import SDL, DisplayEnvironment
from edgert.testing import sample
from tests.helpers.waiting import wait_until

SIZE = (320, 240)
SCREEN = (800, 600)
CONFIG = Display.model_validate({"sink": "display", "from": "x"})

pytestmark = pytest.mark.skipif(
    not (shutil.which("Xvfb") and shutil.which("gst-launch-1.0")),
    reason="Xvfb or GStreamer is not installed: sudo apt install xvfb gstreamer1.0-tools gstreamer1.0-x",
)


class XServer:
    """Xvfb, whose screen is a file in X's own format for window dumps."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self._folder = folder
        read, write = os.pipe()
        given = [name] if name else ["-displayfd", str(write)]
        command = ["Xvfb", *given, "-screen", "0", f"{SCREEN[0]}x{SCREEN[1]}x24", "-fbdir", str(folder)]
        command += ["-nolisten", "tcp", "-noreset"]
        self._process = subprocess.Popen(command, pass_fds=(write,), stderr=subprocess.DEVNULL)
        os.close(write)
        with os.fdopen(read) as number:
            self.name = name or f":{number.readline().strip()}"
        wait_until(lambda: (Path("/tmp/.X11-unix") / f"X{self.name[1:]}").exists())

    def screen(self) -> U8:
        data = (self._folder / "Xvfb_screen0").read_bytes()
        header = struct.unpack(">25I", data[:100])  # XWDFileHeader of X11/XWDFile.h
        start, (width, height), row_bytes = header[0] + header[19] * 12, header[4:6], header[12]
        rows = np.frombuffer(data, np.uint8, row_bytes * height, start).reshape(height, row_bytes)
        return rows[:, : width * 4].reshape(height, width, 4)[..., :3]

    def close_windows(self) -> None:
        """What a window manager sends when somebody clicks the button."""
        library = ctypes.CDLL(ctypes.util.find_library("X11"))
        library.XOpenDisplay.restype = ctypes.c_void_p
        server = ctypes.c_void_p(library.XOpenDisplay(self.name.encode()))
        library.XDefaultRootWindow.restype = library.XInternAtom.restype = ctypes.c_ulong
        root, parent = ctypes.c_ulong(library.XDefaultRootWindow(server)), ctypes.c_ulong()
        children, count = ctypes.POINTER(ctypes.c_ulong)(), ctypes.c_uint()
        library.XQueryTree(server, root, *map(ctypes.byref, (root, parent, children, count)))
        atoms = [library.XInternAtom(server, name, 0) for name in (b"WM_PROTOCOLS", b"WM_DELETE_WINDOW")]
        for window in children[: count.value]:
            event = struct.pack("@iLiPLLi5l", 33, 0, 1, server.value, window, atoms[0], 32, atoms[1], 0, 0, 0, 0)
            library.XSendEvent(server, ctypes.c_ulong(window), 0, ctypes.c_long(0), event.ljust(192, b"\0"))
        library.XSync(server, 0)
        library.XCloseDisplay(server)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for left in (f"/tmp/.X11-unix/X{self.name[1:]}", f"/tmp/.X{self.name[1:]}-lock"):
            Path(left).unlink(missing_ok=True)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[XServer]:
    made = XServer(tmp_path)
    monkeypatch.setenv("DISPLAY", made.name)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    yield made
    made.end()


@pytest.fixture(params=["ximagesink", SDL])
def viewer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == SDL and find_spec("sdl2") is None:
        pytest.skip("PySDL2 is not installed: pip install PySDL2 pysdl2-dll")
    seen = viewers.display_environment
    monkeypatch.setattr(viewers, "display_environment", lambda: replace(seen(), sdl=name == SDL))
    return name


def noise(seed: int = 0) -> U8:
    return np.random.default_rng(seed).integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8)


def is_shown(server: XServer, image: U8) -> bool:
    """Whether it is on the screen, pixel for pixel: in the corner, or in the middle."""
    screen, (height, width) = server.screen(), image.shape[:2]
    places = [(0, 0), ((SCREEN[0] - width) // 2, (SCREEN[1] - height) // 2)]
    return any(np.array_equal(screen[y : y + height, x : x + width], image) for x, y in places)


def opened(**keys: object) -> DisplaySink:
    made = DisplaySink("show", CONFIG, Context(**keys))  # type: ignore[arg-type]
    made.open()
    return made


def test_the_pixels_on_the_screen_are_those_of_the_newest_image(server: XServer, viewer: str) -> None:
    made = opened()
    for seed in range(3):
        made.process(replace(sample(seed), image=noise(seed)))
        wait_until(lambda seed=seed: is_shown(server, noise(seed)))  # type: ignore[misc]
    tree = subprocess.run(["xwininfo", "-root", "-tree"], capture_output=True, text=True, check=False).stdout
    made.close()
    assert not is_shown(server, noise(2)), "its window is still there"
    if tree:
        assert '"camera' in tree, "the title is the stream's"


def test_a_window_that_its_user_closes_is_not_one_that_fails(
    server: XServer, viewer: str, caplog: pytest.LogCaptureFixture
) -> None:
    left: list[int] = []
    made = opened(leave=lambda: left.append(1))
    made.process(replace(sample(), image=noise()))
    wait_until(lambda: is_shown(server, noise()))
    server.close_windows()
    wait_until(lambda: bool(left))
    made.close()
    assert left == [1] and "is gone" not in caplog.text


def test_a_server_that_goes_takes_nothing_along_and_may_come_back(
    server: XServer, viewer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(display, "_SETTLED_S", 0.0)
    monkeypatch.setattr(display, "_RETRY_S", 0.5)
    made = opened()
    made.process(replace(sample(), image=noise()))
    wait_until(lambda: is_shown(server, noise()))
    server.end()
    wait_until(lambda: "the window of camera is gone" in caplog.text)
    for index in range(3):
        made.process(sample(index))
    again = XServer(tmp_path, server.name)

    def step() -> bool:
        made.process(replace(sample(), image=noise()))
        return is_shown(again, noise())

    wait_until(step)
    wait_until(lambda: step() and "is back" in caplog.text)
    made.close()
    again.end()
    assert f"is back, by {viewer}" in caplog.text


def test_it_fills_the_screen(server: XServer, caplog: pytest.LogCaptureFixture) -> None:
    if find_spec("sdl2") is None:
        pytest.skip("PySDL2 is not installed: pip install PySDL2 pysdl2-dll")
    made = DisplaySink("show", CONFIG.model_copy(update={"fullscreen": True}), Context())
    made.open()
    made.process(replace(sample(), image=np.full((SIZE[1], SIZE[0], 3), 200, np.uint8)))
    wait_until(lambda: bool((server.screen() == 200).all()))
    made.close()
    assert "cannot fill" not in caplog.text


def test_a_display_that_refuses_is_an_error_with_its_reason(viewer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":4711")
    with pytest.raises(DeviceError, match="cannot show a window") as caught:
        opened()
    assert f":4711: {viewer}: " in caught.value.why


RUN = """
stages:
  cam: {source: "gst:videotestsrc is-live=true ! video/x-raw,format=BGR,width=320,height=240 ! identity"}
  show: {sink: display, from: cam}
"""


def test_a_run_ends_well_when_its_window_is_closed(server: XServer, tmp_path: Path) -> None:
    pytest.importorskip("gi", reason="PyGObject (gi) is not installed: sudo apt install python3-gi")
    (tmp_path / "p.yaml").write_text(RUN)
    command = [sys.executable, "-m", "edgert", "run", str(tmp_path / "p.yaml"), "--plain"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: bool(server.screen().any()))
    server.close_windows()
    said, _ = run.communicate(timeout=20)
    assert run.returncode == 0, said
    assert "every window was closed" in said and "frames in" in said


def test_what_the_board_has_and_this_machine_lacks_is_named(server: XServer) -> None:
    here = DisplayEnvironment(jetson=True, x11=server.name, gstreamer=True)
    name, refused = viewers.find_viewer(here)
    assert name == "ximagesink" and list(refused) == ["nv3dsink"] and "no element" in refused["nv3dsink"]


def test_doctor_asks_for_the_display_itself(server: XServer) -> None:
    facts = ask("display").facts
    assert facts["place"] == server.name and facts["viewer"] in ("ximagesink", SDL)
    server.end()
    assert ask("display").facts["viewer"] == ""
