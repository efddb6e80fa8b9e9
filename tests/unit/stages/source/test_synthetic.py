"""Scenes made on the spot."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edgert.clock import VirtualClock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, StageError
from edgert.memory import Counter
from edgert.stages.source.scenes import SCENES, Synthetic, read_counter


def scene(name: str, counter: Counter | None = None, clock: VirtualClock | None = None, **options: object) -> Synthetic:
    config = SourceStage.model_validate({"source": f"synthetic:{name}", "limit": 20, **options})
    return Synthetic("cam", name, config, counter or Counter(), clock or VirtualClock())


@pytest.mark.parametrize("name", sorted(SCENES))
def test_every_scene_gives_frames_of_the_asked_size(name: str) -> None:
    frames = list(scene(name, size="320x240", limit=3).frames(threading.Event()))
    assert [frame.index for frame in frames] == [0, 1, 2]
    assert {(frame.width, frame.height, frame.format) for frame in frames} == {(320, 240, "bgr")}
    assert all(frame.planes[0].shape == (240, 320, 3) and frame.planes[0].dtype == np.uint8 for frame in frames)


@pytest.mark.parametrize("name", ["noise", "conveyor"])
def test_the_same_seed_gives_the_same_images(name: str) -> None:
    def last(seed: int) -> np.ndarray:
        return list(scene(name, size="128x96", limit=3, seed=seed).frames(threading.Event()))[-1].planes[0]

    assert (last(1) == last(1)).all()
    assert (last(1) != last(2)).any()


def test_buffers_are_used_again_and_a_held_frame_never_changes() -> None:
    counter = Counter()
    source = scene("counter", counter, limit=50)
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
    frames = list(scene("counter", limit=30).frames(threading.Event()))
    assert [read_counter(frame.planes[0]) for frame in frames] == list(range(30))


def test_blank_and_noise_do_no_work_per_frame() -> None:
    frames = list(scene("noise", limit=20).frames(threading.Event()))
    assert len({frame.planes[0].ctypes.data for frame in frames}) == 8
    assert not frames[0].planes[0].flags.writeable
    blank = list(scene("blank", limit=5).frames(threading.Event()))
    assert len({frame.planes[0].ctypes.data for frame in blank}) == 1


def test_media_time_follows_fps_and_realtime_paces() -> None:
    clock = VirtualClock()
    source = scene("blank", clock=clock, fps=10, limit=11, realtime=True)
    assert source.live
    frames = list(source.frames(threading.Event()))
    assert frames[10].media_ns == 1_000_000_000
    assert clock.now_ns() == 1_000_000_000
    assert not scene("blank").live


def test_the_truth_of_a_frame_can_be_asked_for() -> None:
    source = scene("conveyor", size="320x240", seed=3)
    truth = source.truth(60)
    assert truth.boxes.shape == (len(truth.classes), 4)
    assert len(truth.boxes) > 0
    rendered = list(source.frames(threading.Event()))
    assert (source.truth(60).boxes == truth.boxes).all(), "whatever else was rendered in between"
    assert len(rendered) == 20
    with pytest.raises(StageError, match="no ground truth"):
        scene("blank").truth(0)


def test_bad_scenes_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'conveyor'") as caught:
        scene("conveyer")
    assert "synthetic:noise" in caught.value.why
    with pytest.raises(ConfigError, match="needs at least 256x8"):
        scene("counter", size="64x64")
    with pytest.raises(ConfigError, match="cannot be made"):
        scene("conveyor", size="16x16")
