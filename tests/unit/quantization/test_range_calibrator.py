"""Images in a fixed order, when more of them would not move the ranges, and the file from which a run goes on."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.errors import CalibrationError
from edgert.quantization.calibration import range_calibrator
from edgert.quantization.calibration.range_calibrator import (
    SHARD,
    Feed,
    Journal,
    Settling,
    Shard,
    Tally,
    fingerprint,
    from_feed,
    from_stream,
)
from edgert.quantization.calibration.value_histogram import Histogram
from tests.helpers.feeds import Noise, Order
from tests.unit.quantization.histograms import of


def tally(done: int = 8) -> Tally:
    return Tally(done, {"a": of(1, -2, 300)}, {"a": of(1)}, settled=True)


def interrupted(path: Path, key: str, kept: Tally) -> None:
    with pytest.raises(KeyboardInterrupt), Journal(path, key) as journal:
        journal.update(kept)
        raise KeyboardInterrupt


def test_an_interrupted_calibration_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "state"
    interrupted(path, "k", tally())
    found = Journal(path, "k").tally
    assert found == tally()
    assert [item.name for item in path.parent.iterdir()] == ["state"]


def test_a_finished_calibration_leaves_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path / "state", "k", tally())
    with Journal(tmp_path / "state", "k"):
        pass
    assert list(tmp_path.iterdir()) == []
    with Journal(tmp_path / "state", "k") as journal:  # nothing was there, nothing is left
        assert journal.tally == Tally()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_written_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    journal = Journal(path, "k")
    journal.update(tally())
    assert not path.exists()
    monkeypatch.setattr(range_calibrator, "_SAVE_S", -1.0)
    journal.update(tally())
    assert Journal(path, "k").tally == tally()


def test_another_key_starts_over_and_reports_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interrupted(tmp_path / "state", "k", tally())
    with caplog.at_level(logging.WARNING, "edgert.quantize"):
        assert Journal(tmp_path / "state", "other").tally == Tally()
    assert "another model, other images or other settings" in caplog.text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"kind": "accuracy"}', "\0\1"])
def test_another_file_starts_over(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state"
    path.write_text(text)
    with caplog.at_level(logging.WARNING, "edgert.quantize"):
        assert Journal(path, "k").tally == Tally()
    assert "started over" in caplog.text


def test_a_damaged_histogram_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    interrupted(path, "k", tally())
    path.write_text(json.dumps({**json.loads(path.read_text()), "counts": {"a": {}}}))
    with pytest.raises(CalibrationError, match="histogram is damaged"):
        Journal(path, "k")


def test_the_fingerprint_keeps_models_tensors_images_and_settings_apart() -> None:
    def digest(model: str = "m", tensors: tuple[str, ...] = ("a",), feed: object = None, method: str = "mse") -> str:
        return fingerprint(model, tensors, feed or Noise(9), {"method": method})  # type: ignore[arg-type]

    others = [
        digest("n"),
        digest(tensors=("b",)),
        digest(method="entropy"),
        digest(feed=Noise(10)),
        digest(feed=Noise(9, growth=0.1)),  # the same names, preprocessed otherwise
        digest(feed=Order(Noise(9), [0, 2, 1, 3, 4, 5, 6, 7, 8])),
    ]
    assert digest() == digest()
    assert len({digest(), *others}) == 7


def test_half_a_percent_is_the_limit() -> None:
    settling = Settling([("a",)], "minmax")
    assert settling.has_settled({"a": of(1.0)}, {"a": of(1.0)})
    assert settling.has_settled({"a": of(1.0)}, {"a": of(1.004)})
    assert not settling.has_settled({"a": of(1.0)}, {"a": of(1.006)})
    assert not settling.has_settled({"a": of(1.0)}, {"a": of(0.99)})


def test_every_range_must_have_settled() -> None:
    settling = Settling([("a",), ("b",)], "minmax")
    before = {"a": of(1.0), "b": of(1.0)}
    assert not settling.has_settled(before, {"a": of(1.0), "b": of(2.0)})
    assert not settling.has_settled(before, {"a": of(2.0), "b": of(1.0)})
    assert settling.has_settled(before, before)


def test_a_range_of_several_tensors_is_theirs_together() -> None:
    settling = Settling([("a", "b", "a")], "minmax")
    assert settling.has_settled({"a": of(1.0), "b": of(5.0)}, {"a": of(2.0), "b": of(5.0)})


def test_a_tensor_of_zeros_has_settled() -> None:
    assert Settling([("a",)], "mse").has_settled({"a": of(0.0)}, {"a": of(0.0)})


def test_thresholds_are_computed_once_and_no_more_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def counting(histogram: Histogram, method: str) -> float:
        asked.append(histogram.amax)
        return histogram.amax

    monkeypatch.setattr(range_calibrator, "threshold", counting)
    settling = Settling([("a",), ("b",), ("c",)], "mse")
    first = {"a": of(1), "b": of(2), "c": of(3)}
    second = {"a": of(1), "b": of(20), "c": of(3)}
    third = {"a": of(1), "b": of(20), "c": of(3)}
    assert not settling.has_settled(first, second)
    assert asked == [1, 1, 20, 2]
    asked.clear()
    assert settling.has_settled(second, third)
    assert asked == [20, 1, 3, 3]  # b moved last and goes first; what is known of `second` is not computed again


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
