"""One item at a time from one thread to another."""

from __future__ import annotations

import threading

from edgert.stages.source.live import Slot


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
