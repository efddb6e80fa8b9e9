"""Images in a fixed order, however they come."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from edgert.quantization.calibration.range_calibrator import SHARD, Feed, Shard, from_feed, from_stream
from tests.helpers.feeds import Noise

IMAGES = [Noise(11).feeds(number)["x"] for number in range(11)]


def check(shards: list[Shard], feed: Feed | None, name: str) -> None:
    assert [(shard.start, shard.end) for shard in shards] == [(0, 4), (4, 8), (8, 11)]
    found = [image for shard in shards for image in shard.images(feed)]
    assert [name for name, _ in found] == [f"{name}{number}" for number in range(11)]
    np.testing.assert_array_equal([feeds["x"] for _, feeds in found], IMAGES)


def test_a_feed_is_shared_out_in_order() -> None:
    feed = Noise(11)
    assert isinstance(feed, Feed)
    shards = list(from_feed(feed))
    assert feed.asked == []
    check(shards, feed, "noise-")


def test_a_feed_can_be_gone_on_with() -> None:
    assert [shard.start for shard in from_feed(Noise(11), 8)] == [8]
    assert list(from_feed(Noise(11), 11)) == []


def test_a_stream_is_shared_out_as_it_comes() -> None:
    asked: list[int] = []

    def stream() -> Iterator[dict[str, Any]]:
        for number in range(11):
            asked.append(number)
            yield Noise(11).feeds(number)

    shards = from_stream(stream())
    first = next(shards)
    assert len(asked) == SHARD
    check([first, *shards], None, "image ")
