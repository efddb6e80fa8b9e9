import queue
import threading
from collections import Counter as Tally, deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from edgert.policy import Drop
from edgert.runtime import Inlet, Result
from edgert.runtime.channel import Channel
from tests.helpers.stages import result

DROPS: list[Drop] = ["never", "oldest", "newest"]


def take_all(inlet: Inlet) -> list[tuple[int, int]]:
    """(edge, index) of everything until all edges are closed; releases it."""
    found = []
    for edge, item in iter(inlet.get, None):
        item.frame.lease.release()
        found.append((edge, item.frame.index))
    return found


def fed(capacity: int, drop: Drop, count: int) -> tuple[Inlet, Channel]:
    inlet = Inlet()
    channel = inlet.connect(capacity, drop)
    for index in range(count):
        channel.put(result(index))
    return inlet, channel


@pytest.mark.parametrize("drop", DROPS)
def test_what_is_put_comes_out_in_order_and_then_it_ends(drop: Drop) -> None:
    inlet, channel = fed(5, drop, 5)
    channel.close()
    assert take_all(inlet) == [(0, n) for n in range(5)]
    assert inlet.get() is None


@pytest.mark.parametrize(("drop", "left"), [("oldest", [7, 8, 9]), ("newest", [0, 1, 2])])
def test_a_full_queue_drops_exactly_what_it_says(drop: Drop, left: list[int]) -> None:
    inlet, channel = fed(3, drop, 10)
    stats = channel.stats()
    assert (stats.put, stats.dropped, stats.waiting, stats.capacity) == (10, 7, 3, 3)
    channel.close()
    assert [index for _, index in take_all(inlet)] == left
    assert channel.stats().waiting == 0


@pytest.mark.parametrize("drop", ["oldest", "newest"])
def test_what_is_dropped_is_released_and_the_rest_is_not(drop: Drop) -> None:
    inlet = Inlet()
    channel = inlet.connect(2, drop)
    results = [result(index) for index in range(5)]
    for item in results:
        channel.put(item)
    kept = {"oldest": [3, 4], "newest": [0, 1]}[drop]
    assert [item.frame.index for item in results if item.frame.lease.alive] == kept


def test_after_a_drop_there_is_room_again() -> None:
    inlet, channel = fed(2, "oldest", 4)
    assert inlet.get() is not None
    channel.put(result(4))
    channel.close()
    assert [index for _, index in take_all(inlet)] == [3, 4]
    assert channel.stats().dropped == 2


def test_a_full_queue_that_never_drops_makes_the_producer_wait() -> None:
    inlet, channel = fed(1, "never", 1)
    through = threading.Event()

    def produce() -> None:
        channel.put(result(1))
        through.set()

    producer = threading.Thread(target=produce)
    producer.start()
    assert not through.is_set() and channel.stats().waiting == 1
    first = inlet.get(10)
    assert first is not None and first[1].frame.index == 0
    assert through.wait(10)
    producer.join()
    assert channel.stats().dropped == 0


def test_a_flood_on_one_edge_takes_nothing_from_another() -> None:
    inlet = Inlet()
    quiet, flood = inlet.connect(1, "oldest"), inlet.connect(1, "oldest")
    quiet.put(result(0))
    for index in range(100):
        flood.put(result(index))
    quiet.close()
    flood.close()
    assert sorted(take_all(inlet)) == [(0, 0), (1, 99)]


def test_it_ends_when_every_edge_is_closed_not_before() -> None:
    inlet = Inlet()
    first, second = inlet.connect(2, "never"), inlet.connect(2, "never")
    first.close()
    with pytest.raises(queue.Empty):
        inlet.get(0.001)
    second.put(result(1))
    second.close()
    assert take_all(inlet) == [(1, 1)]


def test_an_inlet_without_edges_is_at_its_end() -> None:
    assert Inlet().get() is None


@pytest.mark.parametrize("drop", DROPS)
def test_an_abandoned_channel_releases_everything_and_never_blocks(drop: Drop) -> None:
    inlet = Inlet()
    channel = inlet.connect(2, drop)
    results = [result(index) for index in range(20)]
    for item in results[:2]:
        channel.put(item)
    inlet.abandon()
    for item in results[2:]:
        channel.put(item)
    channel.close()
    assert take_all(inlet) == []
    assert not any(item.frame.lease.alive for item in results)
    stats = channel.stats()
    assert (stats.put, stats.dropped, stats.waiting) == (20, 20, 0)


