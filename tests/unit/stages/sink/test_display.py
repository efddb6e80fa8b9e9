"""The window's side of the pipeline: viewers here are small programs that only read, end, or refuse to read."""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgert.config import load_pipeline
from edgert.errors import DeviceError, StageError
from edgert.pipeline import Pipeline
from edgert.runtime.records import Result
from edgert.stages.context import Context
from edgert.stages.kinds import Display
from edgert.stages.sink import display, viewers
from edgert.stages.sink.display import DisplaySink, WindowImage, fit_image, window_size
from edgert.stages.sink.viewers import CLOSED, DisplayEnvironment
from edgert.testing import sample
from tests.helpers.waiting import wait_until

SAVES = "import sys, os\ndata = sys.stdin.buffer.read()\nopen(os.environ['EDGERT_SEEN'], 'wb').write(data)"
CONFIG = Display.model_validate({"sink": "display", "from": "x"})
SLEEPS = "import time\ntime.sleep(60)"


def ends(words: str, after: int = 1) -> str:
    """A viewer that ends with these words after so many images of 64x48."""
    return f"import sys\nfor n in range({after}): sys.stdin.buffer.read({64 * 48 * 4})\nsys.exit({words!r})"


class Viewers:
    """Programs in the place of the real viewers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.programs: dict[str, str] = {"first": SAVES}
        self.starts: list[str] = []
        self.gone = ""
        monkeypatch.setattr(viewers, "display_environment", lambda: DisplayEnvironment(x11=":0"))
        monkeypatch.setattr(viewers, "rank_viewers", lambda here, fullscreen: tuple(self.programs))
        monkeypatch.setattr(viewers, "probe_viewer", lambda name, here: self.gone)
        monkeypatch.setattr(viewers, "command", self._command)
        monkeypatch.setattr(viewers, "environment", lambda name, here: None)

    def _command(self, name: str, size: tuple[int, int], title: str, *, fullscreen: bool) -> list[str]:
        self.starts.append(f"{name} {title} {size[0]}x{size[1]}")
        return [sys.executable, "-S", "-c", self.programs[name]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Viewers:
    return Viewers(monkeypatch)


def sink(left: Callable[[], None] = lambda: None, size: tuple[int, int] = (0, 0)) -> DisplaySink:
    made = DisplaySink("show", CONFIG.model_copy(update={"width": size[0], "height": size[1]}), Context(leave=left))
    made.open()
    return made


def show_until(made: DisplaySink, done: Callable[[], bool]) -> None:
    def step() -> bool:
        result = sample()
        made.process(result)
        result.frame.lease.release()
        return done()

    wait_until(step, 20)


def test_the_window_gets_the_pixels_of_the_image(
    fake: Viewers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGERT_SEEN", str(tmp_path / "seen"))
    made, result = sink(), replace(sample(), image=np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3))
    made.process(result)
    wait_until(lambda: made._windows["camera"].shown == 1, 10)
    made.close()
    seen = np.frombuffer((tmp_path / "seen").read_bytes(), np.uint8).reshape(48, 64, 4)
    assert (seen[..., :3] == result.image).all()
    assert fake.starts == ["first camera 64x48"]


def test_every_stream_has_a_window(fake: Viewers) -> None:
    made = sink()
    for stream in ("left", "right"):
        result = sample()
        made.process(Result(replace(result.frame, stream=stream)))
    wait_until(lambda: len(fake.starts) == 2, 10)
    assert [one.name for one in made._windows.values()] == ["edgert:show:left", "edgert:show:right"]
    made.close()
    assert sorted(fake.starts) == ["first left 64x48", "first right 64x48"]


@pytest.mark.timing
def test_a_window_that_takes_nothing_holds_up_nobody(fake: Viewers) -> None:
    fake.programs = {"first": SLEEPS}  # a screen that sleeps
    made = sink(size=(1280, 960))  # 4.9 MB: more than a pipe holds
    results = [sample(index) for index in range(200)]
    began_s = time.monotonic()
    for result in results:
        made.process(result)
    assert time.monotonic() - began_s < 0.5
    wait_until(lambda: made._windows["camera"].skipped >= 197, 5)
    assert sum(result.frame.lease.alive for result in results) == len(results)
    began_s = time.monotonic()
    made.close()
    assert time.monotonic() - began_s < 1.5
    for result in results:
        result.frame.lease.release()
        assert not result.frame.lease.alive, "a hold was kept"


def test_a_window_that_stalls_is_reported_and_started_again(
    fake: Viewers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(display, "_STALLED_S", 0.3)
    monkeypatch.setattr(display, "_SETTLED_S", 0.0)
    monkeypatch.setattr(display, "_RETRY_S", 0.2)
    fake.programs = {"first": SLEEPS}
    made = sink(size=(1280, 960))
    show_until(made, lambda: len(fake.starts) >= 2)
    made.close()
    assert "it took no image for 0.3 s" in caplog.text


def test_a_window_that_its_user_closed_stays_closed(fake: Viewers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fake.programs = {"first": ends(CLOSED)}
    left: list[int] = []
    made = sink(lambda: left.append(1))
    show_until(made, lambda: bool(left))
    for _ in range(3):
        made.process(sample())
    made.close()
    assert left == [1] and len(fake.starts) == 1 and caplog.text.count("every window was closed") == 1


def test_a_viewer_that_fails_at_once_gives_way_to_the_next(fake: Viewers, caplog: pytest.LogCaptureFixture) -> None:
    fake.programs = {"first": ends("No EGL Display"), "second": SLEEPS}
    made = sink()
    show_until(made, lambda: "second camera 64x48" in fake.starts)
    made.close()
    assert "first failed (No EGL Display); trying second" in caplog.text


def test_a_display_that_goes_is_named_and_comes_back(
    fake: Viewers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(display, "_SETTLED_S", 0.0)
    monkeypatch.setattr(display, "_RETRY_S", 0.1)
    fake.programs = {"first": ends("X connection to :0 broken"), "second": SLEEPS}
    made = sink()
    show_until(made, lambda: "is gone" in caplog.text)
    fake.gone, count = "Could not open display", len(fake.starts)
    wait_until(lambda: made._windows["camera"]._program == "", 5)
    began_s = time.monotonic()
    show_until(made, lambda: time.monotonic() - began_s > 0.5)
    assert caplog.text.count("the window of camera is gone: X connection to :0 broken") >= 1
    lost = caplog.text.count("is gone")
    assert len(fake.starts) == count, "nothing is started without a display"
    fake.gone, fake.programs = "", {"first": SLEEPS}
    show_until(made, lambda: "the window of camera is back, by first" in caplog.text)
    made.close()
    assert caplog.text.count("is gone") == lost, "said once, not at each attempt"


def test_what_goes_wrong_with_an_image_is_raised_in_the_stage(fake: Viewers, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise StageError("no image buffer is free")

    monkeypatch.setattr(WindowImage, "convert", fails)
    made = sink()
    with pytest.raises(StageError, match="no image buffer"):
        show_until(made, lambda: False)
    made.close()


def test_no_display_is_an_error_at_the_start(fake: Viewers) -> None:
    fake.gone = "Could not open display"
    with pytest.raises(DeviceError, match="cannot show a window") as caught:
        sink()
    assert caught.value.where == "stages.show" and "sink: http" in caught.value.fix


def test_full_screen_that_cannot_be_had_is_said(fake: Viewers, caplog: pytest.LogCaptureFixture) -> None:
    made = DisplaySink("show", CONFIG.model_copy(update={"fullscreen": True}), Context())
    made.open()
    assert "first cannot fill the screen and shows a window" in caplog.text and "display" in caplog.text


@pytest.mark.parametrize(
    ("image", "asked", "wanted"),
    [
        ((640, 480), (0, 0), (640, 480)),
        ((1920, 1080), (0, 0), (1280, 720)),
        ((1080, 1920), (0, 0), (404, 720)),
        ((641, 481), (0, 0), (640, 480)),
        ((640, 480), (320, 0), (320, 240)),
        ((640, 480), (0, 960), (1280, 960)),
        ((640, 480), (900, 500), (900, 500)),
        ((1, 1), (0, 0), (2, 2)),
    ],
)
def test_the_size_of_a_window(image: tuple[int, int], asked: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert window_size(image, asked) == wanted


def test_an_image_lies_in_the_middle_of_its_window() -> None:
    assert fit_image((640, 480), (640, 480)) == (0, 0, 640, 480)
    assert fit_image((641, 481), (640, 480)) == (0, 0, 640, 480)
    assert fit_image((640, 480), (900, 480)) == (130, 0, 640, 480)
    assert fit_image((1000, 10), (100, 100)) == (0, 49, 100, 1)
    assert fit_image((10_000, 1), (100, 100)) == (0, 49, 100, 1)


def test_images_of_another_size_keep_their_shape_in_the_window() -> None:
    window, white = WindowImage(), np.full((48, 64, 3), 255, np.uint8)
    assert (window.convert(replace(sample(), image=white), (0, 0))[..., :3] == 255).all()
    tall = np.full((96, 32, 3), 255, np.uint8)
    shown = window.convert(replace(sample(), image=tall), (0, 0))
    assert shown.shape == (48, 64, 4), "the window stays as it is"
    assert (shown[:, 24:40, :3] == 255).all() and (shown[:, :24, :3] == 0).all() and (shown[:, 40:, :3] == 0).all()


def test_boxes_are_painted_where_nobody_drew_and_the_frame_stays_as_it_is() -> None:
    result = sample()
    before = result.frame.planes[0].copy()
    shown = WindowImage().convert(result, (0, 0))
    assert (shown[..., :3] != before).any() and (result.frame.planes[0] == before).all()
    plain = WindowImage().convert(Result(result.frame, {}), (0, 0))
    assert (plain[..., :3] == before).all()
    assert result.frame.lease.counter.read().copies == 4, "the painted image, and the window's, of both"


PIPELINE = """
stages:
  cam: {source: "python:endless:Endless"}
  show: {sink: display, from: cam}
