"""FFmpeg's encoders on the processor: a thread for each video, in which its images keep their order."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from edgert.runtime.frame import Color
from edgert.runtime.records import Result
from edgert.stages.sink.encoders import TICKS_HZ, FfmpegEncoder, Unit, VideoFormat
from tests.helpers.frames import frame_of
from tests.helpers.growth import is_freed

FORMAT = VideoFormat("h264", 23, 64, 48, Fraction(30), Color())
STEP = TICKS_HZ // 30


def result(index: int = 0) -> Result:
    frame = frame_of(64, 48, "i420", index=index)
    for plane in frame.planes:
        plane[...] = 40 + 4 * index
    return Result(frame)


def encoder(name: str = "libx264", format: VideoFormat = FORMAT) -> FfmpegEncoder:
    return FfmpegEncoder(name, format)


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "edgert-encoder"]


@pytest.mark.parametrize("name", ["libx264", "mpeg4"])
def test_every_image_comes_out_once_and_in_order(name: str) -> None:
    made = encoder(name)
    units = [unit for index in range(20) for unit in made.encode(result(index), index * STEP)]
    units += made.finish()
    made.close()
    assert [unit.tick for unit in units] == [index * STEP for index in range(20)]
    assert units[0].is_key and threads() == []


def held(made: FfmpegEncoder, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, Callable[[], list[Any]]]:
    """Has an encoder wait for the event at each image; the images that it was given by then."""
    go, plain, began = threading.Event(), made._units, list[Any]()

    def slow(frame: Any) -> list[Unit]:
        began.append(frame)
        assert go.wait(30)
        return plain(frame)

    monkeypatch.setattr(made, "_units", slow)
    return go, lambda: began


def test_a_slow_video_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, quick = encoder(), encoder("mpeg4")
    go, _ = held(slow, monkeypatch)
    assert slow.encode(result(), 0) == []
    done = [unit for index in range(30) for unit in quick.encode(result(index), index * STEP)]
    done += quick.finish()
    assert len(done) == 30, "all of it while the other encodes its first image"
    go.set()
    assert len(slow.finish()) == 1
    for one in (slow, quick):
        one.close()


def test_whoever_is_too_fast_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = encoder()
    go, began = held(made, monkeypatch)
    handed = list[int]()

    def hand_over() -> None:
        for index in range(6):
            made.encode(result(index), index * STEP)
            handed.append(index)

    other = threading.Thread(target=hand_over)
    other.start()
    other.join(0.3)
    assert other.is_alive() and len(handed) <= 3 and len(began()) == 1
    go.set()
    other.join(30)
    assert len(handed) == 6
    made.close()
    assert threads() == []


def test_what_the_encoder_raises_reaches_who_hands_images_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made = encoder()

    def fails(frame: Any) -> list[Unit]:
        raise ValueError("no more memory")

    monkeypatch.setattr(made, "_units", fails)
    with pytest.raises(ValueError, match="no more memory"):
        for index in range(1000):
            made.encode(result(index), index * STEP)
    with pytest.raises(ValueError, match="no more memory"):
        made.finish()
    made.close()
    assert threads() == []


def test_video_that_is_watched_while_it_is_made_waits_for_no_thread() -> None:
    made = encoder(format=replace(FORMAT, bitrate_bps=1_000_000))
    assert threads() == []
    assert [len(made.encode(result(index), index * STEP)) for index in range(3)] == [1, 1, 1]
    made.close()


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_closed_encoder_is_freed_at_once(has_failed: bool) -> None:
    """Files that rotate make one after another, and the garbage collector has little else to do."""

    def fails(frame: Any) -> list[Unit]:
        raise ValueError("no image")

    def closed() -> FfmpegEncoder:
        made = encoder()
        if has_failed:
            made._units = fails  # type: ignore[method-assign]
        with suppress(ValueError):
            for index in range(5):
                made.encode(result(index), index * STEP)
            made.finish()
        made.close()
        return made

    assert is_freed(closed)
