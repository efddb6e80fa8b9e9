"""Images that code makes: the user's own, and the scenes."""

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.dataset.images import open_images
from edgert.errors import ConfigError, EdgertError, StageError
from edgert.installation import demo_images
from edgert.memory import Counter
from edgert.runtime import Frame
from edgert.runtime.stage import Source
from edgert.stages.context import Context
from edgert.stages.source.kinds import source_for
from edgert.stages.source.python_images import SCENES
from tests.helpers.counter import read_counter
from tests.helpers.errors import raises
from tests.helpers.virtual_clock import VirtualClock

GRAB = """
import threading

import numpy as np

def images(width, height, seed=0, step=1):
    for number in range(5):
        yield np.full((height, width, 3), seed % 200 + number * step, np.uint8)

def fixed():
    yield np.zeros((20, 30, 3), np.uint8)

def floats(width, height):
    yield np.zeros((height, width, 3))

def number():
    return 7

class Camera:
    closed = []

    def __init__(self, fps):
        self.fps = fps

    def render(self, index, out):
        out[:] = int(self.fps) + index

    def close(self):
        self.closed.append(threading.current_thread().name)
"""


def made(line: str, folder: Path, counter: Counter | None = None, **options: object) -> tuple[Source, VirtualClock]:
    clock = VirtualClock()
    config = SourceStage.model_validate({"source": line, "limit": 20, **options})
    return source_for("cam", config, Context(folder, clock=clock, counter=counter or Counter())), clock