"""
ENDLESS = """
import time
import numpy as np

class Endless:
    def __iter__(self):
        while True:
            time.sleep(0.01)
            yield np.zeros((48, 64, 3), np.uint8)
"""


def written(folder: Path, more: str = "") -> Path:
    (folder / "endless.py").write_text(ENDLESS)
    (folder / "p.yaml").write_text(PIPELINE + more)
    return folder / "p.yaml"


def test_closing_the_only_sinks_window_ends_the_run(fake: Viewers, tmp_path: Path) -> None:
    fake.programs = {"first": ends(CLOSED)}
    with Pipeline(load_pipeline(written(tmp_path))) as pipeline:
        pipeline.start()
        assert pipeline.wait(10), "it goes on"


def test_beside_other_sinks_or_readers_it_goes_on(fake: Viewers, tmp_path: Path) -> None:
    fake.programs = {"first": ends(CLOSED)}
    with Pipeline(load_pipeline(written(tmp_path, "  other: {sink: 'null', from: cam}\n"))) as pipeline:
        pipeline.start()
        assert not pipeline.wait(1.5)
    with Pipeline(load_pipeline(written(tmp_path)), callbacks={"cam": lambda result: None}) as pipeline:
        pipeline.start()
        assert not pipeline.wait(1.5)
    with Pipeline(load_pipeline(written(tmp_path))) as pipeline, pipeline.results("cam", timeout=5) as results:
        began_s = time.monotonic()
        for _ in results:
            if time.monotonic() - began_s > 1.5:
                break
        assert pipeline.running
