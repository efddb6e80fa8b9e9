"""One stream's video: encoded once for all, from a key frame on for each, not at all for nobody."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest

from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.runtime.records import Result
from edgert.stages.sink import encoder_choice, encoders
from edgert.stages.sink.encoder_choice import EncoderChoice
from edgert.stages.sink.stream.broadcast import Broadcast, Pace, Wanted, parameter_sets
from tests.helpers.frames import frame_of
from tests.helpers.waiting import wait_until

STEP_NS = 33_333_333


class Viewer:
    def __init__(self) -> None:
        self.units, self.ended = list[encoders.Unit](), 0

    def give(self, unit: encoders.Unit) -> None:
        self.units.append(unit)

    def end(self) -> None:
        self.ended += 1


class Show:
    """Frames into a broadcast, each after the one before was encoded."""

    def __init__(self, **wanted: Any) -> None:
        self.counter, self.number = Counter(), 0
        keys = {"width": 1280, "rate": None, "bitrate_bps": 1_000_000, "usual_rate": 30.0, **wanted}
        self.choice = EncoderChoice("stages.out", "h264", "cpu", live=True)
        self.choice.check()
        self.broadcast = Broadcast("out", "cam", self.choice, Wanted(**keys))

    def frames(self, count: int, size: tuple[int, int] = (64, 48)) -> None:
        for _ in range(count):
            frame = frame_of(*size, counter=self.counter, index=self.number)
            frame = replace(frame, timestamp_ns=self.number * STEP_NS)
            self.number += 1
            before = self.broadcast.encoded
            self.broadcast.show(Result(frame))
            frame.lease.release()
            if self.broadcast.viewers:
                wait_until(lambda before=before: self.broadcast.encoded > before or not self.broadcast.viewers)

    def join(self) -> Viewer:
        viewer = Viewer()
        self.broadcast.join(viewer)
        return viewer


@pytest.fixture
def show() -> Iterator[Show]:
    made = Show()
    yield made
    made.broadcast.close()
    assert not [one for one in threading.enumerate() if one.name == "edgert:out:cam"]


def sizes(viewer: Viewer) -> list[tuple[int, int]]:
    """Of the images that a decoder makes of what a viewer got; raises where it cannot."""
    codec: Any = av.CodecContext.create("h264", "r")
    found = [image for unit in viewer.units for image in codec.decode(av.Packet(unit.data))]
    return [(one.width, one.height) for one in [*found, *codec.decode(None)]]


def test_nothing_is_encoded_and_nothing_kept_while_nobody_watches(show: Show) -> None:
    show.frames(5)
    assert show.broadcast.encoded == 0 and show.broadcast._thread is None
    viewer = show.join()
    show.frames(3)
    show.broadcast.leave(viewer)
    wait_until(lambda: show.broadcast._encoder is None)
    show.frames(5)
    assert show.broadcast.encoded == 3 == len(viewer.units)
    again = show.join()
    show.frames(2)
    assert sizes(again) == [(64, 48)] * 2
    ticks = [unit.tick for unit in viewer.units + again.units]
    assert ticks == sorted(set(ticks)), "its clock goes on"


def test_many_viewers_cost_one_encoding_and_each_begins_with_an_image_that_stands_alone(show: Show) -> None:
    first = show.join()
    show.frames(20)
    second = show.join()
    show.frames(20)
    third = show.join()
    show.frames(5)
    assert show.broadcast.encoded == 45 == len(first.units)
    assert second.units[0].is_key and second.units == first.units[-len(second.units) :] and len(second.units) >= 20
    third_wait = 15  # images: half a second after the second one's
    show.frames(third_wait)
    assert third.units and third.units[0].is_key
    for viewer in (first, second, third):
        assert sizes(viewer) == [(64, 48)] * len(viewer.units)
        assert all(parameter_sets(unit.data) for unit in viewer.units if unit.is_key)


def test_a_viewer_that_lost_images_gets_one_to_go_on_with_but_not_each_time_it_asks(show: Show) -> None:
    viewer = show.join()
    show.frames(20)
    for _ in range(30):
        show.broadcast.refresh()
        show.frames(1)
    keys = [index for index, unit in enumerate(viewer.units) if unit.is_key]
    assert keys[0] == 0 and len(keys) in (2, 3, 4) and min(np.diff(keys)) >= 15


def test_images_of_another_size_go_on_in_the_same_stream(show: Show) -> None:
    viewer = show.join()
    show.frames(3)
    show.frames(3, (96, 64))
    show.frames(2, (65, 49))
    assert sizes(viewer) == [(64, 48)] * 3 + [(96, 64)] * 3 + [(64, 48)] * 2
    assert [index for index, unit in enumerate(viewer.units) if unit.is_key] == [0, 3, 6]


def test_large_images_are_made_smaller_and_fast_ones_left_out() -> None:
    show = Show(width=32, rate=15.0)
    viewer = show.join()
    for _ in range(12):  # every second one is taken
        before = show.broadcast.encoded
        show.frames(0)
        frame = replace(frame_of(64, 48, index=show.number), timestamp_ns=show.number * STEP_NS)
        show.broadcast.show(Result(frame))
        if show.number % 2 == 0:
            wait_until(lambda before=before: show.broadcast.encoded > before)
        show.number += 1
    show.broadcast.close()
    assert sizes(viewer) == [(32, 24)] * 6 and viewer.ended == 1


def test_what_comes_while_an_image_is_encoded_is_dropped_and_costs_the_pipeline_no_wait(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    going, encode = threading.Event(), encoders.FfmpegEncoder.encode

    def slow(self: encoders.FfmpegEncoder, *arguments: Any) -> Any:
        assert going.wait(30)
        return encode(self, *arguments)

    monkeypatch.setattr(encoders.FfmpegEncoder, "encode", slow)
    viewer = show.join()
    leases = []
    for number in range(50):
        frame = replace(frame_of(index=number, counter=show.counter), timestamp_ns=number * STEP_NS)
        leases.append(frame.lease)
        show.broadcast.show(Result(frame))
        frame.lease.release()
        if not number:
            wait_until(lambda: show.broadcast._newest is None)
    going.set()
    wait_until(lambda: len(viewer.units) == 2)
    assert [round(unit.tick * 30 / encoders.TICKS_HZ) for unit in viewer.units] == [0, 49]


def test_an_encoder_that_fails_is_followed_by_the_next_and_the_last_one_ends_the_viewers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(encoders.FfmpegEncoder):
        def __init__(self, kind: encoders.Kind, format: encoders.VideoFormat) -> None:
            super().__init__("libx264", format)
            self.kind, self.title = kind, f"the {kind}"

        def encode(self, result: Result, tick: int) -> list[encoders.Unit]:
            raise DeviceError("it failed", why="of heat")

    show = Show()
    show.choice.encode = "auto"
    monkeypatch.setattr(encoder_choice, "hardware_encoders", lambda *_, **__: [("board", "")])
    monkeypatch.setattr(EncoderChoice, "_make", lambda self, kind, format, *_: Broken(kind, format))
    viewer = show.join()
    show.broadcast.show(Result(frame_of()))
    wait_until(lambda: "the board failed: it failed: of heat" in caplog.text)
    show.frames(3)
    assert len(viewer.units) == 3 and not viewer.ended
    monkeypatch.setattr(encoders.FfmpegEncoder, "encode", Broken.encode)
    show.broadcast.show(Result(frame_of()))
    wait_until(lambda: viewer.ended)
    assert "video cannot be encoded" in caplog.text and show.broadcast.viewers == 0
    show.frames(1)  # the pipeline goes on
    show.broadcast.close()
    late = show.join()
    assert late.ended == 1, "who comes after the end is told"


def test_a_thread_that_fails_closes_its_encoder_before_another_may_begin(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    viewer, threads, viewers = show.join(), list[object](), list[int]()
    monkeypatch.setattr(show.broadcast, "_forget", lambda: viewers.append(show.broadcast.viewers))
    monkeypatch.setattr(encoders.FfmpegEncoder, "encode", lambda *_: 1 / 0)
    monkeypatch.setattr(encoders.FfmpegEncoder, "close", lambda _: threads.append(show.broadcast._thread))
    show.broadcast.show(Result(frame_of()))
    wait_until(lambda: viewer.ended and threads and viewers)
    with pytest.raises(ZeroDivisionError):
        show.broadcast.show(Result(frame_of()))
    assert None not in threads and viewers == [0], "a result for a viewer would stay"


@pytest.mark.parametrize(("rate", "taken"), [(None, 30), (30.0, 30), (20.0, 20), (10.0, 10), (7.0, 7)])
def test_pace(rate: float | None, taken: int) -> None:
    pace = Pace(rate)
    jitter = (0, 3_000_000, -2_000_000, 1_000_000)
    count = sum(pace.takes(number * STEP_NS + jitter[number % 4]) for number in range(300))
    assert count == pytest.approx(taken * 10, abs=3)


def test_pace_goes_on_after_a_gap() -> None:
    pace = Pace(10.0)
    assert pace.takes(0) and not pace.takes(50_000_000) and pace.takes(10_000_000_000)
    assert [pace.takes(10_000_000_000 + number * STEP_NS) for number in range(1, 8)].count(True) <= 3


@pytest.mark.parametrize("start", [b"\0\0\1", b"\0\0\0\1"])
def test_parameter_sets(start: bytes) -> None:
    sets = start + b"\x09\xf0" + start + b"\x67abc" + start + b"\x68de"
    assert parameter_sets(sets + start + b"\x65slice" + start + b"\x65slice") == sets
    assert parameter_sets(start + b"\x65slice") == parameter_sets(start + b"\x41slice") == parameter_sets(b"") == b""
