"""What a reader thread leaves behind when it ends."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from edgert.clock import RealClock
from edgert.errors import DeviceError, StageError
from edgert.stages.source.live import LiveSource, Reader, Slot
from edgert.stages.source.timeline import Timeline


class EndingReader:
    """Lives until its slot is first asked and has nothing; puts ``last`` and ends right after that."""

    def __init__(self, last: DeviceError | None) -> None:
        self.slot = self
        self._slot: Slot[Any] = Slot()
        self._last, self._is_alive = last, True

    def is_alive(self) -> bool:
        return self._is_alive

    def take(self, timeout_s: float) -> Any:
        if not self._is_alive:
            return self._slot.take(timeout_s)
        self._is_alive = False
        if self._last is not None:
            self._slot.put(self._last)
        return None


def images(last: DeviceError | None) -> list[object]:
    def connect() -> Any:
        raise AssertionError("the reader is a double; it connects to nothing")

    timeline = cast(Timeline, None)  # a reader without images needs none
    live = LiveSource("cam", "the camera", connect, timeline, RealClock(), live=True, reconnect=False)
    return list(live._images(cast(Reader, EndingReader(last)), threading.Event()))


def test_the_last_word_of_a_reader_is_heard_although_it_has_ended() -> None:
    with pytest.raises(DeviceError, match="cable"):
        images(DeviceError("the cable is out"))


def test_a_reader_that_ends_without_a_word_is_told() -> None:
    with pytest.raises(StageError, match="the reader of the camera died"):
        images(None)