def frames(line: str, folder: Path = Path(), **options: object) -> list[Frame]:
    return list(made(line, folder, **options)[0].frames(threading.Event()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "edgert_test_grab.py").write_text(GRAB)
    return tmp_path


class TestTheUsersCode:
    def test_a_generators_images_are_frames_without_a_copy(self, folder: Path) -> None:
        counter = Counter()
        source, _ = made("python:edgert_test_grab:images", folder, counter, size="32x24", seed=3, fps=10)
        found = list(source.frames(threading.Event()))
        assert [int(frame.planes[0][0, 0, 0]) for frame in found] == [3, 4, 5, 6, 7]
        assert [frame.media_ns for frame in found] == [n * 100_000_000 for n in range(5)]
        assert {(frame.width, frame.height, frame.format) for frame in found} == {(32, 24, "bgr")}
        assert counter.read().copies == 0 and not source.live

    def test_options_are_further_arguments(self, folder: Path) -> None:
        found = frames("python:edgert_test_grab:images", folder, size="32x24", options={"step": 20})
        assert [int(frame.planes[0][0, 0, 0]) for frame in found] == [0, 20, 40, 60, 80]

    def test_its_own_size_counts_where_it_takes_none(self, folder: Path) -> None:
        (frame,) = frames("python:edgert_test_grab:fixed", folder)
        assert (frame.width, frame.height) == (30, 20)

    def test_what_renders_draws_into_memory_lent_to_it_and_is_closed(self, folder: Path) -> None:
        counter = Counter()
        source, _ = made("python:edgert_test_grab:Camera", folder, counter, size="32x24", fps=7, limit=40)
        for frame in source.frames(threading.Event()):
            assert (frame.planes[0] == 7 + frame.index).all()
            frame.lease.release()
        assert counter.read().copies == 0 and counter.read().allocations <= 5
        assert len(sys.modules["edgert_test_grab"].Camera.closed) == 1

    def test_another_folder_can_be_named(self, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        assert len(frames(f"python:{folder}/edgert_test_grab:images", elsewhere, size="32x24")) == 5

    @pytest.mark.parametrize(
        ("line", "options", "what"),
        [
            ("edgert_test_grab:imagse", {}, "did you mean 'images'"),
            ("edgert_test_none:images", {}, "there is no module 'edgert_test_none'"),
            ("edgert_test_grab", {}, "names no function"),
            ("edgert_test_grab.py:images", {}, "is a file, not a module"),
            ("edgert_test_grab:fixed", {"size": "32x24"}, "size: has no meaning"),
            ("edgert_test_grab:images", {"options": {"stpe": 2}}, "unexpected keyword argument 'stpe'"),
            ("edgert_test_grab:number", {}, "it returns int"),
            ("edgert_test_grab:images", {"loop": True}, "loop: has no meaning"),
        ],
    )
    def test_what_is_wrong_is_said_before_the_start(
        self, folder: Path, line: str, options: dict[str, Any], what: str
    ) -> None:
        with raises(ConfigError, says=what):
            made(f"python:{line}", folder, **options)

    def test_images_of_another_type_are_refused(self, folder: Path) -> None:
        with pytest.raises(StageError, match="pixels must be uint8, not float64"):
            frames("python:edgert_test_grab:floats", folder)

    def test_it_is_a_dataset_too(self, folder: Path) -> None:
        line = f"python:{folder}/edgert_test_grab:images"
        images = open_images(line, limit=5)
        assert len(images) == 5 and images.name(1) == "edgert_test_grab:images image 1"
        assert images.frame(1).planes[0].shape == (480, 640, 3)
        with pytest.raises(StageError, match="ends after 5 images"):
            open_images(line, limit=6).frame(5)
        before = images.digest()
        (folder / "edgert_test_grab.py").write_text(GRAB + "\n# changed\n")
        assert images.digest() != before, "what was measured on other code's images counts no longer"

    def test_a_dataset_of_no_code_is_refused(self, folder: Path) -> None:
        with pytest.raises(EdgertError, match="does not exist"):
            open_images(f"python:{folder}/edgert_test_grab:imagse")


@pytest.mark.parametrize("name", sorted(SCENES))
def test_every_scene_gives_frames_of_the_asked_size(name: str) -> None:
    found = frames(f"synthetic:{name}", size="320x240", limit=3)
    assert [frame.index for frame in found] == [0, 1, 2]
    assert {(frame.width, frame.height, frame.format) for frame in found} == {(320, 240, "bgr")}
    assert all(frame.planes[0].shape == (240, 320, 3) and frame.planes[0].dtype == np.uint8 for frame in found)


@pytest.mark.parametrize("line", ["synthetic:noise", demo_images()])
def test_the_same_seed_gives_the_same_images(line: str) -> None:
    def last(seed: int) -> np.ndarray:
        return frames(line, size="128x96", limit=3, seed=seed)[-1].planes[0]

    assert (last(1) == last(1)).all()
    assert (last(1) != last(2)).any()


def test_buffers_are_used_again_and_a_held_frame_never_changes() -> None:
    counter = Counter()
    source, _ = made("synthetic:counter", Path(), counter, limit=50)
    kept = None
    for frame in source.frames(threading.Event()):
        assert read_counter(frame.planes[0]) == frame.index
        if frame.index == 3:
            kept = frame
        else:
            frame.lease.release()
    assert counter.read().allocations <= 5
    assert kept is not None
    assert read_counter(kept.planes[0]) == 3


def test_whoever_keeps_everything_gets_more_memory_not_a_standstill() -> None:
    found = frames("synthetic:counter", limit=30)
    assert [read_counter(frame.planes[0]) for frame in found] == list(range(30))


def test_blank_and_noise_do_no_work_per_frame() -> None:
    found = frames("synthetic:noise", limit=20)
    assert len({frame.planes[0].ctypes.data for frame in found}) == 8
    assert not found[0].planes[0].flags.writeable
    assert len({frame.planes[0].ctypes.data for frame in frames("synthetic:blank", limit=5)}) == 1


def test_media_time_follows_fps_and_realtime_paces() -> None:
    source, clock = made("synthetic:blank", Path(), fps=10, limit=11, realtime=True)
    assert source.live
    found = list(source.frames(threading.Event()))
    assert found[10].media_ns == 1_000_000_000
    assert clock.now_ns() == 1_000_000_000


def test_bad_scenes_are_refused() -> None:
    with raises(ConfigError, "did you mean 'noise'", why="synthetic:noise"):
        made("synthetic:noize", Path())
    for line, size, why in (("synthetic:counter", "64x64", "at least 256x8"), (demo_images(), "16x16", "64x64 pixels")):
        with raises(ConfigError, "cannot make images", why=why):
            made(line, Path(), size=size)
