"""One item at a time from one thread to another."""

from __future__ import annotations

import threading

from edgert.stages.source.slot import Slot


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
    assert slot.take(5) is None, "a closed slot does not wait"
