"""Which program shows windows here, how it is started, and what is said where none can."""

from pathlib import Path

import pytest

from edgert.errors import DeviceError
from edgert.stages.sink import viewers
from edgert.stages.sink.viewers import SDL, DisplayEnvironment as Machine
from tests.unit.board.tree import jetson, write

ALL = {"sdl": True, "gstreamer": True, "screen": True}


@pytest.mark.parametrize(
    ("here", "wanted"),
    [
        (Machine(jetson=True, x11=":0", gstreamer=True), ("nv3dsink", "ximagesink")),
        (Machine(jetson=True, x11=":0", **ALL), ("nv3dsink", SDL, "ximagesink")),
        (Machine(jetson=True, wayland="wayland-0", gstreamer=True), ("nv3dsink", "waylandsink")),
        (Machine(jetson=True, screen=True, gstreamer=True), ("nvdrmvideosink", "kmssink")),
        (Machine(jetson=True, x11="localhost:10.0", gstreamer=True), ("ximagesink",)),  # ssh -X: no EGL
        (Machine(x11=":0", wayland="wayland-0", **ALL), (SDL, "ximagesink", "waylandsink")),
        (Machine(x11=":0", gstreamer=True), ("ximagesink",)),
        (Machine(wayland="wayland-0", gstreamer=True), ("waylandsink",)),
        (Machine(screen=True, gstreamer=True), ("kmssink",)),
        (Machine(x11=":0"), ()),
        (Machine(**ALL | {"screen": False}), ()),
        (Machine(screen=True, sdl=True), ()),
    ],
)
def test_the_viewers_of_a_machine_best_first(here: Machine, wanted: tuple[str, ...]) -> None:
    assert viewers.rank_viewers(here) == wanted


def test_those_that_fill_the_screen_come_first_where_it_is_to_be_filled() -> None:
    here = Machine(jetson=True, x11=":0", **ALL)
    assert viewers.rank_viewers(here, fullscreen=True) == (SDL, "nv3dsink", "ximagesink")


def test_what_is_seen_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    here = viewers.display_environment(tmp_path)
    assert (here.jetson, here.x11, here.wayland, here.screen) == (False, "", "", False)
    write(tmp_path, "dev/dri/card0", "")
    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-1")
    here = viewers.display_environment(jetson(tmp_path))
    assert (here.jetson, here.x11, here.wayland, here.screen) == (True, ":7", "wayland-1", True)


def test_gstreamer_is_started_with_a_pipeline_of_ours() -> None:
    line = " ".join(viewers.command("ximagesink", (640, 480), 'cam "1" ! x'))
    assert line == (
        "gst-launch-1.0 -q fdsrc fd=0 blocksize=65536 ! rawvideoparse width=640 height=480 format=bgrx framerate=0/1 "
        "! videoconvert ! videoscale ! taginject tags=title=cam__1____x ! ximagesink sync=false"
    )
    line = " ".join(viewers.command("nv3dsink", (640, 480), "cam"))
    assert line.endswith("! nvvidconv ! video/x-raw(memory:NVMM),format=NV12 ! nv3dsink sync=false")
    assert " ".join(viewers.command("nvdrmvideosink", (640, 480), "cam")).endswith("NV12 ! nvdrmvideosink sync=false")


def test_sdl_is_started_with_this_python_on_the_display_that_was_chosen() -> None:
    words = viewers.command(SDL, (640, 480), "cam 1", fullscreen=True)
    assert words[-4:] == ["640", "480", "cam 1", "1"] and "edgert.stages.sink.sdl_viewer" in words
    assert viewers.environment(SDL, Machine(wayland="w"))["SDL_VIDEODRIVER"] == "wayland"
    there = viewers.environment(SDL, Machine(x11="localhost:10.0"))
    assert (there["SDL_VIDEODRIVER"], there["SDL_RENDER_DRIVER"]) == ("x11", "software")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ('WARNING: erroneous pipeline: no element "nv3dsink"\n', 'no element "nv3dsink"'),
        (
            "ERROR: from element /GstPipeline:pipeline0/GstXImageSink:ximagesink0: Could not initialise X output\n"
            "Additional debug info:\n../sys/x.c(1150): gst_x (): /GstPipeline:pipeline0/GstXImageSink:ximagesink0:\n"
            "Could not open display\nERROR: pipeline doesn't want to preroll.\n",
            "Could not initialise X output: Could not open display",
        ),
        (
            "nvbuf_utils: Could not get EGL display connection\n"
            "ERROR: from element /GstPipeline:pipeline0/GstNv3dSink:s: Failed to initialize egl\n"
            "Additional debug info:\n../x.c(11): f (): /GstPipeline:pipeline0:\nERROR: pipeline doesn't want to go.\n",
            "Failed to initialize egl",
        ),
        ("X connection to :77 broken (explicit kill or server shutdown).\n", "X connection to :77 broken"),
        ("\n", "it ended with code -11"),
    ],
)
def test_what_a_viewer_says_of_its_end(said: str, wanted: str) -> None:
    assert viewers.exit_reason(said, -11).startswith(wanted) and "\n" not in viewers.exit_reason(said, -11)


@pytest.mark.parametrize(
    ("here", "refused", "why", "fix"),
    [
        (Machine(), {}, "neither DISPLAY nor WAYLAND_DISPLAY is set", "docker run -e DISPLAY"),
        (Machine(x11=":0"), {}, "neither GStreamer nor SDL is installed", "apt install gstreamer1.0-tools"),
        (Machine(x11=":0"), {"ximagesink": 'no element "ximagesink"'}, "no element", "gstreamer1.0-x"),
        (Machine(x11=":0"), {"ximagesink": "Could not open display"}, ":0: ximagesink: Could not", "XAUTHORITY"),
    ],
)
def test_a_machine_without_a_display_is_told_what_to_do(
    here: Machine, refused: dict[str, str], why: str, fix: str
) -> None:
    error = viewers.no_window_error(here, refused, "stages.show")
    assert error.what == "cannot show a window" and error.where == "stages.show"
    assert why in error.why and fix in error.fix and "sink: http" in error.fix


def test_the_first_that_works_is_taken_and_the_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"nv3dsink": "no EGL", "ximagesink": ""}
    monkeypatch.setattr(viewers, "probe_viewer", lambda name, here: reasons.get(name, "?"))
    assert viewers.find_viewer(Machine(jetson=True, x11=":0", gstreamer=True)) == ("ximagesink", {"nv3dsink": "no EGL"})
    name, refused = viewers.find_viewer(Machine(jetson=True, x11="localhost:10.0", gstreamer=True))
    assert name == "ximagesink" and "EGL cannot use localhost:10.0" in refused["nv3dsink"]
    monkeypatch.setattr(viewers, "probe_viewer", lambda name, here: "refused")
    with pytest.raises(DeviceError, match="cannot show a window") as caught:
        viewers.find_viewer(Machine(x11=":0", **ALL), where="stages.show")
    assert caught.value.why == ":0: SDL: refused; ximagesink: refused"


def test_a_program_that_is_not_there_or_hangs_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Machine(x11=":0", gstreamer=True)
    monkeypatch.setenv("PATH", "")
    assert "gst-launch-1.0" in viewers.probe_viewer("ximagesink", here)
    monkeypatch.setattr(viewers, "_sdl", lambda: ["/bin/sleep", "5"])
    monkeypatch.setattr(viewers, "_PROBE_S", 0.1)
    assert viewers.probe_viewer(SDL, here) == "no answer in 0.1 s"
