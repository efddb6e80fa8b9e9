"""Results drawn on the GPU: the kernel itself, on the processor here and on a GPU where there is one, beside OpenCV."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import cv2
import numpy as np
import pytest

from edgert.config.stages import DrawStage
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import DeviceView
from edgert.runtime.frame import U8, Color, Frame
from edgert.runtime.records import Result
from edgert.stages.draw import Draw, ImagePainter, Overlay, SimulationLabel
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.gpu.overlay import GpuPainter
from edgert.stages.sink.display import WindowImage
from edgert.stages.sink.image_files import ImagesSink
from edgert.stages.sink.web.live_images import LiveImages
from tests.helpers.cuda_on_host import kernels_or_skip
from tests.helpers.frames import frame_of
from tests.helpers.gpu import read, to_gpu
from tests.helpers.overlay_scenes import ELEMENTS, busy_scene, odd_scenes
from tests.helpers.virtual_clock import VirtualClock
from tests.helpers.written import opened

LEVELS = 2


@pytest.fixture
def painter(kernels: Kernels) -> Iterator[GpuPainter]:
    painter = GpuPainter(kernels.device, Counter(), kernels)
    yield painter
    painter.close()


def pixels(painter: GpuPainter, image: DeviceView) -> U8:
    """Of an image on the GPU."""
    found: U8 = read(painter.device, image.address, image.nbytes).reshape(image.shape)
    return found


def on_host(result: Result, width: int | None, overlay: Overlay) -> U8:
    return ImagePainter().paint(result, width, lambda size: overlay.shapes(size, result))


def apart(painter: GpuPainter, result: Result, width: int | None, ours: Overlay, theirs: Overlay) -> Any:
    """Gray levels between the two painters."""
    exact = on_host(result, width, theirs)
    size = exact.shape[1], exact.shape[0]
    frame = to_gpu(painter.device, result.frame)
    image = painter.paint(frame, size, ours.shapes(size, result))
    return np.abs(pixels(painter, image).astype(int) - exact)


def assert_close(levels: Any) -> None:
    assert levels.max() <= LEVELS


def overlays(elements: tuple[str, ...] = ELEMENTS) -> tuple[Overlay, Overlay]:
    return Overlay(elements, VirtualClock()), Overlay(elements, VirtualClock())


@pytest.mark.parametrize("form", ["i420", "nv12", "yuyv", "bgr", "rgb", "gray"])
@pytest.mark.parametrize("width", [pytest.param(None, marks=pytest.mark.slow), 160, 61])
def test_frames_of_every_format_and_size_are_converted_as_on_the_host(
    painter: GpuPainter, form: Any, width: int | None
) -> None:
    sizes = ((200, 122), (162, 91)) if form == "yuyv" else ((200, 122), (161, 91))
    for size in sizes:
        for color in (Color(), Color("bt709", True)):
            result = Result(frame_of(*size, form, color=color, padding=6))
            assert apart(painter, result, width, *overlays(())).max() == 0


def test_crops_are_read_where_they_lie(painter: GpuPainter) -> None:
    frame = to_gpu(painter.device, frame_of(160, 120, "nv12"))
    host = frame_of(160, 120, "nv12")
    exact = on_host(Result(host.crop(31, 17, 97, 80)), None, Overlay(()))
    image = painter.paint(frame.crop(31, 17, 97, 80), exact.shape[1::-1], ())
    assert np.array_equal(pixels(painter, image), exact)


@pytest.mark.parametrize("size", [(320, 240), (403, 181)])
def test_everything_that_can_be_drawn_is_within_two_levels(painter: GpuPainter, size: tuple[int, int]) -> None:
    for elements in (ELEMENTS, ("keypoints", "trails", "boxes")):
        ours, theirs = overlays(elements)
        for result in odd_scenes(frame_of(*size, "nv12")):
            levels = apart(painter, result, None, ours, theirs)
            assert levels.max() <= (LEVELS if elements == ELEMENTS else 0)  # only letters and masks are blended anew
    ours, theirs = overlays()
    for step in range(36):  # until trails are full
        result = busy_scene(frame_of(*size, "nv12", index=step), step, objects=20, masks=2, bodies=3)
        if step % 7:
            for one in (ours, theirs):
                one.shapes(size, result)
        else:
            assert_close(apart(painter, result, None, ours, theirs))


def test_what_is_scaled_is_drawn_at_the_size_it_is_shown_in(painter: GpuPainter) -> None:
    for width in (240, 500):
        result = busy_scene(frame_of(640, 360, "i420"), 0, objects=8)
        assert_close(apart(painter, result, width, *overlays()))


def test_an_image_that_was_drawn_is_copied_and_scaled_as_on_the_host(painter: GpuPainter) -> None:
    scene = busy_scene(frame_of(200, 120, "nv12"), 0, objects=5)
    drawn = on_host(scene, None, Overlay(ELEMENTS))
    first = painter.paint(to_gpu(painter.device, frame_of(200, 120, "bgr", pixels=(drawn,))), (200, 120), ())
    for width in (200, 120, 100, 333):
        exact = on_host(replace(scene, image=drawn), width, Overlay(("boxes",)))
        size = exact.shape[1], exact.shape[0]
        second = painter.paint(first, size, Overlay(("boxes",)).shapes(size, scene))
        assert np.array_equal(pixels(painter, second), exact)
    assert np.array_equal(pixels(painter, first), drawn)


def test_a_list_that_is_too_long_gets_more_memory(painter: GpuPainter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.stages.gpu.overlay._LIST_BYTES", 64)
    small = GpuPainter(painter.device, Counter(), painter._kernels)
    assert_close(apart(small, busy_scene(frame_of(320, 240, "nv12"), 0, objects=30), None, *overlays()))
    small.close()


def test_tiles_that_were_drawn_are_forgotten_when_there_is_no_room(
    painter: GpuPainter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgert.stages.gpu.overlay._TILES_BYTES", 8192)
    small, (ours, theirs) = GpuPainter(painter.device, Counter(), painter._kernels), overlays()
    for step in range(8):
        result = busy_scene(frame_of(320, 240, "nv12", index=step), step, objects=20, bodies=1, jitter=0.3)
        assert_close(apart(small, result, None, ours, theirs))
    small.close()


# What the stages do with it.


class Rig:
    """A GPU without a compiler of its own, and frames on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels = kernels_or_skip()
        self.device, self.counter = self.kernels.device, Counter()
        self.stream = self.device.stream()
        monkeypatch.setattr("edgert.stages.gpu.overlay.Kernels", lambda *_: self.kernels)

    def frame(self, width: int = 160, height: int = 120, index: int = 0) -> Frame:
        frame = to_gpu(self.device, frame_of(width, height, "nv12", counter=self.counter, index=index))
        planes = [replace(cast("Any", plane), stream=self.stream) for plane in frame.planes]
        return replace(frame, planes=cast("Any", tuple(planes)))

    def host_copies(self) -> int:
        return self.device.counter.read().copies + self.counter.read().copies


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def drawing(width: int | None = None, *elements: str) -> Draw:
    config = {"draw": elements or ("boxes",), "from": "x", "width": width}
    return Draw("paint", DrawStage.model_validate(config), VirtualClock())