def test_abandoning_frees_a_producer_that_waits() -> None:
    inlet, channel = fed(1, "never", 1)
    waiting = [result(index) for index in (1, 2, 3)]

    def produce() -> None:
        for item in waiting:
            channel.put(item)
        channel.close()

    producer = threading.Thread(target=produce)
    producer.start()
    inlet.abandon()
    producer.join(10)
    assert not producer.is_alive()
    assert take_all(inlet) == []
    assert not any(item.frame.lease.alive for item in waiting)


def test_abandoning_twice_is_as_good_as_once() -> None:
    inlet, channel = fed(2, "never", 2)
    inlet.abandon()
    inlet.abandon()
    assert channel.stats().dropped == 2


@settings(max_examples=25, deadline=None)
@given(
    capacities=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    drops=st.lists(st.sampled_from(DROPS), min_size=3, max_size=3),
    count=st.integers(0, 40),
    leaves_after=st.one_of(st.none(), st.integers(0, 30)),
    outsider=st.booleans(),
)
def test_whatever_the_threads_do_nothing_is_lost_twice_or_kept(
    capacities: list[int], drops: list[Drop], count: int, leaves_after: int | None, outsider: bool
) -> None:
    """Producers, a consumer that may leave early, and a third thread that may abandon meanwhile, as a stop does."""
    inlet = Inlet()
    channels = [inlet.connect(capacity, drop) for capacity, drop in zip(capacities, drops, strict=False)]
    sent = [[result(index, str(edge)) for index in range(count)] for edge in range(len(channels))]
    got: list[tuple[int, int]] = []

    def produce(edge: int) -> None:
        for item in sent[edge]:
            channels[edge].put(item)
        channels[edge].close()

    def consume() -> None:
        for edge, item in iter(inlet.get, None):
            got.append((edge, item.frame.index))
            item.frame.lease.release()
            if leaves_after is not None and len(got) >= leaves_after:
                break
        if leaves_after is not None:
            inlet.abandon()

    threads = [threading.Thread(target=produce, args=(edge,), daemon=True) for edge in range(len(channels))]
    threads.append(threading.Thread(target=consume, daemon=True))
    if outsider:
        threads.append(threading.Thread(target=inlet.abandon, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert not any(item.frame.lease.alive for items in sent for item in items)
    taken = Tally(edge for edge, _ in got)
    for edge, channel in enumerate(channels):
        indices = [index for at, index in got if at == edge]
        assert indices == sorted(set(indices))
        stats = channel.stats()
        assert (stats.put, stats.dropped + taken[edge], stats.waiting) == (count, count, 0)
        if drops[edge] == "never" and leaves_after is None and not outsider:
            assert indices == list(range(count))
        if drops[edge] == "oldest" and count and leaves_after is None and not outsider:
            assert indices[-1] == count - 1


class _Interrupted(deque[Result]):
    """The items of a channel, with something happening in between the producer's or the consumer's steps."""

    def __init__(self, before_append: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._before_append = before_append

    def append(self, item: Result) -> None:
        self._before_append()
        super().append(item)


@pytest.mark.parametrize("drop", DROPS)
def test_a_result_that_comes_while_the_consumer_leaves_is_released(drop: Drop) -> None:
    inlet = Inlet()
    channel = inlet.connect(1, drop)
    channel.items = _Interrupted(before_append=inlet.abandon)
    late = result(0)
    channel.put(late)
    assert not late.frame.lease.alive
    assert channel.stats().dropped == 1


def test_making_room_where_there_is_room_by_now_loses_nothing_of_the_consumers() -> None:
    """``oldest``, full, and the consumer takes the waiting result before the producer can push it out."""
    inlet, channel = fed(1, "oldest", 1)
    taken: list[int] = []

    def take() -> None:
        item = inlet.get(0)
        assert item is not None
        taken.append(item[1].frame.index)

    waiting = _Interrupted(before_append=take)
    waiting.extend(channel.items)
    channel.items = waiting
    channel.put(result(1))
    channel.close()
    rest = [index for _, index in take_all(inlet)]
    assert taken == [0]
    assert channel.stats().dropped + len(rest) == 1


def test_a_producer_that_has_no_time_to_wait_finds_the_room_that_there_is() -> None:
    inlet, channel = fed(4, "never", 4)
    assert not channel.has_room(0.001)
    assert inlet.get() is not None
    assert channel.has_room(0.0) and channel.has_room(0.001)
