"""Images in a fixed order, however they come."""

import re
from typing import Any

import numpy as np
import pytest

from edgert.errors import CalibrationError
from edgert.graph import TensorSpec
from edgert.quantization.calibration.workers import SHARD, Feed, Shard, from_batches, from_feed
from tests.helpers.feeds import Noise

SPEC = TensorSpec("x", (1, 3, 8, 8), "float32")
IMAGES = [Noise(11).feeds(number)["x"] for number in range(11)]


def arrays(shards: Any) -> list[np.ndarray]:
    return [feeds["x"] for shard in shards for _, feeds in shard.images(None)]


def test_a_feed_is_shared_out_in_order() -> None:
    feed = Noise(11)
    assert isinstance(feed, Feed)
    shards = list(from_feed(feed))
    assert [(shard.start, shard.end) for shard in shards] == [(0, 4), (4, 8), (8, 11)]
    assert feed.asked == []
    found = [image for shard in shards for image in shard.images(feed)]
    assert [name for name, _ in found] == [f"noise-{number}" for number in range(11)]
    np.testing.assert_array_equal([feeds["x"] for _, feeds in found], IMAGES)


def test_a_feed_can_be_gone_on_with() -> None:
    assert [shard.names[0] for shard in from_feed(Noise(11), 8)] == ["noise-8"]
    assert list(from_feed(Noise(11), 11)) == []


@pytest.mark.parametrize("size", [1, 2, 3, 8, 11])
def test_grouping_leaves_no_trace(size: int) -> None:
    batches = [np.concatenate(IMAGES[start : start + size]) for start in range(0, 11, size)]
    shards = list(from_batches(iter(batches), [SPEC]))
    assert [(shard.start, len(shard.names)) for shard in shards] == [(0, SHARD), (4, SHARD), (8, 3)]
    assert shards[2].names == ("image 8", "image 9", "image 10")
    np.testing.assert_array_equal(arrays(shards), IMAGES)


def test_arrays_are_copied_and_not_kept_longer_than_asked_for() -> None:
    given = []

    def reuse() -> Any:
        memory = np.empty((1, 3, 8, 8), np.float32)
        for image in IMAGES:
            given.append(1)
            memory[...] = image
            yield memory

    shards = from_batches(reuse(), [SPEC])
    first = next(shards)
    assert len(given) == SHARD
    np.testing.assert_array_equal(arrays([first]), IMAGES[:SHARD])


def test_several_inputs_come_as_mappings() -> None:
    specs = [TensorSpec("a", (2, 3), "float32"), TensorSpec("k", (), "float32")]
    (shard,) = from_batches([{"a": np.ones((2, 3), "f4"), "k": np.array(7, np.float32)}], specs)
    assert isinstance(shard, Shard)
    assert shard.arrays is not None
    assert {name: array.shape for name, array in shard.arrays[0].items()} == {"a": (2, 3), "k": ()}


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (np.zeros((1, 8, 8, 3), "f4"), r"it is float32\[1, 8, 8, 3\]; the model takes x float32\[1, 3, 8, 8\]"),
        (np.zeros((3, 8, 8), "f4"), r"it is float32\[3, 8, 8\]"),
        ({"y": np.zeros((1, 3, 8, 8), "f4")}, "nothing for input 'x', only y"),
    ],
)
def test_an_item_that_does_not_fit_is_named_by_number(item: Any, why: str) -> None:
    with pytest.raises(CalibrationError, match="item 1 of the images") as caught:
        list(from_batches([IMAGES[0], item], [SPEC]))
    assert re.search(why, caught.value.why)


def test_inputs_with_different_numbers_of_images_are_refused() -> None:
    specs = [TensorSpec(name, (1, 3), "float32") for name in "ab"]
    with pytest.raises(CalibrationError, match="item 0") as caught:
        list(from_batches([{"a": np.zeros((2, 3), "f4"), "b": np.zeros((3, 3), "f4")}], specs))
    assert "{'a': 2, 'b': 3}" in caught.value.why
    with pytest.raises(CalibrationError) as caught:
        list(from_batches([np.zeros((2, 3), "f4")], specs))
    assert "the model has 2 inputs" in caught.value.why