def view_of(result: Result) -> DeviceView:
    assert isinstance(result.image, DeviceView)
    return result.image


@pytest.mark.parametrize(("width", "shape"), [(None, (120, 160, 3)), (80, (60, 80, 3))])
def test_a_frame_on_the_gpu_is_drawn_there_and_nothing_comes_down(
    rig: Rig, width: int | None, shape: tuple[int, ...]
) -> None:
    paint = drawing(width)
    result = paint.process(busy_scene(rig.frame(), 0, objects=3))
    image = view_of(result)
    assert image.shape == shape and image.contiguous and rig.host_copies() == 0
    exact = drawing(width).process(busy_scene(frame_of(160, 120, "nv12"), 0, objects=3)).image
    assert exact is not None and np.array_equal(image.to_host(), exact)
    paint.close()


def test_images_are_used_again_and_never_while_somebody_looks(rig: Rig) -> None:
    paint = drawing()
    kept = view_of(paint.process(Result(rig.frame())))[10:20]
    before = kept.to_host()
    addresses = [view_of(paint.process(Result(rig.frame(index=index)))).address for index in range(1, 30)]
    assert len(set(addresses)) <= 2 and np.array_equal(kept.to_host(), before)
    allocations = rig.device.counter.read().allocations
    frame = rig.frame()
    made = rig.device.counter.read().allocations - allocations  # by the test, for its frame
    for _ in range(20):
        paint.process(Result(frame))
    assert rig.device.counter.read().allocations == allocations + made
    paint.close()
    assert np.array_equal(kept.to_host(), before)


def test_a_second_stage_draws_on_a_copy(rig: Rig) -> None:
    first, second = drawing(), drawing(80, "labels")
    drawn = first.process(busy_scene(rig.frame(), 0, objects=2))
    before = view_of(drawn).to_host()
    again = second.process(drawn)
    assert view_of(again).shape == (60, 80, 3) and np.array_equal(view_of(drawn).to_host(), before)
    assert rig.host_copies() == 2  # those that this test made
    first.close()
    second.close()


