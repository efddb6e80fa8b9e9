"""What a reader thread passes on, one image at a time, and what it leaves behind when it ends."""

import threading
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import Mock

import pytest

from edgert.clock import REAL
from edgert.errors import DeviceError, StageError
from edgert.stages.source.live import Connection, Device, LiveSource, Reader
from edgert.stages.source.timeline import Image, Timeline
from tests.helpers.waiting import wait_until


class EndingReader:
    """Lives until it is first asked and has nothing; has ``last`` and ends right after that."""

    def __init__(self, last: DeviceError | None) -> None:
        self._last, self._is_alive = last, True

    def is_alive(self) -> bool:
        return self._is_alive

    def take(self, timeout_s: float) -> DeviceError | None:
        last = None if self._is_alive else self._last
        self._is_alive = False
        return last


def images(last: DeviceError | None) -> list[object]:
    def connect() -> Any:
        raise AssertionError("the reader is a double; it connects to nothing")

    timeline = cast(Timeline, None)  # a reader without images needs none
    live = LiveSource("cam", "the camera", connect, timeline, REAL, live=True, reconnect=False)
    return list(live._images(cast(Reader, EndingReader(last)), threading.Event()))


def test_the_last_word_of_a_reader_is_heard_although_it_has_ended() -> None:
    with pytest.raises(DeviceError, match="cable"):
        images(DeviceError("the cable is out"))


def test_a_reader_that_ends_without_a_word_is_told() -> None:
    with pytest.raises(StageError, match="the reader thread of the camera crashed"):
        images(None)


class Endless(Device):
    """Camera that gives images as fast as they are taken, and keeps their leases."""

    def __init__(self) -> None:
        self.leases = list[Mock]()

    def images(self) -> Iterator[Image]:
        while True:
            self.leases.append(Mock())
            yield Image("gray", (), self.leases[-1], len(self.leases))

    def close(self) -> None:
        pass


def test_images_pass_in_order_and_one_waits_at_most() -> None:
    device = Endless()
    reader = Reader(lambda: device, Connection("cam", "cam", REAL), True, False)
    reader.start()
    assert reader.take(5) == "connected"
    taken = [cast(Image, reader.take(5)) for _ in range(3)]
    assert [image.timestamp_ns for image in taken] == [1, 2, 3]
    wait_until(lambda: len(device.leases) == 5)  # one waits to be taken, one for room
    assert reader.take(0) is not None and reader.take(5) is not None
    reader.end()
    reader.join(5)
    assert not reader.is_alive() and reader.take(0) is None


def test_every_image_is_taken_or_released_when_the_reader_ends_at_any_moment() -> None:
    for taking in range(200):
        device = Endless()
        reader = Reader(lambda device=device: device, Connection("cam", "cam", REAL), True, False)  # type: ignore[misc]
        reader.start()
        for _ in range(taking % 4):
            if isinstance(image := reader.take(5), Image):
                image.lease.release()
        reader.end()
        reader.join(5)
        assert not reader.is_alive()
        assert all(lease.release.call_count == 1 for lease in device.leases)
