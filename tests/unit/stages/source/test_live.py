"""What a reader thread leaves behind when it ends, and its slot for one item."""

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
    with pytest.raises(StageError, match="the reader thread of the camera crashed"):
        images(None)


def test_an_item_passes_once() -> None:
    slot: Slot[str] = Slot()
    assert slot.put("a")
    assert slot.take(0) == "a"
    assert slot.take(0) is None


def test_put_waits_until_the_slot_is_empty() -> None:
    slot: Slot[int] = Slot()
    slot.put(1)
    second = threading.Thread(target=slot.put, args=(2,))
    second.start()
    assert slot.take(1) == 1
    assert slot.take(5) == 2
    second.join(5)
    assert not second.is_alive()


def test_closing_lets_a_waiting_producer_go_and_returns_what_is_left() -> None:
    slot: Slot[int] = Slot()
    slot.put(1)
    answers: list[bool] = []
    producer = threading.Thread(target=lambda: answers.append(slot.put(2)))
    producer.start()
    assert slot.close() == 1
    producer.join(5)
    assert answers == [False]
    assert not slot.put(3)
    assert slot.take(0) is None


def test_every_item_ends_up_on_exactly_one_side_when_closed_at_any_moment() -> None:
    for _ in range(200):
        slot: Slot[int] = Slot()
        refused: list[int] = []

        def produce(slot: Slot[int] = slot, refused: list[int] = refused) -> None:
            number = 0
            while slot.put(number):
                number += 1
            refused.append(number)

        producer = threading.Thread(target=produce)
        producer.start()
        taken = [slot.take(5), slot.take(5)]
        left = slot.close()
        producer.join(5)
        seen = [*taken, *([] if left is None else [left]), *refused]
        assert seen == list(range(len(seen)))