def test_what_is_shown_comes_down_once(rig: Rig) -> None:
    paint, images = drawing(), ImagePainter()
    drawn = paint.process(busy_scene(rig.frame(), 0, objects=3))
    shown = images.host_image(drawn)
    assert isinstance(shown, np.ndarray) and rig.host_copies() == 1
    assert np.array_equal(shown, view_of(drawn).to_host())
    plain = images.host_image(Result(rig.frame(index=5)))  # never drawn on: converted there, too
    assert rig.host_copies() == 3 and np.array_equal(plain, frame_of(160, 120, "nv12", index=5).to_bgr())
    for index in range(9):
        assert not np.shares_memory(shown, images.host_image(Result(rig.frame(index=index))))
    images.close()
    paint.close()


def test_a_gpu_without_a_compiler_brings_frames_down_and_says_so_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: object) -> None:
        raise DeviceError("there is no CUDA run-time compiler", fix="install NVRTC")

    monkeypatch.setattr("edgert.stages.gpu.overlay.Kernels", none)
    paint = drawing()
    with caplog.at_level("WARNING", "edgert.draw"):
        for index in range(3):
            image = paint.process(Result(rig.frame(index=index))).image
            assert isinstance(image, np.ndarray)
            assert np.array_equal(image, frame_of(160, 120, "nv12", index=index).to_bgr())
    assert caplog.text.count("install NVRTC") == 1 and "images are made on the host" in caplog.text
    paint.close()


def test_a_format_that_the_kernel_does_not_read_is_brought_down(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    odd = frame_of(161, 120, "yuyv")
    frame = to_gpu(rig.device, odd)
    planes = tuple(replace(cast("Any", plane), stream=rig.stream) for plane in frame.planes)
    paint = drawing()
    image = paint.process(Result(replace(frame, planes=cast("Any", planes)))).image
    assert isinstance(image, np.ndarray) and np.array_equal(image, odd.to_bgr())
    assert "its last pixel has no color of its own" in caplog.text
    paint.close()


def test_the_live_page_draws_on_the_gpu_and_brings_down_what_it_shows(rig: Rig) -> None:
    live, result = LiveImages(), busy_scene(rig.frame(1600, 900), 0, objects=5)
    live.show(result)
    (found,) = live.jpegs({result.frame.stream: 0})
    image = cv2.imdecode(np.frombuffer(found[2], np.uint8), cv2.IMREAD_COLOR)
    assert image is not None and image.shape == (720, 1280, 3)
    read = rig.device.counter.read()
    assert (read.copies, read.bytes_copied) == (1, image.nbytes)
    live.close()


def test_a_window_gets_only_what_it_shows_of_the_gpu(rig: Rig) -> None:
    window, exact, paint = WindowImage(), WindowImage(), drawing()
    for result in (busy_scene(rig.frame(1600, 900), 0, objects=5), paint.process(Result(rig.frame(1600, 900)))):
        before = rig.device.counter.read()
        shown = window.convert(result, (640, 0))
        after = rig.device.counter.read()
        assert (after.copies - before.copies, after.bytes_copied - before.bytes_copied) == (1, 640 * 360 * 3)
        if result.image is None:
            wanted = exact.convert(busy_scene(frame_of(1600, 900, "nv12"), 0, objects=5), (640, 0))
            assert np.abs(shown.astype(int) - wanted).max() <= LEVELS
    window.close()
    paint.close()


def test_files_are_written_of_what_is_on_the_gpu(rig: Rig, tmp_path: Path) -> None:
    with opened(ImagesSink("files", tmp_path / "{frame}.png")) as sink:
        sink.process(Result(rig.frame(index=4)))
    found = cv2.imread(str(tmp_path / "4.png"))
    assert found is not None and np.array_equal(found, frame_of(160, 120, "nv12", index=4).to_bgr())


def test_the_mark_of_a_simulated_board_is_painted_on_the_gpu(rig: Rig) -> None:
    seen: list[Result] = []
    marked = SimulationLabel(cast("Any", SimpleNamespace(process=seen.append, close=lambda: None)), "simulated", True)
    marked.process(Result(rig.frame()))
    image = view_of(seen[0])
    assert rig.host_copies() == 0
    plain = frame_of(160, 120, "nv12").to_bgr()
    assert np.array_equal(image.to_host()[:90], plain[:90]) and not np.array_equal(image.to_host(), plain)
    marked.close()


def test_whoever_reads_an_image_elsewhere_is_waited_for(rig: Rig) -> None:
    paint, elsewhere = drawing(), rig.device.stream()
    image = view_of(paint.process(Result(rig.frame())))
    frame, address = rig.frame(), image.address
    gpu = rig.device.driver
    gpu.paused = True
    with rig.device:
        elsewhere.raw.put(lambda: None)
    cast("Any", image.lease).after(elsewhere)
    del image
    other = view_of(paint.process(Result(frame)))
    assert other.address != address
    gpu.paused = False
    with rig.device:
        gpu.run_all()
    del other
    assert view_of(paint.process(Result(frame))).address == address
    paint.close()
